//! Pseudo-random numbers by seed and name: quick, the same everywhere, good enough to stand for weights.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// Numbers that depend on the seed and the name, and on nothing else.
    pub fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(FNV_BASIS ^ seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME) // FNV-1a
        });
        Self(hash)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; slightly uneven for large bounds.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Uniform in `[-1, 1)`.
    pub fn signed(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    /// `count` different numbers below `bound`, in no order.
    ///
    /// # Panics
    /// If there are not that many.
    pub fn choose(&mut self, count: usize, bound: usize) -> Vec<usize> {
        assert!(count <= bound, "{count} different numbers below {bound}");
        let mut all: Vec<usize> = (0..bound).collect();
        for at in 0..count {
            let other = at + self.below(bound - at);
            all.swap(at, other);
        }
        all.truncate(count);
        all
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
