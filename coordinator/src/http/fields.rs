//! Fields of a JSON body, read one at a time: null is absent, unknown ones are not looked at, and what has the wrong
//! type is refused with its path.

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::error::Fault;

/// An object of a body and where it stands.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Empty for the body itself, else with a final point.
    path: String,
}

/// The body as JSON.
///
/// # Errors
/// [`Fault::BadRequest`] that says where it stops being JSON.
pub fn parse(body: &Bytes) -> Result<Value, Fault> {
    serde_json::from_slice(body)
        .map_err(|e| Fault::BadRequest { message: format!("the body is not JSON: {e}"), param: None })
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    ///
    /// # Errors
    /// If it is no object.
    pub fn of_body(body: &'a Value) -> Result<Self, Fault> {
        let map = body.as_object().ok_or_else(|| Fault::BadRequest {
            message: format!("the body: expected object, got {}", kind(body)),
            param: None,
        })?;
        Ok(Self { map, path: String::new() })
    }

    /// The fields of `value`, which stands at `path`.
    ///
    /// # Errors
    /// If it is no object.
    pub fn of(value: &'a Value, path: &str) -> Result<Self, Fault> {
        let map = value.as_object().ok_or_else(|| mismatch(path, "object", value))?;
        Ok(Self { map, path: format!("{path}.") })
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field that is there and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A boolean.
    ///
    /// # Errors
    /// For another type.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.read(name, "boolean", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// For another type.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, Fault> {
        self.read(name, "string", Value::as_str)
    }

    /// An array.
    ///
    /// # Errors
    /// For another type.
    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>, Fault> {
        self.read(name, "array", |value| value.as_array().map(Vec::as_slice))
    }

    /// An object.
    ///
    /// # Errors
    /// For another type.
    pub fn object(&self, name: &str) -> Result<Option<Self>, Fault> {
        self.get(name).map(|value| Self::of(value, &self.path(name))).transpose()
    }

    /// A whole number from `least`; JSON may write it as `3.0`.
    ///
    /// # Errors
    /// For anything else.
    pub fn integer(&self, name: &str, least: i64) -> Result<Option<i64>, Fault> {
        let whole = |value: &Value| {
            let float = || value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9.0e15).map(|x| x as i64);
            value.as_i64().or_else(float).filter(|&number| number >= least)
        };
        match self.get(name) {
            None => Ok(None),
            Some(value) => whole(value).map(Some).ok_or_else(|| {
                Fault::field(
                    &self.path(name),
                    format!("expected whole number from {least}, got {}", shown(value)),
                )
            }),
        }
    }

    /// A count.
    ///
    /// # Errors
    /// For anything but a whole number from `least`.
    pub fn count(&self, name: &str, least: i64) -> Result<Option<usize>, Fault> {
        Ok(self.integer(name, least.max(0))?.and_then(|number| usize::try_from(number).ok()))
    }

    /// A number from `least` to `most`.
    ///
    /// # Errors
    /// For anything else.
    pub fn number(&self, name: &str, least: f32, most: f32) -> Result<Option<f32>, Fault> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().map(|x| x as f32).filter(|x| *x >= least && *x <= most && x.is_finite());
        number.map(Some).ok_or_else(|| {
            let range =
                if most == f32::MAX { format!("{least} or more") } else { format!("from {least} to {most}") };
            Fault::field(&self.path(name), format!("expected number {range}, got {}", shown(value)))
        })
    }

    /// A string, or several.
    ///
    /// # Errors
    /// For another type.
    pub fn strings(&self, name: &str) -> Result<Vec<String>, Fault> {
        let path = self.path(name);
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::String(one)) => Ok(vec![one.clone()]),
            Some(Value::Array(several)) => several
                .iter()
                .enumerate()
                .map(|(index, value)| match value {
                    Value::String(one) => Ok(one.clone()),
                    other => Err(mismatch(&format!("{path}[{index}]"), "string", other)),
                })
                .collect(),
            Some(other) => Err(mismatch(&path, "string or array of strings", other)),
        }
    }

    /// Token ids.
    ///
    /// # Errors
    /// For anything but an array of them.
    pub fn ids(&self, name: &str) -> Result<Option<Vec<u32>>, Fault> {
        let Some(list) = self.array(name)? else { return Ok(None) };
        let path = self.path(name);
        ids(list, &path).map(Some)
    }

    /// The error for a field that must be there.
    pub fn missing(&self, name: &str, expected: &str) -> Fault {
        Fault::field(&self.path(name), format!("expected {expected}, got nothing"))
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| mismatch(&self.path(name), expected, value)),
        }
    }
}

/// The token ids of an array at `path`.
///
/// # Errors
/// For anything but token ids.
pub fn ids(list: &[Value], path: &str) -> Result<Vec<u32>, Fault> {
    let id = |(index, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| mismatch(&format!("{path}[{index}]"), "token id", value))
    };
    list.iter().enumerate().map(id).collect()
}

/// `path: expected …, got …`.
pub fn mismatch(path: &str, expected: &str, found: &Value) -> Fault {
    Fault::field(path, format!("expected {expected}, got {}", kind(found)))
}

/// Numbers and strings as they are, of everything else the type.
fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    }
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_fields_are_named_with_their_path_and_null_is_absent() {
        let body = json!({"a": null, "t": "hot", "n": 1.5, "k": 3.0, "o": {"x": []}, "stop": ["a", 1], "ids": [1, -1]});
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(fields.string("a"), Ok(None));
        let told = |fault: Fault| fault.to_string();
        assert_eq!(
            told(fields.number("t", 0.0, 2.0).unwrap_err()),
            "t: expected number from 0 to 2, got string"
        );
        assert_eq!(told(fields.integer("n", 0).unwrap_err()), "n: expected whole number from 0, got 1.5");
        assert_eq!(fields.count("k", 1), Ok(Some(3)));
        let inner = fields.object("o").unwrap().unwrap();
        assert_eq!(told(inner.boolean("x").unwrap_err()), "o.x: expected boolean, got array");
        assert_eq!(told(fields.strings("stop").unwrap_err()), "stop[1]: expected string, got number");
        assert_eq!(told(fields.ids("ids").unwrap_err()), "ids[1]: expected token id, got number");
    }
}
