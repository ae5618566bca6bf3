//! What was said so far, and the commands that change it. No terminal here, and no network.

use serde_json::{Map, Value, json};

use crate::cli::serve::Switch;

/// A talk.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// The server's name of its model.
    pub model: String,
    /// Said before everything else.
    pub system: Option<String>,
    /// Whether the model is to think; the server's choice if `None`.
    pub thinking: Option<Switch>,
    /// Most new tokens of an answer; the server's choice if `None`.
    pub max_tokens: Option<u32>,
    /// Divisor of the logits; the server's choice if `None`.
    pub temperature: Option<f64>,
    /// User and assistant in turn, as the API takes them.
    pub messages: Vec<Value>,
}

/// A line that is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Forgets what was said.
    New,
    /// Sets the system prompt, or shows it.
    System(Option<String>),
    /// Switches thinking, or shows it.
    Thinking(Option<Switch>),
    /// Writes the talk to a file.
    Save(String),
    /// Lists the commands.
    Help,
    /// Leaves.
    Quit,
    /// A command that there is not, or that lacks something; what to say about it.
    Bad(String),
}

impl Command {
    /// The command in `line`; `None` if it is a message.
    pub fn parse(line: &str) -> Option<Self> {
        let command = line.strip_prefix('/')?;
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let given = (!rest.is_empty()).then(|| rest.to_owned());
        Some(match (name, given) {
            ("new", _) => Self::New,
            ("system", text) => Self::System(text),
            ("thinking", None) => Self::Thinking(None),
            ("thinking", Some(word)) => match word.as_str() {
                "on" => Self::Thinking(Some(Switch::On)),
                "off" => Self::Thinking(Some(Switch::Off)),
                _ => Self::Bad(format!("/thinking {word}: on or off")),
            },
            ("save", Some(file)) => Self::Save(file),
            ("save", None) => Self::Bad("/save FILE: to which file?".to_owned()),
            ("help" | "?", _) => Self::Help,
            ("quit" | "exit" | "bye", _) => Self::Quit,
            (name, _) => Self::Bad(format!(
                "/{name} is no command; /help lists them, and a message that begins with / needs a space before it"
            )),
        })
    }
}

impl Session {
    /// The user says something.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// The model answered. An answer of nothing is none.
    pub fn answered(&mut self, content: &str, reasoning: &str) {
        if content.is_empty() && reasoning.is_empty() {
            return;
        }
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = json!(reasoning);
        }
        self.messages.push(message);
    }

    /// Takes back what the user said last, because it was not answered.
    pub fn take_back(&mut self) {
        self.messages.pop_if(|message| message["role"] == "user");
    }

    /// Forgets what was said; the system prompt and the switches stay.
    pub fn forget(&mut self) {
        self.messages.clear();
    }

    /// The request for the next answer.
    pub fn request(&self) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": self.all(),
            "stream": true,
            "stream_options": {"include_usage": true},
            "return_progress": true,
        });
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                body[name] = value;
            }
        };
        set("max_tokens", self.max_tokens.map(Value::from));
        set("temperature", self.temperature.map(Value::from));
        set("enable_thinking", self.thinking.map(|switch| json!(switch == Switch::On)));
        body
    }

    /// The talk for a file: as a body of the API if it ends in `.json`, else to be read.
    pub fn saved(&self, file: &str) -> String {
        if file.ends_with(".json") {
            return format!("{:#}\n", json!({"model": self.model, "messages": self.all()}));
        }
        let mut text = String::new();
        for message in self.all() {
            let field = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
            text += &format!("## {}\n\n", field("role"));
            let reasoning = field("reasoning_content");
            if !reasoning.is_empty() {
                let quoted: Vec<String> =
                    reasoning.trim().lines().map(|line| format!("> {line}").trim_end().to_owned()).collect();
                text += &format!("{}\n\n", quoted.join("\n"));
            }
            text += &format!("{}\n\n", field("content").trim());
        }
        text
    }

    fn all(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| {
            Value::Object(Map::from_iter([
                ("role".to_owned(), json!("system")),
                ("content".to_owned(), json!(text)),
            ]))
        });
        system.chain(self.messages.iter().cloned()).collect()
    }
}

/// What `/help` says.
pub const HELP: &str = "\
/new              forget what was said
/system [TEXT]    set the system prompt, or show it
/thinking [on|off]
/save FILE        write the talk to FILE, as JSON if it ends in .json
/quit             leave; Ctrl-D does, too
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let parse = Command::parse;
        assert_eq!(parse("hello /new"), None);
        assert_eq!(parse(" /new"), None);
        assert_eq!(parse("/new"), Some(Command::New));
        assert_eq!(parse("/system  Be brief. "), Some(Command::System(Some("Be brief.".to_owned()))));
        assert_eq!(parse("/system"), Some(Command::System(None)));
        assert_eq!(parse("/thinking off"), Some(Command::Thinking(Some(Switch::Off))));
        assert_eq!(parse("/save a b.md"), Some(Command::Save("a b.md".to_owned())));
        for bad in ["/save", "/thinking maybe", "/dance", "/"] {
            assert!(matches!(parse(bad), Some(Command::Bad(_))), "{bad}");
        }
    }

    #[test]
    fn a_talk_is_asked_kept_and_saved() {
        let mut session = Session { model: "m".to_owned(), ..Session::default() };
        session.ask("a");
        session.answered("b", "hm\n\nso");
        session.ask("lost");
        session.take_back();
        session.take_back();
        session.system = Some("s".to_owned());
        let request = session.request();
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "hm\n\nso"},
        ]);
        assert_eq!(request["messages"], messages);
        assert!(request.get("temperature").is_none() && request.get("enable_thinking").is_none());
        session.thinking = Some(Switch::Off);
        assert_eq!(session.request()["enable_thinking"], false);
        assert_eq!(
            session.saved("x.md"),
            "## system\n\ns\n\n## user\n\na\n\n## assistant\n\n> hm\n>\n> so\n\nb\n\n"
        );
        let json: Value = serde_json::from_str(&session.saved("x.json")).expect("JSON");
        assert_eq!(json, json!({"model": "m", "messages": messages}));
        session.forget();
        session.answered("", "");
        assert_eq!(session.request()["messages"].as_array().map(Vec::len), Some(1));
    }
}
