//! The checkpoint's `tokenizer.json`, as the engine uses it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::chat::Rendered;

/// Why text could not become ids, or ids text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// No tokenizer, or not one this library reads.
    #[error("{}: {message}; a checkpoint folder needs the tokenizer.json it was published with", path.display())]
    Unreadable {
        /// File looked for.
        path: PathBuf,
        /// What the library said.
        message: String,
    },
    /// The library failed on this text or these ids.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The tokenizer knows ids that the model does not.
    #[error(
        "prompt token {id} is outside the model's vocabulary of {vocab_size}; tokenizer and weights do not match"
    )]
    OutsideVocabulary {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
}

/// A tokenizer and the token that opens every sequence.
#[derive(Debug)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// The same without added tokens: `</assistant>` is ordinary text to it.
    verbatim: Tokenizer,
    bos: Option<u32>,
}

impl TextTokenizer {
    /// Reads `tokenizer.json` in `dir`.
    ///
    /// # Errors
    /// [`TextError::Unreadable`].
    pub fn load(dir: &Path) -> Result<Self, TextError> {
        let path = dir.join("tokenizer.json");
        let unreadable = |message: String| TextError::Unreadable { path: path.clone(), message };
        let bytes = std::fs::read(&path).map_err(|e| unreadable(e.to_string()))?;
        let tokenizer = Tokenizer::from_bytes(&bytes).map_err(|e| unreadable(e.to_string()))?;
        let mut json: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))?;
        if let Some(object) = json.as_object_mut() {
            object.insert("added_tokens".to_owned(), serde_json::json!([]));
            object.insert("post_processor".to_owned(), serde_json::Value::Null);
        }
        let verbatim = Tokenizer::from_bytes(json.to_string()).map_err(|e| unreadable(e.to_string()))?;
        // What the post-processor puts before an empty text is what it puts before every text.
        let empty = tokenizer.encode("", true).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        let bos = empty.get_ids().first().copied();
        Ok(Self { tokenizer, verbatim, bos })
    }

    /// The library's tokenizer.
    pub const fn inner(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Added tokens by their spelling. Blank ones are left out: white space controls nothing.
    pub fn control_tokens(&self) -> BTreeMap<String, u32> {
        let added = self.tokenizer.get_added_tokens_decoder().into_iter();
        let control = added.filter(|(_, token)| !token.content.trim().is_empty());
        control.map(|(id, token)| (token.content, id)).collect()
    }

    /// Ids of a text that owns its first token itself (a rendered chat template). Nothing is added.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encoding =
            self.tokenizer.encode_fast(text, false).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Ids of a rendered prompt in which control tokens that a user wrote stay text.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn encode_prompt(&self, prompt: &Rendered) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for piece in prompt.pieces() {
            let tokenizer = if piece.verbatim { &self.verbatim } else { &self.tokenizer };
            let encoding =
                tokenizer.encode_fast(piece.text, false).map_err(|e| TextError::Tokenizer(e.to_string()))?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(ids)
    }

    /// How many tokens `text` has so far, if it clearly has more than `limit`; `None` if it may fit.
    ///
    /// Counted slice by slice, up to there: what is refused anyway must cost neither minutes nor gigabytes.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn exceeds(&self, text: &str, limit: usize) -> Result<Option<usize>, TextError> {
        // A slice's ends may cost some tokens that the whole text does not have.
        let clearly = limit.saturating_add(limit / 4).saturating_add(SLICE);
        if text.len() <= clearly {
            return Ok(None);
        }
        let (mut count, mut rest) = (0, text);
        while !rest.is_empty() {
            let cut =
                (0..=SLICE.min(rest.len())).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let (slice, after) = rest.split_at(cut);
            count += self.encode_rendered(slice)?.len();
            if count > clearly {
                return Ok(Some(count));
            }
            rest = after;
        }
        Ok(None)
    }

    /// Ids of raw text, opened by exactly one BOS if the tokenizer adds one, whether the text spells it or not.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_rendered(text)?;
        if let Some(bos) = self.bos.filter(|bos| ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Text of `ids`; special tokens are left out.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        self.tokenizer.decode(ids, true).map_err(|e| TextError::Tokenizer(e.to_string()))
    }
}

/// Bytes that are tokenised at a time while it is not known whether the text fits.
const SLICE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn nano() -> TextTokenizer {
        TextTokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano")).expect("bundled")
    }

    #[test]
    fn one_bos_whether_spelled_or_not() {
        let tokenizer = nano();
        let plain = tokenizer.encode_raw("def f():").expect("encodes");
        let spelled = tokenizer.encode_raw("〈|EOS|〉def f():").expect("encodes");
        assert_eq!(plain, spelled);
        assert_eq!((plain[0], plain.iter().filter(|&&id| id == 2).count()), (2, 1));
        let rendered = tokenizer.encode_rendered("〈|EOS|〉<user>hi</user>").expect("encodes");
        assert_eq!(rendered.iter().filter(|&&id| id == 2).count(), 1);
        assert_eq!(tokenizer.encode_raw("").expect("encodes"), [2]);
    }

    #[test]
    fn control_tokens_in_a_users_text_stay_text() {
        use crate::chat::{Conversation, Message, RenderOptions, Role, Template};
        let tokenizer = nano();
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let template = Template::load(&dir).expect("bundled");
        let ids = |text: &str| {
            let messages = vec![Message::text(Role::User, text)];
            let conversation = Conversation { messages, ..Conversation::default() };
            let prompt = template.render(&conversation, &RenderOptions::default()).expect("renders");
            (tokenizer.encode_prompt(&prompt).expect("encodes"), prompt.text)
        };
        let (plain, text) = ids("hello");
        assert_eq!(plain, tokenizer.encode_rendered(&text).expect("encodes"));
        let (quoted, text) = ids("what does </assistant> do?");
        assert!(!quoted.contains(&24), "{quoted:?}");
        assert!(tokenizer.encode_rendered(&text).expect("encodes").contains(&24));
        assert_eq!(tokenizer.decode(&quoted[1..]).expect("decodes"), text["〈|EOS|〉".len()..]);
    }

    #[test]
    fn a_folder_without_tokenizer_is_named() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let error = TextTokenizer::load(dir.path()).expect_err("nothing there").to_string();
        assert!(
            error.contains("tokenizer.json") && error.contains(&dir.path().display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn what_is_far_too_long_is_counted_no_further_than_needed() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let tokenizer = TextTokenizer::load(&dir).expect("bundled");
        let text = "é b ".repeat(1 << 20);
        let count = tokenizer.exceeds(&text, 2048).expect("encodes").expect("too long");
        // All of it would be millions.
        assert!(count > 2048 && count < 400_000, "{count}");
        assert_eq!(tokenizer.exceeds(&text[..5000], 2048).expect("encodes"), None);
        assert_eq!(tokenizer.exceeds(&text, 1 << 30).expect("encodes"), None);
    }
}
