//! Keys and values in MLX's arrays, for attention that MLX computes.

use laguna_shared::compute::cpu::attention::Visible;
use mlx_rs::error::Exception;
use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, ops};

/// What new queries attend to: keys and values `[1, kv_heads, keys, head_dim]` and who sees what.
#[derive(Debug)]
pub(in crate::model) struct Attended {
    pub(in crate::model) keys: Array,
    pub(in crate::model) values: Array,
    pub(in crate::model) visible: Visible,
}

/// One layer's.
#[derive(Clone, Debug)]
pub(in crate::model) enum ArrayCache {
    /// Every token.
    Full(Option<Pair>),
    /// The last `window` tokens, the query's own included.
    Sliding { window: usize, ring: Option<Pair> },
}

/// Buffers `[1, kv_heads, capacity, head_dim]`.
#[derive(Clone, Debug)]
pub(in crate::model) struct Pair {
    keys: Array,
    values: Array,
}

impl ArrayCache {
    pub(in crate::model) const fn new(window: Option<usize>) -> Self {
        match window {
            None => Self::Full(None),
            Some(window) => Self::Sliding { window, ring: None },
        }
    }

    /// Adds new keys and values, `[1, kv_heads, tokens, head_dim]`, the first of which has position `at`, and returns what
    /// their queries see. A pass may come in parts, each at the end of the one before.
    pub(in crate::model) fn extend(
        &mut self,
        at: usize,
        keys: Array,
        values: Array,
    ) -> Result<Attended, Exception> {
        match self {
            Self::Full(pair) => extend_full(pair, at, keys, values),
            Self::Sliding { window, ring } => extend_sliding(ring, *window, at, keys, values),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let (Self::Full(pair) | Self::Sliding { ring: pair, .. }) = self;
        pair.as_ref().map_or(0, Pair::bytes)
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
    pub(super) fn bytes(&self) -> u64 {
        (self.keys.nbytes() + self.values.nbytes()) as u64
    }

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
