//! Ids to text as they come. A character split over tokens is held back until it is whole.

use tokenizers::Tokenizer;

use super::tokenizer::{TextError, TextTokenizer};

/// Text of a growing list of ids.
///
/// Decodes a short window that ends at the newest id, because a token's text may depend on the one before it.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    /// Ids whose text is not yet out, after a few whose text is (context).
    window: Vec<u32>,
    /// Bytes of the window's text already emitted.
    emitted: usize,
}

impl<'a> Detokenizer<'a> {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: &'a TextTokenizer) -> Self {
        Self { tokenizer: tokenizer.inner(), window: Vec::new(), emitted: 0 }
    }

    /// Adds an id; returns the text that is now certain, perhaps none.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn push(&mut self, id: u32) -> Result<String, TextError> {
        self.window.push(id);
        let text = self.decode()?;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && self.window.len() < LONGEST_HOLD {
            return Ok(String::new());
        }
        let new = text.get(self.emitted..).unwrap_or_default().to_owned();
        // The last id stays as context for the next.
        let keep = self.window.len().saturating_sub(CONTEXT);
        self.window.drain(..keep);
        self.emitted = self.decode()?.len();
        Ok(new)
    }

    /// The text of what was still held back; bytes that never became a character are U+FFFD.
    ///
    /// # Errors
    /// [`TextError::Tokenizer`].
    pub fn finish(self) -> Result<String, TextError> {
        Ok(self.decode()?.get(self.emitted..).unwrap_or_default().to_owned())
    }

    fn decode(&self) -> Result<String, TextError> {
        self.tokenizer.decode(&self.window, true).map_err(|e| TextError::Tokenizer(e.to_string()))
    }
}

/// Ids kept so that the next id decodes in its place.
const CONTEXT: usize = 1;

/// Ids after which bytes that form no character are emitted as they are: no character has more bytes than this.
const LONGEST_HOLD: usize = 8;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn pieces_join_to_the_whole_text() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let tokenizer = TextTokenizer::load(&dir).expect("bundled");
        for text in
            ["naïve café — 12,345 🌊🏝️ こんにちは世界\n\n  def f(x):\n\treturn x", "a", "</assistant>🌊"]
        {
            let ids = tokenizer.encode_rendered(text).expect("encodes");
            let mut detokenizer = Detokenizer::new(&tokenizer);
            let mut pieces: Vec<String> =
                ids.iter().map(|&id| detokenizer.push(id).expect("decodes")).collect();
            assert!(pieces.iter().all(|p| !p.contains(char::REPLACEMENT_CHARACTER)), "{pieces:?}");
            pieces.push(detokenizer.finish().expect("decodes"));
            assert_eq!(pieces.concat(), text);
        }
    }

    #[test]
    fn bytes_that_never_become_a_character_come_out_at_the_end() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let tokenizer = TextTokenizer::load(&dir).expect("bundled");
        let ids = tokenizer.encode_rendered("ok 🌊").expect("encodes");
        let cut = &ids[..ids.len() - 1];
        let mut detokenizer = Detokenizer::new(&tokenizer);
        let mut text: String = cut.iter().map(|&id| detokenizer.push(id).expect("decodes")).collect();
        assert_eq!(text, "ok ");
        text += &detokenizer.finish().expect("decodes");
        assert_eq!(text, tokenizer.decode(cut).expect("decodes"));
    }
}
