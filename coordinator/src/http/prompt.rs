//! From a conversation and its tools to prompt ids, and to the reader that understands the answer.

use serde_json::{Map, Value, json};

use super::error::Fault;
use super::fields::{Fields, mismatch};
use super::state::App;
use super::turn::Reader;
use crate::chat::marker::TOOL_CALL;
use crate::chat::{Conversation, Parser, RenderOptions, Rendered, Thinking, ToolSchemas};
use crate::engine::grammar::Tool;

/// A rendered conversation.
pub struct Prompt {
    /// Its text.
    pub rendered: Rendered,
    /// Reads the answer.
    pub reader: Reader,
    /// How its last turn begins.
    pub thinking: Thinking,
    /// Biases that keep a promise of the request, for the sampler.
    pub bias: Vec<(u32, f32)>,
    /// The tools, and what is asked of calls.
    pub tools: Tools,
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    /// Their definitions, `{type, function: {name, …}}`, fields in the client's order.
    pub definitions: Vec<Value>,
    /// The same as a grammar needs them, in the same order.
    pub callable: Vec<Tool>,
    /// What is asked of calls.
    pub choice: Choice,
    /// What was left out, for a `warning` header.
    pub warnings: Vec<String>,
}

/// What a request asks of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// As the model likes.
    #[default]
    Auto,
    /// There must be none.
    None,
    /// There must be one.
    Required,
    /// There must be one of this tool.
    Named(String),
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
    conversation.tools.clone_from(&tools.definitions);
    let rendered = app.render(&conversation, RenderOptions { kwargs, ..RenderOptions::default() })?;
    let thinking = rendered.thinking();
    let parser = Parser::for_prompt(&rendered, ToolSchemas::from_tools(&conversation.tools));
    let forbidden = tools.choice == Choice::None;
    let called = !conversation.tools.is_empty() && !forbidden;
    let parser = if called { parser } else { parser.without_calls() };
    // Tools stay in the prompt, so that the prefix of the session does; no call can begin without its token.
    let ban = forbidden.then(|| app.text.spellings.id_of(TOOL_CALL)).flatten();
    let bias = ban.map(|id| (id, f32::NEG_INFINITY)).into_iter().collect();
    Ok(Prompt { rendered, reader: Reader::Turn(Box::new(parser), thinking), thinking, bias, tools })
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

    /// Adds a function by its definition, whose fields stand at `path`; its schema is their `parameters`.
    ///
    /// # Errors
    /// If a schema is there and is no object.
    pub fn push(&mut self, definition: Value, path: String, strict: bool) -> Result<(), Fault> {
        let function = &definition["function"];
        let parameters = match &function["parameters"] {
            schema @ (Value::Null | Value::Object(_)) => schema.clone(),
            other => return Err(mismatch(&path, "object", other)),
        };
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        self.callable.push(Tool { name, parameters, path, strict });
        self.definitions.push(definition);
        Ok(())
    }

    /// Sets the choice, by its name or that of a tool.
    ///
    /// # Errors
    /// If there is no tool that could be called.
    pub fn set_choice(&mut self, choice: Choice, path: &str) -> Result<(), Fault> {
        let known = |name: &str| self.callable.iter().any(|tool| tool.name == name);
        match &choice {
            Choice::Required if self.callable.is_empty() => {
                return Err(Fault::field(path, "a call is required, and there are no tools"));
            }
            Choice::Named(name) if !known(name) => {
                return Err(Fault::field(path, format!("there is no tool {name:?} among the tools")));
            }
            _ => {}
        }
        self.choice = choice;
        Ok(())
    }

    fn add(&mut self, tool: &Value, path: &str) -> Result<(), Fault> {
        let outer = Fields::of(tool, path)?;
        let kind = outer.string("type")?.unwrap_or("function");
        if kind != "function" {
            self.warnings.push(format!("{path}: tools of type {kind} are not run here; it was left out"));
            return Ok(());
        }
        let (definition, path) = match outer.object("function")? {
            Some(function) => {
                name(&function)?;
                (tool.clone(), function.path("parameters"))
            }
            None => {
                name(&outer)?;
                let inner = tool.as_object().into_iter().flatten().filter(|(key, _)| *key != "type");
                let inner: Map<String, Value> =
                    inner.map(|(key, value)| (key.clone(), value.clone())).collect();
                (json!({"type": "function", "function": inner}), outer.path("parameters"))
            }
        };
        let strict = definition["function"]["strict"] == true;
        self.push(definition, path, strict)
    }

    fn choose(&mut self, fields: &Fields<'_>) -> Result<(), Fault> {
        let path = fields.path("tool_choice");
        let Some(choice) = fields.get("tool_choice") else { return Ok(()) };
        let (mode, allowed) = match choice {
            Value::String(mode) => (mode.as_str(), None),
            Value::Object(_) => {
                let fields = Fields::of(choice, &path)?;
                match fields.string("type")? {
                    Some("allowed_tools") => {
                        // Chat completions wrap the list once more, Responses does not.
                        let inner = fields.object("allowed_tools")?.unwrap_or(fields);
                        let list = inner.array("tools")?.unwrap_or_default();
                        (inner.string("mode")?.unwrap_or("auto"), Some(list))
                    }
                    Some("function") => {
                        // Here, too.
                        let inner = fields.object("function")?.unwrap_or(fields);
                        let name =
                            inner.string("name")?.ok_or_else(|| inner.missing("name", "a tool's name"))?;
                        return self.set_choice(Choice::Named(name.to_owned()), &path);
                    }
                    other => {
                        let kind = other.unwrap_or("nothing");
                        let reason =
                            format!("choices of type {kind} are not built; function and allowed_tools are");
                        return Err(Fault::unsupported(&path, &reason));
                    }
                }
            }
            other => return Err(mismatch(&path, "string or object", other)),
        };
        if let Some(allowed) = allowed {
            let of = |tool: &Value| tool.get("function").unwrap_or(tool).get("name").cloned();
            let names: Vec<Value> = allowed.iter().filter_map(of).collect();
            self.definitions.retain(|tool| of(tool).is_some_and(|name| names.contains(&name)));
            self.callable.retain(|tool| names.iter().any(|name| *name == tool.name));
        }
        match mode {
            "auto" => Ok(()),
            "none" => self.set_choice(Choice::None, &path),
            "required" | "any" => self.set_choice(Choice::Required, &path),
            other => Err(Fault::field(&path, format!("expected auto, none or required, got {other:?}"))),
        }
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
        assert_eq!(with(json!("none")).unwrap().choice, Choice::None);
        assert_eq!(with(json!("required")).unwrap().choice, Choice::Required);
        for function in
            [json!({"type": "function", "function": {"name": "f"}}), json!({"type": "function", "name": "f"})]
        {
            assert_eq!(with(function).unwrap().choice, Choice::Named("f".to_owned()));
        }
        let fault = with(json!({"type": "function", "name": "h"})).unwrap_err();
        assert_eq!(fault.to_string(), "tool_choice: there is no tool \"h\" among the tools");
        assert!(read(&json!({"tool_choice": "required"})).is_err());
        assert_eq!(with(json!({"type": "mcp"})).unwrap_err().code(), Some("unsupported_parameter"));
        let chosen = json!({"type": "function", "function": {"name": "g"}});
        let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [chosen]}});
        assert_eq!(with(allowed).unwrap().definitions.len(), 1);
        let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]});
        let tools = with(allowed).unwrap();
        assert_eq!((tools.callable.len(), tools.choice), (1, Choice::Required));
        assert!(with(json!("maybe")).is_err());
    }
}
