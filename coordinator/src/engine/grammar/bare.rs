//! String arguments: the model writes them as they are, without quotes, so their schemas become terminals here.

use serde_json::{Map, Value};

use super::lark::{ANY, literal, regex};

/// A terminal for the texts that `schema` accepts as strings (and `null`, where it accepts that); `None` if any text
/// will do.
///
/// # Errors
/// What the schema has that can't be enforced.
pub(super) fn terminal(schema: &Value, root: &Value) -> Result<Option<String>, String> {
    alternatives(schema, root, MAX_DEPTH)
}

fn alternatives(schema: &Value, root: &Value, depth: usize) -> Result<Option<String>, String> {
    let Value::Object(fields) = schema else { return Ok(None) };
    if depth == 0 {
        return Err("its references go deeper than this server follows".to_owned());
    }
    if let Some(keyword) = fields.keys().find(|key| REFUSED.contains(&key.as_str())) {
        return Err(format!("this server can't enforce {keyword:?} of a string argument; leave it out"));
    }
    let mut all = Vec::new();
    all.extend(own(fields)?);
    if let Some(reference) = fields.get("$ref") {
        let target = reference.as_str().and_then(|r| root.pointer(r.strip_prefix('#')?));
        let target = target.ok_or_else(|| format!("its reference {reference} leads nowhere"))?;
        all.extend(alternatives(target, root, depth - 1)?);
    }
    for part in list(fields, "allOf") {
        all.extend(alternatives(part, root, depth - 1)?);
    }
    for name in ["anyOf", "oneOf"] {
        let choices = list(fields, name);
        if choices.is_empty() {
            continue;
        }
        if name == "oneOf" && choices.iter().filter(|choice| !is_null(choice)).count() > 1 {
            return Err("this server can't enforce oneOf of a string argument; use anyOf".to_owned());
        }
        let each: Result<Vec<_>, String> =
            choices.iter().map(|choice| alternatives(choice, root, depth - 1)).collect();
        // One choice that takes any text makes the others say nothing.
        if let Some(some) = each?.into_iter().collect::<Option<Vec<String>>>() {
            all.push(format!("({})", some.join(" | ")));
        }
    }
    Ok(match all.len() {
        0 => None,
        _ => Some(format!("({})", all.join(" & "))),
    })
}

/// What a schema's own keywords say.
fn own(fields: &Map<String, Value>) -> Result<Option<String>, String> {
    let types = match fields.get("type") {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if types == ["null"] {
        return Ok(Some(literal("null")));
    }
    let nullable = types.contains(&"null") || fields.get("nullable") == Some(&Value::Bool(true));
    let values = match (fields.get("enum"), fields.get("const")) {
        (Some(Value::Array(values)), _) => Some(values.iter().collect::<Vec<_>>()),
        (_, Some(value)) => Some(vec![value]),
        _ => None,
    };
    if let Some(values) = values {
        let text = |value: &&Value| match value {
            Value::String(text) => Some(literal(text)),
            Value::Null if nullable || types.is_empty() => Some(literal("null")),
            _ => None,
        };
        let texts: Vec<String> = values.iter().filter_map(text).collect();
        return match texts.is_empty() {
            true => Err("none of its choices is a string".to_owned()),
            false => Ok(Some(format!("({})", texts.join(" | ")))),
        };
    }
    let mut all = Vec::new();
    let (least, most) = (length(fields, "minLength")?, length(fields, "maxLength")?);
    if least.is_some() || most.is_some() {
        let most = most.map_or_else(String::new, |most| most.to_string());
        all.push(format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)));
    }
    if let Some(pattern) = fields.get("pattern") {
        let pattern = pattern.as_str().ok_or("its pattern is not a string")?;
        all.push(search(pattern));
    }
    if let Some(format) = fields.get("format") {
        let known = FORMATS.iter().find(|(name, _)| format == name);
        let (_, pattern) = known.ok_or_else(|| {
            format!("this server can't enforce the format {format} of a string argument; use pattern")
        })?;
        all.push(regex(pattern));
    }
    if all.is_empty() {
        return Ok(None);
    }
    let strings = all.join(" & ");
    Ok(Some(if nullable { format!("({strings} | \"null\")") } else { format!("({strings})") }))
}

/// A JSON schema's pattern is found anywhere in the text, unless it says where.
fn search(pattern: &str) -> String {
    let choices = top_level_choices(pattern).into_iter().map(|choice| {
        let (start, choice) = match choice.strip_prefix('^') {
            Some(rest) => ("", rest),
            None => (ANY, choice),
        };
        let escaped = |text: &str| (text.len() - text.trim_end_matches('\\').len()) % 2 == 1;
        let (choice, end) = match choice.strip_suffix('$') {
            Some(rest) if !escaped(rest) => (rest, ""),
            _ => (choice, ANY),
        };
        format!("({start} {} {end})", regex(choice))
    });
    format!("({})", choices.collect::<Vec<_>>().join(" | "))
}

/// The choices of a pattern outside of its groups and classes.
fn top_level_choices(pattern: &str) -> Vec<&str> {
    let (mut choices, mut start) = (Vec::new(), 0);
    let (mut depth, mut class, mut escaped) = (0_usize, false, false);
    for (at, c) in pattern.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => {
                choices.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    choices.push(&pattern[start..]);
    choices
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    fields.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").is_some_and(|name| name == "null")
}

/// A length in characters.
fn length(fields: &Map<String, Value>, name: &str) -> Result<Option<u32>, String> {
    let Some(value) = fields.get(name) else { return Ok(None) };
    let length = value.as_u64().and_then(|length| u32::try_from(length).ok()).filter(|&l| l <= MAX_LENGTH);
    length.map(Some).ok_or_else(|| format!("its {name} is no whole number up to {MAX_LENGTH}: {value}"))
}

/// Keywords that change which strings fit, and are not built.
const REFUSED: [&str; 5] = ["not", "if", "then", "else", "$dynamicRef"];

/// Formats that are enforced.
const FORMATS: [(&str, &str); 8] = [
    ("date", DATE),
    ("time", TIME),
    ("date-time", DATE_TIME),
    ("uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    ("ipv4", r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"),
    ("hostname", r"[a-zA-Z\d]([a-zA-Z\d-]{0,61}[a-zA-Z\d])?(\.[a-zA-Z\d]([a-zA-Z\d-]{0,61}[a-zA-Z\d])?)*"),
    (
        "email",
        r"[\w!#$%&'*+=?^{|}~-]+(\.[\w!#$%&'*+=?^{|}~-]+)*@[a-zA-Z\d]([a-zA-Z\d-]*[a-zA-Z\d])?(\.[a-zA-Z\d]([a-zA-Z\d-]*[a-zA-Z\d])?)*",
    ),
    (
        "uri",
        r"[a-zA-Z][a-zA-Z\d+.-]*://[a-zA-Z\d.-]+(:\d{1,5})?(/[\w.~!$&'()*+,;=:@-]*)*(\?[\w.~!$&'()*+,;=:@/?-]*)?(\#[\w.~!$&'()*+,;=:@/?-]*)?",
    ),
];

const DATE: &str =
    r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-9]))";
const TIME: &str = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)";
const DATE_TIME: &str = r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-9]))[tT]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)";

/// Levels of schemas inside schemas; references may go in circles.
const MAX_DEPTH: usize = 8;

/// Most characters that a bound may name: the terminal counts them one by one.
const MAX_LENGTH: u32 = 100_000;
