//! Memory for weights that are made, not mapped: on Linux in pages of 2 MB, where the system gives them.
//!
//! A token reads every weight once, so with pages of 4 KB each 64 cache lines cost a walk through the page tables, and
//! in a virtual machine through two sets of them: a 4-bit trunk decoded 15 % slower on one thread, 24 % on two. Matrices
//! share blocks, since many are smaller than such a page.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};

/// A block with room left, shared by whoever asks next. Freed with the last of its parts.
static OPEN: Mutex<Open> = Mutex::new(Open { block: Weak::new(), used: 0 });

struct Open {
    block: Weak<MmapRaw>,
    used: usize,
}

/// A copy of `bytes` in large pages, and where it lies; `None` where that gains nothing, or no memory is left.
pub(super) fn copy(bytes: &[u8]) -> Option<(Arc<MmapRaw>, Range<usize>)> {
    if !cfg!(target_os = "linux") || bytes.len() < LEAST {
        return None;
    }
    let (block, range) = reserve(bytes.len()).ok()?;
    // SAFETY: the range lies in the block, and nobody else has it: each is given out once.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), block.as_mut_ptr().add(range.start), bytes.len())
    };
    Some((block, range))
}

/// So many bytes that nobody else was given. What is given back is not given out again: it is freed with its block.
fn reserve(len: usize) -> io::Result<(Arc<MmapRaw>, Range<usize>)> {
    if len > BLOCK / 2 {
        return Ok((Arc::new(map(len)?), 0..len));
    }
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let held = open.block.upgrade().filter(|block| block.len().saturating_sub(open.used) >= len);
    let (block, start) = match held {
        Some(block) => (block, open.used),
        None => {
            let block = Arc::new(map(BLOCK)?);
            open.block = Arc::downgrade(&block);
            (block, 0)
        }
    };
    open.used = (start + len).next_multiple_of(LINE);
    Ok((block, start..start + len))
}

fn map(len: usize) -> io::Result<MmapRaw> {
    let map = MmapRaw::from(MmapMut::map_anon(len)?);
    // A hint: without it the memory is as good, and slower.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Bytes of a block.
const BLOCK: usize = 64 << 20;

/// Bytes below which memory is the allocator's.
const LEAST: usize = 64 << 10;

/// Parts begin at cache lines.
const LINE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn parts_of_blocks_keep_their_bytes() {
        let made: Vec<Vec<u8>> =
            (1..40).map(|n| vec![n as u8; LEAST + 999 * n]).chain([vec![77; BLOCK + 1]]).collect();
        let kept: Vec<_> = made.iter().map(|bytes| copy(bytes).unwrap()).collect();
        for (bytes, (block, range)) in made.iter().zip(&kept) {
            assert!(range.start.is_multiple_of(LINE) && range.end <= block.len());
            // SAFETY: the range lies in the block, which is alive; nobody writes it.
            let found = unsafe { std::slice::from_raw_parts(block.as_ptr().add(range.start), range.len()) };
            assert_eq!(found, bytes);
        }
        let shared = kept.windows(2).any(|pair| Arc::ptr_eq(&pair[0].0, &pair[1].0));
        assert!(shared, "small parts share a block");
    }

    #[test]
    fn few_bytes_stay_with_the_allocator() {
        assert!(copy(&vec![1; LEAST - 1]).is_none());
    }
}
