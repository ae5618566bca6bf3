//! What a template writes between the parts of a call. Read off a call that it renders, so that calls which are forced
//! on the model look like those it was trained on.

use serde_json::{Value, json};

use super::marker::{
    ARG_KEY, ARG_VALUE, ASSISTANT, END_ARG_KEY, END_ARG_VALUE, END_ASSISTANT, END_THINK, END_TOOL_CALL,
    TOOL_CALL,
};
use super::template::{RenderOptions, Template};

/// White space between the parts of a call; none, or newlines in the older form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallForm {
    /// From the end of reasoning to the answer.
    pub lead: String,
    /// From the tool's name to the first argument, or to the end of the call.
    pub after_name: String,
    /// From an argument's name to its value.
    pub before_value: String,
    /// From a value to what follows it.
    pub after_value: String,
    /// From one call to the next.
    pub between: String,
    /// From the last call to the end of the turn.
    pub tail: String,
}

impl CallForm {
    /// The form in which `template` writes calls; nothing between the parts if it writes none that can be read.
    pub fn of(template: &Template) -> Self {
        let call = |arguments: Value| json!({"type": "function", "function": {"name": NAME, "arguments": arguments}});
        let messages = [
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call(json!({KEYS[0]: "1", KEYS[1]: "2"})),
                call(json!({KEYS[0]: "3"}))]}),
        ];
        let tools = json!([{"type": "function", "function": {"name": NAME, "parameters": {}}}]);
        let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
        let rendered = template.render_json(&messages, &tools, &Value::Null, &options.thinking(false));
        rendered.ok().and_then(|prompt| Self::read(&prompt.text)).unwrap_or_default()
    }

    fn read(text: &str) -> Option<Self> {
        let turn = &text[text.rfind(ASSISTANT)? + ASSISTANT.len()..];
        let head = &turn[..turn.find(TOOL_CALL)?];
        let mut rest = Gaps(&turn[head.rfind(END_THINK).map_or(0, |at| at + END_THINK.len())..]);
        let form = Self {
            lead: rest.gap(TOOL_CALL)?,
            after_name: rest.skip(NAME)?.gap(ARG_KEY)?,
            before_value: rest.skip(KEYS[0])?.skip(END_ARG_KEY)?.gap(ARG_VALUE)?,
            after_value: rest.skip("1")?.skip(END_ARG_VALUE)?.gap(ARG_KEY)?,
            between: rest.until(END_TOOL_CALL)?.gap(TOOL_CALL)?,
            tail: rest.until(END_TOOL_CALL)?.gap(END_ASSISTANT)?,
        };
        Some(form)
    }
}

/// Text that is read from the front.
struct Gaps<'a>(&'a str);

impl Gaps<'_> {
    /// White space up to `marker`; both are passed.
    fn gap(&mut self, marker: &str) -> Option<String> {
        let (gap, rest) = self.0.split_once(marker)?;
        self.0 = rest;
        gap.trim().is_empty().then(|| gap.to_owned())
    }

    /// Passes `text`, white space around it too.
    fn skip(&mut self, text: &str) -> Option<&mut Self> {
        self.0 = self.0.trim_start().strip_prefix(text)?;
        Some(self)
    }

    /// Passes everything to behind `marker`.
    fn until(&mut self, marker: &str) -> Option<&mut Self> {
        self.0 = self.0.split_once(marker)?.1;
        Some(self)
    }
}

/// Of the call that is rendered.
const NAME: &str = "probe";
const KEYS: [&str; 2] = ["first", "second"];

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::chat::marker::ControlTokens;

    fn form(source: &str) -> CallForm {
        CallForm::of(&Template::from_source(source, Map::new(), ControlTokens::default()).expect("compiles"))
    }

    #[test]
    fn both_dialects_are_read_off_their_templates() {
        assert_eq!(form(include_str!("template/testdata/tight.jinja")), CallForm::default());
        let newline = || "\n".to_owned();
        let padded = CallForm {
            lead: newline(),
            after_name: newline(),
            before_value: newline(),
            after_value: newline(),
            between: newline(),
            tail: newline(),
        };
        assert_eq!(form(include_str!("template/testdata/padded.jinja")), padded);
        assert_eq!(form("{{ messages[0].content }}"), CallForm::default());
    }
}
