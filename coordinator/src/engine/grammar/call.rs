//! The grammar of tool calls, in the form the checkpoint's own template writes them.

use serde_json::Value;

use super::answer::Tool;
use super::lark::{ANY, Lark, Sequence, literal, without};
use super::vocabulary::Vocabulary;
use super::{GrammarError, bare, schema};
use crate::chat::CallForm;
use crate::chat::marker::{ARG_KEY, ARG_VALUE, END_ARG_KEY, END_ARG_VALUE, END_TOOL_CALL, TOOL_CALL};
use crate::chat::output::{ArgumentForm, ToolSchemas};

/// Writes rules for calls.
pub(super) struct CallGrammar<'a> {
    pub(super) lark: &'a mut Lark,
    pub(super) form: &'a CallForm,
    pub(super) vocabulary: &'a Vocabulary,
}

impl CallGrammar<'_> {
    /// A rule for a turn of calls: one, or at least one.
    pub(super) fn turn(&mut self, tools: &[Tool], single: bool, loose: bool) -> Result<String, GrammarError> {
        let bodies = self.bodies(tools, loose)?;
        let call = Sequence::default().marker(TOOL_CALL, self.vocabulary).part(&bodies);
        let call = self.lark.rule("", &call.marker(END_TOOL_CALL, self.vocabulary).finish());
        if single {
            return Ok(call);
        }
        let next = Sequence::default().text(&self.form.between).part(&call).finish();
        let tail = match self.form.tail.as_str() {
            "" => String::new(),
            tail => format!("{}?", literal(tail)),
        };
        Ok(self.lark.rule("", &format!("{call} ({next})* {tail}")))
    }

    /// A rule for what stands between the markers of a call to any of `tools`. `loose` leaves the arguments of tools
    /// that are not strict to the model.
    pub(super) fn bodies(&mut self, tools: &[Tool], loose: bool) -> Result<String, GrammarError> {
        let mut bodies = Vec::with_capacity(tools.len());
        // Two tools of one name are one to the model; the first counts.
        for (index, tool) in tools.iter().enumerate() {
            if tools[..index].iter().all(|earlier| earlier.name != tool.name) {
                bodies.push(self.body(tool, loose && !tool.strict)?);
            }
        }
        Ok(self.lark.rule("", &bodies.join(" | ")))
    }

    fn body(&mut self, tool: &Tool, loose: bool) -> Result<String, GrammarError> {
        if !is_writable(&tool.name) || tool.name.starts_with('{') {
            let reason = format!("the model can't write the name {:?} in a call", tool.name);
            return Err(GrammarError::new(&tool.path, reason));
        }
        let mut body = Sequence::default().text(&tool.name).text(&self.form.after_name);
        let arguments = match (loose, Parameters::read(tool)?) {
            (false, Parameters::Listed(arguments)) => arguments,
            (true, _) | (_, Parameters::Any) => {
                let any = self.any_argument();
                return Ok(self.lark.rule("", &body.part(&format!("{any}*")).finish()));
            }
        };
        let forms = ToolSchemas::from_tools(&[serde_json::json!({
            "name": tool.name, "parameters": tool.parameters,
        })]);
        for argument in arguments {
            let rule = self.argument(tool, &argument, forms.form(&tool.name, argument.name))?;
            body = body.part(&if argument.required { rule } else { format!("{rule}?") });
        }
        Ok(self.lark.rule("", &body.finish()))
    }

    fn argument(
        &mut self,
        tool: &Tool,
        argument: &Parameter<'_>,
        form: ArgumentForm,
    ) -> Result<String, GrammarError> {
        let path = format!("{}.properties.{}", tool.path, argument.name);
        if !is_writable(argument.name) {
            let reason = "the model can't write this name in a call";
            return Err(GrammarError::new(path, reason));
        }
        let exact = match form {
            ArgumentForm::Bare => bare::terminal(argument.schema, &tool.parameters)
                .and_then(|terminal| self.constrained(terminal.as_deref()))
                .map_err(|reason| GrammarError::new(&path, reason)),
            ArgumentForm::Mixed if says_types_only(argument.schema) => Ok(self.free()),
            ArgumentForm::Mixed => Err(GrammarError::new(
                &path,
                "this server can't enforce the schema of an argument that may be a string or something else: the \
                 model writes strings without quotes",
            )),
            ArgumentForm::Json => schema::json(&schema::within(argument.schema, &tool.parameters), &path)
                .map(|json| {
                    let json = self.lark.rule("", &json);
                    Sequence::default().part(&json).marker(END_ARG_VALUE, self.vocabulary).finish()
                }),
        };
        let value = match exact {
            Err(error) if tool.strict => return Err(error),
            Err(_) => self.free(),
            Ok(value) => value,
        };
        let before = Sequence::default()
            .marker(ARG_KEY, self.vocabulary)
            .text(argument.name)
            .marker(END_ARG_KEY, self.vocabulary)
            .text(&self.form.before_value)
            .marker(ARG_VALUE, self.vocabulary);
        let whole = before.part(&value).text(&self.form.after_value).finish();
        Ok(self.lark.rule("", &whole))
    }

    /// An argument of any name with any value.
    fn any_argument(&mut self) -> String {
        let value = self.free();
        let argument = Sequence::default()
            .marker(ARG_KEY, self.vocabulary)
            .part(ANY_KEY)
            .marker(END_ARG_KEY, self.vocabulary)
            .text(&self.form.before_value)
            .marker(ARG_VALUE, self.vocabulary)
            .part(&value)
            .text(&self.form.after_value)
            .finish();
        self.lark.rule("", &argument)
    }

    /// Any text and the end of the value.
    fn free(&mut self) -> String {
        match self.vocabulary.control(END_ARG_VALUE) {
            Some(id) => format!("{} <[{id}]>", self.lark.terminal(ANY)),
            None => self.lark.rule("[lazy]", "/(?s:.*)<\\/arg_value>/"),
        }
    }

    /// Text of a terminal and the end of the value.
    fn constrained(&mut self, terminal: Option<&str>) -> Result<String, String> {
        let Some(terminal) = terminal else { return Ok(self.free()) };
        // By itself first: a pattern may be none, and the place is known here.
        self.vocabulary.compile(format!("start: T\nT: {terminal}\n")).map_err(|e| schema::reason(&e))?;
        // A value ends at its end tag, wherever that comes.
        let text = format!("({terminal} & {})", without(END_ARG_VALUE));
        Ok(match self.vocabulary.control(END_ARG_VALUE) {
            Some(id) => format!("{} <[{id}]>", self.lark.terminal(&text)),
            None => self.lark.terminal(&format!("{text} {}", literal(END_ARG_VALUE))),
        })
    }
}

/// The arguments of a tool.
enum Parameters<'a> {
    /// These, in this order.
    Listed(Vec<Parameter<'a>>),
    /// The schema lists none, and does not say that there are none.
    Any,
}

struct Parameter<'a> {
    name: &'a str,
    schema: &'a Value,
    required: bool,
}

impl<'a> Parameters<'a> {
    fn read(tool: &'a Tool) -> Result<Self, GrammarError> {
        // No schema: no arguments.
        let Value::Object(fields) = &tool.parameters else { return Ok(Self::Listed(Vec::new())) };
        if tool.strict
            && let Some(keyword) =
                fields.keys().find(|key| !KEYWORDS.contains(&key.as_str()) && schema::constrains(key))
        {
            let reason = format!(
                "this server can't enforce {keyword:?} beside the properties of a tool's arguments; leave it out, or \
                 strict"
            );
            return Err(GrammarError::new(&tool.path, reason));
        }
        let listed = fields.get("properties").and_then(Value::as_object);
        let required: Vec<&str> = fields
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
        if listed.is_none() && required.is_empty() && !closed && !fields.is_empty() {
            return match fields.get("additionalProperties") {
                Some(Value::Object(_)) if tool.strict => {
                    let reason =
                        "this server can't enforce a schema of additionalProperties; list the properties";
                    Err(GrammarError::new(&tool.path, reason))
                }
                _ => Ok(Self::Any),
            };
        }
        let is_listed = |name: &str| listed.is_some_and(|listed| listed.contains_key(name));
        let named = listed.into_iter().flatten().map(|(name, schema)| Parameter {
            name,
            schema,
            required: required.contains(&name.as_str()),
        });
        let unlisted = required.iter().filter(|name| !is_listed(name));
        let unlisted = unlisted.map(|name| Parameter { name, schema: &Value::Bool(true), required: true });
        Ok(Self::Listed(named.chain(unlisted).collect()))
    }
}

/// Whether a call can hold this name: readers cut it at a marker or a newline, and trim it.
fn is_writable(name: &str) -> bool {
    let markers = [ARG_KEY, END_ARG_KEY, ARG_VALUE, TOOL_CALL, END_TOOL_CALL, "\n"];
    !name.is_empty() && name.trim() == name && !markers.iter().any(|marker| name.contains(marker))
}

/// Whether a schema says nothing but which types there are, so that any text can be read as one of them.
fn says_types_only(schema: &Value) -> bool {
    let Value::Object(fields) = schema else { return true };
    let integer = |types: &Value| match types {
        Value::Array(types) => types.iter().any(|name| name == "integer"),
        one => one == "integer",
    };
    fields.iter().all(|(key, value)| if key == "type" { !integer(value) } else { !schema::constrains(key) })
}

/// The name of an argument that no schema lists.
const ANY_KEY: &str = "/[a-zA-Z_][a-zA-Z0-9_.\\-]{0,63}/";

/// Keywords that are enforced at the root of a tool's schema.
const KEYWORDS: [&str; 6] =
    ["type", "properties", "required", "additionalProperties", "$defs", "definitions"];
