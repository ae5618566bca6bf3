//! Which types a tool's arguments may have, as far as decoding needs to know.
//!
//! The model writes strings bare and everything else as JSON, so `3` is text or a number by the schema alone.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// The argument types of every tool of a request.
#[derive(Clone, Debug, Default)]
pub struct ToolSchemas {
    tools: HashMap<String, HashMap<String, Types>>,
}

impl ToolSchemas {
    /// Reads tool definitions: `{function: {name, parameters}}`, or name and `parameters` or `input_schema` without a
    /// wrapper. What is not a tool is skipped.
    pub fn from_tools(tools: &[Value]) -> Self {
        let mut read = Self::default();
        for tool in tools {
            let tool = tool.get("function").unwrap_or(tool);
            let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
            let root = tool.get("parameters").or_else(|| tool.get("input_schema")).unwrap_or(&Value::Null);
            let properties = root.get("properties").and_then(Value::as_object);
            let arguments = properties.into_iter().flatten();
            let arguments = arguments.map(|(key, schema)| (key.clone(), Types::of(schema, root, MAX_DEPTH)));
            read.tools.insert(name.to_owned(), arguments.collect());
        }
        read
    }

    /// How the model writes `argument` of `tool`, and how it is therefore read.
    pub fn form(&self, tool: &str, argument: &str) -> ArgumentForm {
        let types = self.types(tool, argument);
        if !types.includes(Types::STRING) {
            ArgumentForm::Json
        } else if Types::STRING.union(Types::NULL).includes(types) {
            ArgumentForm::Bare
        } else {
            ArgumentForm::Mixed
        }
    }

    /// The types that `tool` accepts for `argument`; any for what was never declared.
    pub(super) fn types(&self, tool: &str, argument: &str) -> Types {
        self.tools.get(tool).and_then(|arguments| arguments.get(argument)).copied().unwrap_or(Types::ANY)
    }
}

/// How the model writes an argument, by its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentForm {
    /// A string as it is; perhaps also the bare word `null`.
    Bare,
    /// A string as it is, or JSON of something else.
    Mixed,
    /// JSON; never a string.
    Json,
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub(super) const STRING: Self = Self(1);
    pub(super) const NULL: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NUMBER: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    pub(super) const ANY: Self = Self(63);

    pub(super) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The type of a value.
    pub(super) const fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// The types `schema` accepts. What this does not understand accepts anything.
    fn of(schema: &Value, root: &Value, depth: usize) -> Self {
        let Some(fields) = schema.as_object().filter(|_| depth > 0) else { return Self::ANY };
        let mut types = Self::ANY;
        let mut restrict = |to: Self| types = Self(types.0 & to.0);
        match fields.get("type") {
            Some(Value::String(name)) => restrict(Self::named(name)),
            Some(Value::Array(names)) => {
                restrict(Self::any_of(
                    names.iter().map(|name| Self::named(name.as_str().unwrap_or_default())),
                ));
            }
            _ => {}
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            restrict(Self::any_of(values.iter().map(Self::of_value)));
        }
        if let Some(value) = fields.get("const") {
            restrict(Self::of_value(value));
        }
        let list = |name: &str| fields.get(name).and_then(Value::as_array);
        for choices in ["anyOf", "oneOf"].into_iter().filter_map(list) {
            restrict(Self::any_of(choices.iter().map(|choice| Self::of(choice, root, depth - 1))));
        }
        for part in list("allOf").into_iter().flatten() {
            restrict(Self::of(part, root, depth - 1));
        }
        if let Some(target) = Self::target(fields, root) {
            restrict(Self::of(target, root, depth - 1));
        }
        // `nullable` is OpenAPI's older way to say it.
        let types =
            if fields.get("nullable") == Some(&Value::Bool(true)) { types.union(Self::NULL) } else { types };
        if types.0 == 0 { Self::ANY } else { types }
    }

    /// What `$ref` points to, inside the same schema.
    fn target<'a>(fields: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
        root.pointer(fields.get("$ref")?.as_str()?.strip_prefix('#')?)
    }

    fn any_of(types: impl Iterator<Item = Self>) -> Self {
        types.fold(Self(0), Self::union)
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "number" | "integer" => Self::NUMBER,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }
}

/// Levels of schemas inside schemas that are followed; references may go in circles.
const MAX_DEPTH: usize = 8;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_in_the_wild() {
        let nullable = Types::STRING.union(Types::NULL);
        let properties = json!({
            "s": {"type": "string", "description": "d"},
            "n": {"type": "integer"},
            "optional": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            "list": {"type": ["string", "null"]},
            "openapi": {"type": "string", "nullable": true},
            "enum": {"enum": ["a", "b"]},
            "ref": {"$ref": "#/$defs/mode"},
            "all": {"allOf": [{"$ref": "#/$defs/mode"}], "title": "t"},
            "loop": {"$ref": "#/$defs/loop"},
            "free": {},
            "odd": true,
            "never": {"type": "string", "const": 3},
        });
        let defs = json!({"mode": {"type": "string", "enum": ["r"]}, "loop": {"$ref": "#/$defs/loop"}});
        let parameters = json!({"type": "object", "properties": properties, "$defs": defs});
        for tool in [
            json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
            json!({"type": "function", "name": "f", "parameters": parameters}),
            json!({"name": "f", "input_schema": parameters}),
        ] {
            let schemas = ToolSchemas::from_tools(&[json!({"type": "web_search"}), tool]);
            for (argument, types) in [
                ("s", Types::STRING),
                ("n", Types::NUMBER),
                ("optional", nullable),
                ("list", nullable),
                ("openapi", nullable),
                ("enum", Types::STRING),
                ("ref", Types::STRING),
                ("all", Types::STRING),
                ("loop", Types::ANY),
                ("free", Types::ANY),
                ("odd", Types::ANY),
                ("never", Types::ANY),
                ("undeclared", Types::ANY),
            ] {
                assert_eq!(schemas.types("f", argument), types, "{argument}");
            }
            assert_eq!(schemas.types("g", "s"), Types::ANY);
        }
    }
}
