//! A reference folder: `expected/expected.safetensors`, and the extra cases of `expected/prompts.json`.

use std::path::{Path, PathBuf};

use laguna_shared::ids::ExpertId;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

/// One prompt's reference outputs; what the file does not have is absent.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Name in the file.
    pub key: String,
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// `[tokens, vocab]`.
    pub logits: Option<Vec<f32>>,
    /// `[sparse layers, tokens, k]`, ascending within a token.
    pub experts: Option<Vec<ExpertId>>,
    /// `[sparse layers, tokens, k]`.
    pub weights: Option<Vec<f32>>,
    /// Greedy continuation; end ids do not stop it.
    pub greedy_ids: Vec<u32>,
    /// `[steps, vocab]`.
    pub decode_logits: Option<Vec<f32>>,
}

/// Why a reference folder could not be read.
#[derive(Debug, thiserror::Error)]
#[error("reference {}: {message}", path.display())]
pub struct ExpectedError {
    path: PathBuf,
    message: String,
}

#[derive(Deserialize)]
struct ExtraCase {
    ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    stop_id: Option<u32>,
}

#[derive(Default, Deserialize)]
struct Extras {
    #[serde(default)]
    eos: Vec<ExtraCase>,
    #[serde(default)]
    end_to_end: Vec<ExtraCase>,
}

/// Reads every case of `dir` (a folder with `expected/` in it, or that folder itself), sorted by length then name.
///
/// # Errors
/// If a file is missing, or a tensor has another type or shape than the format says.
pub fn read_cases(dir: &Path, vocab: usize) -> Result<Vec<Case>, ExpectedError> {
    let folder = if dir.join(TENSORS).is_file() { dir.to_owned() } else { dir.join("expected") };
    let path = folder.join(TENSORS);
    let fail = |message: String| ExpectedError { path: path.clone(), message };
    let bytes = std::fs::read(&path).map_err(|e| fail(e.to_string()))?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|e| fail(e.to_string()))?;
    let mut cases = Vec::new();
    for name in tensors.names() {
        let Some(key) = name.strip_suffix(".input_ids") else { continue };
        cases.push(read_case(&tensors, key, vocab).map_err(fail)?);
    }
    cases.sort_by(|a, b| (a.input_ids.len(), &a.key).cmp(&(b.input_ids.len(), &b.key)));
    if cases.is_empty() {
        return Err(fail("no tensor is named KEY.input_ids".into()));
    }
    cases.extend(extra_cases(&folder.join("prompts.json"))?);
    Ok(cases)
}

fn read_case(tensors: &SafeTensors<'_>, key: &str, vocab: usize) -> Result<Case, String> {
    let ids = |name: &str| -> Result<Vec<u32>, String> {
        integers(tensors, &format!("{key}.{name}"))?
            .into_iter()
            .map(|id| u32::try_from(id).map_err(|_| format!("{key}.{name} holds {id}, which is no id")))
            .collect()
    };
    let floats = |name: &str, len: Option<usize>| -> Result<Option<Vec<f32>>, String> {
        let name = format!("{key}.{name}");
        let Ok(view) = tensors.tensor(&name) else { return Ok(None) };
        if view.dtype() != Dtype::F32 {
            return Err(format!("{name} is {:?}, expected F32", view.dtype()));
        }
        let values: Vec<f32> = bytemuck::allocation::pod_collect_to_vec(view.data());
        match len {
            Some(len) if len != values.len() => {
                Err(format!("{name} has {} elements ({:?}), expected {len}", values.len(), view.shape()))
            }
            _ => Ok(Some(values)),
        }
    };
    let input_ids = ids("input_ids")?;
    let greedy_ids = ids("greedy_ids")?;
    let experts = match tensors.tensor(&format!("{key}.topk_idx")) {
        Err(_) => None,
        Ok(_) => Some(
            integers(tensors, &format!("{key}.topk_idx"))?
                .into_iter()
                .map(|e| u16::try_from(e).map(ExpertId).map_err(|_| format!("{key}.topk_idx holds {e}")))
                .collect::<Result<Vec<_>, _>>()?,
        ),
    };
    Ok(Case {
        key: key.to_owned(),
        logits: floats("logits", Some(input_ids.len() * vocab))?,
        weights: floats("topk_weights", experts.as_ref().map(Vec::len))?,
        decode_logits: floats("decode_logits", Some(greedy_ids.len() * vocab))?,
        input_ids,
        experts,
        greedy_ids,
    })
}

fn integers(tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<i32>, String> {
    let view = tensors.tensor(name).map_err(|_| format!("no tensor {name}"))?;
    if view.dtype() != Dtype::I32 {
        return Err(format!("{name} is {:?}, expected I32", view.dtype()));
    }
    Ok(bytemuck::allocation::pod_collect_to_vec(view.data()))
}

fn extra_cases(path: &Path) -> Result<Vec<Case>, ExpectedError> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(Vec::new()) };
    // Other generators write a list here, whose cases are all in the tensors already.
    if text.trim_start().starts_with('[') {
        return Ok(Vec::new());
    }
    let extras: Extras = serde_json::from_str(&text)
        .map_err(|e| ExpectedError { path: path.to_owned(), message: e.to_string() })?;
    let named = |prefix: &str, case: ExtraCase| {
        let detail = case.kind.or_else(|| case.stop_id.map(|id| id.to_string())).unwrap_or_default();
        Case {
            key: format!("{prefix}-{detail}"),
            input_ids: case.ids,
            greedy_ids: case.greedy_ids,
            ..Case::default()
        }
    };
    let eos = extras.eos.into_iter().map(|c| named("eos", c));
    let cases: Vec<Case> = eos.chain(extras.end_to_end.into_iter().map(|c| named("text", c))).collect();
    Ok(cases)
}

const TENSORS: &str = "expected.safetensors";
