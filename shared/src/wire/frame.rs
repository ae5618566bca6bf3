//! Length-prefixed frames over a byte stream. Owns the header, the kinds and their limits; knows no message.

use bytes::{BufMut, BytesMut};

use super::WireError;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// Coordinator to worker, first frame: [`super::Hello`].
    Hello = 1,
    /// Worker to coordinator, first frame: [`super::Welcome`].
    Welcome = 2,
    /// Worker to coordinator, first and last frame: [`super::Refusal`].
    Refusal = 3,
    /// Coordinator to worker: [`super::ExpertCall`].
    Call = 4,
    /// Worker to coordinator: [`super::ExpertReply`].
    Reply = 5,
    /// Worker to coordinator, instead of a reply: [`super::Failure`].
    Failure = 6,
}

impl FrameKind {
    /// Most payload bytes a frame of this kind may have.
    pub const fn limit(self) -> usize {
        match self {
            Self::Hello | Self::Welcome | Self::Refusal | Self::Failure => CONTROL_LIMIT,
            Self::Call | Self::Reply => ROWS_LIMIT,
        }
    }

    /// Name for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Welcome => "welcome",
            Self::Refusal => "refusal",
            Self::Call => "call",
            Self::Reply => "reply",
            Self::Failure => "failure",
        }
    }

    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Refusal,
            4 => Self::Call,
            5 => Self::Reply,
            6 => Self::Failure,
            _ => return None,
        })
    }
}

/// Appends a frame header and sets room aside for its payload, which the caller appends next: exactly `payload` bytes.
pub fn begin_frame(out: &mut BytesMut, kind: FrameKind, payload: usize) -> Result<(), WireError> {
    let limit = kind.limit();
    let too_long = || WireError::TooLong { kind: kind.name(), length: payload as u64, limit: limit as u64 };
    if payload > limit {
        return Err(too_long());
    }
    let length = u32::try_from(payload).map_err(|_| too_long())?;
    out.reserve(FRAME_HEADER + payload);
    out.put_u32_le(length);
    out.put_u8(kind as u8);
    out.put_slice(&[0; 3]);
    Ok(())
}

/// Payload of one frame, in memory aligned to 8 bytes. Keeps its memory from frame to frame.
#[derive(Clone, Debug, Default)]
pub struct FrameBuffer {
    words: Vec<u64>,
    len: usize,
}

impl FrameBuffer {
    /// The payload. Starts at an address divisible by 8.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends, growing at most to what has arrived, doubled.
    fn extend(&mut self, bytes: &[u8], expected: usize) {
        let end = self.len + bytes.len();
        if end > self.words.len() * WORD {
            let room = expected.min((end * 2).max(FIRST_ROOM)).max(end);
            self.words.resize(room.div_ceil(WORD), 0);
        }
        bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

/// Cuts a byte stream into frames, one at a time, whatever the split of the bytes.
///
/// Feed it with [`handle_bytes`](Self::handle_bytes), which stops at the end of a frame; take that frame with
/// [`poll_frame`](Self::poll_frame); feed the rest. After an error the stream has no meaning any more.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    header: [u8; FRAME_HEADER],
    header_len: usize,
    current: Option<(FrameKind, usize)>,
    body: FrameBuffer,
}

impl FrameDecoder {
    /// Takes bytes up to the end of the current frame. Returns how many were taken: 0 while a complete frame waits.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<usize, WireError> {
        let mut taken = 0;
        if self.current.is_none() {
            taken = bytes.len().min(FRAME_HEADER - self.header_len);
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            if self.header_len < FRAME_HEADER {
                return Ok(taken);
            }
            self.current = Some(parse_header(self.header)?);
            self.body.clear();
        }
        let Some((_, length)) = self.current else { return Ok(taken) };
        let rest = &bytes[taken..];
        let part = rest.len().min(length - self.body.len);
        self.body.extend(&rest[..part], length);
        Ok(taken + part)
    }

    /// The frame that is complete, swapped into `frame`, whose memory is used for the next one.
    pub fn poll_frame(&mut self, frame: &mut FrameBuffer) -> Option<FrameKind> {
        let (kind, length) = self.current?;
        if self.body.len < length {
            return None;
        }
        std::mem::swap(&mut self.body, frame);
        self.body.clear();
        self.current = None;
        self.header_len = 0;
        Some(kind)
    }

    /// Whether the stream may end here: no frame has begun.
    pub fn at_boundary(&self) -> bool {
        self.current.is_none() && self.header_len == 0
    }
}

fn parse_header(header: [u8; FRAME_HEADER]) -> Result<(FrameKind, usize), WireError> {
    let [a, b, c, d, kind, reserved @ ..] = header;
    let length = u32::from_le_bytes([a, b, c, d]);
    let kind = FrameKind::from_number(kind).ok_or(WireError::UnknownKind(kind))?;
    if reserved != [0; 3] {
        return Err(WireError::Reserved);
    }
    match usize::try_from(length) {
        Ok(bytes) if bytes <= kind.limit() => Ok((kind, bytes)),
        _ => Err(WireError::TooLong { kind: kind.name(), length: length.into(), limit: kind.limit() as u64 }),
    }
}

/// Bytes of a frame header: length, kind, three zeros. A multiple of the payload's alignment.
pub const FRAME_HEADER: usize = 8;

/// Payload bytes of a greeting or failure. A welcome that lists 1000 layers takes some 3 KB.
pub const CONTROL_LIMIT: usize = 16 * 1024;

/// Payload bytes of a call or reply: 4096 rows of 8192 f32. A prefill chunk of S 2.1 takes 3 to 6 MiB.
pub const ROWS_LIMIT: usize = 128 * 1024 * 1024 + 1024 * 1024;

const WORD: usize = size_of::<u64>();

/// Bytes set aside when a frame begins to arrive: one decode step's call or reply fits.
const FIRST_ROOM: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        begin_frame(&mut out, kind, payload.len()).unwrap();
        out.put_slice(payload);
        out.to_vec()
    }

    fn decode(chunks: &[&[u8]]) -> Result<Vec<(FrameKind, Vec<u8>)>, WireError> {
        let (mut decoder, mut frame, mut frames) =
            (FrameDecoder::default(), FrameBuffer::default(), Vec::new());
        for chunk in chunks {
            let mut rest = *chunk;
            loop {
                rest = &rest[decoder.handle_bytes(rest)?..];
                match decoder.poll_frame(&mut frame) {
                    Some(kind) => frames.push((kind, frame.as_bytes().to_vec())),
                    None if rest.is_empty() => break,
                    None => {}
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn every_split_gives_the_same_frames() {
        let mut stream = encode(FrameKind::Call, b"abcdefg");
        stream.extend(encode(FrameKind::Failure, b""));
        stream.extend(encode(FrameKind::Reply, b"hij"));
        let whole = decode(&[&stream]).unwrap();
        assert_eq!(whole.len(), 3);
        for at in 0..=stream.len() {
            let (head, tail) = stream.split_at(at);
            assert_eq!(decode(&[head, tail]).unwrap(), whole, "split at {at}");
        }
        let bytes: Vec<_> = stream.chunks(1).collect();
        assert_eq!(decode(&bytes).unwrap(), whole);
    }

    #[test]
    fn a_long_frame_is_refused_by_its_header_alone() {
        let mut header = ((CONTROL_LIMIT + 1) as u32).to_le_bytes().to_vec();
        header.extend([FrameKind::Hello as u8, 0, 0, 0]);
        let error = decode(&[&header]).unwrap_err();
        assert_eq!(error.to_string(), "hello frame of 16385 bytes exceeds the limit of 16384");
    }

    #[test]
    fn memory_follows_the_bytes_that_arrived_not_those_promised() {
        let mut decoder = FrameDecoder::default();
        let mut stream = (ROWS_LIMIT as u32).to_le_bytes().to_vec();
        stream.extend([FrameKind::Call as u8, 0, 0, 0]);
        stream.extend([7; 100]);
        decoder.handle_bytes(&stream).unwrap();
        assert!(decoder.body.words.capacity() * WORD <= 2 * FIRST_ROOM);
    }

    #[test]
    fn unknown_kinds_and_reserved_bytes_are_refused() {
        assert_eq!(decode(&[&[0, 0, 0, 0, 77, 0, 0, 0]]), Err(WireError::UnknownKind(77)));
        assert_eq!(decode(&[&[0, 0, 0, 0, 1, 0, 9, 0]]), Err(WireError::Reserved));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let _ = decode(&chunks);
        }

        #[test]
        fn frames_round_trip(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..5),
            size in 1_usize..50,
        ) {
            let stream: Vec<u8> = payloads.iter().flat_map(|p| encode(FrameKind::Reply, p)).collect();
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            let frames: Vec<Vec<u8>> = decode(&chunks).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
            prop_assert_eq!(frames, payloads);
        }
    }
}
