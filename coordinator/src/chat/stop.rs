//! Stop strings, found in text that arrives in pieces.
//!
//! Text that could be the beginning of a stop string is held back until it is known not to be, so no part of a stop
//! string is ever emitted. Generation ends as soon as one of them is complete, whatever else might have become longer;
//! the result is the same for every split of the text.

/// What may be shown of the text so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text before any stop string, not passed on before.
    pub text: String,
    /// Index of the stop string that ended the text, if one did.
    pub stopped: Option<usize>,
}

/// Watches text for stop strings.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// The held back end of the text: the beginning of some stop string, or nothing.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`. Empty strings never match.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. Once stopped, further text is swallowed.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.stopped.is_some() {
            return Passed { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(piece);
        let matches = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let ends =
            matches.filter_map(|(index, stop)| self.held.find(stop).map(|at| (at + stop.len(), at, index)));
        if let Some((_, start, index)) = ends.min() {
            self.stopped = Some(index);
            self.held.truncate(start);
            return Passed { text: std::mem::take(&mut self.held), stopped: self.stopped };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Passed { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The text still held back, when generation ended for another reason.
    pub fn finish(self) -> String {
        if self.stopped.is_some() { String::new() } else { self.held }
    }
}

/// Bytes of the longest end of `text` that begins `marker` without completing it.
pub(super) fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len().saturating_sub(1));
    let fits = |length: &usize| {
        marker.is_char_boundary(*length) && text.as_bytes().ends_with(&marker.as_bytes()[..*length])
    };
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut text = String::new();
        let mut stopped = None;
        for piece in pieces {
            let passed = matcher.push(piece);
            text.push_str(&passed.text);
            stopped = passed.stopped;
        }
        text.push_str(&matcher.finish());
        (text, stopped)
    }

    #[test]
    fn nothing_of_a_stop_string_is_emitted() {
        assert_eq!(run(&["STOP"], &["go ST", "OP on"]), ("go ".to_owned(), Some(0)));
        assert_eq!(run(&["STOP"], &["go ST", "ART"]), ("go START".to_owned(), None));
        assert_eq!(run(&["STOP"], &["go ST"]), ("go ST".to_owned(), None));
        assert_eq!(run(&["", "é🌊"], &["aé", "é", "🌊b"]), ("aé".to_owned(), Some(1)));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), Some(0)));
        assert_eq!(run(&["abc", "b"], &["abc"]), ("a".to_owned(), Some(1)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".to_owned(), None));
    }

    proptest! {
        #[test]
        fn every_split_gives_the_same(text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{0,4}", 0..4)) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = run(&stops, &[&text]);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            prop_assert_eq!(&whole, &run(&stops, &chars));
            for (at, _) in text.char_indices() {
                prop_assert_eq!(&whole, &run(&stops, &[&text[..at], &text[at..]]));
            }
            prop_assert!(text.starts_with(&whole.0));
            prop_assert!(!stops.iter().any(|stop| !stop.is_empty() && whole.0.contains(stop)));
            prop_assert_eq!(whole.1.is_none(), whole.0 == text);
        }
    }
}
