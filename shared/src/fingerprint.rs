//! Which model, which weights: two digests that both ends of a link compare before any tensor moves. Must not know the
//! wire.
//!
//! [`ModelFingerprint`] covers what the configuration resolves to, so that spellings and defaults do not matter.
//! [`WeightDigest`] covers one shard's routed experts by *samples*: it reads 64 bytes of each part of each matrix, at a
//! place that depends on what the part is, and the global scales whole.
//!
//! The digest tells apart: another revision or another training run of the same shape, weights that were rotated,
//! requantised or rescaled (nearly every sampled window changes), experts or layers in another order, gate and up
//! exchanged, global scales left out or read by another rule. It does not depend on names, files, or whether experts
//! are stored one by one, stacked or fused. It does **not** detect damage to a few bytes outside the samples, nor a
//! forger who knows the places: it guards against mistakes, not against enemies.

use std::fmt::{self, Write as _};

use sha2::{Digest as _, Sha256};

use crate::{
    config::{ModelConfig, RopeConfig, RopeScaling},
    ids::ExpertRange,
    weights::{
        Checkpoint, CheckpointError, Inventory,
        inventory::{FloatType, MatrixFormat, MatrixSource, MlpSource, Slice},
        load,
    },
};

/// SHA-256 of the model's shape and numeric rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelFingerprint(pub [u8; 32]);

/// SHA-256 over samples of a shard's routed experts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WeightDigest(pub [u8; 32]);

impl ModelFingerprint {
    /// Digest of the resolved configuration.
    ///
    /// Left out, because one end alone decides them or they say how a checkpoint is stored: token ids, the longest
    /// context, the attention factor (it has an override), the quantisation table.
    pub fn of(config: &ModelConfig) -> Self {
        Self(Sha256::digest(canonical(config)).into())
    }
}

impl WeightDigest {
    /// Digest of the experts of `range` in every sparse layer.
    pub fn of(
        checkpoint: &Checkpoint,
        inventory: &Inventory,
        range: ExpertRange,
    ) -> Result<Self, CheckpointError> {
        let mut hash = Sha256::new();
        hash.update(format!("laguna experts {range}\n"));
        for (n, layer) in inventory.layers.iter().enumerate() {
            let MlpSource::Sparse(sparse) = &layer.mlp else { continue };
            for (e, expert) in range.experts().zip(sparse.experts.iter().skip(usize::from(range.start))) {
                for (name, matrix) in [("gate", &expert.gate), ("up", &expert.up), ("down", &expert.down)] {
                    let identity = format!(
                        "layer {n} expert {} {name} {} [{}, {}]",
                        e.0,
                        format_name(matrix.format),
                        matrix.rows,
                        matrix.cols
                    );
                    sample(checkpoint, matrix, &identity, &mut hash)?;
                }
            }
        }
        Ok(Self(hash.finalize().into()))
    }
}

impl fmt::Display for ModelFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for ModelFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelFingerprint({self})")
    }
}

impl fmt::Display for WeightDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for WeightDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightDigest({self})")
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn sample(
    checkpoint: &Checkpoint,
    matrix: &MatrixSource,
    identity: &str,
    hash: &mut Sha256,
) -> Result<(), CheckpointError> {
    let parts = [("weight", Some(matrix.weight)), ("scales", matrix.scales), ("biases", matrix.biases)];
    for (part, slice) in parts {
        let Some(slice) = slice else { continue };
        let identity = format!("{identity} {part} {}\n", slice.len);
        let mut window = [0; WINDOW];
        let window = &mut window[..WINDOW.min(usize::try_from(slice.len).unwrap_or(WINDOW))];
        let places = slice.len - window.len() as u64 + 1;
        let [a, b, c, d, e, f, g, h, ..] = Into::<[u8; 32]>::into(Sha256::digest(&identity));
        let place = u64::from_le_bytes([a, b, c, d, e, f, g, h]) % places;
        checkpoint.read(Slice { offset: slice.offset + place, len: window.len() as u64, ..slice }, window)?;
        hash.update(&identity);
        hash.update(&*window);
    }
    // As it is used, not as it is stored: rules differ, the product must not.
    hash.update(load::multiplier(checkpoint, matrix)?.to_le_bytes());
    Ok(())
}

fn format_name(format: MatrixFormat) -> String {
    let float = |float| match float {
        FloatType::F16 => "f16",
        FloatType::Bf16 => "bf16",
        FloatType::F32 => "f32",
    };
    match format {
        MatrixFormat::Plain(own) => float(own).to_owned(),
        MatrixFormat::Nvfp4 => "nvfp4".to_owned(),
        MatrixFormat::Affine { bits, group_size, scale_type } => {
            format!("affine{bits} group {group_size} {}", float(scale_type))
        }
    }
}

/// One line a fact; floats by their bits, so that no printing rule enters.
fn canonical(config: &ModelConfig) -> String {
    let mut text = String::from("laguna 1\n");
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}={value}");
    };
    line("vocab_size", config.vocab_size.to_string());
    line("hidden_size", config.hidden_size.to_string());
    line("head_dim", config.head_dim.to_string());
    line("num_key_value_heads", config.num_key_value_heads.to_string());
    line("rms_norm_eps", bits32(config.rms_norm_eps));
    line("tie_word_embeddings", config.tie_word_embeddings.to_string());
    line("gating", format!("{:?}", config.gating));
    line("attention_sinks", config.attention_sinks.to_string());
    line("intermediate_size", config.intermediate_size.to_string());
    line("num_experts", config.num_experts.to_string());
    line("num_experts_per_tok", config.num_experts_per_tok.to_string());
    line("moe_intermediate_size", config.moe_intermediate_size.to_string());
    line("shared_expert_intermediate_size", config.shared_expert_intermediate_size.to_string());
    line("router.score", format!("{:?}", config.router.score));
    line("router.logit_softcap", config.router.logit_softcap.map_or_else(|| "none".into(), bits32));
    line("router.norm_topk_prob", config.router.norm_topk_prob.to_string());
    line("routed_scaling_factor", bits32(config.routed_scaling_factor));
    for (n, layer) in config.layers.iter().enumerate() {
        line(&format!("layer {n} heads"), layer.num_attention_heads.to_string());
        line(
            &format!("layer {n} window"),
            layer.sliding_window.map_or_else(|| "none".into(), |window| window.to_string()),
        );
        line(&format!("layer {n} mlp"), format!("{:?}", layer.mlp));
        line(&format!("layer {n} rope"), rope(&layer.rope));
    }
    text
}

fn rope(rope: &RopeConfig) -> String {
    let scaling = match rope.scaling {
        RopeScaling::Default => "default".to_owned(),
        RopeScaling::Linear { factor } => format!("linear {}", bits64(factor)),
        RopeScaling::Yarn { factor, original_max_position_embeddings, beta_fast, beta_slow } => {
            let numbers = [factor, original_max_position_embeddings, beta_fast, beta_slow].map(bits64);
            format!("yarn {}", numbers.join(" "))
        }
    };
    format!("{} {} {scaling}", bits64(rope.theta), rope.rotary_dims)
}

fn bits32(x: f32) -> String {
    format!("{:08x}", x.to_bits())
}

fn bits64(x: f64) -> String {
    format!("{:016x}", x.to_bits())
}

/// Bytes sampled of each part: one disk sector holds it, and equal windows by chance are out of the question.
const WINDOW: usize = 64;

#[cfg(test)]
#[path = "fingerprint_tests.rs"]
mod tests;
