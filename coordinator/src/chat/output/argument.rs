//! One argument's value on its way from the model's text to JSON.

use serde_json::Value;

use super::schema::Types;

/// A value that is still arriving.
#[derive(Clone, Debug)]
pub(super) enum Argument {
    /// A string: passed on as it arrives, white space and all.
    Text,
    /// A string or null, not yet known which: all text so far.
    TextOrNull(String),
    /// Decoded when complete.
    Other(String, Types),
    /// A key that was given before. The first one counts.
    Repeated,
}

impl Argument {
    /// A value of one of `types`.
    pub(super) fn new(types: Types) -> Self {
        if types == Types::STRING {
            Self::Text
        } else if types == Types::STRING.union(Types::NULL) {
            Self::TextOrNull(String::new())
        } else {
            Self::Other(String::new(), types)
        }
    }

    /// JSON text that goes before anything of the value.
    pub(super) const fn open(&self) -> &'static str {
        if matches!(self, Self::Text) { "\"" } else { "" }
    }

    /// Takes more of the value; the JSON text it adds.
    pub(super) fn push(&mut self, text: &str) -> String {
        match self {
            Self::Text => escaped(text),
            Self::TextOrNull(so_far) => {
                so_far.push_str(text);
                if NULL.starts_with(so_far.as_str()) {
                    return String::new();
                }
                let fragment = format!("\"{}", escaped(so_far));
                *self = Self::Text;
                fragment
            }
            Self::Other(so_far, _) => {
                so_far.push_str(text);
                String::new()
            }
            Self::Repeated => String::new(),
        }
    }

    /// The JSON text that completes the value.
    pub(super) fn close(self) -> String {
        match self {
            Self::Text => "\"".to_owned(),
            Self::TextOrNull(text) if text == NULL => NULL.to_owned(),
            Self::TextOrNull(text) => quoted(&text),
            Self::Other(text, types) => decoded(&text, types),
            Self::Repeated => String::new(),
        }
    }
}

/// JSON of `text` as one of `types`; what can't be read as any of them is a string, whatever the schema says: the
/// tool can tell the model what it wanted, and nothing is lost.
fn decoded(text: &str, types: Types) -> String {
    let trimmed = text.trim();
    let json = match trimmed {
        // The way Python prints them.
        "True" => "true",
        "False" => "false",
        "None" => NULL,
        other => other,
    };
    let Ok(value) = serde_json::from_str::<Value>(json) else { return quoted(text) };
    let strings_are_bare = types != Types::ANY && types.includes(Types::STRING);
    if strings_are_bare && (value.is_string() || !types.includes(Types::of_value(&value))) {
        return quoted(text);
    }
    // The model's own spelling: reading numbers and printing them again could change them.
    json.to_owned()
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

/// `text` as it stands between the quotes of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let json = Value::from(text).to_string();
    json.get(1..json.len() - 1).unwrap_or_default().to_owned()
}

const NULL: &str = "null";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::schema::ToolSchemas;
    use super::*;

    fn read(schema: &Value, pieces: &[&str]) -> String {
        let tool = json!({"name": "f", "parameters": {"properties": {"a": schema}}});
        let mut argument = Argument::new(ToolSchemas::from_tools(&[tool]).types("f", "a"));
        let mut json = argument.open().to_owned();
        for piece in pieces {
            json.push_str(&argument.push(piece));
        }
        json + &argument.close()
    }

    #[test]
    fn values_by_schema() {
        let string = json!({"type": "string"});
        let nullable = json!({"type": ["string", "null"]});
        let either = json!({"type": ["string", "integer"]});
        for (schema, text, json) in [
            (&string, " 3\n", r#"" 3\n""#),
            (&string, "null", r#""null""#),
            (&string, "\"q\"", r#""\"q\"""#),
            (&nullable, "null", "null"),
            (&nullable, "nul", r#""nul""#),
            (&nullable, "nullable", r#""nullable""#),
            (&nullable, "", r#""""#),
            (&either, "3", "3"),
            (&either, "x", r#""x""#),
            (&either, "true", r#""true""#),
            (&either, "\"3\"", r#""\"3\"""#),
            (&json!({"type": "integer"}), " 12345678901234567890123 ", "12345678901234567890123"),
            (&json!({"type": "integer"}), "three ", r#""three ""#),
            (&json!({"type": "boolean"}), "True", "true"),
            (&json!({"type": "object"}), "\n{\"k\": [1, 2.50]}\n", r#"{"k": [1, 2.50]}"#),
            (&json!({"type": "array"}), "[1, 2", r#""[1, 2""#),
            (&json!({"type": "array"}), "\"[1]\"", r#""[1]""#),
            (&json!({}), "None", "null"),
            (&json!({}), "\"q\"", r#""q""#),
            (&json!({}), "a\tb", r#""a\tb""#),
        ] {
            assert_eq!(read(schema, &[text]), json, "{schema} {text:?}");
            let chars: Vec<String> = text.chars().map(String::from).collect();
            assert_eq!(
                read(schema, &chars.iter().map(String::as_str).collect::<Vec<_>>()),
                json,
                "{schema}, split"
            );
        }
    }
}
