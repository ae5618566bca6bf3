//! The passes of [`super::passes`] as a safetensors file, tensors named as in a reference folder.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;

use super::passes::{run_decode, run_prefill};
use crate::experts::Experts;
use crate::model::{ForwardError, Model};

/// One prompt to run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Name that its tensors begin with.
    pub key: String,
    /// Token ids; at least one.
    pub input_ids: Vec<u32>,
    /// Greedy tokens to decode after it; end ids do not stop them.
    #[serde(default)]
    pub greedy: usize,
}

/// Why prompts could not be read, or outputs not written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct RecordError {
    path: PathBuf,
    message: String,
}

/// Tensors to write: name → (type, shape, little-endian bytes).
#[derive(Debug, Default)]
pub struct Recording {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

/// Reads a JSON list of prompts.
///
/// # Errors
/// If the file cannot be read or is not such a list, a key occurs twice, or a prompt is empty.
pub fn read_prompts(path: &Path) -> Result<Vec<Prompt>, RecordError> {
    let fail = |message: String| RecordError { path: path.to_owned(), message };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let prompts: Vec<Prompt> = serde_json::from_str(&text).map_err(|e| {
        fail(format!("{e}; expected a list like [{{\"key\": \"a\", \"input_ids\": [2, 17], \"greedy\": 8}}]"))
    })?;
    let mut keys = std::collections::BTreeSet::new();
    for prompt in &prompts {
        if !keys.insert(&prompt.key) {
            return Err(fail(format!("key {:?} occurs twice", prompt.key)));
        }
        if prompt.input_ids.is_empty() {
            return Err(fail(format!("prompt {:?} has no input_ids", prompt.key)));
        }
    }
    Ok(prompts)
}

impl Recording {
    /// Runs one prompt and keeps its outputs.
    ///
    /// # Errors
    /// See [`ForwardError`].
    pub fn run(
        &mut self,
        model: &Model,
        experts: &mut Experts,
        prompt: &Prompt,
        chunk: NonZeroUsize,
    ) -> Result<(), ForwardError> {
        let (tokens, vocab) = (prompt.input_ids.len(), model.config().vocab_size);
        let mut prefill = run_prefill(model, experts, &prompt.input_ids, chunk)?;
        let routing = [prefill.routing.len(), tokens, model.config().num_experts_per_tok];
        let ids: Vec<i32> = prefill.routing.iter().flat_map(|l| &l.experts).map(|e| i32::from(e.0)).collect();
        let weights: Vec<f32> = prefill.routing.iter().flat_map(|l| &l.weights).copied().collect();
        let input: Vec<i32> = prompt.input_ids.iter().map(|&id| id as i32).collect();
        let decode = run_decode(model, experts, &mut prefill, prompt.greedy, None)?;
        let greedy: Vec<i32> = decode.greedy_ids.iter().map(|&id| id as i32).collect();

        let mut add = |name: &str, dtype, shape: &[usize], bytes: &[u8]| {
            self.tensors.insert(format!("{}.{name}", prompt.key), (dtype, shape.to_vec(), bytes.to_vec()));
        };
        add("input_ids", Dtype::I32, &[tokens], bytemuck::cast_slice(&input));
        add("logits", Dtype::F32, &[tokens, vocab], bytemuck::cast_slice(&prefill.logits));
        add("topk_idx", Dtype::I32, &routing, bytemuck::cast_slice(&ids));
        add("topk_weights", Dtype::F32, &routing, bytemuck::cast_slice(&weights));
        add("greedy_ids", Dtype::I32, &[greedy.len()], bytemuck::cast_slice(&greedy));
        add("decode_logits", Dtype::F32, &[greedy.len(), vocab], bytemuck::cast_slice(&decode.logits));
        Ok(())
    }

    /// Writes the file: beside its place first, then renamed, so that a failure leaves nothing half-written. A link is
    /// followed, and a device or pipe is written to as it is.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn write(&self, path: &Path) -> Result<(), RecordError> {
        let fail = |message: String| RecordError { path: path.to_owned(), message };
        let views = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, bytes))| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
            .map_err(|e| fail(e.to_string()))?;
        let bytes = safetensors::serialize(views, None).map_err(|e| fail(e.to_string()))?;
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if std::fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
            return std::fs::write(&target, bytes).map_err(|e| fail(e.to_string()));
        }
        let mut partial = target.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, &target)).map_err(|e| {
            // Best effort: the error that matters is the one above.
            let _ = std::fs::remove_file(&partial);
            fail(e.to_string())
        })
    }
}
