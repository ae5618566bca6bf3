//! How fast this machine reads memory: every thread sums its part of a buffer.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use memmap2::MmapMut;

use crate::error::BenchError;
use crate::stats::median;

/// A buffer to be read, larger than most caches. On Linux in pages of 2 MB, so that it is memory that is measured.
#[derive(Debug)]
pub struct Probe {
    map: MmapMut,
    threads: usize,
}

impl Probe {
    /// A buffer of `bytes`, read by `threads`.
    ///
    /// # Errors
    /// If there is no such memory.
    pub fn new(bytes: usize, threads: usize) -> Result<Self, BenchError> {
        let mut map = MmapMut::map_anon(bytes.max(1)).map_err(BenchError::io("memory of the probe"))?;
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        // Written, so that every page is there.
        for (n, word) in map.as_chunks_mut().0.iter_mut().enumerate() {
            *word = n.to_ne_bytes();
        }
        Ok(Self { map, threads: threads.max(1) })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.map.len()
    }

    /// Reads everything `rounds` times; gigabytes (10⁹) per second, median of the rounds.
    pub fn read_gb_s(&self, rounds: usize) -> f64 {
        let words = self.map.as_chunks().0;
        let part = words.len().div_ceil(self.threads).max(1);
        median((0..rounds).map(|_| {
            let began = Instant::now();
            thread::scope(|scope| {
                for words in words.chunks(part) {
                    scope.spawn(move || black_box(sum(words)));
                }
            });
            self.bytes() as f64 / began.elapsed().as_secs_f64() / 1e9
        }))
    }
}

/// Independent lanes, so that additions do not wait for each other.
fn sum(words: &[[u8; 8]]) -> u64 {
    let mut lanes = [0_u64; LANES];
    let (whole, rest) = words.as_chunks::<LANES>();
    for words in whole {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    let rest = rest.iter().map(|word| u64::from_ne_bytes(*word));
    lanes.into_iter().chain(rest).fold(0, u64::wrapping_add)
}

const LANES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<[u8; 8]> = (0..1003_u64).map(u64::to_ne_bytes).collect();
        assert_eq!(sum(&words), 1002 * 1003 / 2);
        let probe = Probe::new(8 * 1003, 3).unwrap();
        assert_eq!(probe.bytes(), 8 * 1003);
        assert!(probe.read_gb_s(3) > 0.0);
    }
}
