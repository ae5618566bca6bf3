//! Typed reads of JSON objects. A bad value is noted with its path and replaced by its default, so that one pass
//! over a file finds every fault. Must not know what the fields mean.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::error::ConfigIssue;

/// A key's value and its dotted path.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub(super) path: String,
    pub(super) value: &'a Value,
}

/// Objects searched in order: the first that has a key answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a> {
    scopes: Vec<(String, &'a Map<String, Value>)>,
}

impl<'a> Fields<'a> {
    /// One object at `path` (empty at the top).
    pub(super) fn new(path: &str, map: &'a Map<String, Value>) -> Self {
        Self { scopes: vec![(path.to_owned(), map)] }
    }

    /// The same, with `map` searched after everything so far.
    pub(super) fn or(mut self, path: &str, map: &'a Map<String, Value>) -> Self {
        self.scopes.push((path.to_owned(), map));
        self
    }

    /// Where a key would be, for messages about absent ones.
    pub(super) fn path(&self, key: &str) -> String {
        dotted(self.scopes.first().map_or("", |(path, _)| path), key)
    }

    /// The value, `null` included.
    pub(super) fn raw(&self, key: &str) -> Option<Found<'a>> {
        self.scopes
            .iter()
            .find_map(|(path, map)| Some(Found { path: dotted(path, key), value: map.get(key)? }))
    }

    /// The value unless absent or `null`.
    pub(super) fn get(&self, key: &str) -> Option<Found<'a>> {
        self.raw(key).filter(|found| !found.value.is_null())
    }

    /// The value if it is an object.
    pub(super) fn object(&self, key: &str) -> Option<(String, &'a Map<String, Value>)> {
        let found = self.get(key)?;
        Some((found.path, found.value.as_object()?))
    }
}

fn dotted(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Faults so far.
#[derive(Debug, Default)]
pub(super) struct Issues(pub(super) Vec<ConfigIssue>);

impl Issues {
    /// Notes a value that cannot be used.
    pub(super) fn wrong(&mut self, found: &Found<'_>, expected: impl Into<String>) {
        self.at(&found.path, Some(shorten(found.value)), expected);
    }

    /// Notes an absent key.
    pub(super) fn missing(&mut self, path: &str, expected: impl Into<String>) {
        self.at(path, None, expected);
    }

    /// Notes any fault.
    pub(super) fn at(&mut self, path: &str, found: Option<String>, expected: impl Into<String>) {
        self.0.push(ConfigIssue { field: path.to_owned(), found, expected: expected.into() });
    }

    /// An integer in `range`. Without a default the key is required.
    pub(super) fn count(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        range: RangeInclusive<usize>,
        default: Option<usize>,
    ) -> usize {
        let fallback = default.unwrap_or_else(|| *range.start());
        let Some(found) = fields.get(key) else {
            if default.is_none() {
                self.missing(&fields.path(key), integer_in(&range));
            }
            return fallback;
        };
        self.integer(&found, range).unwrap_or(fallback)
    }

    /// The found value as an integer in `range`.
    pub(super) fn integer(&mut self, found: &Found<'_>, range: RangeInclusive<usize>) -> Option<usize> {
        let value = integer(found.value).filter(|n| range.contains(n));
        if value.is_none() {
            self.wrong(found, integer_in(&range));
        }
        value
    }

    /// A finite number in `range`, `default` when absent.
    pub(super) fn number(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        range: RangeInclusive<f64>,
        default: f64,
    ) -> f64 {
        self.optional_number(fields, key, range).unwrap_or(default)
    }

    /// A finite number in `range`, if the key is there.
    pub(super) fn optional_number(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        range: RangeInclusive<f64>,
    ) -> Option<f64> {
        let found = fields.get(key)?;
        let value = found.value.as_f64().filter(|x| x.is_finite() && range.contains(x));
        if value.is_none() {
            self.wrong(&found, format!("a number from {:?} to {:?}", range.start(), range.end()));
        }
        value
    }

    /// `true` or `false`, `default` when absent.
    pub(super) fn flag(&mut self, fields: &Fields<'_>, key: &str, default: bool) -> bool {
        let Some(found) = fields.get(key) else { return default };
        found.value.as_bool().unwrap_or_else(|| {
            self.wrong(&found, "true or false");
            default
        })
    }

    /// An array, if the key is there.
    pub(super) fn array<'a>(&mut self, fields: &Fields<'a>, key: &str) -> Option<(String, &'a [Value])> {
        let found = fields.get(key)?;
        let Some(items) = found.value.as_array() else {
            self.wrong(&found, "a list");
            return None;
        };
        Some((found.path, items))
    }
}

/// A JSON number that is a whole non-negative number (`512` and `512.0` alike).
pub(super) fn integer(value: &Value) -> Option<usize> {
    if let Some(n) = value.as_u64() {
        return usize::try_from(n).ok();
    }
    let x = value.as_f64()?;
    // 2^53: beyond it an f64 no longer names one integer.
    (x >= 0.0 && x.fract() == 0.0 && x <= 9_007_199_254_740_992.0).then_some(x as usize)
}

/// JSON text of a value, cut to a length that a message can carry.
pub(super) fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}

fn integer_in(range: &RangeInclusive<usize>) -> String {
    format!("an integer from {} to {}", range.start(), range.end())
}

/// Characters of a value shown in a message.
const SHOWN: usize = 80;
