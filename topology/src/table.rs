//! One TOML table read key by key: right type or a fault with its line, and nothing stops at the first fault.
//!
//! Knows TOML and lines; what the keys mean is `file`'s business.

use std::borrow::Cow;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::Fault;

/// A value and the line it stands on, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At<T> {
    pub(crate) line: u32,
    pub(crate) value: T,
}

/// A document being read: where its lines begin, and the faults found so far.
pub(crate) struct Reading<'t> {
    text: &'t str,
    pub(crate) faults: Vec<Fault>,
}

/// A table of the document, under the name a user knows it by.
pub(crate) struct Table<'d, 't> {
    /// As in `the coordinator table`: `[coordinator]`, `[[worker]]`, or `the top of the file`.
    pub(crate) name: &'static str,
    /// Line of its header.
    pub(crate) line: u32,
    entries: &'d DeTable<'t>,
}

impl<'t> Reading<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, faults: Vec::new() }
    }

    pub(crate) fn fault(&mut self, line: u32, message: impl Display) {
        self.faults.push(Fault { line, message: message.to_string() });
    }

    pub(crate) fn line(&self, span: &Range<usize>) -> u32 {
        let before = self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count();
        u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)
    }
}

impl<'d, 't> Table<'d, 't> {
    pub(crate) fn new(name: &'static str, line: u32, entries: &'d DeTable<'t>) -> Self {
        Self { name, line, entries }
    }

    /// Faults every key that is not in `known`. `elsewhere` names tables that know other keys.
    pub(crate) fn refuse_unknown(
        &self,
        reading: &mut Reading<'_>,
        known: &[&str],
        elsewhere: &[(&str, &[&str])],
    ) {
        for (key, _) in self.entries {
            let name: &str = key.get_ref();
            if known.contains(&name) {
                continue;
            }
            let home = elsewhere.iter().find(|(_, keys)| keys.contains(&name)).map(|(table, _)| table);
            let advice = match (home, closest(name, known)) {
                (Some(table), _) => format!("move it to {table}"),
                (None, Some(meant)) => format!("write `{meant}`"),
                (None, None) => format!("remove it, or write one of {}", known.join(", ")),
            };
            let line = reading.line(&key.span());
            reading.fault(line, format!("unknown key `{}` in {}: {advice}", clip(name), self.name));
        }
    }

    /// Faults a missing `key`; `example` is the line to add.
    pub(crate) fn require(&self, reading: &mut Reading<'_>, key: &str, example: &str) {
        if self.get(key).is_none() {
            reading.fault(self.line, format!("`{key}` is missing in {}: add {example}", self.name));
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&'d Spanned<DeValue<'t>>> {
        self.entries.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
    }

    /// A text that is not empty.
    pub(crate) fn text(&self, reading: &mut Reading<'_>, key: &str, example: &str) -> Option<At<String>> {
        let value = self.get(key)?;
        let line = reading.line(&value.span());
        match value.get_ref() {
            DeValue::String(text) if text.trim().is_empty() => {
                reading.fault(line, format!("`{key}` is empty: write {example}"));
            }
            DeValue::String(text) => return Some(At { line, value: text.clone().into_owned() }),
            other => reading.fault(line, format!("`{key}` is {}: write {example}", described(other))),
        }
        None
    }

    /// A text that means a `T`.
    pub(crate) fn parsed<T>(&self, reading: &mut Reading<'_>, key: &str, example: &str) -> Option<At<T>>
    where
        T: FromStr<Err: Display>,
    {
        let At { line, value } = self.text(reading, key, example)?;
        match value.parse() {
            Ok(value) => Some(At { line, value }),
            Err(error) => {
                reading.fault(line, format!("`{key}` is \"{}\": {error}", clip(&value)));
                None
            }
        }
    }

    /// A whole number within `bounds`, with its `unit` for the message (may be empty).
    pub(crate) fn number(
        &self,
        reading: &mut Reading<'_>,
        key: &str,
        bounds: RangeInclusive<u64>,
        unit: &str,
    ) -> Option<At<u64>> {
        let value = self.get(key)?;
        let line = reading.line(&value.span());
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        match number {
            Some(value) if bounds.contains(&value) => Some(At { line, value }),
            _ => {
                let found = described(value.get_ref());
                let (low, high) = bounds.into_inner();
                let space = if unit.is_empty() { "" } else { " " };
                reading.fault(
                    line,
                    format!("`{key}` is {found}: write a whole number from {low} to {high}{space}{unit}"),
                );
                None
            }
        }
    }
}

/// A value as it stands in the file, with its kind where that is the point.
pub(crate) fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{}\"", clip(text)),
        DeValue::Integer(number) => clip(&number.to_string()).into_owned(),
        DeValue::Float(number) => clip(number.as_str()).into_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(value) => format!("the date {value}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// At most 80 characters of the user's own text, printable.
fn clip(text: &str) -> Cow<'_, str> {
    let plain = text.chars().all(|c| !c.is_control());
    if plain && text.chars().count() <= 80 {
        return Cow::Borrowed(text);
    }
    let mut clipped: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().count() > 80 {
        clipped.push('…');
    }
    Cow::Owned(clipped)
}

/// The known key that `name` most likely means: at most two slips away, and fewer than half its letters.
fn closest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.len() > 40 {
        return None;
    }
    let (slips, key) = known.iter().map(|key| (slips(name, key), *key)).min()?;
    (slips <= 2 && slips * 2 < key.len()).then_some(key)
}

/// Levenshtein distance in bytes.
fn slips(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_slips_not_strangers() {
        let known = ["shard", "address", "experts", "memory"];
        assert_eq!(closest("expert", &known), Some("experts"));
        assert_eq!(closest("adress", &known), Some("address"));
        assert_eq!(closest("mem", &known), None);
        assert_eq!(closest("colour", &known), None);
        assert_eq!(slips("kitten", "sitting"), 3);
    }
}
