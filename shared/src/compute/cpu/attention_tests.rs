//! Attention on every instruction set of this machine, against softmax and sums of its own in f64.

use std::ops::Range;

use super::attention::{Attention, Visible};
use super::{Heads, Isa, KeyValues, Pool};

/// From -1 to 1, the same in every run.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

struct Case {
    tokens: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    visible: Visible,
    sinks: bool,
    /// How far scores spread: large ones leave one key that counts.
    spread: f32,
    /// Elements between heads beyond a head's own; `None` if each row has all heads.
    gap: Option<usize>,
}

struct Data {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    sinks: Option<Vec<f32>>,
}

impl Case {
    fn data(&self) -> Data {
        let seed = (self.tokens * 31 + self.keys * 7 + self.heads) as u64;
        let len = self.kv_heads * (self.keys * self.head_dim + self.gap.unwrap_or(0));
        Data {
            queries: noise(self.tokens * self.heads * self.head_dim, seed)
                .iter()
                .map(|q| q * self.spread)
                .collect(),
            keys: noise(len, seed + 1),
            values: noise(len, seed + 2),
            sinks: self.sinks.then(|| noise(self.heads, seed + 3)),
        }
    }

    fn run(&self, isa: Isa, pool: &Pool, data: &Data) -> Vec<f32> {
        let mut cached = KeyValues::new(self.kv_heads, self.head_dim);
        self.extend(isa, &mut cached, data, 0..self.keys);
        self.attend(isa, pool, &cached, data)
    }

    /// Some of the keys and values into a cache.
    fn extend(&self, isa: Isa, cached: &mut KeyValues, data: &Data, tokens: Range<usize>) {
        let (strides, shape) = (self.strides(), [self.kv_heads, tokens.len(), self.head_dim]);
        let [keys, values] = [&data.keys, &data.values]
            .map(|of| Heads::new(&of[tokens.start * strides[1]..], shape, strides).unwrap());
        cached.extend(isa, tokens.start, keys, values);
    }

    fn attend(&self, isa: Isa, pool: &Pool, cached: &KeyValues, data: &Data) -> Vec<f32> {
        let attention = Attention {
            queries: Heads::new(
                &data.queries,
                [self.heads, self.tokens, self.head_dim],
                [self.head_dim, self.heads * self.head_dim],
            )
            .unwrap(),
            scale: self.scale(),
            cached,
            visible: self.visible,
            sinks: data.sinks.as_deref(),
        };
        let mut out = vec![f32::NAN; data.queries.len()];
        attention.run(isa, pool, &mut out);
        out
    }

    fn strides(&self) -> [usize; 2] {
        match self.gap {
            Some(gap) => [self.keys * self.head_dim + gap, self.head_dim],
            None => [self.head_dim, self.kv_heads * self.head_dim],
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn exact(&self, data: &Data) -> Vec<f64> {
        let ([head_stride, row_stride], head_dim) = (self.strides(), self.head_dim);
        let mut out = Vec::new();
        for token in 0..self.tokens {
            let position = self.keys - self.tokens + token;
            for head in 0..self.heads {
                let query = &data.queries[(token * self.heads + head) * head_dim..][..head_dim];
                let first = head / (self.heads / self.kv_heads) * head_stride;
                let sees = |key: usize| match self.visible {
                    Visible::All => true,
                    Visible::Causal => key <= position,
                    Visible::Window(window) => key <= position && position - key < window,
                };
                let keys: Vec<usize> = (0..self.keys).filter(|key| sees(*key)).collect();
                let score = |key: usize| {
                    let key = &data.keys[first + key * row_stride..][..head_dim];
                    let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    dot * f64::from(self.scale())
                };
                let sink = data.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let scores: Vec<f64> = keys.iter().map(|key| score(*key)).collect();
                let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
                for d in 0..head_dim {
                    let value = |key: usize| f64::from(data.values[first + key * row_stride + d]);
                    let sum: f64 =
                        keys.iter().zip(&scores).map(|(key, s)| (s - most).exp() * value(*key)).sum();
                    out.push(sum / total);
                }
            }
        }
        out
    }
}

fn cases() -> Vec<Case> {
    let case = |tokens, keys, heads, kv_heads, head_dim, visible| Case {
        tokens,
        keys,
        heads,
        kv_heads,
        head_dim,
        visible,
        sinks: false,
        spread: 2.0,
        gap: Some(0),
    };
    let window = Visible::Window;
    vec![
        case(1, 1, 1, 1, 16, Visible::All),
        case(1, 64, 6, 1, 128, Visible::All),
        case(1, 65, 16, 2, 128, Visible::All),
        case(1, 300, 8, 8, 64, Visible::Causal),
        case(7, 7, 4, 2, 32, Visible::Causal),
        case(33, 129, 12, 2, 128, Visible::Causal),
        case(100, 100, 6, 1, 48, Visible::Causal),
        // One token a task: 144 heads over one.
        case(3, 70, 144, 1, 16, Visible::Causal),
        case(50, 90, 8, 1, 64, window(20)),
        case(40, 200, 6, 2, 64, window(64)),
        case(5, 5, 2, 1, 32, window(2)),
        case(40, 40, 2, 1, 32, window(1)),
        Case { sinks: true, ..case(20, 84, 12, 2, 80, Visible::Causal) },
        Case { sinks: true, ..case(20, 84, 12, 2, 80, window(30)) },
        Case { spread: 200.0, ..case(9, 150, 4, 1, 64, Visible::Causal) },
        Case { spread: 0.0, ..case(9, 150, 4, 1, 64, Visible::Causal) },
        Case { gap: Some(777), ..case(30, 100, 8, 4, 64, Visible::Causal) },
        Case { gap: None, ..case(30, 100, 8, 4, 64, Visible::Causal) },
        Case { gap: None, ..case(3, 3, 16, 2, 32, Visible::Causal) },
        // More than a part of keys.
        case(1, 4097, 8, 1, 64, Visible::All),
        case(3, 9000, 6, 2, 32, Visible::Causal),
        Case { sinks: true, ..case(2, 8200, 6, 2, 32, window(5000)) },
        Case { sinks: true, spread: 20.0, ..case(30, 4110, 6, 1, 16, window(30)) },
    ]
}

#[test]
fn everything_is_exact_to_f32() {
    let pool = Pool::new(2);
    for (n, case) in cases().iter().enumerate() {
        let data = case.data();
        let exact = case.exact(&data);
        for isa in Isa::available() {
            let found = case.run(isa, &pool, &data);
            // Scores are up to `spread` times the root of head_dim, and as inexact as that in f32.
            let allowed = 1e-6 + 1e-6 * f64::from(case.spread);
            for (found, exact) in found.iter().zip(&exact) {
                let off = (f64::from(*found) - exact).abs();
                assert!(off <= allowed, "case {n} on {isa:?}: {found} for {exact}, off by {off:e}");
            }
        }
    }
}

#[test]
fn threads_and_company_change_no_bit() {
    let case = cases().remove(5);
    let data = case.data();
    for isa in Isa::available() {
        let one = case.run(isa, &Pool::new(1), &data);
        assert_eq!(one, case.run(isa, &Pool::new(3), &data), "{isa:?}");
        // The last token alone has the bits it has with the others.
        let row = case.heads * case.head_dim;
        let last = Data {
            queries: data.queries[(case.tokens - 1) * row..].to_vec(),
            keys: data.keys.clone(),
            values: data.values.clone(),
            sinks: None,
        };
        let alone = Case { tokens: 1, ..cases().remove(5) };
        assert_eq!(alone.run(isa, &Pool::new(1), &last), one[(case.tokens - 1) * row..], "{isa:?}");
    }
}

#[test]
fn the_last_token_has_its_bits_in_any_company() {
    let pool = Pool::new(2);
    for (keys, window, sinks) in
        [(300, None, true), (8300, None, false), (8300, Some(5000), true), (4110, Some(30), true)]
    {
        let visible = window.map_or(Visible::Causal, Visible::Window);
        let of = |tokens| Case {
            tokens,
            keys,
            heads: 12,
            kv_heads: 2,
            head_dim: 16,
            visible,
            sinks,
            ..cases().remove(4)
        };
        // Of 50 tokens a task has 21.
        let many = of(50);
        let (data, row) = (many.data(), 12 * 16);
        for isa in Isa::available() {
            let whole = many.run(isa, &pool, &data);
            for tokens in [1, 3] {
                let some = Data {
                    queries: data.queries[(50 - tokens) * row..].to_vec(),
                    keys: data.keys.clone(),
                    values: data.values.clone(),
                    sinks: data.sinks.clone(),
                };
                let alone = of(tokens).run(isa, &pool, &some);
                assert_eq!(alone, whole[(50 - tokens) * row..], "{isa:?}, {keys} keys, {window:?}");
            }
        }
    }
}

#[test]
fn pieces_and_forgotten_blocks_change_no_bit() {
    let pool = Pool::new(2);
    let case = Case { sinks: true, ..cases().remove(9) };
    let data = case.data();
    for isa in Isa::available() {
        let whole = case.run(isa, &pool, &data);
        let mut cached = KeyValues::new(case.kv_heads, case.head_dim);
        let mut at = 0;
        for size in [1, 30, 1, 40, 17, 64, 47].into_iter().cycle() {
            let end = case.keys.min(at + size);
            case.extend(isa, &mut cached, &data, at..end);
            at = end;
            if at == case.keys {
                break;
            }
        }
        assert_eq!(case.attend(isa, &pool, &cached, &data), whole, "{isa:?}");
        let blocks = cached.blocks().count();
        // The first query, of token 160, sees keys from 97 on.
        cached.forget_before(97);
        assert!(cached.blocks().count() < blocks);
        assert_eq!(case.attend(isa, &pool, &cached, &data), whole, "{isa:?}");
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    let case = &cases()[4];
    for part in 0..2 {
        let mut data = case.data();
        // The query of the fourth token's first head, or the fourth key of the first head.
        match part {
            0 => data.queries[3 * case.heads * case.head_dim] = f32::NAN,
            _ => data.keys[3 * case.head_dim] = f32::NAN,
        }
        for isa in Isa::available() {
            let out = case.run(isa, &Pool::new(1), &data);
            let of = |token: usize| &out[token * case.heads * case.head_dim..][..case.head_dim];
            assert!(of(3).iter().all(|x| x.is_nan()), "{isa:?}, part {part}");
            assert!(of(2).iter().all(|x| x.is_finite()), "{isa:?}, part {part}");
            assert_eq!(of(4).iter().all(|x| x.is_nan()), part == 1, "{isa:?}, part {part}");
        }
    }
}

#[test]
fn heads_end_where_the_values_do() {
    let values = [0.0; 100];
    assert!(Heads::new(&values, [2, 3, 16], [52, 16]).is_some());
    assert!(Heads::new(&values, [2, 3, 16], [53, 16]).is_none());
    assert!(Heads::new(&values, [2, 3, 16], [16, 34]).is_some());
    assert!(Heads::new(&values, [2, 3, 16], [16, 35]).is_none());
    assert!(Heads::new(&values, [0, 3, 16], [48, 16]).is_none());
    assert!(Heads::new(&values, [usize::MAX, 3, 16], [usize::MAX, 16]).is_none());
}
