//! `chat`: a talk on the terminal, over the API of a running server; or one message from a pipe, its answer on stdout.
//!
//! - [`client`], [`stream`]: the server, as a client sees it
//! - [`session`]: what was said, and the commands
//! - [`voice`]: how it is shown
//!
//! An answer is stopped by dropping its stream: the server notices, and ends the request.

pub mod client;
pub mod session;
pub mod stream;
pub mod voice;

#[cfg(test)]
mod tests;

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::ctrl_c;

use super::args::ChatArgs;
use super::failure::Failure;
use super::output;
use crate::http::auth;
use client::{Client, ClientError};
use session::{Command, HELP, Session};
use voice::{Telling, Voice};

/// Runs the command.
///
/// # Errors
/// With one message.
pub fn run(command: &ChatArgs) -> Result<(), Failure> {
    let key = key(command)?;
    let client = Client::new(&command.url, key.as_deref()).map_err(Failure::usage)?;
    let voice = Voice::of_process();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let piped = if std::io::stdin().is_terminal() { None } else { Some(message_from_pipe()?) };
    let model = runtime.block_on(async {
        tokio::select! {
            model = ready(&client, voice) => model,
            _ = ctrl_c() => Err(Failure::interrupted()),
        }
    })?;
    let session = Session {
        model: model["model"].as_str().unwrap_or_default().to_owned(),
        system: command.system.clone(),
        thinking: command.thinking,
        max_tokens: command.max_tokens.map(std::num::NonZeroU32::get),
        temperature: command.temperature.map(f64::from),
        ..Session::default()
    };
    match piped {
        Some(message) => answer_once(&runtime, &client, voice, session, &message),
        None => {
            let context = model["context_length"].as_u64().unwrap_or_default();
            let (name, base) = (&session.model, client.base());
            voice.note(&format!("{name} at {base}, context {context} tokens; /help lists the commands"));
            talk(&runtime, &client, voice, session)
        }
    }
}

/// The key to send: the first one of the file, or the variable's.
fn key(command: &ChatArgs) -> Result<Option<String>, Failure> {
    if let Some(path) = &command.api_key_file {
        let first = auth::first_key(path).map_err(|e| Failure::usage(format!("--api-key-file {e}")))?;
        return Ok(Some(first));
    }
    Ok(std::env::var("LAGUNA_API_KEY").ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty()))
}

fn message_from_pipe() -> Result<String, Failure> {
    let mut message = String::new();
    let read = std::io::stdin().lock().take(PIPE_LIMIT + 1).read_to_string(&mut message);
    read.map_err(|error| Failure::usage(format!("stdin: {error}")))?;
    if message.len() as u64 > PIPE_LIMIT {
        return Err(Failure::usage(format!("stdin: the message is longer than {PIPE_LIMIT} bytes")));
    }
    if message.trim().is_empty() {
        return Err(Failure::usage(
            "stdin is no terminal and holds no message: echo 'MESSAGE' | laguna-coord chat",
        ));
    }
    Ok(message.trim_end().to_owned())
}

/// Waits until the model is loaded; what the server says of itself then.
async fn ready(client: &Client, voice: Voice) -> Result<Value, Failure> {
    let mut waiting: Option<Waiting> = None;
    loop {
        let (status, body) = client.get("/health").await.map_err(Failure::failed)?;
        if status.is_success() {
            // A look that needs the key: better known now than after the first message is written.
            let (status, refused) = client.get("/v1/models").await.map_err(Failure::failed)?;
            return if status.is_success() {
                Ok(body)
            } else {
                Err(Failure::failed(ClientError::refused(status, &refused)))
            };
        }
        if body["status"] != "loading" {
            return Err(Failure::failed(ClientError::refused(status, &body)));
        }
        waiting.get_or_insert_with(|| Waiting::begin(voice)).show(&body);
        tokio::time::sleep(LOADING).await;
    }
}

/// A server that loads, shown: a bar for eyes, a line for logs.
struct Waiting {
    bar: ProgressBar,
    voice: Voice,
    said: String,
}

impl Waiting {
    fn begin(voice: Voice) -> Self {
        let bar = if voice.seen { ProgressBar::new(100) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("loading {wide_bar} {pos} % {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self { bar, voice, said: String::new() }
    }

    fn show(&mut self, body: &Value) {
        let what = body["loading"].as_str().unwrap_or_default();
        if let Some(share) = body["progress"].as_f64() {
            self.bar.set_position((share * 100.0) as u64);
        }
        self.bar.set_message(what.to_owned());
        if !self.voice.seen && what != self.said {
            what.clone_into(&mut self.said);
            output::say(format_args!("the server is loading: {what}"));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// One message, one answer.
fn answer_once(
    runtime: &Runtime,
    client: &Client,
    voice: Voice,
    mut session: Session,
    message: &str,
) -> Result<(), Failure> {
    session.ask(message);
    match runtime.block_on(answer(client, voice, &mut session, interrupted()))? {
        Outcome::Whole => Ok(()),
        Outcome::Stopped => Err(Failure::interrupted()),
    }
}

/// A talk on a terminal.
fn talk(runtime: &Runtime, client: &Client, voice: Voice, mut session: Session) -> Result<(), Failure> {
    let config = Config::builder().auto_add_history(true).build();
    let mut editor: Editor<(), MemHistory> =
        Editor::with_history(config, MemHistory::new()).map_err(Failure::failed)?;
    loop {
        let Some(line) = read(&mut editor)? else { return Ok(()) };
        if line.trim().is_empty() {
            continue;
        }
        if let Some(command) = Command::parse(&line) {
            match obey(command, &mut session) {
                Some(reply) => output::say(reply),
                None => return Ok(()),
            }
            continue;
        }
        session.ask(line.trim());
        match runtime.block_on(answer(client, voice, &mut session, interrupted())) {
            Ok(Outcome::Whole) => {}
            Ok(Outcome::Stopped) => voice.note("(stopped)"),
            Err(failure) if failure.is_broken_pipe() => return Err(failure),
            Err(failure) => {
                // It can be sent again: the line is in the history.
                session.take_back();
                output::say(format_args!("error: {failure}"));
            }
        }
    }
}

/// One message, of several lines where they end in `\`; `None` once the user leaves.
fn read(editor: &mut Editor<(), MemHistory>) -> Result<Option<String>, Failure> {
    let mut message = String::new();
    loop {
        let prompt = if message.is_empty() { "> " } else { ". " };
        match editor.readline(prompt) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(line) => message += &format!("{line}\n"),
                None => return Ok(Some(message + &line)),
            },
            Err(ReadlineError::Interrupted) if !message.is_empty() => message.clear(),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(Failure::failed(format!("the terminal: {error}"))),
        }
    }
}

/// Does what a command says; what to say about it, or `None` to leave.
fn obey(command: Command, session: &mut Session) -> Option<String> {
    Some(match command {
        Command::Quit => return None,
        Command::Help => HELP.to_owned(),
        Command::Bad(reason) => reason,
        Command::New => {
            session.forget();
            "forgotten".to_owned()
        }
        Command::System(None) => session.system.clone().unwrap_or_else(|| "no system prompt".to_owned()),
        Command::System(text) => {
            session.system = text;
            "from the next message on".to_owned()
        }
        Command::Thinking(None) => match session.thinking {
            Some(switch) => format!("thinking {switch}"),
            None => "thinking as the server has it".to_owned(),
        },
        Command::Thinking(switch) => {
            session.thinking = switch;
            "from the next message on".to_owned()
        }
        Command::Save(file) => match save(Path::new(&file), &session.saved(&file)) {
            Ok(()) => format!("written to {file}"),
            Err(error) => format!("{file}: {error}"),
        },
    })
}

/// Nothing that is there already is written over.
fn save(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::File::create_new(file)?.write_all(text.as_bytes())
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By itself.
    Whole,
    /// The user stopped it.
    Stopped,
}

/// Asks for the next answer, tells it, and keeps it in the session. `stop` stops it; what was said by then is kept.
///
/// # Errors
/// If the server refuses or fails, or stdout is gone.
pub async fn answer(
    client: &Client,
    voice: Voice,
    session: &mut Session,
    stop: impl Future<Output = ()>,
) -> Result<Outcome, Failure> {
    let mut telling = Telling::new(voice);
    let request = session.request();
    let told = async {
        let mut stream = client.chat(&request).await.map_err(Failure::failed)?;
        while let Some(delta) = stream.next().await.map_err(Failure::failed)? {
            telling.tell(delta)?;
        }
        Ok::<_, Failure>(())
    };
    // Whichever comes first; the other is dropped, and with it the request.
    let outcome = tokio::select! {
        biased;
        () = stop => Ok(Outcome::Stopped),
        told = told => told.map(|()| Outcome::Whole),
    };
    telling.end()?;
    if outcome.is_ok() {
        session.answered(&telling.content, &telling.reasoning);
    }
    outcome
}

/// Ends at Ctrl-C.
async fn interrupted() {
    if ctrl_c().await.is_err() {
        // Without a handler the signal's default applies.
        std::future::pending::<()>().await;
    }
}

/// Between two looks at a server that loads.
const LOADING: Duration = Duration::from_millis(500);

/// Bytes of a message from a pipe: more than any context holds.
const PIPE_LIMIT: u64 = 16 << 20;
