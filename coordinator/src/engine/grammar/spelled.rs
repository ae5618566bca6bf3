//! Markers spelled out of ordinary tokens.
//!
//! The reader of an answer goes by its text: `</arg_value>` ends a value wherever it stands, also inside a JSON
//! string. A grammar can't say "any string but that one" about strings of a schema, so the tokens that would complete
//! the spelling are banned where it would be misread.

use llguidance::toktrie::TokTrie;

/// The tokens that complete a marker's spelling. The marker's first byte, `<`, comes nowhere else in it, so there is
/// one way only in which text can end with a part of it.
#[derive(Debug)]
pub(super) struct Spelled {
    word: &'static [u8],
    /// By how many bytes of the word stand already: tokens that begin with the rest of it. At 0: tokens that hold all
    /// of it.
    completing: Vec<Vec<u32>>,
}

impl Spelled {
    pub(super) fn new(word: &'static str, trie: &TokTrie) -> Self {
        let word = word.as_bytes();
        let ids = 0..u32::try_from(trie.vocab_size()).unwrap_or(u32::MAX);
        let text = |id: &u32| !trie.is_special_token(*id) && !trie.token(*id).is_empty();
        let ids: Vec<u32> = ids.filter(text).collect();
        let having = |test: &dyn Fn(&[u8]) -> bool| {
            ids.iter().copied().filter(|&id| test(trie.token(id))).collect::<Vec<u32>>()
        };
        let mut completing = vec![having(&|token| token.windows(word.len()).any(|part| part == word))];
        completing.extend((1..word.len()).map(|done| having(&|token| token.starts_with(&word[done..]))));
        Self { word, completing }
    }

    /// How many bytes of the word stand at the end after `token`, if `done` did before it.
    pub(super) fn after(&self, done: usize, token: &[u8]) -> usize {
        token.iter().fold(done, |done, &byte| {
            if byte == self.word[done] {
                (done + 1) % self.word.len()
            } else {
                usize::from(byte == self.word[0])
            }
        })
    }

    /// What is missing of the word.
    pub(super) fn rest(&self, done: usize) -> &'static [u8] {
        &self.word[done..]
    }

    /// Bans the tokens that would complete the word.
    pub(super) fn ban(&self, done: usize, logits: &mut [f32]) {
        let holding = self.completing.first().filter(|_| done > 0);
        for &id in self.completing[done].iter().chain(holding.into_iter().flatten()) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
