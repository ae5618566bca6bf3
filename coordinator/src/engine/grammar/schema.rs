//! JSON schemas as the grammar library reads them. What it can't enforce it refuses; so do we, by name.

use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};

use super::GrammarError;

/// The grammar of a JSON text that follows `schema`, which stands at `path` of the request.
///
/// # Errors
/// If the schema is no schema, is too large, or has a keyword that can't be enforced.
pub(super) fn json(schema: &Value, path: &str) -> Result<String, GrammarError> {
    let schema = prepared(schema, path)?;
    let size = schema.to_string();
    if size.len() > MAX_BYTES {
        let reason = format!("the schema has {} bytes; {MAX_BYTES} are the most", size.len());
        return Err(GrammarError::new(path, reason));
    }
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    match JsonCompileOptions::default().json_to_llg_with_overrides(builder, schema) {
        Ok(_) => Ok(format!("%json {size}")),
        Err(error) => Err(GrammarError::new(path, reason(&error.to_string()))),
    }
}

/// The schema of `argument` by itself: definitions of the whole stay within its reach.
pub(super) fn within(schema: &Value, root: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let mut fields = fields.clone();
    for name in DEFINITIONS {
        if let Some(definitions) = root.get(name) {
            fields.insert(name.to_owned(), definitions.clone());
        }
    }
    Value::Object(fields)
}

/// Whether a keyword of JSON schema changes what fits. Others are for people; so are words that no draft has.
pub(super) fn constrains(keyword: &str) -> bool {
    KEYWORDS.contains(&keyword)
}

/// What the library's word on a schema means to a client.
pub(super) fn reason(error: &str) -> String {
    // Regular expressions are explained over several lines.
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    let error = error.as_str();
    if let Some(keys) = error.strip_prefix("Unimplemented keys: ") {
        let keys = keys.trim_matches(['[', ']']);
        return format!("this server can't enforce {keys} of a JSON schema; leave it out");
    }
    if let Some(format) = error.strip_prefix("Unknown format: ") {
        return format!("this server can't enforce the format {format:?}; leave it out, or use pattern");
    }
    if error.starts_with("oneOf constraints") {
        return "this server can't enforce oneOf where several choices may fit at once; use anyOf".to_owned();
    }
    format!("this schema can't be enforced: {error}")
}

/// The schema with our options, instead of any that a client put there for the library.
fn prepared(schema: &Value, path: &str) -> Result<Value, GrammarError> {
    let mut fields = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::new(path, "the schema false allows nothing")),
        _ => return Err(GrammarError::new(path, "expected a JSON schema, an object")),
    };
    fields.insert(OPTIONS.to_owned(), json!({"whitespace_pattern": WHITE_SPACE}));
    Ok(Value::Object(fields))
}

/// Every keyword of the drafts that constrains.
const KEYWORDS: [&str; 43] = [
    "type",
    "enum",
    "const",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Where definitions stand that a schema refers to.
pub(super) const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Where the library looks for its options.
const OPTIONS: &str = "x-guidance";

/// Between the parts of a JSON text. Bounded, or a model that likes white space would never get out of it.
const WHITE_SPACE: &str = r"[ \n\t\r]{1,64}";

/// Of one schema, as JSON text: what takes a second or so to compile.
const MAX_BYTES: usize = 256 << 10;
