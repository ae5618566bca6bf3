//! Text of which the end is not known yet, and the markers in it.

use crate::chat::marker::END_ASSISTANT;
use crate::chat::stop::overlap;

/// Text not yet understood.
#[derive(Clone, Debug, Default)]
pub(super) struct Scanner {
    pending: String,
}

/// What stands at the front of the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Text up to a marker, and the marker; both are taken.
    Marker(String, &'static str),
    /// All text that surely belongs to no marker. What could become one is kept.
    Text(String),
}

impl Scanner {
    pub(super) const fn new() -> Self {
        Self { pending: String::new() }
    }

    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: &str) {
        self.pending.push_str(piece);
    }

    /// Text that is still kept.
    pub(super) fn pending(&self) -> &str {
        &self.pending
    }

    /// Takes `length` bytes from the front.
    pub(super) fn take(&mut self, length: usize) -> String {
        let rest = self.pending.split_off(length);
        std::mem::replace(&mut self.pending, rest)
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Takes text up to the first of `markers`. The turn's end tag is kept as long as nothing follows it, and with
    /// `newline` so is the last newline before a marker or the end.
    pub(super) fn next(&mut self, markers: &[&'static str], newline: bool) -> Found {
        let first = markers.iter().filter_map(|marker| self.pending.find(marker).map(|at| (at, *marker)));
        if let Some((at, marker)) = first.min_by_key(|(at, _)| *at) {
            let mut text = self.take(at + marker.len());
            text.truncate(at);
            return Found::Marker(text, marker);
        }
        let partial = markers.iter().map(|marker| overlap(&self.pending, marker)).max().unwrap_or(0);
        let keep = partial.max(self.pending.len() - turn_end(&self.pending));
        let mut length = self.pending.len() - keep;
        if newline && self.pending[..length].ends_with('\n') {
            length -= 1;
        }
        Found::Text(self.take(length))
    }
}

/// Where the turn's end tag, whole or begun, stands at the end of `text`; white space may follow a whole one. The
/// length of `text` if there is none.
pub(super) fn turn_end(text: &str) -> usize {
    let trimmed = text.trim_end();
    if trimmed.ends_with(END_ASSISTANT) {
        trimmed.len() - END_ASSISTANT.len()
    } else {
        text.len() - overlap(text, END_ASSISTANT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_could_become_a_marker_is_kept() {
        let mut scanner = Scanner::default();
        let mut next = |piece: &str, newline| {
            scanner.push(piece);
            (scanner.next(&["<a>", "</b>"], newline), scanner.pending().to_owned())
        };
        assert_eq!(next("x <", false), (Found::Text("x ".to_owned()), "<".to_owned()));
        assert_eq!(next("/", false), (Found::Text(String::new()), "</".to_owned()));
        assert_eq!(next("c\n", true), (Found::Text("</c".to_owned()), "\n".to_owned()));
        assert_eq!(next("</b><a>", true), (Found::Marker("\n".to_owned(), "</b>"), "<a>".to_owned()));
        assert_eq!(next("", false), (Found::Marker(String::new(), "<a>"), String::new()));
        assert_eq!(
            next("y</assistant> \n", false),
            (Found::Text("y".to_owned()), "</assistant> \n".to_owned())
        );
        assert_eq!(next("z", false), (Found::Text("</assistant> \nz".to_owned()), String::new()));
    }
}
