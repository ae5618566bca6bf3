//! The checkpoint's `tokenizer.json`, as the engine uses it.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

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
    #[error("prompt token {id} is outside the model's vocabulary of {vocab_size}; tokenizer and weights do not match")]
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
        let tokenizer = Tokenizer::from_bytes(bytes).map_err(|e| unreadable(e.to_string()))?;
        // What the post-processor puts before an empty text is what it puts before every text.
        let empty = tokenizer.encode("", true).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        let bos = empty.get_ids().first().copied();
        Ok(Self { tokenizer, bos })
    }

    /// The library's tokenizer.
    pub const fn inner(&self) -> &Tokenizer {
        &self.tokenizer
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
    fn a_folder_without_tokenizer_is_named() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let error = TextTokenizer::load(dir.path()).expect_err("nothing there").to_string();
        assert!(error.contains("tokenizer.json") && error.contains(&dir.path().display().to_string()), "{error}");
    }
}
