//! What a request may ask of its answer, and the grammar of all of it.

use serde_json::Value;

use super::call::CallGrammar;
use super::lark::{Lark, Sequence};
use super::vocabulary::Vocabulary;
use super::{GrammarError, schema};
use crate::chat::CallForm;

/// A tool as a grammar needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// What the model calls it.
    pub name: String,
    /// JSON schema of its arguments; null if it has none.
    pub parameters: Value,
    /// Path of `parameters` in the request.
    pub path: String,
    /// Whether a call must follow the schema to the letter, or not be made.
    pub strict: bool,
}

/// Which calls an answer may or must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls<'a> {
    /// None.
    None,
    /// As the model likes.
    Free,
    /// At least one, and nothing else.
    Required,
    /// As [`Self::Required`], of this tool.
    Named(&'a str),
}

/// What a request asks of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The schema that the answer's text must follow as JSON, and its path in the request.
    pub format: Option<(&'a Value, &'a str)>,
    /// The tools there are.
    pub tools: &'a [Tool],
    /// What is asked of calls.
    pub calls: Calls<'a>,
    /// At most one call.
    pub single: bool,
}

/// Where a grammar applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// To the whole answer behind its reasoning.
    Answer,
    /// To each call, from behind its opening token to its end; everything else is free.
    EachCall,
}

impl Answer<'_> {
    /// Whether anything is asked that needs a grammar.
    pub fn is_bound(&self) -> bool {
        self.format.is_some() || self.scope_of_calls().is_some()
    }

    /// The grammar, and where it applies; `None` if nothing is asked.
    ///
    /// # Errors
    /// If something can't be enforced.
    pub(super) fn grammar(
        &self,
        form: &CallForm,
        vocabulary: &Vocabulary,
    ) -> Result<Option<(String, Scope)>, GrammarError> {
        let mut lark = Lark::default();
        let scope = match (self.format, self.scope_of_calls()) {
            (None, None) => return Ok(None),
            (None, Some(scope)) => scope,
            // Calls that are asked for leave no room for anything else.
            (Some(_), _) => Scope::Answer,
        };
        let mut calls = CallGrammar { lark: &mut lark, form, vocabulary };
        match scope {
            Scope::EachCall => {
                let body = calls.bodies(self.tools, true)?;
                let end =
                    Sequence::default().part(&body).marker(crate::chat::marker::END_TOOL_CALL, vocabulary);
                let end = end.finish();
                lark.define("start", &end);
            }
            Scope::Answer => {
                let mut choices = Vec::new();
                match self.calls {
                    Calls::Required => choices.push(calls.turn(self.tools, self.single, false)?),
                    Calls::Named(name) => {
                        let named: Vec<Tool> =
                            self.tools.iter().filter(|tool| tool.name == name).cloned().collect();
                        choices.push(calls.turn(&named, self.single, false)?);
                    }
                    Calls::Free if self.format.is_some() && !self.tools.is_empty() => {
                        choices.push(calls.turn(self.tools, self.single, true)?);
                    }
                    Calls::Free | Calls::None => {}
                }
                if let Some((schema, path)) = self.format.filter(|_| !self.requires_calls()) {
                    choices.push(lark.rule("", &schema::json(schema, path)?));
                }
                let lead = match form.lead.as_str() {
                    "" => String::new(),
                    lead => format!("{}? ", super::lark::literal(lead)),
                };
                lark.define("start", &format!("{lead}({})", choices.join(" | ")));
            }
        }
        Ok(Some((lark.finish(), scope)))
    }

    /// Whether the answer can have calls.
    pub(super) fn reads_calls(&self) -> bool {
        self.calls != Calls::None && !self.tools.is_empty()
    }

    const fn requires_calls(&self) -> bool {
        matches!(self.calls, Calls::Required | Calls::Named(_))
    }

    fn scope_of_calls(&self) -> Option<Scope> {
        match self.calls {
            Calls::Required | Calls::Named(_) => Some(Scope::Answer),
            Calls::Free if self.tools.iter().any(|tool| tool.strict) => Some(Scope::EachCall),
            Calls::Free | Calls::None => None,
        }
    }
}
