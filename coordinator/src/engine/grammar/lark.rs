//! Grammar text. Everything that comes from a client goes through [`literal`], [`regex`] or JSON, so none of it is
//! read as grammar.

use std::fmt::Write;

use llguidance::regex_to_lark;

use super::vocabulary::Vocabulary;

/// Rules and terminals written so far.
#[derive(Debug, Default)]
pub(super) struct Lark {
    text: String,
    names: usize,
}

impl Lark {
    /// Adds a rule under a new name, which is returned; `options` stand in brackets behind it.
    pub(super) fn rule(&mut self, options: &str, body: &str) -> String {
        self.names += 1;
        let name = format!("r{}", self.names);
        self.define(&format!("{name}{options}"), body);
        name
    }

    /// Adds a terminal under a new name, which is returned.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.names += 1;
        let name = format!("T{}", self.names);
        self.define(&name, body);
        name
    }

    /// Adds a definition under a given name.
    pub(super) fn define(&mut self, name: &str, body: &str) {
        // Writing to a string can't fail.
        let _ = writeln!(self.text, "{name}: {body}");
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A piece of a rule: text and markers in order, neighbouring text in one literal.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    done: String,
    text: String,
}

impl Sequence {
    /// Adds text.
    pub(super) fn text(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Adds a marker: its token where the tokenizer has one, else its text.
    pub(super) fn marker(self, marker: &str, vocabulary: &Vocabulary) -> Self {
        match vocabulary.control(marker) {
            Some(id) => self.part(&format!("<[{id}]>")),
            None => self.text(marker),
        }
    }

    /// Adds grammar.
    pub(super) fn part(mut self, part: &str) -> Self {
        self.flush();
        let _ = write!(self.done, "{part} ");
        self
    }

    /// The grammar of it all; of nothing, the empty text.
    pub(super) fn finish(mut self) -> String {
        self.flush();
        if self.done.is_empty() {
            self.done.push_str("\"\"");
        }
        self.done
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            let _ = write!(self.done, "{} ", literal(&self.text));
            self.text.clear();
        }
    }
}

/// `text` as a quoted literal.
pub(super) fn literal(text: &str) -> String {
    // The grammar's strings are JSON's, but for DEL.
    serde_json::Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// A regular expression of JSON schema (`\d` is ASCII) as a terminal.
pub(super) fn regex(pattern: &str) -> String {
    if pattern.is_empty() { "\"\"".to_owned() } else { format!("/{}/", regex_to_lark(pattern, "dw")) }
}

/// Any text.
pub(super) const ANY: &str = "/(?s:.*)/";

/// A terminal for any text without `word`.
pub(super) fn without(word: &str) -> String {
    format!("({ANY} & ~({ANY} {} {ANY}))", literal(word))
}
