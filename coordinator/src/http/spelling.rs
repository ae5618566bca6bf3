//! How single tokens are spelled: the bytes behind an id, whether or not they are whole characters.

use serde_json::{Value, json};

use crate::text::TextTokenizer;

/// Spellings of every id of a byte-level tokenizer.
#[derive(Debug)]
pub struct Spellings(Vec<Box<[u8]>>);

impl Spellings {
    /// The spellings of `tokenizer`.
    pub fn of(tokenizer: &TextTokenizer) -> Self {
        let inner = tokenizer.inner();
        let added = inner.get_added_tokens_decoder();
        let bytes = byte_of_char();
        let spell = |id: u32| -> Box<[u8]> {
            if let Some(token) = added.get(&id) {
                return token.content.as_bytes().into();
            }
            let text = inner.id_to_token(id).unwrap_or_default();
            let spelled: Option<Vec<u8>> =
                text.chars().map(|c| bytes.get(c as usize).copied().flatten()).collect();
            spelled.map_or_else(|| text.as_bytes().into(), Vec::into_boxed_slice)
        };
        let last = inner.get_vocab(true).into_values().max();
        Self(last.map_or_else(Vec::new, |last| (0..=last).map(spell).collect()))
    }

    /// The bytes of `id`; none for one outside the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.0.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// The bytes of every id, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|bytes| &**bytes)
    }

    /// The text of `id`; parts of a character are U+FFFD.
    pub fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.bytes(id)).into_owned()
    }

    /// `{token, logprob, bytes}` of OpenAI's chat dialect.
    pub fn entry(&self, id: u32, logprob: f32) -> Value {
        // JSON has no infinity; OpenAI's own floor is this number.
        json!({"token": self.text(id), "logprob": logprob.max(LEAST_LOGPROB), "bytes": self.bytes(id)})
    }

    /// The id that is spelled `text`, if exactly one token is added under that spelling.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        let index = self.0.iter().position(|bytes| **bytes == *text.as_bytes())?;
        u32::try_from(index).ok()
    }
}

/// GPT-2's alphabet: the byte behind each character that stands for one, by code point.
fn byte_of_char() -> Vec<Option<u8>> {
    let mut bytes = vec![None; 512];
    let mut next = 256;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        bytes[code] = Some(byte);
    }
    bytes
}

/// What OpenAI reports for a token that could not come.
pub const LEAST_LOGPROB: f32 = -9999.0;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn spellings_join_to_the_text() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let tokenizer = TextTokenizer::load(&dir).expect("bundled");
        let spellings = Spellings::of(&tokenizer);
        let text = "naïve 🌊 x\n\t<think>\u{a0}\u{7f}";
        let ids = tokenizer.encode_rendered(text).expect("encodes");
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| spellings.bytes(id)).copied().collect();
        assert_eq!(String::from_utf8(bytes).expect("whole"), text);
        assert_eq!(spellings.id_of("<tool_call>"), Some(25));
        assert_eq!(spellings.bytes(1 << 30), b"");
    }
}
