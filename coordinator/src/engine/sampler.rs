//! Logits to the next token, on the host: greedy, or temperature, top-k, top-p and min-p with a seed.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What to sample with. The defaults leave the distribution as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep only the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens that together reach this probability, `(0, 1]`.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one, `[0, 1]`.
    pub min_p: f32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
}

/// A seeded sampler: same seed, same logits, same tokens.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    /// A sampler that draws from `seed`.
    pub fn new(sampling: Sampling, seed: u64) -> Self {
        Self { sampling, rng: ChaCha8Rng::seed_from_u64(seed), candidates: Vec::new() }
    }

    /// The next token for `logits`, `[vocab]`. Empty logits give 0.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature <= 0.0 {
            return argmax(logits);
        }
        self.candidates.clear();
        self.candidates.extend(logits.iter().copied().zip(0..).filter(|(logit, _)| !logit.is_nan()));
        if self.sampling.top_k > 0 && self.sampling.top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(self.sampling.top_k - 1, more_likely);
            self.candidates.truncate(self.sampling.top_k);
        }
        self.candidates.sort_unstable_by(more_likely);
        let Some(&(max, first)) = self.candidates.first() else { return 0 };

        let temperature = self.sampling.temperature;
        self.candidates.iter_mut().for_each(|(logit, _)| *logit = ((*logit - max) / temperature).exp());
        let kept = self.candidates.iter().take_while(|(p, _)| *p >= self.sampling.min_p).count().max(1);
        self.candidates.truncate(kept);
        let total: f32 = self.candidates.iter().map(|(p, _)| p).sum();
        let mut mass = 0.0;
        let nucleus = self.candidates.iter().position(|(p, _)| {
            mass += p / total;
            mass >= self.sampling.top_p
        });
        self.candidates.truncate(nucleus.map_or(kept, |last| last + 1));

        let total: f32 = self.candidates.iter().map(|(p, _)| p).sum();
        let mut draw = self.rng.random::<f32>() * total;
        for &(p, id) in &self.candidates {
            draw -= p;
            if draw < 0.0 {
                return id;
            }
        }
        // Rounding can leave a sliver past the last token.
        self.candidates.last().map_or(first, |&(_, id)| id)
    }
}

/// Index of the largest logit; the lowest one among equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (&logit, id) in logits.iter().zip(0..) {
        if logit > best.0 {
            best = (logit, id);
        }
    }
    best.1
}

fn more_likely(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(sampling: Sampling, logits: &[f32]) -> std::collections::BTreeSet<u32> {
        let mut sampler = Sampler::new(sampling, 7);
        (0..400).map(|_| sampler.sample(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_nan() {
        let mut sampler = Sampler::new(Sampling::GREEDY, 0);
        assert_eq!(sampler.sample(&[0.0, 3.0, f32::NAN, 3.0]), 1);
    }

    #[test]
    fn cuts_keep_what_they_say() {
        // Probabilities about 0.64, 0.24, 0.09, 0.03.
        let logits = [3.0, 2.0, 1.0, 0.0];
        assert_eq!(drawn(Sampling::default(), &logits).len(), 4);
        assert_eq!(drawn(Sampling { top_k: 2, ..Sampling::default() }, &logits), [0, 1].into());
        assert_eq!(drawn(Sampling { top_p: 0.7, ..Sampling::default() }, &logits), [0, 1].into());
        assert_eq!(drawn(Sampling { top_p: 0.6, ..Sampling::default() }, &logits), [0].into());
        // exp(-1) = 0.37, exp(-2) = 0.14 of the most likely.
        assert_eq!(drawn(Sampling { min_p: 0.2, ..Sampling::default() }, &logits), [0, 1].into());
    }

    #[test]
    fn same_seed_same_tokens() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin()).collect();
        let run = |seed| {
            let mut sampler = Sampler::new(Sampling::default(), seed);
            (0..20).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let mut sampler = Sampler::new(Sampling { temperature: 2.0, ..Sampling::default() }, 3);
        let ones = (0..4000).filter(|_| sampler.sample(&[0.0, 2.0]) == 1).count() as f32 / 4000.0;
        // sigmoid(2 / 2) = 0.731; five standard deviations are 0.035.
        assert!((ones - 0.731).abs() < 0.035, "{ones}");
    }
}
