//! Keys and values of one sequence: growing on full layers, a ring of the last window on sliding ones.
//!
//! - `array`: in MLX's arrays
//! - `host`: in host memory, where attention is computed on the CPU

pub(super) mod array;
pub(super) mod host;

#[cfg(test)]
mod tests;

use laguna_shared::compute::cpu::KeyValues;
use mlx_rs::error::Exception;

use array::{ArrayCache, Pair};
use host::HostCache;

/// The cache of one sequence, all layers.
#[derive(Clone, Debug)]
pub struct SequenceCache {
    layers: Vec<LayerCache>,
    len: usize,
}

/// The sliding layers of a cache at one length: what is needed to come back to it.
///
/// Full layers need none: a shorter length forgets the rest of their keys.
#[derive(Clone, Debug)]
pub struct Rings {
    len: usize,
    rings: Vec<Ring>,
}

/// Memory that keys and values lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The same in clones that share it; `None` where that is not known.
    pub address: Option<usize>,
    /// Allocated.
    pub bytes: u64,
}

/// One layer's keys and values, where its attention is computed.
#[derive(Clone, Debug)]
pub(super) enum LayerCache {
    Array(ArrayCache),
    Host(HostCache),
}

/// A sliding layer's.
#[derive(Clone, Debug)]
enum Ring {
    Array(Option<Pair>),
    Host(KeyValues),
}

impl SequenceCache {
    /// An empty one of these layers, all without tokens.
    pub(super) fn new(layers: impl Iterator<Item = LayerCache>) -> Self {
        Self { layers: layers.collect(), len: 0 }
    }

    /// Tokens held so far.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been run yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of keys and values allocated, also where a clone shares them.
    pub fn bytes(&self) -> u64 {
        self.buffers().map(|buffer| buffer.bytes).sum()
    }

    /// All memory held.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        self.layers.iter().flat_map(LayerCache::buffers)
    }

    /// Keeps what is needed to [`Self::rewind`] to the present length. Buffers are shared until either side writes.
    pub fn rings(&self) -> Rings {
        Rings { len: self.len, rings: self.layers.iter().filter_map(LayerCache::ring).collect() }
    }

    /// Comes back to the length at which `rings` was kept. It must be of this sequence, or of one with the same tokens
    /// up to there.
    ///
    /// # Panics
    /// If the cache is shorter.
    pub fn rewind(&mut self, rings: &Rings) {
        assert!(rings.len <= self.len, "back to {} tokens from {}", rings.len, self.len);
        self.len = rings.len;
        let mut rings = rings.rings.iter();
        for layer in &mut self.layers {
            layer.rewind(self.len, &mut rings);
        }
    }

    /// A layer whose attention MLX computes.
    pub(super) fn array(&mut self, layer: usize) -> Result<&mut ArrayCache, Exception> {
        match self.layers.get_mut(layer) {
            Some(LayerCache::Array(cache)) => Ok(cache),
            _ => Err(Exception::custom(format!("layer {layer} has no keys in arrays"))),
        }
    }

    /// A layer whose attention is computed on the CPU.
    pub(super) fn host(&mut self, layer: usize) -> Result<&mut HostCache, Exception> {
        match self.layers.get_mut(layer) {
            Some(LayerCache::Host(cache)) => Ok(cache),
            _ => Err(Exception::custom(format!("layer {layer} has no keys in host memory"))),
        }
    }

    /// Called once all layers have been extended by `tokens`.
    pub(super) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

impl Rings {
    /// Tokens held when it was kept.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it was kept of an empty cache.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> u64 {
        self.buffers().map(|buffer| buffer.bytes).sum()
    }

    /// All memory held.
    pub fn buffers(&self) -> impl Iterator<Item = Buffer> {
        self.rings.iter().flat_map(|ring| match ring {
            Ring::Array(pair) => buffers(pair.as_ref().map(Pair::bytes), None),
            Ring::Host(cached) => buffers(None, Some(cached)),
        })
    }
}

impl LayerCache {
    fn buffers(&self) -> impl Iterator<Item = Buffer> {
        match self {
            Self::Array(cache) => buffers(Some(cache.bytes()), None),
            Self::Host(cache) => buffers(None, Some(&cache.cached)),
        }
    }

    /// What a full layer does not need.
    fn ring(&self) -> Option<Ring> {
        match self {
            Self::Array(ArrayCache::Sliding { ring, .. }) => Some(Ring::Array(ring.clone())),
            Self::Host(HostCache { window: Some(_), cached }) => Some(Ring::Host(cached.clone())),
            Self::Array(ArrayCache::Full(_)) | Self::Host(HostCache { window: None, .. }) => None,
        }
    }

    /// Takes the next ring if it is a sliding layer.
    fn rewind<'a>(&mut self, len: usize, rings: &mut impl Iterator<Item = &'a Ring>) {
        match self {
            Self::Array(ArrayCache::Full(_)) => {}
            Self::Host(HostCache { window: None, cached }) => cached.truncate(len),
            Self::Array(ArrayCache::Sliding { ring, .. }) => {
                if let Some(Ring::Array(kept)) = rings.next() {
                    ring.clone_from(kept);
                }
            }
            Self::Host(HostCache { window: Some(_), cached }) => {
                if let Some(Ring::Host(kept)) = rings.next() {
                    cached.clone_from(kept);
                }
            }
        }
    }
}

/// Those of arrays, which are not told apart, or of host memory.
fn buffers(arrays: Option<u64>, cached: Option<&KeyValues>) -> impl Iterator<Item = Buffer> {
    let arrays = arrays.into_iter().map(|bytes| Buffer { address: None, bytes });
    let blocks = cached.into_iter().flat_map(KeyValues::blocks);
    arrays.chain(blocks.map(|(address, bytes)| Buffer { address: Some(address), bytes }))
}
