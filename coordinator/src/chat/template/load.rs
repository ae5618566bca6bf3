//! Finds the checkpoint's own template, and the token strings it may print.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{TemplateError, source};
use crate::chat::marker::ControlTokens;

/// The files' contents, before anything is compiled.
pub(super) struct Sources {
    /// The template for every conversation, and where it came from.
    pub(super) default: Named,
    /// The template for conversations with tools, if the checkpoint has a second one.
    pub(super) tool_use: Option<Named>,
    /// `bos_token` and its like, by variable name.
    pub(super) token_strings: Map<String, Value>,
    /// Every spelling that is one token.
    pub(super) tokens: ControlTokens,
}

/// A template's text and where it came from.
pub(super) struct Named {
    pub(super) origin: String,
    pub(super) text: String,
}

impl Sources {
    /// Reads `dir`. `chat_template.jinja` goes before `tokenizer_config.json`, as in transformers.
    pub(super) fn read(dir: &Path) -> Result<Self, TemplateError> {
        let config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
        let mut token_strings = Map::new();
        for name in TOKEN_NAMES {
            if let Some(text) = token_text(config.get(name)).or_else(|| token_text(map.get(name))) {
                token_strings.insert(name.to_owned(), Value::from(text));
            }
        }

        let sidecar = dir.join(SIDECAR);
        let (default, tool_use) = match read_text(&sidecar)? {
            Some(text) => (Some(text), None),
            None => from_config(&config, dir)?,
        };
        let origin = |name: &str| dir.join(name).display().to_string();
        let named = |text, origin| Ok::<_, TemplateError>(Named { text: follow_stub(text, dir)?, origin });
        let place = if sidecar.exists() { SIDECAR } else { "tokenizer_config.json" };
        let default = default.ok_or_else(|| TemplateError::Missing { dir: dir.to_owned() })?;
        Ok(Self {
            default: named(default, origin(place))?,
            tool_use: tool_use
                .map(|text| named(text, format!("{} (tool_use)", origin(place))))
                .transpose()?,
            token_strings,
            tokens: ControlTokens::new(added_tokens(dir, &config)?),
        })
    }
}

/// A file that a template includes: its text, if it is a plain name in `dir`.
pub(super) fn included(dir: &Path, name: &str) -> Result<Option<String>, TemplateError> {
    let plain = Path::new(name).file_name().is_some_and(|file| file == name);
    if plain { read_text(&dir.join(name)) } else { Ok(None) }
}

/// `chat_template` of tokenizer_config.json: one text, or a list of named ones.
fn from_config(
    config: &Map<String, Value>,
    dir: &Path,
) -> Result<(Option<String>, Option<String>), TemplateError> {
    let unreadable =
        |message: String| TemplateError::Unreadable { path: dir.join("tokenizer_config.json"), message };
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::String(text)) => Ok((Some(text.clone()), None)),
        Some(Value::Array(list)) => {
            let mut named = BTreeMap::new();
            for (index, item) in list.iter().enumerate() {
                let field = |name| item.get(name).and_then(Value::as_str);
                match (field("name"), field("template")) {
                    (Some(name), Some(template)) => named.insert(name, template),
                    _ => {
                        return Err(unreadable(format!(
                            "chat_template[{index}]: expected {{name, template}}"
                        )));
                    }
                };
            }
            let default = named.get("default").ok_or_else(|| {
                let names: Vec<&str> = named.keys().copied().collect();
                unreadable(format!("chat_template: none is named \"default\", only {names:?}"))
            })?;
            Ok((Some((*default).to_owned()), named.get("tool_use").map(|text| (*text).to_owned())))
        }
        Some(_) => Err(unreadable("chat_template: expected text or a list of {name, template}".to_owned())),
    }
}

/// `text`, or the file it includes if including is all it does.
fn follow_stub(text: String, dir: &Path) -> Result<String, TemplateError> {
    let Some(name) = source::include_stub(&text) else { return Ok(text) };
    included(dir, &name)?.ok_or_else(|| TemplateError::IncludeMissing { dir: dir.to_owned(), name })
}

/// Spellings of the tokenizer's added tokens: from tokenizer.json, else from tokenizer_config.json.
fn added_tokens(dir: &Path, config: &Map<String, Value>) -> Result<Vec<String>, TemplateError> {
    #[derive(Deserialize)]
    struct Tokenizer {
        #[serde(default)]
        added_tokens: Vec<Added>,
    }
    #[derive(Deserialize)]
    struct Added {
        content: String,
    }
    let path = dir.join("tokenizer.json");
    if let Some(text) = read_text(&path)? {
        let read = serde_json::from_str::<Tokenizer>(&text);
        let read = read.map_err(|error| TemplateError::Unreadable { path, message: error.to_string() })?;
        return Ok(read.added_tokens.into_iter().map(|token| token.content).collect());
    }
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
    Ok(decoder
        .into_iter()
        .flat_map(|tokens| tokens.values())
        .filter_map(|token| token_text(Some(token)))
        .collect())
}

/// A token's spelling: text, or an object that has it as `content`.
fn token_text(token: Option<&Value>) -> Option<String> {
    let text = match token? {
        Value::Object(fields) => fields.get("content")?,
        other => other,
    };
    text.as_str().map(str::to_owned)
}

fn read_json(path: &Path) -> Result<Option<Map<String, Value>>, TemplateError> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    let unreadable = |error: serde_json::Error| TemplateError::Unreadable {
        path: path.to_owned(),
        message: error.to_string(),
    };
    serde_json::from_str(&text).map(Some).map_err(unreadable)
}

/// A file's text; none if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, TemplateError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(TemplateError::Unreadable { path: path.to_owned(), message: error.to_string() }),
    }
}

/// The template's file, as transformers has saved it since 2025.
const SIDECAR: &str = "chat_template.jinja";
/// Variables that transformers gives to templates, where the tokenizer has such a token.
const TOKEN_NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
