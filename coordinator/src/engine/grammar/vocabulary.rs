//! The tokens of a model and their bytes, in the form the grammar library walks. Built once a process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use super::spelled::Spelled;
use crate::chat::marker::{END_ARG_VALUE, END_THINK, TOOL_CALL};

/// Tokens by their bytes. Control tokens are apart: no text reaches them.
pub struct Vocabulary {
    factory: ParserFactory,
    trie: TokEnv,
    control: BTreeMap<String, u32>,
    /// Ids that end a turn.
    stop_ids: Arc<[u32]>,
    pub(super) end_think: Spelled,
    pub(super) tool_call: Spelled,
    pub(super) end_value: Spelled,
}

impl Vocabulary {
    /// The vocabulary in which id `i` is spelled `spellings[i]`, in bytes; none for ids without a token.
    ///
    /// `control` are the tokens that mean something instead of standing for their text, `stop_ids` those that end a
    /// turn.
    ///
    /// # Errors
    /// If there are no tokens, or the library refuses them; the message says why.
    pub fn new<'a>(
        spellings: impl Iterator<Item = &'a [u8]>,
        control: BTreeMap<String, u32>,
        stop_ids: Arc<[u32]>,
    ) -> Result<Self, String> {
        let mut words: Vec<Vec<u8>> = spellings.map(<[u8]>::to_vec).collect();
        for word in &mut words {
            // No text holds this byte, and the trie keeps it for control tokens.
            if word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                word.clear();
            }
        }
        for (spelling, &id) in &control {
            if let Some(word) = words.get_mut(id as usize) {
                *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], spelling.as_bytes()].concat();
            }
        }
        let size = u32::try_from(words.len()).unwrap_or(u32::MAX);
        let ends: Vec<u32> = stop_ids.iter().copied().filter(|&id| id < size).collect();
        let Some(&end) = ends.first() else {
            return Err(format!("none of the stop ids {stop_ids:?} is in the tokenizer's {size} tokens"));
        };
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(&ends);
        let spelled = |word| Spelled::new(word, &trie);
        let (end_think, tool_call, end_value) =
            (spelled(END_THINK), spelled(TOOL_CALL), spelled(END_ARG_VALUE));
        // Not canonical: the model chooses how to cut a text into tokens, and nothing is forced on it but the bytes.
        let trie: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&trie).map_err(|e| e.to_string())?;
        factory.quiet();
        let limits = factory.limits_mut();
        limits.verbose_errors = false;
        limits.max_lexer_states = MAX_LEXER_STATES;
        Ok(Self { factory, trie, control, stop_ids, end_think, tool_call, end_value })
    }

    /// The id of a control token.
    pub fn control(&self, spelling: &str) -> Option<u32> {
        self.control.get(spelling).copied()
    }

    /// Ids that end a turn.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// A matcher at the start of a grammar.
    ///
    /// # Errors
    /// What the library says of the grammar.
    pub(super) fn compile(&self, grammar: String) -> Result<Matcher, String> {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(matcher),
        }
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.trie.tok_trie()
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("size", &self.trie().vocab_size()).finish_non_exhaustive()
    }
}

/// Of one request, 1 to 2 kB each. A bounded string takes one for each of its characters.
const MAX_LEXER_STATES: usize = 150_000;
