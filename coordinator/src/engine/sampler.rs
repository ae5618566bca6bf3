//! Logits to the next token, on the host: bias and penalties, then greedy, or temperature,
//! top-k, min-p and top-p with a seed.

use std::collections::HashMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What to sample with. The defaults leave the distribution as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep only the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens that together reach this probability, `(0, 1]`.
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one, `[0, 1]`.
    pub min_p: f32,
    /// Divides positive logits, and multiplies negative ones, of every token of the prompt and the text so far; 1 does
    /// nothing (arXiv 1909.05858).
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token of the text so far.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time the text so far has it.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, before everything else.
    pub logit_bias: Vec<(u32, f32)>,
}

/// Which tokens may come next, by rules outside the model (a grammar, a schema).
pub trait Constraint: Send {
    /// Sets the logit of every token that may not come next to negative infinity.
    ///
    /// # Errors
    /// If the rules cannot be followed any more; the request then fails with the message.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes note of the chosen token; `true` once nothing more may come.
    ///
    /// # Errors
    /// As [`Self::mask`].
    fn accept(&mut self, id: u32) -> Result<bool, String>;
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

impl Sampling {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether anything changes the logits before a token is chosen.
    fn adjusts(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }
}

/// A seeded sampler: same seed, same logits, same tokens.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha8Rng,
    candidates: Vec<(f32, u32)>,
    /// Times each token occurs in the prompt, and in the text so far; kept only where a penalty needs them.
    seen: HashMap<u32, (u32, u32)>,
}

impl Sampler {
    /// A sampler that draws from `seed`, for a text that follows `prompt`.
    pub fn new(sampling: Sampling, seed: u64, prompt: &[u32]) -> Self {
        let mut seen: HashMap<u32, (u32, u32)> = HashMap::new();
        if sampling.adjusts() {
            prompt.iter().for_each(|&id| seen.entry(id).or_default().0 += 1);
        }
        Self { sampling, rng: ChaCha8Rng::seed_from_u64(seed), candidates: Vec::new(), seen }
    }

    /// Applies bias and penalties to `logits`, `[vocab]`.
    pub fn adjust(&self, logits: &mut [f32]) {
        for &(id, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        for (&id, &(_, times)) in &self.seen {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            let penalty = self.sampling.repetition_penalty;
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            if times > 0 {
                *logit -= self.sampling.presence_penalty + self.sampling.frequency_penalty * times as f32;
            }
        }
    }

    /// Takes note of a chosen token.
    pub fn accept(&mut self, id: u32) {
        if self.sampling.adjusts() {
            self.seen.entry(id).or_default().1 += 1;
        }
    }

    /// The next token for adjusted `logits`, `[vocab]`; one of negative infinity is never taken while another is not.
    /// Empty logits give 0.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        if self.sampling.temperature <= 0.0 {
            return argmax(logits);
        }
        self.candidates.clear();
        self.candidates
            .extend(logits.iter().copied().zip(0..).filter(|(logit, _)| *logit > f32::NEG_INFINITY));
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
        let mut sampler = Sampler::new(sampling, 7, &[]);
        (0..400).map(|_| sampler.sample(logits)).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_ignores_nan() {
        let mut sampler = Sampler::new(Sampling::greedy(), 0, &[]);
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
            let mut sampler = Sampler::new(Sampling::default(), seed, &[]);
            (0..20).map(|_| sampler.sample(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let mut sampler = Sampler::new(Sampling { temperature: 2.0, ..Sampling::default() }, 3, &[]);
        let ones = (0..4000).filter(|_| sampler.sample(&[0.0, 2.0]) == 1).count() as f32 / 4000.0;
        // sigmoid(2 / 2) = 0.731; five standard deviations are 0.035.
        assert!((ones - 0.731).abs() < 0.035, "{ones}");
    }

    #[test]
    fn penalties_follow_their_formulas() {
        let sampling = Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, -1.0), (9, 5.0)],
            ..Sampling::default()
        };
        let mut sampler = Sampler::new(sampling, 0, &[0, 0, 1]);
        sampler.accept(2);
        sampler.accept(2);
        let mut logits = [4.0, -4.0, 4.0, 4.0];
        sampler.adjust(&mut logits);
        // In the prompt: only repetition. In the text twice: also 0.5 + 2 · 0.25. Biased: -1.
        assert_eq!(logits, [2.0, -8.0, 1.0, 3.0]);
    }

    #[test]
    fn forbidden_tokens_are_never_drawn() {
        let logits = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        assert_eq!(drawn(Sampling { temperature: 5.0, ..Sampling::default() }, &logits), [1].into());
        assert_eq!(Sampler::new(Sampling::greedy(), 0, &[]).sample(&logits), 1);
    }
}
