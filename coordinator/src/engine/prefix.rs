//! Keys and values of finished sequences, kept for requests that begin with the same tokens.
//!
//! A sliding layer's ring cannot be cut back, so each entry has *checkpoints*: lengths it can come back to. Tokens must
//! match exactly; a prompt's reasoning is part of its tokens, and so part of the key.

use std::collections::HashMap;

use tracing::debug;

use crate::model::cache::{Buffer, Rings, SequenceCache};

/// Sequences kept, within a byte budget that the caller enforces with [`PrefixCache::evict`].
#[derive(Debug, Default)]
pub struct PrefixCache {
    entries: Vec<Entry>,
    /// Counts requests; recency is measured in them.
    clock: u64,
    held: Held,
}

/// Memory of all entries; what several of them share, which is most of a conversation, counts once.
#[derive(Debug, Default)]
struct Held {
    /// By address: how many times it is held.
    shared: HashMap<usize, u32>,
    bytes: u64,
}

/// A sequence's cache with the lengths it can come back to.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Tokens whose keys and values are held.
    pub ids: Vec<u32>,
    /// The cache after `ids`.
    pub cache: SequenceCache,
    /// Ascending by length.
    pub checkpoints: Vec<Rings>,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    used: u64,
}

impl Held {
    fn add(&mut self, kept: &Kept) {
        for Buffer { address, bytes } in kept.buffers() {
            if let Some(address) = address {
                let holders = self.shared.entry(address).or_default();
                *holders += 1;
                if *holders > 1 {
                    continue;
                }
            }
            self.bytes += bytes;
        }
    }

    /// Of an entry that was added, and has not changed since.
    fn remove(&mut self, kept: &Kept) {
        for Buffer { address, bytes } in kept.buffers() {
            if let Some(address) = address {
                let Some(holders) = self.shared.get_mut(&address) else { continue };
                *holders -= 1;
                if *holders > 0 {
                    continue;
                }
                self.shared.remove(&address);
            }
            self.bytes -= bytes;
        }
    }
}

impl Kept {
    /// A sequence without tokens.
    pub const fn empty(cache: SequenceCache) -> Self {
        Self { ids: Vec::new(), cache, checkpoints: Vec::new() }
    }

    /// Makes the present length one to come back to.
    pub fn checkpoint(&mut self) {
        let here = self.cache.len();
        if self.checkpoints.last().is_none_or(|last| last.len() < here) {
            self.checkpoints.push(self.cache.rings());
            let lengths: Vec<usize> = self.checkpoints.iter().map(Rings::len).collect();
            if lengths.len() > MOST_CHECKPOINTS {
                self.checkpoints.remove(least_useful(&lengths));
            }
        }
    }

    /// Bytes of keys and values, checkpoints included.
    pub fn bytes(&self) -> u64 {
        self.cache.bytes() + self.checkpoint_bytes()
    }

    /// Bytes of the checkpoints; that of the present length is the cache's own memory.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.checkpoints.iter().filter(|rings| rings.len() < self.cache.len()).map(Rings::bytes).sum()
    }

    /// All memory held.
    fn buffers(&self) -> impl Iterator<Item = Buffer> {
        self.cache.buffers().chain(self.checkpoints.iter().flat_map(Rings::buffers))
    }

    /// Comes back to the longest checkpoint of at most `len` tokens; to nothing, if there is none.
    fn rewind(&mut self, len: usize) -> bool {
        self.checkpoints.retain(|checkpoint| checkpoint.len() <= len);
        let Some(checkpoint) = self.checkpoints.last() else { return false };
        self.cache.rewind(checkpoint);
        self.ids.truncate(checkpoint.len());
        true
    }
}

impl PrefixCache {
    /// The longest kept beginning of `prompt`, shorter than it by at least one token.
    ///
    /// A sequence that `prompt` goes on with is taken out of the cache; one that it only shares a beginning with stays.
    pub fn take(&mut self, prompt: &[u32]) -> Option<Kept> {
        self.clock += 1;
        let usable = |entry: &Entry| {
            let common = common_prefix(&entry.kept.ids, prompt).min(prompt.len().saturating_sub(1));
            entry.kept.checkpoints.iter().map(Rings::len).rev().find(|&len| len <= common)
        };
        let (index, len) = self
            .entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((index, usable(entry)?)))
            .max_by_key(|&(_, len)| len)?;
        self.log_divergence(index, prompt, len);
        let whole = self.entries[index].kept.ids.len() == len;
        let mut kept = if whole {
            self.remove(index)
        } else {
            self.entries[index].used = self.clock;
            self.entries[index].kept.clone()
        };
        kept.rewind(len).then_some(kept)
    }

    /// Keeps a sequence. Kept ones that it begins with are dropped: it serves whatever they could.
    pub fn keep(&mut self, mut kept: Kept) {
        kept.checkpoint();
        if kept.ids.is_empty() {
            return;
        }
        for index in (0..self.entries.len()).rev() {
            if kept.ids.starts_with(&self.entries[index].kept.ids) {
                self.remove(index);
            }
        }
        self.held.add(&kept);
        self.entries.push(Entry { kept, used: self.clock });
    }

    fn remove(&mut self, index: usize) -> Kept {
        let Entry { kept, .. } = self.entries.swap_remove(index);
        self.held.remove(&kept);
        kept
    }

    /// Bytes of keys and values held, shared ones once.
    pub const fn bytes(&self) -> u64 {
        self.held.bytes
    }

    /// Sequences held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops sequences until at most `bytes` are held: first those with the fewest tokens to run again, where every
    /// `HALF_LIFE` requests since its last use halve a sequence's tokens. So short side requests do not drive out a
    /// long session, and one that nobody goes on with does not stay for ever.
    pub fn evict(&mut self, bytes: u64) {
        while self.bytes() > bytes {
            let age = |entry: &Entry| (self.clock - entry.used) as f64;
            let worth = |entry: &Entry| entry.kept.ids.len() as f64 * (-age(entry) / HALF_LIFE).exp2();
            let worst = (0..self.entries.len())
                .min_by(|&a, &b| worth(&self.entries[a]).total_cmp(&worth(&self.entries[b])));
            let Some(worst) = worst else { break };
            let before = self.bytes();
            let kept = self.remove(worst);
            debug!("prefix cache: dropped {} tokens, {} bytes", kept.ids.len(), before - self.bytes());
        }
    }

    fn log_divergence(&self, index: usize, prompt: &[u32], len: usize) {
        let ids = &self.entries[index].kept.ids;
        let common = common_prefix(ids, prompt);
        debug!(
            "prefix cache: prompt of {} tokens shares {common} with a sequence of {}, {len} of them reused",
            prompt.len(),
            ids.len()
        );
    }
}

/// Of ascending lengths the one whose neighbours leave the smallest gap, for its distance from the end: so they become
/// sparser towards the beginning, where a prompt seldom changes. Never one of the last two, where prompts mostly differ.
fn least_useful(lengths: &[usize]) -> usize {
    let end = lengths.last().copied().unwrap_or_default();
    let gap = |n: usize| {
        let before = n.checked_sub(1).map_or(0, |before| lengths[before]);
        (lengths[n + 1] - before) as f64 / (end - lengths[n]) as f64
    };
    (0..lengths.len().saturating_sub(2)).min_by(|&a, &b| gap(a).total_cmp(&gap(b))).unwrap_or_default()
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Each holds the windows of all sliding layers: 170 MB of f32 for S 2.1.
const MOST_CHECKPOINTS: usize = 16;

/// In requests. An agent makes a handful of side requests between two turns.
const HALF_LIFE: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_few_and_sparser_towards_the_beginning() {
        let mut lengths: Vec<usize> = Vec::new();
        for end in (1..=128).map(|n| n * 2048) {
            lengths.push(end);
            if lengths.len() > MOST_CHECKPOINTS {
                lengths.remove(least_useful(&lengths));
            }
            assert!(lengths.is_sorted() && lengths.len() <= MOST_CHECKPOINTS);
            assert!(lengths.ends_with(&[end - 2048, end]) || end == 2048, "{lengths:?}");
            // Whoever changes a token runs at most this often again what is behind it.
            for pair in [&[0], &lengths[..]].concat().windows(2) {
                assert!(end - pair[0] <= 2 * (end - pair[1]) + 4096, "{pair:?} of {lengths:?}");
            }
        }
        assert_eq!(lengths.len(), MOST_CHECKPOINTS);
    }
}
