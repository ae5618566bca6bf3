//! Whether the model is to think: clients say it in five ways, templates have different defaults. One answer, always
//! given to the template.

use serde_json::{Map, Value};

use super::error::Fault;
use super::fields::{Fields, mismatch};

/// The template's variables for a request, `enable_thinking` among them.
///
/// The most particular word counts: `chat_template_kwargs.enable_thinking`, `enable_thinking`, `reasoning_effort` or
/// `reasoning.effort`, `thinking.type`, then the server's default.
///
/// # Errors
/// If one of them has a type or a value nobody sends.
pub fn kwargs(fields: &Fields<'_>, default: bool) -> Result<Map<String, Value>, Fault> {
    let mut kwargs = match fields.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(kwargs)) => kwargs.clone(),
        Some(other) => return Err(mismatch(&fields.path("chat_template_kwargs"), "object", other)),
    };
    let said = stated(fields)?.unwrap_or(default);
    match kwargs.get(ENABLE).cloned() {
        None | Some(Value::Null) => {
            kwargs.insert(ENABLE.to_owned(), Value::Bool(said));
        }
        Some(Value::Bool(_)) => {}
        Some(other) => {
            return Err(mismatch(&format!("chat_template_kwargs.{ENABLE}"), "boolean", &other));
        }
    }
    Ok(kwargs)
}

/// What a request says outside of the template's variables.
fn stated(fields: &Fields<'_>) -> Result<Option<bool>, Fault> {
    if let Some(on) = fields.boolean(ENABLE)? {
        return Ok(Some(on));
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        return Ok(Some(effort != "none"));
    }
    if let Some(Value::Object(_)) = fields.get("reasoning") {
        let reasoning = fields.object("reasoning")?;
        let reasoning = reasoning.as_ref();
        if let Some(effort) = reasoning.map(|fields| fields.string("effort")).transpose()?.flatten() {
            return Ok(Some(effort != "none"));
        }
        if let Some(on) = reasoning.map(|fields| fields.boolean("enabled")).transpose()?.flatten() {
            return Ok(Some(on));
        }
    }
    let Some(thinking) = fields.object("thinking")? else { return Ok(None) };
    match thinking.string("type")? {
        None => Ok(None),
        Some("enabled" | "adaptive") => Ok(Some(true)),
        Some("disabled") => Ok(Some(false)),
        Some(other) => {
            let reason = format!("expected enabled, disabled or adaptive, got {other:?}");
            Err(Fault::field(&thinking.path("type"), reason))
        }
    }
}

/// The template's switch.
const ENABLE: &str = "enable_thinking";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_way_to_say_it() {
        for (body, on) in [
            (json!({}), true),
            (json!({"reasoning_effort": "none"}), false),
            (json!({"reasoning_effort": "low"}), true),
            (json!({"reasoning": {"effort": "none"}}), false),
            (json!({"reasoning": {"enabled": false}}), false),
            (json!({"thinking": {"type": "disabled"}}), false),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), true),
            (json!({"enable_thinking": false}), false),
            (json!({"chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "high"}), false),
            (json!({"chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "none"}), true),
            (json!({"chat_template_kwargs": {"preserve_thinking": true}}), true),
        ] {
            let kwargs = kwargs(&Fields::of_body(&body).unwrap(), true).unwrap();
            assert_eq!(kwargs["enable_thinking"], on, "{body}");
            assert_eq!(kwargs.contains_key("preserve_thinking"), body.to_string().contains("preserve"));
        }
        let body = json!({});
        assert_eq!(kwargs(&Fields::of_body(&body).unwrap(), false).unwrap()["enable_thinking"], false);
        let body = json!({"thinking": {"type": "yes"}});
        assert!(kwargs(&Fields::of_body(&body).unwrap(), false).is_err());
    }
}
