//! What clients send, normalised before any template sees it.
//!
//! Clients disagree on shapes: text as a string, as parts or as null, arguments as JSON text or as an object,
//! reasoning under three names. Each is accepted here once, and everything after this file sees one shape. Fields
//! nobody knows are ignored; what would change the prompt and is not understood is an error that names its place.

use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions. `developer` is another name for it.
    System,
    /// The person or the agent.
    User,
    /// The model.
    Assistant,
    /// The result of a call. `function` is another name for it.
    Tool,
}

impl Role {
    /// The name templates compare with.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A call the model made in an earlier turn.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// The id the client knows the call by; clients may send none.
    pub id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// Argument names and values, in the order they were given.
    pub arguments: Map<String, Value>,
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; parts joined in order, null as nothing.
    pub content: String,
    /// What was thought before; only the assistant thinks. Never empty.
    pub reasoning: Option<String>,
    /// Calls made after the text, in order.
    pub tool_calls: Vec<ToolCall>,
    /// For a result: the id of the call it answers.
    pub tool_call_id: Option<String>,
    /// Name of the speaker or of the tool, where given.
    pub name: Option<String>,
}

/// Everything a prompt is rendered from, but the options.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Turns, oldest first.
    pub messages: Vec<Message>,
    /// Tool definitions as the client sent them, key order kept: they are rendered as JSON.
    pub tools: Vec<Value>,
    /// Documents for templates that take them.
    pub documents: Vec<Value>,
}

/// A message that can't be understood. Display is "place: expected …, got …".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: expected {expected}, got {found}")]
pub struct MessageError {
    /// Where, as in `messages[3].content[0].type`.
    pub path: String,
    /// What would have been understood.
    pub expected: &'static str,
    /// What stood there.
    pub found: String,
}

impl Conversation {
    /// A conversation from the `messages` and `tools` of an OpenAI-shaped request.
    ///
    /// # Errors
    /// [`MessageError`] for the first message that can't be understood.
    pub fn from_json(messages: &Value, tools: Option<&Value>) -> Result<Self, MessageError> {
        let list = messages.as_array().ok_or_else(|| mismatch("messages", "array", messages))?;
        let messages = list
            .iter()
            .enumerate()
            .map(|(index, message)| Message::from_json(message, &format!("messages[{index}]")))
            .collect::<Result<_, _>>()?;
        let tools = match tools {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(tools)) => tools.clone(),
            Some(other) => return Err(mismatch("tools", "array", other)),
        };
        Ok(Self { messages, tools, documents: Vec::new() })
    }
}

impl Message {
    /// A message of plain text.
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        let content = content.into();
        Self { role, content, reasoning: None, tool_calls: Vec::new(), tool_call_id: None, name: None }
    }

    /// A message from JSON. `path` is where it stood in the request, for errors.
    ///
    /// # Errors
    /// [`MessageError`] if the role is unknown, a part is not text, or a field has a type that no client sends.
    pub fn from_json(message: &Value, path: &str) -> Result<Self, MessageError> {
        let fields = message.as_object().ok_or_else(|| mismatch(path, "object", message))?;
        let at = |field: &str| format!("{path}.{field}");
        let role = match fields.get("role").and_then(Value::as_str) {
            Some("system" | "developer") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool" | "function") => Role::Tool,
            other => {
                let found =
                    other.map_or_else(|| kind(fields.get("role")).to_owned(), |role| format!("{role:?}"));
                let expected = "system, developer, user, assistant or tool";
                return Err(MessageError { path: at("role"), expected, found });
            }
        };
        let parts = Parts::read(fields.get("content"), &at("content"))?;
        let named = ["reasoning_content", "thinking", "reasoning"];
        let reasoning = named
            .iter()
            .filter_map(|name| fields.get(*name).and_then(Value::as_str))
            .find(|text| !text.is_empty())
            .map_or(parts.reasoning, str::to_owned);
        let tool_calls = match fields.get("tool_calls") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(calls)) => calls
                .iter()
                .enumerate()
                .map(|(index, call)| ToolCall::from_json(call, &format!("{path}.tool_calls[{index}]")))
                .collect::<Result<_, _>>()?,
            Some(other) => return Err(mismatch(&at("tool_calls"), "array or null", other)),
        };
        Ok(Self {
            role,
            content: parts.content,
            reasoning: Some(reasoning).filter(|text| role == Role::Assistant && !text.is_empty()),
            tool_calls,
            tool_call_id: string(fields.get("tool_call_id")),
            name: string(fields.get("name")),
        })
    }

    /// The object a template sees. Absent fields are absent, not null.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("role".to_owned(), json!(self.role.as_str()));
        fields.insert("content".to_owned(), json!(self.content));
        if let Some(reasoning) = &self.reasoning {
            fields.insert("reasoning".to_owned(), json!(reasoning));
            fields.insert("reasoning_content".to_owned(), json!(reasoning));
        }
        if !self.tool_calls.is_empty() {
            fields.insert("tool_calls".to_owned(), self.tool_calls.iter().map(ToolCall::to_json).collect());
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                fields.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(fields)
    }
}

impl ToolCall {
    /// A call from JSON: `{id, type, function: {name, arguments}}`, or name and arguments without the wrapper.
    ///
    /// Arguments may be an object, its JSON text, or nothing. Text that is not a JSON object (a call the budget cut
    /// short, sent back) is kept whole as one argument named `arguments`, so that the conversation can go on.
    ///
    /// # Errors
    /// [`MessageError`] if there is no name, or arguments are of another type.
    pub fn from_json(call: &Value, path: &str) -> Result<Self, MessageError> {
        let fields = call.as_object().ok_or_else(|| mismatch(path, "object", call))?;
        let (function, path) = match fields.get("function").and_then(Value::as_object) {
            Some(function) => (function, format!("{path}.function")),
            None => (fields, path.to_owned()),
        };
        let name = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()).ok_or_else(
            || {
                let (path, found) = (format!("{path}.name"), kind(function.get("name")).to_owned());
                MessageError { path, expected: "a tool's name", found }
            },
        )?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments.clone(),
            Some(Value::String(text)) => arguments_from_text(text),
            Some(other) => return Err(mismatch(&format!("{path}.arguments"), "object or JSON text", other)),
        };
        Ok(Self { id: string(fields.get("id")), name: name.to_owned(), arguments })
    }

    /// The object a template sees.
    pub fn to_json(&self) -> Value {
        let mut fields = Map::new();
        if let Some(id) = &self.id {
            fields.insert("id".to_owned(), json!(id));
        }
        fields.insert("type".to_owned(), json!("function"));
        fields.insert("function".to_owned(), json!({"name": self.name, "arguments": self.arguments}));
        Value::Object(fields)
    }
}

/// Text and thoughts of a `content` field.
#[derive(Default)]
struct Parts {
    content: String,
    reasoning: String,
}

impl Parts {
    fn read(content: Option<&Value>, path: &str) -> Result<Self, MessageError> {
        let mut read = Self::default();
        match content {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => read.content.push_str(text),
            Some(Value::Array(parts)) => {
                for (index, part) in parts.iter().enumerate() {
                    read.add(part, &format!("{path}[{index}]"))?;
                }
            }
            Some(part @ Value::Object(_)) => read.add(part, path)?,
            Some(other) => return Err(mismatch(path, "string or array", other)),
        }
        Ok(read)
    }

    fn add(&mut self, part: &Value, path: &str) -> Result<(), MessageError> {
        if let Value::String(text) = part {
            self.content.push_str(text);
            return Ok(());
        }
        let fields = part.as_object().ok_or_else(|| mismatch(path, "object", part))?;
        let (field, into) = match fields.get("type").and_then(Value::as_str) {
            Some("text" | "input_text" | "output_text") => ("text", &mut self.content),
            None if fields.contains_key("text") => ("text", &mut self.content),
            Some("refusal") => ("refusal", &mut self.content),
            Some("thinking") => ("thinking", &mut self.reasoning),
            Some("reasoning" | "reasoning_text") => ("text", &mut self.reasoning),
            other => {
                let found =
                    other.map_or_else(|| kind(fields.get("type")).to_owned(), |part| format!("{part:?}"));
                return Err(MessageError { path: format!("{path}.type"), expected: "a text part", found });
            }
        };
        match fields.get(field) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(text)) => {
                into.push_str(text);
                Ok(())
            }
            Some(other) => Err(mismatch(&format!("{path}.{field}"), "string", other)),
        }
    }
}

fn arguments_from_text(text: &str) -> Map<String, Value> {
    if text.trim().is_empty() {
        return Map::new();
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => arguments,
        Ok(Value::Null) => Map::new(),
        _ => Map::from_iter([("arguments".to_owned(), json!(text))]),
    }
}

fn string(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

fn mismatch(path: &str, expected: &'static str, found: &Value) -> MessageError {
    MessageError { path: path.to_owned(), expected, found: kind(Some(found)).to_owned() }
}

const fn kind(value: Option<&Value>) -> &'static str {
    match value {
        None => "nothing",
        Some(Value::Null) => "null",
        Some(Value::Bool(_)) => "boolean",
        Some(Value::Number(_)) => "number",
        Some(Value::String(_)) => "string",
        Some(Value::Array(_)) => "array",
        Some(Value::Object(_)) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: Value) -> Message {
        Message::from_json(&message, "messages[0]").unwrap()
    }

    #[test]
    fn contents_of_every_shape() {
        for (content, text) in [
            (json!("a"), "a"),
            (json!(null), ""),
            (json!([]), ""),
            (json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]), "a b"),
            (
                json!(["a", {"type": "input_text", "text": "b"}, {"text": "c"}, {"type": "text", "text": null}]),
                "abc",
            ),
        ] {
            assert_eq!(read(json!({"role": "user", "content": content})).content, text);
        }
        assert_eq!(read(json!({"role": "assistant"})).content, "");
        assert_eq!(read(json!({"role": "developer", "content": "x"})).role, Role::System);
    }

    #[test]
    fn reasoning_under_every_name_and_only_where_there_is_some() {
        for message in [
            json!({"role": "assistant", "content": "b", "reasoning_content": "why"}),
            json!({"role": "assistant", "content": "b", "reasoning_content": "", "reasoning": "why"}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "b"}]}),
        ] {
            let message = read(message);
            assert_eq!((message.content.as_str(), message.reasoning.as_deref()), ("b", Some("why")));
        }
        assert_eq!(read(json!({"role": "assistant", "content": "b", "reasoning": ""})).reasoning, None);
    }

    #[test]
    fn arguments_of_every_shape() {
        let arguments = |arguments: Value| {
            let call =
                json!({"id": null, "type": "function", "function": {"name": "f", "arguments": arguments}});
            let call = ToolCall::from_json(&call, "c").unwrap();
            assert_eq!(call.id, None);
            Value::Object(call.arguments).to_string()
        };
        assert_eq!(arguments(json!(r#"{"z": 1, "a": {"y": 2, "b": 3}}"#)), r#"{"z":1,"a":{"y":2,"b":3}}"#);
        assert_eq!(arguments(json!({"z": 1, "a": 2})), r#"{"z":1,"a":2}"#);
        assert_eq!(
            [arguments(json!("")), arguments(json!(null)), arguments(json!("null"))],
            ["{}", "{}", "{}"]
        );
        assert_eq!(arguments(json!(r#"{"path": "a"#)), r#"{"arguments":"{\"path\": \"a"}"#);
    }

    #[test]
    fn errors_name_the_place() {
        let error = |messages: Value| Conversation::from_json(&messages, None).unwrap_err().to_string();
        let user = json!({"role": "user", "content": "a"});
        assert_eq!(
            error(json!([user, {"role": "user", "content": 3}])),
            "messages[1].content: expected string or array, got number"
        );
        assert_eq!(
            error(json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])),
            "messages[0].content[0].type: expected a text part, got \"image_url\""
        );
        assert_eq!(
            error(json!([{"role": "wizard"}])),
            "messages[0].role: expected system, developer, user, assistant or tool, got \"wizard\""
        );
        assert_eq!(
            error(json!([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}])),
            "messages[0].tool_calls[0].function.name: expected a tool's name, got nothing"
        );
    }
}
