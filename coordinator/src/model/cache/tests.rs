//! The host cache against MLX's, element for element.

use laguna_shared::compute::cpu::Heads;
use laguna_shared::compute::mlx::array::append_f32;
use mlx_rs::Array;

use super::array::{ArrayCache, Attended};
use super::host::HostCache;
use super::{LayerCache, Rings, SequenceCache};

const HEADS: usize = 2;
const HEAD_DIM: usize = 16;

/// Numbers below some bound, the same in every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }

    /// `[HEADS, tokens, HEAD_DIM]`, hardly two of them alike.
    fn rows(&mut self, tokens: usize) -> Vec<f32> {
        (0..HEADS * tokens * HEAD_DIM).map(|_| self.below(1 << 24) as f32).collect()
    }
}

/// One sequence in a cache of each kind.
#[derive(Clone)]
struct Both {
    arrays: SequenceCache,
    host: SequenceCache,
}

impl Both {
    fn new(windows: &[Option<usize>]) -> Self {
        let array = |window: &Option<usize>| LayerCache::Array(ArrayCache::new(*window));
        let host = |window: &Option<usize>| LayerCache::Host(HostCache::new(*window, HEADS, HEAD_DIM));
        Self {
            arrays: SequenceCache::new(windows.iter().map(array)),
            host: SequenceCache::new(windows.iter().map(host)),
        }
    }

    /// A pass of some parts.
    fn extend(&mut self, windows: &[Option<usize>], parts: &[usize], noise: &mut Noise) {
        let mut at = self.arrays.len();
        for (n, &tokens) in (1..).zip(parts) {
            for (layer, window) in windows.iter().enumerate() {
                self.extend_layer(layer, *window, at, tokens, noise);
                if n == parts.len() {
                    self.host.host(layer).unwrap().advance(at + tokens);
                }
            }
            at += tokens;
        }
        let tokens = parts.iter().sum();
        self.arrays.advance(tokens);
        self.host.advance(tokens);
        assert_eq!(self.arrays.len(), self.host.len());
    }

    fn extend_layer(
        &mut self,
        layer: usize,
        window: Option<usize>,
        at: usize,
        tokens: usize,
        noise: &mut Noise,
    ) {
        let (keys, values) = (noise.rows(tokens), noise.rows(tokens));
        let shape = [HEADS, tokens, HEAD_DIM];
        let array = |of: &[f32]| Array::from_slice(of, &[1, HEADS as i32, tokens as i32, HEAD_DIM as i32]);
        let heads = |of| Heads::new(of, shape, [tokens * HEAD_DIM, HEAD_DIM]).unwrap();
        let Attended { keys: in_keys, values: in_values, .. } =
            self.arrays.array(layer).unwrap().extend(at, array(&keys), array(&values)).unwrap();
        let (cached, _) = self.host.host(layer).unwrap().extend(at, heads(&keys), heads(&values));
        assert_eq!(cached.len(), at + tokens);

        let rows = in_keys.dim(2) as usize;
        let [in_keys, in_values] = [in_keys, in_values].map(|array| {
            let mut host = Vec::new();
            append_f32(&array, &mut host).unwrap();
            host
        });
        let end = at + tokens;
        for row in 0..rows {
            let position = match window {
                // One token sees the ring as it lies.
                Some(window) if tokens == 1 => {
                    let last = end - 1;
                    last - (last % window + window - row) % window
                }
                _ => end - rows + row,
            };
            for head in 0..HEADS {
                let of = |host: &[f32]| host[(head * rows + row) * HEAD_DIM..][..HEAD_DIM].to_vec();
                let (key, value) = cached.token(head, position).expect("a token that a query sees");
                assert_eq!((key, value.to_vec()), (of(&in_keys), of(&in_values)), "{window:?}, {position}");
            }
        }
        let seen = match window {
            None => end,
            Some(window) if tokens == 1 => window.min(end),
            Some(window) => at.min(window - 1) + tokens,
        };
        assert_eq!(rows, seen, "all that a query sees");
    }
}

#[test]
fn host_memory_holds_what_arrays_hold() {
    let windows = [None, Some(1), Some(16), Some(64), Some(100)];
    // Below, at and above the windows and the blocks.
    let sizes = [1, 1, 1, 2, 15, 16, 17, 63, 64, 65, 99, 100, 101, 230];
    let mut noise = Noise(0x2545_f491_4f6c_dd1d);
    let mut both = Both::new(&windows);
    let mut kept: Vec<(Rings, Rings, Both)> = Vec::new();
    let (mut rewound, mut longest) = (0, 0);
    for _ in 0..120 {
        match noise.below(8) {
            0 => kept.push((both.arrays.rings(), both.host.rings(), both.clone())),
            // Back in the same cache: of the checkpoints, those before are still good.
            1 if !kept.is_empty() => {
                let at = noise.below(kept.len());
                kept.truncate(at + 1);
                both.arrays.rewind(&kept[at].0);
                both.host.rewind(&kept[at].1);
                rewound += 1;
            }
            // In a clone made then, which the writes since must not have reached.
            2 if !kept.is_empty() => {
                let at = noise.below(kept.len());
                kept.truncate(at + 1);
                both = kept[at].2.clone();
                rewound += 1;
            }
            _ => {
                let parts: Vec<usize> =
                    (0..1 + noise.below(2)).map(|_| sizes[noise.below(sizes.len())]).collect();
                both.extend(&windows, &parts, &mut noise);
            }
        }
        longest = longest.max(both.host.len());
    }
    assert!(rewound > 10 && longest > 500, "{rewound} times back, {longest} tokens");
}

#[test]
fn a_clone_is_shared_until_written_and_a_shorter_length_frees() {
    let windows = [None, Some(100)];
    let mut noise = Noise(7);
    let mut both = Both::new(&windows);
    both.extend(&windows, &[200], &mut noise);
    let (rings, bytes) = (both.host.rings(), both.host.bytes());
    let block = (64 * HEADS * HEAD_DIM * 2 * size_of::<f32>()) as u64;
    // Of 200 tokens a full layer has four blocks, and a window of 100 before the next token begins in the second.
    assert_eq!((bytes, rings.bytes()), (4 * block + 3 * block, 3 * block));
    both.extend(&windows, &[300], &mut noise);
    assert_eq!(both.host.bytes(), 8 * block + 2 * block, "tokens 401 to 499 lie in blocks 6 and 7");
    both.host.rewind(&rings);
    assert_eq!((both.host.len(), both.host.bytes()), (200, bytes));
}
