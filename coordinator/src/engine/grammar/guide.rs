//! The grammar over one answer, as the sampler's constraint.

use std::iter::repeat;
use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::answer::{Answer, Scope};
use super::vocabulary::Vocabulary;
use super::{GrammarError, schema};
use crate::chat::marker::{END_THINK, THINK, TOOL_CALL};
use crate::chat::{CallForm, Thinking};
use crate::engine::sampler::Constraint;

/// Keeps an answer to its grammar. Reasoning is free, and ends as the reader of the answer has it: at `</think>`, or
/// where a call begins.
pub struct Guide {
    vocabulary: Arc<Vocabulary>,
    /// At the start of the grammar.
    fresh: Matcher,
    state: State,
    /// Whether calls are read, so that their opening token means something.
    calls: bool,
    /// Ids that end the text; allowed where the grammar may end.
    stop_ids: Arc<[u32]>,
    /// Bytes of `</think>`, `<tool_call>` and `</arg_value>` at the end of the text so far.
    spelled: [usize; 3],
}

enum State {
    /// The first token of an answer that may open reasoning itself.
    Opening,
    /// Reasoning before an answer that is bound.
    Reasoning,
    /// Text that is not bound, until a call begins.
    Free,
    /// The answer, or JSON in it, by the grammar.
    Answer(Matcher),
    /// A call by the grammar: of many, if text may follow.
    Call(Matcher, Scope),
}

impl Guide {
    /// A guide for an answer of a turn that begins as `thinking` says; `None` if nothing is asked of it.
    ///
    /// # Errors
    /// If something asked can't be enforced.
    pub fn new(
        vocabulary: &Arc<Vocabulary>,
        answer: &Answer<'_>,
        form: &CallForm,
        thinking: Thinking,
        stop_ids: Arc<[u32]>,
    ) -> Result<Option<Self>, GrammarError> {
        let Some((grammar, scope)) = answer.grammar(form, vocabulary)? else { return Ok(None) };
        let path = match answer.format {
            Some((_, path)) => path,
            None => "tools",
        };
        // Where these begin or end something, they must be seen as they come.
        let calls = answer.reads_calls().then_some(TOOL_CALL);
        let thought = (scope == Scope::Answer && thinking == Thinking::Open).then_some(END_THINK);
        let missing = calls.into_iter().chain(thought).find(|marker| vocabulary.control(marker).is_none());
        if let Some(marker) = missing {
            let reason = format!("can't be enforced here: {marker} is no token of this model's tokenizer");
            return Err(GrammarError::new(path, reason));
        }
        let fresh = vocabulary.compile(grammar).map_err(|e| GrammarError::new(path, schema::reason(&e)))?;
        // A schema that goes round in circles compiles, and has no first token.
        let first = fresh.clone().compute_mask().map_err(said);
        first.map_err(|e| {
            GrammarError::new(
                path,
                format!("no answer can begin as this schema asks ({e}); does it refer to itself?"),
            )
        })?;
        let state = match (scope, thinking) {
            (Scope::EachCall, _) => State::Free,
            (Scope::Answer, Thinking::Open) => State::Reasoning,
            (Scope::Answer, Thinking::Closed) => State::Answer(fresh.clone()),
            (Scope::Answer, Thinking::Unstated) => State::Opening,
        };
        let (vocabulary, calls) = (vocabulary.clone(), answer.reads_calls());
        Ok(Some(Self { vocabulary, fresh, state, calls, stop_ids, spelled: [0; 3] }))
    }

    /// Allows what `matcher` does, and stop ids where it may end.
    fn bind(
        matcher: &mut Matcher,
        vocabulary: &Vocabulary,
        stop_ids: &[u32],
        logits: &mut [f32],
    ) -> Result<(), String> {
        let mut allowed = matcher.compute_mask().map_err(said)?;
        let may_end = matcher.is_accepting().map_err(said)?;
        for &id in vocabulary.stop_ids() {
            allow(&mut allowed, id, false);
        }
        if may_end {
            stop_ids.iter().for_each(|&id| allow(&mut allowed, id, true));
        }
        let known = logits.len().min(allowed.len());
        let (logits, beyond) = logits.split_at_mut(known);
        beyond.fill(f32::NEG_INFINITY);
        let words = allowed.as_slice().iter().copied().chain(repeat(0));
        for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    let banned = (0..).zip(logits).filter(|(bit, _)| word >> bit & 1 == 0);
                    banned.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
        Ok(())
    }

    /// Whether text that goes on with the rest of `</arg_value>` would stand inside a JSON string, which the reader of
    /// the call would cut there.
    fn is_payload(matcher: &mut Matcher, vocabulary: &Vocabulary, done: usize) -> Result<bool, String> {
        let ids = |bytes: &[u8]| -> Option<Vec<u32>> {
            bytes.iter().map(|&byte| vocabulary.trie().token_id(&[byte])).collect()
        };
        let Some(rest) = ids(vocabulary.end_value.rest(done)) else { return Ok(false) };
        for next in INSIDE_STRING {
            let Some(next) = ids(&[*next]) else { continue };
            let text = [rest.clone(), next].concat();
            if matcher.validate_tokens(&text).map_err(said)? == text.len() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Constraint for Guide {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let Self { vocabulary, stop_ids, spelled: [think, call, value], calls, .. } = self;
        let ban_call = |logits: &mut [f32]| {
            if *calls {
                vocabulary.tool_call.ban(*call, logits);
            }
        };
        match &mut self.state {
            State::Opening => {
                let think =
                    vocabulary.control(THINK).and_then(|id| Some((id as usize, *logits.get(id as usize)?)));
                Self::bind(&mut self.fresh, vocabulary, stop_ids, logits)?;
                if let Some((id, logit)) = think {
                    logits[id] = logit;
                }
            }
            State::Reasoning => {
                // The answer is still owed.
                for &id in vocabulary.stop_ids() {
                    if let Some(logit) = logits.get_mut(id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
                vocabulary.end_think.ban(*think, logits);
                ban_call(logits);
            }
            State::Free => ban_call(logits),
            State::Answer(matcher) => {
                Self::bind(matcher, vocabulary, stop_ids, logits)?;
                ban_call(logits);
            }
            State::Call(matcher, _) => {
                Self::bind(matcher, vocabulary, stop_ids, logits)?;
                if *value == 0 || Self::is_payload(matcher, vocabulary, *value)? {
                    vocabulary.end_value.ban(*value, logits);
                }
            }
        }
        match logits.iter().any(|&logit| logit > f32::NEG_INFINITY) {
            true => Ok(()),
            false => Err("no token of this model can go on with an answer of the form asked for".to_owned()),
        }
    }

    fn accept(&mut self, id: u32) -> Result<bool, String> {
        let vocabulary = &self.vocabulary;
        let is = |marker: &str| vocabulary.control(marker) == Some(id);
        let token = match vocabulary.trie().is_special_token(id) {
            true => &[],
            false => vocabulary.trie().token(id),
        };
        let words = [&vocabulary.end_think, &vocabulary.tool_call, &vocabulary.end_value];
        for (done, word) in self.spelled.iter_mut().zip(words) {
            // A control token is no part of a spelling.
            *done = if token.is_empty() { 0 } else { word.after(*done, token) };
        }
        let begins_call = self.calls && is(TOOL_CALL);
        if let State::Opening = self.state {
            self.state = if is(THINK) { State::Reasoning } else { State::Answer(self.fresh.clone()) };
            if is(THINK) {
                return Ok(false);
            }
        }
        if let State::Reasoning = self.state {
            if is(END_THINK) {
                self.state = State::Answer(self.fresh.clone());
                return Ok(false);
            }
            if !begins_call {
                return Ok(false);
            }
            self.state = State::Answer(self.fresh.clone());
        }
        match &mut self.state {
            State::Free => {
                if begins_call {
                    self.state = State::Call(self.fresh.clone(), Scope::EachCall);
                }
                return Ok(false);
            }
            State::Answer(matcher) if begins_call => {
                let mut matcher = matcher.clone();
                matcher.consume_token(id).map_err(said)?;
                self.state = State::Call(matcher, Scope::Answer);
                return Ok(false);
            }
            State::Answer(matcher) | State::Call(matcher, _) => matcher.consume_token(id).map_err(said)?,
            State::Opening | State::Reasoning => return Ok(false),
        }
        match &self.state {
            State::Call(matcher, Scope::EachCall) if matcher.is_stopped() => {
                self.state = State::Free;
                Ok(false)
            }
            State::Answer(matcher) | State::Call(matcher, Scope::Answer) => Ok(matcher.is_stopped()),
            _ => Ok(false),
        }
    }
}

fn allow(mask: &mut SimpleVob, id: u32, allowed: bool) {
    if (id as usize) < mask.len() {
        mask.set(id as usize, allowed);
    }
}

/// The library's message, without what it adds for its developers.
fn said(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    format!("the answer can't be kept in the form asked for: {first}")
}

/// Characters of which a JSON string can go on with at least one, and behind the end of a value none comes.
const INSIDE_STRING: &[u8] = b"x\" 0\\";
