//! `generation_config.json`: which tokens end a turn and how the publisher samples.

use std::path::Path;

use super::{
    error::ConfigError,
    fields::{Fields, Issues},
    parse::{read_object, token_ids},
};

/// What the publisher recommends; `None` where the file is silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a turn; they add to those of `config.json`.
    pub eos_token_ids: Vec<u32>,
    /// Token that opens every sequence.
    pub bos_token_id: Option<u32>,
    /// Padding, never sampled.
    pub pad_token_id: Option<u32>,
    /// `false`: greedy unless a request says otherwise.
    pub do_sample: Option<bool>,
    /// Softmax temperature, 0 or more.
    pub temperature: Option<f64>,
    /// Nucleus mass, 0 to 1.
    pub top_p: Option<f64>,
    /// Highest-probability tokens kept; 0 keeps all.
    pub top_k: Option<usize>,
    /// Smallest probability kept, as a share of the largest.
    pub min_p: Option<f64>,
    /// Divisor (of positive logits) for tokens already there; 1 does nothing.
    pub repetition_penalty: Option<f64>,
    /// Tokens generated at most.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model directory; all silent if there is none.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        let path = dir.join("generation_config.json");
        if !path.exists() {
            return Ok(Self::default());
        }
        let object = read_object(&path)?;
        let (fields, mut issues) = (Fields::new("", &object), Issues::default());
        let count = |key, issues: &mut Issues| {
            fields.get(key).and_then(|found| issues.integer(&found, 0..=u32::MAX as usize))
        };
        let config = Self {
            eos_token_ids: token_ids(&fields, "eos_token_id", &mut issues),
            bos_token_id: token_ids(&fields, "bos_token_id", &mut issues).first().copied(),
            pad_token_id: token_ids(&fields, "pad_token_id", &mut issues).first().copied(),
            do_sample: fields.get("do_sample").map(|_| issues.flag(&fields, "do_sample", true)),
            temperature: issues.optional_number(&fields, "temperature", 0.0..=1e3),
            top_p: issues.optional_number(&fields, "top_p", 0.0..=1.0),
            top_k: count("top_k", &mut issues),
            min_p: issues.optional_number(&fields, "min_p", 0.0..=1.0),
            repetition_penalty: issues.optional_number(&fields, "repetition_penalty", 1e-3..=1e3),
            max_new_tokens: count("max_new_tokens", &mut issues),
        };
        if issues.0.is_empty() { Ok(config) } else { Err(ConfigError::Invalid { path, issues: issues.0 }) }
    }
}
