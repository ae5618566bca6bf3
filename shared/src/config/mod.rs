//! What a checkpoint's `config.json` says, resolved: every default applied, every alias folded.
//!
//! - [`model`]: the result, [`ModelConfig`]
//! - [`rope`]: rotary embedding of a layer, and its frequencies
//! - `parse`: `config.json` → [`ModelConfig`]; its parts are `layers` (lists with an entry a layer), `rotary` (the
//!   rope schemas) and `quantization` (the MLX table), all over `fields` (typed reads that collect faults)
//! - [`generation`][]: `generation_config.json`
//! - [`error`]: what was wrong, with dotted path, value and expectation

pub mod error;
pub mod generation;
pub mod model;
pub mod rope;

mod fields;
mod layers;
mod parse;
mod quantization;
mod rotary;
#[cfg(test)]
mod tests;

pub use error::{ConfigError, ConfigIssue};
pub use generation::GenerationConfig;
pub use model::{
    Gating, LayerConfig, MlpKind, MlxMode, MlxQuantization, ModelConfig, Quantization, RouterConfig,
    RouterScore,
};
pub use parse::{AttentionFactor, ConfigOptions};
pub use rope::{RopeConfig, RopeScaling};
