//! Keys and values of one sequence: growing on full layers, a ring of the last window on sliding ones.

use laguna_shared::compute::cpu::attention::Visible;
use laguna_shared::config::ModelConfig;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, ops};

/// The cache of one sequence, all layers.
#[derive(Clone, Debug)]
pub struct SequenceCache {
    layers: Vec<LayerCache>,
    len: usize,
}

/// The sliding layers of a cache at one length: what is needed to come back to it.
///
/// Full layers need none: their keys stay where they are, and a shorter length forgets the rest.
#[derive(Clone, Debug)]
pub struct Rings {
    len: usize,
    rings: Vec<Option<Pair>>,
}

/// What new queries attend to: keys and values `[1, kv_heads, keys, head_dim]` and who sees what.
#[derive(Debug)]
pub(super) struct Attended {
    pub(super) keys: Array,
    pub(super) values: Array,
    pub(super) visible: Visible,
}

#[derive(Clone, Debug)]
enum LayerCache {
    Full(Option<Pair>),
    Sliding { window: usize, ring: Option<Pair> },
}

/// Buffers `[1, kv_heads, capacity, head_dim]`.
#[derive(Clone, Debug)]
struct Pair {
    keys: Array,
    values: Array,
}

impl SequenceCache {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let layer = |window: Option<usize>| match window {
            None => LayerCache::Full(None),
            Some(window) => LayerCache::Sliding { window, ring: None },
        };
        Self { layers: config.layers.iter().map(|l| layer(l.sliding_window)).collect(), len: 0 }
    }

    /// Tokens held so far.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been run yet.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of keys and values allocated.
    pub fn bytes(&self) -> u64 {
        self.layers
            .iter()
            .filter_map(|layer| match layer {
                LayerCache::Full(pair) | LayerCache::Sliding { ring: pair, .. } => pair.as_ref(),
            })
            .map(|pair| (pair.keys.nbytes() + pair.values.nbytes()) as u64)
            .sum()
    }

    /// Keeps what is needed to [`Self::rewind`] to the present length. Buffers are shared until either side writes.
    pub fn rings(&self) -> Rings {
        let rings = self.layers.iter().filter_map(|layer| match layer {
            LayerCache::Full(_) => None,
            LayerCache::Sliding { ring, .. } => Some(ring.clone()),
        });
        Rings { len: self.len, rings: rings.collect() }
    }

    /// Comes back to the length at which `rings` was kept. It must be of this sequence, or of one with the same tokens
    /// up to there.
    pub fn rewind(&mut self, rings: &Rings) {
        self.len = rings.len;
        let sliding = self.layers.iter_mut().filter_map(|layer| match layer {
            LayerCache::Full(_) => None,
            LayerCache::Sliding { ring, .. } => Some(ring),
        });
        sliding.zip(&rings.rings).for_each(|(ring, kept)| ring.clone_from(kept));
    }

    /// Adds a layer's new keys and values, `[1, kv_heads, tokens, head_dim]`, the first of which has position `at`, and
    /// returns what their queries see. A pass may come in parts, each at the end of the one before.
    pub(super) fn extend(
        &mut self,
        layer: usize,
        at: usize,
        keys: Array,
        values: Array,
    ) -> Result<Attended, Exception> {
        match &mut self.layers[layer] {
            LayerCache::Full(pair) => extend_full(pair, at, keys, values),
            LayerCache::Sliding { window, ring } => extend_sliding(ring, *window, at, keys, values),
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
        self.rings.iter().flatten().map(|pair| (pair.keys.nbytes() + pair.values.nbytes()) as u64).sum()
    }
}

fn extend_full(
    pair: &mut Option<Pair>,
    len: usize,
    keys: Array,
    values: Array,
) -> Result<Attended, Exception> {
    let tokens = keys.dim(2) as usize;
    let end = len + tokens;
    let pair = match pair {
        Some(pair) => {
            pair.reserve(end)?;
            pair
        }
        None => pair.insert(Pair::zeros(&keys, end.next_multiple_of(GROWTH))?),
    };
    pair.write(len, &keys, &values)?;
    let visible = if tokens == 1 { Visible::All } else { Visible::Causal };
    let (keys, values) = pair.read(0, end)?;
    Ok(Attended { keys, values, visible })
}

/// Token `t` lies at ring position `t % window`.
fn extend_sliding(
    ring: &mut Option<Pair>,
    window: usize,
    len: usize,
    keys: Array,
    values: Array,
) -> Result<Attended, Exception> {
    let tokens = keys.dim(2) as usize;
    let ring = match ring {
        Some(ring) => ring,
        None => ring.insert(Pair::zeros(&keys, window)?),
    };
    if tokens == 1 {
        ring.write(len % window, &keys, &values)?;
        // Positions are in the keys already, so the order within the ring does not matter.
        let (keys, values) = ring.read(0, window.min(len + 1))?;
        return Ok(Attended { keys, values, visible: Visible::All });
    }
    // The oldest new query still sees the `window - 1` tokens before it.
    let before = len.min(window - 1);
    let old = ring.read_wrapped(len - before, before, window)?;
    let attended = match old {
        None => Pair { keys: keys.clone(), values: values.clone() },
        Some(old) => Pair {
            keys: ops::concatenate(&[&old.keys, &keys], 2)?,
            values: ops::concatenate(&[&old.values, &values], 2)?,
        },
    };
    ring.write_wrapped(len, &keys, &values, window)?;
    let visible = if before + tokens <= window { Visible::Causal } else { Visible::Window(window) };
    Ok(Attended { keys: attended.keys, values: attended.values, visible })
}

impl Pair {
    /// Room for `capacity` tokens of the shape and type of `like`.
    fn zeros(like: &Array, capacity: usize) -> Result<Self, Exception> {
        let shape = [like.dim(0), like.dim(1), capacity as i32, like.dim(3)];
        let zeros = ops::zeros_dtype(&shape, like.dtype())?;
        Ok(Self { keys: zeros.clone(), values: zeros })
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), Exception> {
        let capacity = self.keys.dim(2) as usize;
        if tokens > capacity {
            let more = Self::zeros(&self.keys, tokens.next_multiple_of(GROWTH) - capacity)?;
            self.keys = ops::concatenate(&[&self.keys, &more.keys], 2)?;
            self.values = ops::concatenate(&[&self.values, &more.values], 2)?;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, keys: &Array, values: &Array) -> Result<(), Exception> {
        let (from, to) = (at as i32, at as i32 + keys.dim(2));
        self.keys.try_index_mut((.., .., from..to, ..), keys)?;
        self.values.try_index_mut((.., .., from..to, ..), values)
    }

    fn read(&self, from: usize, to: usize) -> Result<(Array, Array), Exception> {
        let range = from as i32..to as i32;
        Ok((self.keys.try_index((.., .., range.clone(), ..))?, self.values.try_index((.., .., range, ..))?))
    }

    /// Tokens `first..first + count` of a ring, oldest first.
    fn read_wrapped(&self, first: usize, count: usize, window: usize) -> Result<Option<Self>, Exception> {
        if count == 0 {
            return Ok(None);
        }
        let at = first % window;
        let head = count.min(window - at);
        let (keys, values) = self.read(at, at + head)?;
        if head == count {
            return Ok(Some(Self { keys, values }));
        }
        let (more_keys, more_values) = self.read(0, count - head)?;
        Ok(Some(Self {
            keys: ops::concatenate(&[keys, more_keys], 2)?,
            values: ops::concatenate(&[values, more_values], 2)?,
        }))
    }

    /// Writes the last `window` of the new tokens, the first of which has position `first`.
    fn write_wrapped(
        &mut self,
        first: usize,
        keys: &Array,
        values: &Array,
        window: usize,
    ) -> Result<(), Exception> {
        let tokens = keys.dim(2) as usize;
        let mut done = tokens.saturating_sub(window);
        while done < tokens {
            let at = (first + done) % window;
            let count = (tokens - done).min(window - at);
            let range = done as i32..(done + count) as i32;
            let part = |a: &Array| a.try_index((.., .., range.clone(), ..));
            self.write(at, &part(keys)?, &part(values)?)?;
            done += count;
        }
        Ok(())
    }
}

/// Tokens by which a full layer's buffers grow.
const GROWTH: usize = 256;
