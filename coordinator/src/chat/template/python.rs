//! Python's habits, where they show in rendered text: values from JSON, the spelling of floats, methods of strings
//! and dictionaries.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use serde_json::Value as Json;

/// The template value of a JSON value. Every string in it, key or value, goes through `text`; key order is kept.
pub(super) fn value_of(json: &Json, text: &dyn Fn(&str) -> String) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(string) => Value::from(text(string)),
        Json::Array(items) => items.iter().map(|item| value_of(item, text)).collect(),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(key, value)| (text(key), value_of(value, text))))
        }
    }
}

/// Whether a string in `json`, key or value, is one that `wanted` accepts.
pub(super) fn any_string(json: &Json, wanted: &dyn Fn(&str) -> bool) -> bool {
    match json {
        Json::String(string) => wanted(string),
        Json::Array(items) => items.iter().any(|item| any_string(item, wanted)),
        Json::Object(fields) => fields.iter().any(|(key, value)| wanted(key) || any_string(value, wanted)),
        Json::Null | Json::Bool(_) | Json::Number(_) => false,
    }
}

/// `repr(number)`: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// Methods that jinja2 templates call on Python's own types: pycompat's, and those it lacks.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let missing = || Error::from(ErrorKind::UnknownMethod);
    match (value.as_str(), value.kind()) {
        (Some(text), _) => match string_method(text, name, args) {
            Some(result) => result,
            None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
        },
        (None, ValueKind::Map) if name == "copy" && args.is_empty() => Ok(value.clone()),
        (None, ValueKind::Undefined | ValueKind::None) => Err(missing()),
        (None, _) => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let one = || args_of_one(args);
    Some(match name {
        "removeprefix" => one().map(|prefix| Value::from(text.strip_prefix(prefix).unwrap_or(text))),
        "removesuffix" => one().map(|suffix| Value::from(text.strip_suffix(suffix).unwrap_or(text))),
        "partition" => one().map(|separator| match text.split_once(separator) {
            Some((before, after)) => Value::from((before, separator, after)),
            None => Value::from((text, "", "")),
        }),
        "rpartition" => one().map(|separator| match text.rsplit_once(separator) {
            Some((before, after)) => Value::from((before, separator, after)),
            None => Value::from(("", "", text)),
        }),
        "rsplit" => from_args::<(&str, Option<i64>)>(args).map(|(separator, limit)| {
            let pieces =
                limit.and_then(|limit| usize::try_from(limit).ok()).map_or(usize::MAX, |limit| limit + 1);
            let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
            parts.reverse();
            parts.iter().copied().collect::<Value>()
        }),
        "index" => one().and_then(|part| match text.find(part) {
            Some(at) => Ok(Value::from(text[..at].chars().count())),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "casefold" => Ok(Value::from(text.to_lowercase())),
        "zfill" => from_args::<(usize,)>(args).map(|(width,)| {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let zeros = width.saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(zeros)))
        }),
        _ => return None,
    })
}

fn args_of_one(args: &[Value]) -> Result<&str, Error> {
    from_args::<(&str,)>(args).map(|(argument,)| argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        for (number, repr) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (123456789.125, "123456789.125"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(float_repr(number), repr);
        }
    }
}
