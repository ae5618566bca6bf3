//! Everything in a checkpoint that does not fit the model, in one error, with long runs of names condensed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

/// A checkpoint that does not hold the model its configuration describes.
#[derive(Debug, Default, thiserror::Error)]
pub struct InventoryError {
    /// The checkpoint.
    pub dir: PathBuf,
    /// Tensors the model needs and the checkpoint lacks.
    pub missing: Vec<MissingTensor>,
    /// Tensors the checkpoint has and the model has no place for.
    pub unexpected: Vec<UnexpectedTensor>,
    /// Tensors of another shape or type than the model's.
    pub misshaped: Vec<MisshapenTensor>,
    /// Tensors in a number format that is recognised but not read.
    pub unsupported: Vec<UnsupportedTensor>,
}

/// A tensor that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingTensor {
    /// Canonical name.
    pub name: String,
    /// Dtype and shape it would have.
    pub expected: String,
}

/// A tensor without a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnexpectedTensor {
    /// Name as stored.
    pub name: String,
    /// Dtype and shape it has.
    pub found: String,
}

/// A tensor of the wrong form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisshapenTensor {
    /// Name as stored.
    pub name: String,
    /// Dtype and shape it should have.
    pub expected: String,
    /// Dtype and shape it has.
    pub found: String,
}

/// A tensor in an unsupported format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedTensor {
    /// Name as stored.
    pub name: String,
    /// The format, by the name its makers use.
    pub format: &'static str,
}

impl InventoryError {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshaped.is_empty()
            && self.unsupported.is_empty()
    }
}

impl fmt::Display for InventoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the checkpoint does not hold this model", self.dir.display())?;
        let unsupported = self.unsupported.iter().map(|t| (format!(": {}", t.format), &t.name));
        section(f, "in an unsupported format", unsupported)?;
        let missing = self.missing.iter().map(|t| (format!(": expected {}", t.expected), &t.name));
        section(f, "missing", missing)?;
        let misshaped =
            self.misshaped.iter().map(|t| (format!(": expected {}, found {}", t.expected, t.found), &t.name));
        section(f, "mis-shaped", misshaped)?;
        section(f, "unexpected", self.unexpected.iter().map(|t| (format!(": {}", t.found), &t.name)))
    }
}

/// Tensors of equal remark share a line where their names differ only in numbers.
fn section<'a>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    tensors: impl Iterator<Item = (String, &'a String)>,
) -> fmt::Result {
    let mut by_remark: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut count = 0;
    for (remark, name) in tensors {
        by_remark.entry(remark).or_default().push(name.clone());
        count += 1;
    }
    if count == 0 {
        return Ok(());
    }
    write!(f, "\n{title} ({count}):")?;
    let mut lines: Vec<(String, &String)> = Vec::new();
    for (remark, names) in &by_remark {
        lines.extend(condense(names.iter().cloned()).into_iter().map(|name| (name, remark)));
    }
    lines.sort();
    lines.iter().try_for_each(|(name, remark)| write!(f, "\n  {name}{remark}"))
}

/// Names that differ only in the number after `experts.` become one with a set, `experts.{0..255}`; then those that
/// differ only in the number after `layers.`. Sorted.
pub(super) fn condense(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    for marker in ["experts.", "layers."] {
        names = fold(names, marker);
    }
    names.sort();
    names
}

fn fold(names: Vec<String>, marker: &str) -> Vec<String> {
    let mut groups: BTreeMap<(String, String), BTreeSet<u64>> = BTreeMap::new();
    let mut folded = Vec::new();
    for name in names {
        match split(&name, marker) {
            Some((head, number, tail)) => {
                groups.entry((head.to_owned(), tail.to_owned())).or_default().insert(number);
            }
            None => folded.push(name),
        }
    }
    folded.extend(groups.into_iter().map(|((head, tail), numbers)| format!("{head}{}{tail}", set(&numbers))));
    folded
}

/// Text up to and including the marker, the number after it, the rest.
fn split<'a>(name: &'a str, marker: &str) -> Option<(&'a str, u64, &'a str)> {
    let start = name.find(marker)? + marker.len();
    let digits = name[start..].bytes().take_while(u8::is_ascii_digit).count();
    let number = name[start..start + digits].parse().ok()?;
    Some((&name[..start], number, &name[start + digits..]))
}

/// `3`, or `{0..7}`, or `{0..3,5,7..9}`, ends included.
fn set(numbers: &BTreeSet<u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &n in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text: Vec<String> =
        runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}..{b}") }).collect();
    if numbers.len() == 1 { text.concat() } else { format!("{{{}}}", text.join(",")) }
}
