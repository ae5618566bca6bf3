//! The `tojson` filter of transformers: Python's `json.dumps`, character for character.
//!
//! jinja2's own filter escapes `<`, `>`, `&` and `'` for HTML; transformers replaces it by one that does not, and
//! that takes `ensure_ascii` (false unless asked), `indent`, `separators` and `sort_keys`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python::float_repr;

/// The filter. Arguments may be given by position, in Python's order.
pub(super) fn tojson(value: &Value, positional: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let argument = |index: usize, name: &str| -> Result<Value, Error> {
        match positional.get(index) {
            Some(value) => Ok(value.clone()),
            None => Ok(kwargs.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let indent = argument(1, "indent")?;
    let indent = match (indent.as_str(), indent.kind()) {
        (Some(text), _) => Some(text.to_owned()),
        (None, ValueKind::Undefined | ValueKind::None) => None,
        (None, _) => Some(" ".repeat(usize::try_from(i64::try_from(indent)?).unwrap_or(0))),
    };
    let separators = argument(2, "separators")?;
    let (item, key) = match separators.kind() {
        ValueKind::Undefined | ValueKind::None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        ValueKind::Undefined | ValueKind::None => (", ".to_owned(), ": ".to_owned()),
        _ => (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string()),
    };
    let style = Style {
        ascii: argument(0, "ensure_ascii")?.is_true(),
        sort_keys: argument(3, "sort_keys")?.is_true(),
        indent,
        item,
        key,
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.value(&mut out, value, 0)?;
    Ok(out)
}

/// How the text is laid out.
struct Style {
    ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    /// Between items.
    item: String,
    /// Between a key and its value.
    key: String,
}

impl Style {
    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items(out, ('[', ']'), items.len(), depth, |out, index| {
                    self.value(out, &items[index], depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items(out, ('{', '}'), keys.len(), depth, |out, index| {
                    let key = &keys[index];
                    match key.as_str() {
                        Some(text) => self.string(out, text),
                        None => self.string(out, &scalar(key)),
                    }
                    out.push_str(&self.key);
                    self.value(out, &value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                let message = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn items(
        &self,
        out: &mut String,
        (open, close): (char, char),
        count: usize,
        depth: usize,
        mut write: impl FnMut(&mut String, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        for index in 0..count {
            if index > 0 {
                out.push_str(&self.item);
            }
            self.line(out, depth + 1);
            write(out, index)?;
        }
        if count > 0 {
            self.line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string can't fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// JSON of a value that holds no others.
fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) if number.is_nan() => "NaN".to_owned(),
            Ok(number) if number.is_infinite() => {
                if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
            }
            Ok(number) => float_repr(number),
            Err(_) => value.to_string(),
        },
        _ => value.to_string(),
    }
}
