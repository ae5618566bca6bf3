//! Bytes on their way out, in memory that is used again once the transport has let go of it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Where one end of a link writes its frames.
///
/// A transport keeps what it sent until the other end has acknowledged it, some calls later. So blocks go round: the
/// oldest is written again as soon as nothing of it is held any more.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    current: BytesMut,
    /// Blocks that are full, oldest first; parts of them may be on their way still.
    full: VecDeque<BytesMut>,
}

impl Outbox {
    /// Where to append a frame of about `bytes`.
    pub(super) fn buffer(&mut self, bytes: usize) -> &mut BytesMut {
        let room = self.current.capacity() - self.current.len();
        // What waits in the block already must stay before what comes now.
        if room < bytes && self.current.is_empty() {
            self.turn_over(bytes);
        }
        &mut self.current
    }

    /// Everything appended since the last time.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        if self.current.is_empty() { None } else { Some(self.current.split().freeze()) }
    }

    pub(super) fn clear(&mut self) {
        self.current.clear();
    }

    fn turn_over(&mut self, bytes: usize) {
        let full = std::mem::take(&mut self.current);
        if full.capacity() > 0 || !self.full.is_empty() {
            self.full.push_back(full);
        }
        let free = self.full.iter_mut().position(|block| block.try_reclaim(bytes));
        self.current = match free.and_then(|at| self.full.remove(at)) {
            Some(block) => block,
            None => BytesMut::with_capacity(bytes.max(BLOCK)),
        };
        if self.full.len() > MOST {
            self.full.pop_front();
        }
    }
}

/// Bytes of a block: replies of twenty decode steps.
const BLOCK: usize = 256 * 1024;

/// Full blocks kept.
const MOST: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(outbox: &mut Outbox, byte: u8, len: usize) -> Bytes {
        outbox.buffer(len).extend_from_slice(&vec![byte; len]);
        outbox.take().unwrap()
    }

    #[test]
    fn what_is_held_is_never_written_over_and_what_is_not_is_used_again() {
        let mut outbox = Outbox::default();
        let mut held = VecDeque::new();
        let mut blocks = std::collections::BTreeSet::new();
        for n in 0..400_usize {
            let len = if n % 50 == 49 { 2 * BLOCK } else { 10_000 };
            let bytes = write(&mut outbox, n as u8, len);
            blocks.insert(bytes.as_ptr() as usize / BLOCK);
            held.push_back((n as u8, bytes));
            if held.len() > 8 {
                held.pop_front();
            }
            assert!(held.iter().all(|(byte, bytes)| bytes.iter().all(|other| other == byte)));
        }
        // Ten thousand times 400 would be some 20 blocks, and 8 large ones.
        assert!(blocks.len() < 12, "{}", blocks.len());
        assert!(outbox.full.len() <= MOST);
    }

    #[test]
    fn frames_that_were_not_taken_stay_together() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.take(), None);
        outbox.buffer(3).extend_from_slice(b"one");
        outbox.buffer(2 * BLOCK).extend_from_slice(b"two");
        assert_eq!(&outbox.take().unwrap()[..], b"onetwo");
        outbox.buffer(3).extend_from_slice(b"no");
        outbox.clear();
        assert_eq!(outbox.take(), None);
    }
}
