//! From a conversation and its tools to prompt ids, and to the reader that understands the answer.

use serde_json::{Map, Value, json};

use super::error::Fault;
use super::fields::{Fields, mismatch};
use super::knobs::NO_GRAMMAR;
use super::state::App;
use super::turn::Reader;
use crate::chat::marker::TOOL_CALL;
use crate::chat::{Conversation, Parser, RenderOptions, Rendered, ToolSchemas};

/// A rendered conversation.
pub struct Prompt {
    /// Its text.
    pub rendered: Rendered,
    /// Reads the answer.
    pub reader: Reader,
    /// Biases that keep a promise of the request, for the sampler.
    pub bias: Vec<(u32, f32)>,
    /// What was left out of the request.
    pub warnings: Vec<String>,
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Their definitions, `{type, function: {name, …}}`, fields in the client's order.
    pub definitions: Vec<Value>,
    /// The request rules calls out.
    pub forbidden: bool,
    /// What was left out, for a `warning` header.
    pub warnings: Vec<String>,
}

/// Renders `conversation` with `tools`.
///
/// # Errors
/// If it is empty, or the template refuses it.
pub fn render(
    app: &App,
    mut conversation: Conversation,
    kwargs: Map<String, Value>,
    tools: Tools,
) -> Result<Prompt, Fault> {
    if conversation.messages.is_empty() {
        return Err(Fault::field("messages", "expected at least one message, got none"));
    }
    conversation.tools = tools.definitions;
    let rendered = app.render(&conversation, RenderOptions { kwargs, ..RenderOptions::default() })?;
    let thinking = rendered.thinking();
    let parser = Parser::for_prompt(&rendered, ToolSchemas::from_tools(&conversation.tools));
    let called = !conversation.tools.is_empty() && !tools.forbidden;
    let parser = if called { parser } else { parser.without_calls() };
    // Tools stay in the prompt, so that the prefix of the session does; no call can begin without its token.
    let ban = tools.forbidden.then(|| app.text.spellings.id_of(TOOL_CALL)).flatten();
    let bias = ban.map(|id| (id, f32::NEG_INFINITY)).into_iter().collect();
    Ok(Prompt { rendered, reader: Reader::Turn(Box::new(parser), thinking), bias, warnings: tools.warnings })
}

impl Tools {
    /// `tools` and `tool_choice` of OpenAI's dialects: definitions with a `function` wrapper, or (Responses) without.
    ///
    /// # Errors
    /// If a definition has no name, or a choice can't be kept.
    pub fn read(fields: &Fields<'_>) -> Result<Self, Fault> {
        let mut tools = Self::default();
        for (index, tool) in fields.array("tools")?.unwrap_or_default().iter().enumerate() {
            tools.add(tool, &fields.path(&format!("tools[{index}]")))?;
        }
        tools.choose(fields)?;
        Ok(tools)
    }

    fn add(&mut self, tool: &Value, path: &str) -> Result<(), Fault> {
        let outer = Fields::of(tool, path)?;
        let kind = outer.string("type")?.unwrap_or("function");
        if kind != "function" {
            self.warnings.push(format!("{path}: tools of type {kind} are not run here; it was left out"));
            return Ok(());
        }
        let definition = match outer.object("function")? {
            Some(function) => {
                name(&function)?;
                tool.clone()
            }
            None => {
                name(&outer)?;
                let inner = tool.as_object().into_iter().flatten().filter(|(key, _)| *key != "type");
                let inner: Map<String, Value> =
                    inner.map(|(key, value)| (key.clone(), value.clone())).collect();
                json!({"type": "function", "function": inner})
            }
        };
        if definition["function"]["strict"] == true {
            self.warnings.push(format!("{path}: strict is not enforced"));
        }
        self.definitions.push(definition);
        Ok(())
    }

    fn choose(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        let path = fields.path("tool_choice");
        let Some(choice) = fields.get("tool_choice") else { return Ok(()) };
        let unenforced = || Fault::unsupported(&path, NO_GRAMMAR);
        let (mode, allowed) = match choice {
            Value::String(mode) => (mode.as_str(), None),
            Value::Object(_) => {
                let fields = Fields::of(choice, &path)?;
                if fields.string("type")? != Some("allowed_tools") {
                    return Err(unenforced());
                }
                // Chat completions wrap the list once more, Responses does not.
                let inner = fields.object("allowed_tools")?.unwrap_or(fields);
                let list = inner.array("tools")?.unwrap_or_default();
                (inner.string("mode")?.unwrap_or("auto"), Some(list))
            }
            other => return Err(mismatch(&path, "string or object", other)),
        };
        match mode {
            "auto" => {}
            "none" => self.forbidden = true,
            "required" | "any" => return Err(unenforced()),
            other => {
                return Err(Fault::field(&path, format!("expected auto, none or required, got {other:?}")));
            }
        }
        if let Some(allowed) = allowed {
            let of = |tool: &Value| tool.get("function").unwrap_or(tool).get("name").cloned();
            let names: Vec<Value> = allowed.iter().filter_map(of).collect();
            self.definitions.retain(|tool| of(tool).is_some_and(|name| names.contains(&name)));
        }
        Ok(())
    }
}

fn name(function: &Fields<'_>) -> Result<(), Fault> {
    match function.string("name")? {
        Some(name) if !name.is_empty() => Ok(()),
        _ => Err(function.missing("name", "a tool's name")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Tools, Fault> {
        Tools::read(&Fields::of_body(body).unwrap())
    }

    #[test]
    fn definitions_keep_their_order_and_other_tools_are_told_of() {
        let function = json!({"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "name": "f"}});
        let flat = json!({"type": "function", "name": "g", "strict": false, "parameters": {}});
        let tools = read(&json!({"tools": [function, {"type": "web_search"}, flat]})).unwrap();
        assert_eq!(tools.definitions[0].to_string(), function.to_string());
        assert_eq!(
            tools.definitions[1],
            json!({"type": "function", "function": {"name": "g", "strict": false, "parameters": {}}})
        );
        assert!(tools.warnings[0].contains("tools[1]") && tools.warnings[0].contains("web_search"));
        let fault = read(&json!({"tools": [{"type": "function", "function": {}}]})).unwrap_err();
        assert_eq!(fault.to_string(), "tools[0].function.name: expected a tool's name, got nothing");
    }

    #[test]
    fn choices_are_kept_or_refused() {
        let with = |choice: Value| {
            let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
            read(&json!({"tools": [tool("f"), tool("g")], "tool_choice": choice}))
        };
        assert_eq!(with(json!("auto")).unwrap().definitions.len(), 2);
        assert!(with(json!("none")).unwrap().forbidden);
        for choice in [json!("required"), json!({"type": "function", "function": {"name": "f"}})] {
            let fault = with(choice).unwrap_err();
            assert_eq!(fault.code(), Some("unsupported_parameter"));
        }
        let chosen = json!({"type": "function", "function": {"name": "g"}});
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chosen]}});
        assert_eq!(with(allowed).unwrap().definitions.len(), 1);
        let allowed =
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]});
        assert_eq!(with(allowed).unwrap().definitions.len(), 1);
        assert!(with(json!("maybe")).is_err());
    }
}
