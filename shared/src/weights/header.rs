//! One safetensors header: 8 bytes of length, JSON, then data. Checked against the file before anything is believed.
//! Must not know what the tensors are for.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// Element type of a stored tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // the format's own names say it all
pub enum Dtype {
    BOOL,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    I64,
    U64,
    F64,
}

impl Dtype {
    /// Bytes per element.
    pub const fn size(self) -> u64 {
        match self {
            Self::BOOL | Self::U8 | Self::I8 | Self::F8_E4M3 | Self::F8_E5M2 | Self::F8_E8M0 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Name in a header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BOOL => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::F8_E4M3 => "F8_E4M3",
            Self::F8_E5M2 => "F8_E5M2",
            Self::F8_E8M0 => "F8_E8M0",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::I64 => "I64",
            Self::U64 => "U64",
            Self::F64 => "F64",
        }
    }

    fn named(name: &str) -> Option<Self> {
        use Dtype::*;
        [BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, I16, U16, F16, BF16, I32, U32, F32, I64, U64, F64]
            .into_iter()
            .find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderEntry {
    /// As stored.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Absolute offset in the file, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Bytes of JSON announced by a file's first 8 bytes, if a file of `file_len` bytes can hold them.
pub fn header_len(first: [u8; 8], file_len: u64) -> Result<u64, String> {
    let len = u64::from_le_bytes(first);
    if len > MAX_HEADER {
        return Err(format!("header of {len} bytes is above the limit of {MAX_HEADER}"));
    }
    if len.saturating_add(PREFIX) > file_len {
        return Err(format!("header of {len} bytes does not fit the file of {file_len} bytes"));
    }
    Ok(len)
}

/// The tensors that `json` declares, in stored order, each inside a file of `file_len` bytes.
pub fn parse_header(json: &[u8], file_len: u64) -> Result<Vec<HeaderEntry>, String> {
    let RawHeader(raw) = serde_json::from_slice(json).map_err(|e| format!("header is not valid: {e}"))?;
    let start = PREFIX + json.len() as u64;
    let data_len = file_len.saturating_sub(start);
    let mut names = HashSet::with_capacity(raw.len());
    let mut entries = Vec::with_capacity(raw.len());
    for (name, tensor) in raw {
        if !names.insert(name.clone()) {
            return Err(format!("tensor `{name}` is declared twice"));
        }
        entries.push(check(name, tensor, start, data_len)?);
    }
    refuse_overlap(&entries)?;
    Ok(entries)
}

fn check(name: String, tensor: RawTensor, start: u64, data_len: u64) -> Result<HeaderEntry, String> {
    let RawTensor { dtype, shape, data_offsets: (begin, end) } = tensor;
    let known = Dtype::named(&dtype).ok_or_else(|| format!("tensor `{name}` has unknown dtype {dtype}"))?;
    if begin > end || end > data_len {
        return Err(format!(
            "tensor `{name}` lies at {begin}..{end}, outside the file's {data_len} data bytes"
        ));
    }
    let bytes = shape.iter().try_fold(known.size(), |n, dim| n.checked_mul(*dim));
    if bytes != Some(end - begin) {
        let found = end - begin;
        return Err(format!("tensor `{name}` is {dtype} {shape:?} but has {found} bytes"));
    }
    let shape = shape
        .into_iter()
        .map(|dim| usize::try_from(dim).map_err(|_| format!("tensor `{name}` has dimension {dim}")))
        .collect::<Result<_, _>>()?;
    Ok(HeaderEntry { name, dtype: known, shape, offset: start + begin, len: end - begin })
}

fn refuse_overlap(entries: &[HeaderEntry]) -> Result<(), String> {
    let mut by_offset: Vec<_> = entries.iter().filter(|e| e.len > 0).collect();
    by_offset.sort_by_key(|e| e.offset);
    match by_offset.windows(2).find(|pair| pair[0].offset + pair[0].len > pair[1].offset) {
        Some(pair) => Err(format!("tensors `{}` and `{}` share bytes", pair[0].name, pair[1].name)),
        None => Ok(()),
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Entries in stored order; a map type would hide a name declared twice.
struct RawHeader(Vec<(String, RawTensor)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(RawHeader(entries))
    }
}

/// Bytes before the JSON.
pub const PREFIX: u64 = 8;
/// Bytes of JSON; the safetensors crate has the same limit. 36,096 expert matrices take about 20 MB.
const MAX_HEADER: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Dtype, header_len, parse_header};

    #[test]
    fn entries_keep_their_order_and_metadata_is_skipped() {
        let json = br#"{"z":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"a":"b"},
            "s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   "#;
        let start = 8 + json.len() as u64;
        let entries = parse_header(json, start + 16).unwrap();
        assert_eq!(entries[0].name, "z");
        assert_eq!((entries[0].dtype, entries[0].offset, entries[0].len), (Dtype::BF16, start + 4, 12));
        assert_eq!((entries[1].dtype, entries[1].offset, entries[1].len), (Dtype::F32, start, 4));
        assert!(parse_header(json, start + 15).is_err());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(
            first in any::<[u8; 8]>(),
            json in prop::collection::vec(any::<u8>(), 0..200),
            len in any::<u64>(),
        ) {
            let _ = header_len(first, len);
            let _ = parse_header(&json, len);
        }

        #[test]
        fn odd_numbers_never_panic(
            shape in prop::collection::vec(any::<u64>(), 0..4),
            (begin, end, len) in any::<(u64, u64, u64)>(),
            dtype in "U8|F32|F64|XX",
        ) {
            let json = serde_json::json!({ "t": { "dtype": dtype, "shape": shape, "data_offsets": [begin, end] } });
            if let Ok(entries) = parse_header(json.to_string().as_bytes(), len) {
                let entry = &entries[0];
                prop_assert!(entry.offset + entry.len <= len);
                let elements: u64 = entry.shape.iter().map(|dim| *dim as u64).product();
                prop_assert_eq!(elements * entry.dtype.size(), entry.len);
            }
        }

        #[test]
        fn spoilt_headers_never_panic(at in 0..90_usize, byte in any::<u8>(), len in 0..400_u64) {
            let mut json = br#"{"t":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
                "u":{"dtype":"U8","shape":[1],"data_offsets":[24,25]}}"#.to_vec();
            json[at] = byte;
            let _ = parse_header(&json, len);
        }
    }
}
