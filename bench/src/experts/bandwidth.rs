//! How fast this machine reads memory: every thread sums its part of a buffer.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use crate::stats::median;

/// A buffer to be read, larger than most caches.
#[derive(Debug)]
pub struct Probe {
    words: Vec<u64>,
    threads: usize,
}

impl Probe {
    /// A buffer of `bytes`, read by `threads`.
    pub fn new(bytes: usize, threads: usize) -> Self {
        // Written, so that every page is there.
        let words = (0..bytes / size_of::<u64>()).map(|n| n as u64).collect();
        Self { words, threads: threads.max(1) }
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    /// Reads everything `rounds` times; gigabytes (10⁹) per second, median of the rounds.
    pub fn read_gb_s(&self, rounds: usize) -> f64 {
        let part = self.words.len().div_ceil(self.threads).max(1);
        median((0..rounds).map(|_| {
            let began = Instant::now();
            thread::scope(|scope| {
                for words in self.words.chunks(part) {
                    scope.spawn(move || black_box(sum(words)));
                }
            });
            self.bytes() as f64 / began.elapsed().as_secs_f64() / 1e9
        }))
    }
}

/// Independent lanes, so that additions do not wait for each other.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0_u64; LANES];
    let (whole, rest) = words.as_chunks::<LANES>();
    for words in whole {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().chain(rest).fold(0, |sum, word| sum.wrapping_add(*word))
}

const LANES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..1003).collect();
        assert_eq!(sum(&words), 1002 * 1003 / 2);
        let probe = Probe::new(8 * 1003, 3);
        assert_eq!(probe.bytes(), 8 * 1003);
        assert!(probe.read_gb_s(3) > 0.0);
    }
}
