//! Bytes of weights that are used where they lie: in a mapped file, or in memory of their own (`memory`).
//!
//! A map is the file. Whoever cuts or rewrites a checkpoint's file while a program runs on it changes the weights, or
//! ends the program (SIGBUS); replace files by renaming, as every downloader does. What can be checked is: a file that
//! is too short for its header, or has changed its length since it was opened, is an error.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::memory;

/// A file in memory.
#[derive(Clone, Debug)]
pub(super) struct FileMap(Arc<MmapRaw>);

/// Bytes that a matrix reads.
#[derive(Clone)]
pub enum WeightBytes {
    /// Of the allocator's memory.
    Owned(Arc<Vec<u8>>),
    /// A part of a mapped file, or of a block of large pages.
    Mapped(MappedBytes),
}

/// A part of a map that nobody writes; keeps the map alive.
#[derive(Clone)]
pub struct MappedBytes {
    map: Arc<MmapRaw>,
    /// Inside the map.
    range: Range<usize>,
}

impl FileMap {
    /// Maps the first `len` bytes of a file, which must have exactly that many.
    pub(super) fn open(file: &File, len: u64) -> io::Result<Self> {
        let now = file.metadata()?.len();
        if now != len {
            return Err(io::Error::other(format!("{now} bytes long, but it had {len} when it was opened")));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let map = MmapOptions::new().len(len).map_raw_read_only(file)?;
        // A hint: what is read from disk from now on comes in pages of 2 MB, where file system and kernel can.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        Ok(Self(Arc::new(map)))
    }

    /// The bytes of `range`, if the file has them.
    pub(super) fn part(&self, range: Range<usize>) -> Option<MappedBytes> {
        (range.start <= range.end && range.end <= self.0.len())
            .then(|| MappedBytes { map: Arc::clone(&self.0), range })
    }

    /// Asks the disk for `range`, without waiting. On Linux [`populate`](Self::populate) reads ahead by itself, and in
    /// larger pages than what is asked for here gets.
    pub(super) fn ask_for(&self, range: Range<usize>) {
        // A hint: what it says of itself does not matter.
        #[cfg(not(target_os = "linux"))]
        let _ = self.0.advise_range(Advice::WillNeed, range.start, range.len());
        #[cfg(target_os = "linux")]
        let _ = range;
    }

    /// Reads `range` from disk, unless it is in memory, and enters its pages.
    pub(super) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        let Some(bytes) = self.part(range.clone()) else {
            return Err(io::Error::other(format!("no bytes {range:?} in a map of {}", self.0.len())));
        };
        #[cfg(target_os = "linux")]
        match self.0.advise_range(Advice::PopulateRead, range.start, range.len()) {
            Ok(()) => return Ok(()),
            // Before Linux 5.14 it is unknown.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
            Err(e) => return Err(e),
        }
        let touched = bytes.iter().step_by(PAGE).fold(0_u8, |all, byte| all ^ byte);
        std::hint::black_box(touched);
        Ok(())
    }
}

impl Default for WeightBytes {
    fn default() -> Self {
        Self::Owned(Arc::default())
    }
}

impl From<Vec<u8>> for WeightBytes {
    fn from(bytes: Vec<u8>) -> Self {
        match memory::copy(&bytes) {
            Some((map, range)) => Self::Mapped(MappedBytes { map, range }),
            None => Self::Owned(Arc::new(bytes)),
        }
    }
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Mapped(mapped) => mapped,
        }
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the map, which lives as long as this. Nobody writes a checkpoint that is in use (see
        // above), and a block's parts are written before anyone has them.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.range.start), self.range.len()) }
    }
}

impl fmt::Debug for WeightBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self {
            Self::Owned(_) => "owned",
            Self::Mapped(_) => "mapped",
        };
        write!(f, "{} {place} bytes", self.len())
    }
}

impl fmt::Debug for MappedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {:?} of a map", self.range)
    }
}

/// The smallest page of any system.
const PAGE: usize = 4096;
