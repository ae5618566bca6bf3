//! The API with a parrot for an engine, so that clients can be tried without a model: `parrot 127.0.0.1:8179`.
//!
//! It says what stands behind the last `SAY ` of the prompt's last user message; `{` and `}` in it stand for `<` and
//! `>`, so that a message can spell control tokens, and `WAIT` for three seconds. To `BABBLE` it says what comes to its
//! mind, in the form that the request asks for; asked for a form, it can't say anything else. Serves until killed.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use laguna_coordinator::chat::Template;
use laguna_coordinator::engine::handle::Status;
use laguna_coordinator::engine::request::Submission;
use laguna_coordinator::http::state::{App, Options, ServedModel};
use laguna_coordinator::http::testing::{Babble, Line, limits, parrot};
use laguna_coordinator::text::TextTokenizer;
use laguna_shared::config::GenerationConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: parrot ADDRESS:PORT")?;
    let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
    let tokenizer = TextTokenizer::load(&nano)?;
    let mut options = Options::for_checkpoint(&GenerationConfig::default());
    options.keep_alive.every = Duration::from_secs(1);
    let model = ServedModel {
        id: "laguna-nano".to_owned(),
        aliases: Vec::new(),
        context: CONTEXT,
        trained_context: CONTEXT,
        stop_ids: Arc::new([2, 24]),
    };
    let app = Arc::new(App::new(model, TextTokenizer::load(&nano)?, Template::load(&nano)?, options));
    let (engine, _) =
        parrot(limits(CONTEXT, 8), Status::default(), move |submission| script(&tokenizer, submission));
    app.ready(engine);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(address).await?;
        let (_stop, stopped) = watch::channel(false);
        laguna_coordinator::http::serve(vec![listener], app, stopped).await?;
        Ok(())
    })
}

fn script(tokenizer: &TextTokenizer, submission: &Submission) -> Vec<Line> {
    let prompt = tokenizer.decode(&submission.prompt).unwrap_or_default();
    let turn = prompt.rsplit_once("<user>").map_or("", |(_, turn)| turn);
    let said = turn.split_once("</user>").map_or("", |(said, _)| said);
    if said.ends_with("BABBLE") {
        let urges = URGES.iter().map(|urge| tokenizer.encode_rendered(urge).unwrap_or_default());
        return vec![Line::Babble(Box::new(Babble::new(1, urges.collect())))];
    }
    let said = said.rsplit_once("SAY ").map_or("nothing", |(_, said)| said);
    let said = said.replace('{', "<").replace('}', ">");
    let mut lines = vec![Line::Prefill { processed: submission.prompt.len(), cached: 3 }];
    for (index, piece) in said.split("WAIT").enumerate() {
        if index > 0 {
            lines.push(Line::Wait(Duration::from_secs(3)));
        }
        lines.push(Line::Say(tokenizer.encode_rendered(piece).unwrap_or_default()));
    }
    lines
}

/// What ends things, so that babble does.
const URGES: [&str; 7] = ["</think>", "</arg_value>", "</arg_value>", "\"", "}", "]", "</tool_call>"];

/// Tokens of the bundled model's context.
const CONTEXT: usize = 2048;
