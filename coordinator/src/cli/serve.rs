//! No subcommand: serves the API. HTTP has a thread and a runtime of its own; the thread that calls [`run`] becomes
//! the engine's, because MLX wants one thread for all of its life.

use std::fmt::{self, Display};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use laguna_topology::Bytes;
use laguna_worker::memory;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::{info, warn};

use super::args::Args;
use super::cluster;
use super::failure::Failure;
use super::output;
use super::trace::TraceFile;
use crate::chat::{Conversation, Message, RenderOptions, Role, Template, Thinking};
use crate::engine::service::{Engine, EngineSettings};
use crate::flight::Flight;
use crate::http;
use crate::http::auth::Keys;
use crate::http::guard::Access;
use crate::http::state::{App, KeepAliveStyle, Options, ReasoningField, ServedModel, SharedApp};
use crate::text::TextTokenizer;

/// Flags of serving.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Serving")]
pub struct ServeArgs {
    /// Address to serve on; may be given several times [default: port 8080 of 127.0.0.1 and ::1]
    #[arg(long, value_name = "ADDR:PORT", env = "LAGUNA_LISTEN", value_delimiter = ',')]
    pub listen: Vec<SocketAddr>,
    /// File with API keys, one a line; without it the server asks for none, and listens on this machine only
    #[arg(long, value_name = "FILE", env = "LAGUNA_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Serve a network without API keys
    #[arg(long, conflicts_with = "api_key_file")]
    pub insecure_no_auth: bool,
    /// Tokens of a session, prompt and answer together [default: the checkpoint's]
    #[arg(long, value_name = "TOKENS", env = "LAGUNA_CTX")]
    pub ctx: Option<NonZeroUsize>,
    /// Requests that run at once
    #[arg(long, value_name = "N", default_value = "4")]
    pub parallel: NonZeroUsize,
    /// Requests that may wait; more are answered 429
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub queue: usize,
    /// Memory for keys and values, running and cached together, as in 12GiB [default: half of what is free once the model is loaded]
    #[arg(long, value_name = "BYTES")]
    pub kv_memory: Option<Bytes>,
    /// Origin of web pages that may use this server, as in http://localhost:3000, or *; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Name that this server is reached under besides localhost and addresses; may be given several times
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Record where the time of each token goes (the last thousands of them), and write it when the server is stopped,
    /// as a Chrome trace
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Further name of the model; may be given several times
    #[arg(long, value_name = "NAME")]
    pub alias: Vec<String>,
    /// What breaks ten seconds of silence in a chat stream
    #[arg(long, value_name = "WHAT", default_value = "comment")]
    pub sse_keepalive: KeepAliveStyle,
    /// Where reasoning goes in chat completions
    #[arg(long, value_name = "FIELD", default_value = "reasoning_content")]
    pub reasoning_field: ReasoningField,
    /// Longest a request may take, its time in the queue included; then it ends with an error [default: no limit]
    #[arg(long, value_name = "SECONDS", env = "LAGUNA_REQUEST_TIMEOUT")]
    pub request_timeout: Option<NonZeroU32>,
    /// After SIGTERM or Ctrl-C, finish running requests for this long; then they end with an error. Keep it below what your
    /// service manager allows for a stop
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub drain: u64,
    /// Whether the model thinks where a request does not say [default: as the checkpoint says]
    #[arg(long, value_name = "ON|OFF")]
    pub thinking: Option<Switch>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

/// Runs the command.
///
/// # Errors
/// With one message.
pub fn run(args: &Args, serve: &ServeArgs) -> Result<(), Failure> {
    let dir = cluster::folder(&args.cluster)?;
    let trace = TraceFile::create(serve.trace.as_deref())?;
    // Everything that can be refused is refused before the long load.
    let app = prepare(args, serve, &dir)?;
    let listeners = bind(&serve.listen)?;
    let addresses: Vec<SocketAddr> =
        listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let server = Server::start(app.clone(), listeners, Duration::from_secs(serve.drain))?;
    let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    info!("accepting requests on {}; they are answered once the model is loaded", all.join(", "));
    let watch = |loading| app.set_loading(loading);
    let mut cluster = cluster::open(&args.cluster, cluster::native_activation(), None, &watch)?;
    if trace.is_some() {
        cluster.experts.flight = Flight::on();
    }
    // What is free now, with the weights in place; half of it is left to everything else.
    let kv_bytes = serve.kv_memory.map_or_else(|| memory::available().0 / 2, |bytes| bytes.0);
    let settings = EngineSettings {
        context: app.model.context,
        parallel: serve.parallel,
        queue: serve.queue,
        kv_bytes,
        chunk: cluster.chunk,
    };
    let (engine, handle) = Engine::new(cluster.model, cluster.experts, settings);
    app.ready(handle);
    if server.thread.is_finished() {
        return server.finish();
    }
    welcome(&app, &addresses);
    let flight = engine.run();
    server.finish()?;
    trace.map_or(Ok(()), |trace| trace.finish(&flight))
}

fn prepare(args: &Args, serve: &ServeArgs, dir: &Path) -> Result<SharedApp, Failure> {
    let keys = match &serve.api_key_file {
        Some(path) => Keys::load(path).map_err(|e| Failure::usage(format!("--api-key-file {e}")))?,
        None => Keys::default(),
    };
    let wide = serve.listen.iter().find(|address| !address.ip().is_loopback());
    if let Some(wide) = wide.filter(|_| keys.is_empty() && !serve.insecure_no_auth) {
        return Err(Failure::usage(format!(
            "--listen {wide} is open to the network: add --api-key-file FILE, or --insecure-no-auth if it is meant so"
        )));
    }
    let opened = laguna_worker::model::OpenModel::open(dir, &cluster::config_options(&args.cluster))
        .map_err(Failure::usage)?;
    let trained = opened.config.max_position_embeddings;
    let context = serve.ctx.map_or(trained, NonZeroUsize::get);
    if context > trained {
        return Err(Failure::usage(format!(
            "--ctx {context}: this checkpoint's context is {trained} tokens"
        )));
    }
    let tokenizer = TextTokenizer::load(dir).map_err(Failure::usage)?;
    let template = Template::load(dir).map_err(Failure::usage)?;
    let (id, mut aliases) = names(dir);
    aliases.extend(serve.alias.iter().cloned());
    let mut options = Options::for_checkpoint(&opened.generation);
    options.thinking = match serve.thinking {
        Some(switch) => switch == Switch::On,
        None => thinks(dir, &template),
    };
    options.reasoning_field = serve.reasoning_field;
    options.keep_alive.style = serve.sse_keepalive;
    options.deadline = serve.request_timeout.map(|seconds| Duration::from_secs(u64::from(seconds.get())));
    options.access = Access {
        hosts: serve.allow_host.clone(),
        any_host: wide.is_some() && !keys.is_empty(),
        origins: serve.cors.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect(),
    };
    options.keys = keys;
    let stop_ids = opened.stop_ids().into();
    let model = ServedModel { id, aliases, context, trained_context: trained, stop_ids };
    Ok(Arc::new(App::new(model, tokenizer, template, options)))
}

/// The model's id and its other names, from its folder: of a Hugging Face cache the repository's name.
fn names(dir: &Path) -> (String, Vec<String>) {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let repository = full.ancestors().nth(2).and_then(name);
    let repository = repository.and_then(|name| Some(name.strip_prefix("models--")?.replace("--", "/")));
    match (repository, name(&full)) {
        (Some(repository), _) => {
            let short = repository.rsplit('/').next().unwrap_or_default().to_owned();
            (repository, vec![short])
        }
        (None, Some(folder)) => (folder, Vec::new()),
        (None, None) => ("laguna".to_owned(), Vec::new()),
    }
}

/// Whether the checkpoint thinks where nobody says: `default_chat_template_kwargs` of its `generation_config.json`,
/// else what its template does by itself.
fn thinks(dir: &Path, template: &Template) -> bool {
    let file = std::fs::read(dir.join("generation_config.json")).unwrap_or_default();
    let config = serde_json::from_slice::<serde_json::Value>(&file).unwrap_or_default();
    if let Some(on) = config["default_chat_template_kwargs"]["enable_thinking"].as_bool() {
        return on;
    }
    let messages = vec![Message::text(Role::User, "hello")];
    let conversation = Conversation { messages, ..Conversation::default() };
    let probe = template.render(&conversation, &RenderOptions::default());
    probe.is_ok_and(|probe| probe.thinking() == Thinking::Open)
}

/// Listens on `addresses`, or on this machine's two loopback addresses, of which one may be missing.
fn bind(addresses: &[SocketAddr]) -> Result<Vec<std::net::TcpListener>, Failure> {
    let listen = |address: SocketAddr| -> io::Result<std::net::TcpListener> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let failed = |address: SocketAddr, error: &dyn Display| {
        Failure::failed(format!("{address}: {error}; --listen ADDR:PORT serves elsewhere"))
    };
    if !addresses.is_empty() {
        return addresses.iter().map(|&address| listen(address).map_err(|e| failed(address, &e))).collect();
    }
    let first = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT));
    let mut listeners = vec![listen(first).map_err(|e| failed(first, &e))?];
    let second = SocketAddr::from((Ipv6Addr::LOCALHOST, DEFAULT_PORT));
    match listen(second) {
        Ok(listener) => listeners.push(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(failed(second, &error)),
        Err(error) => warn!("not serving on {second}: {error}"),
    }
    Ok(listeners)
}

/// The HTTP server on its own thread.
struct Server {
    thread: JoinHandle<io::Result<()>>,
    stop: watch::Sender<bool>,
}

impl Server {
    fn start(
        app: SharedApp,
        listeners: Vec<std::net::TcpListener>,
        drain: Duration,
    ) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(Failure::failed)?;
        let (stop, stopped) = watch::channel(false);
        let serve = async move {
            // Before anything is served: a signal that comes early must not kill the process unasked.
            let signals = Signals::new()?;
            tokio::spawn(signals.obey(app.clone(), drain));
            let listeners = listeners.into_iter().map(tokio::net::TcpListener::from_std);
            let served = http::serve(listeners.collect::<io::Result<_>>()?, app.clone(), stopped).await;
            // Without a server nobody can ask the engine for anything.
            if let Some(engine) = app.engine() {
                engine.drain();
            }
            served
        };
        let thread = std::thread::Builder::new().name("http-main".to_owned());
        let run = move || {
            let served = runtime.block_on(serve);
            // A body that is still being read has nobody left to tell.
            runtime.shutdown_timeout(LAST_WORDS);
            served
        };
        let thread = thread.spawn(run).map_err(Failure::failed)?;
        Ok(Self { thread, stop })
    }

    /// Waits for the last answer to be out.
    fn finish(self) -> Result<(), Failure> {
        // A server that has ended needs no telling.
        let _ = self.stop.send(true);
        match self.thread.join() {
            Ok(served) => served.map_err(|e| Failure::failed(format!("http: {e}"))),
            Err(_) => Err(Failure::failed("the HTTP thread panicked")),
        }
    }
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The first one drains, for as long as `drain`, then running answers end with an error and the process with 0; the
    /// second one, or one during the load, ends the process at once.
    async fn obey(mut self, app: SharedApp, drain: Duration) {
        self.next().await;
        let Some(engine) = app.engine() else {
            info!("stopped while loading");
            std::process::exit(0);
        };
        let status = engine.status();
        let unfinished = match status.running + status.waiting {
            0 => None,
            1 => Some("1 request".to_owned()),
            count => Some(format!("{count} requests")),
        };
        if let Some(unfinished) = unfinished {
            info!("finishing {unfinished}, for {} s at most; once more to stop at once", drain.as_secs());
        }
        // New requests are told so until the engine is done; then it stops the server.
        engine.drain();
        tokio::select! {
            () = self.next() => std::process::exit(INTERRUPTED),
            () = tokio::time::sleep(drain) => {}
        }
        warn!("ending the requests that {} s (--drain) were not enough for", drain.as_secs());
        app.stopping.cut_now();
        tokio::select! {
            () = self.next() => std::process::exit(INTERRUPTED),
            () = tokio::time::sleep(LAST_WORDS) => std::process::exit(0),
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Says what a person needs next.
fn welcome(app: &App, addresses: &[SocketAddr]) {
    let Some(address) = addresses.first() else { return };
    // 0.0.0.0 is where the server listens, not where anybody finds it.
    let host = if address.ip().is_unspecified() { "localhost".to_owned() } else { shown(address) };
    let base = format!("http://{host}:{}", address.port());
    let id = &app.model.id;
    let shards = app.engine().map(|engine| engine.status().shards).unwrap_or_default();
    let up = shards.iter().filter(|shard| shard.up).count();
    let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let token = if app.options.keys.is_empty() { "local" } else { "KEY" };
    let key = if app.options.keys.is_empty() { String::new() } else { r#","apiKey":"KEY""#.to_owned() };
    output::say(format_args!(
        "\nServing {id} on {base}/v1 (listening on {})\n  context {} tokens, {up} of {} shards up\n  \
         chat: {base}/ in a browser, or laguna-coord chat{}\n",
        all.join(", "),
        app.context(),
        shards.len(),
        if address.port() == DEFAULT_PORT { String::new() } else { format!(" --url {base}") },
    ));
    output::say(format_args!(
        "opencode:\n  OPENCODE_CONFIG_CONTENT='{{\"provider\":{{\"laguna\":{{\"npm\":\"@ai-sdk/openai-compatible\",\
         \"options\":{{\"baseURL\":\"{base}/v1\"{key}}},\"models\":{{\"{id}\":{{}}}}}}}}}}' opencode -m laguna/{id}"
    ));
    output::say(format_args!(
        "Claude Code:\n  ANTHROPIC_AUTH_TOKEN={token} ANTHROPIC_BASE_URL={base} CLAUDE_CODE_ATTRIBUTION_HEADER=0 claude\n"
    ));
}

fn shown(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

/// llama-server's port, which many clients try by themselves.
const DEFAULT_PORT: u16 = 8080;

/// HTTP is light; the cores belong to the model.
const HTTP_THREADS: usize = 2;

/// For the errors of requests that were cut to reach their clients.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// Exit code of a process that an interrupt ended, as shells have it.
const INTERRUPTED: i32 = 130;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn parse(flags: &[&str]) -> ServeArgs {
        Program::try_parse_from([&["laguna-coord"], flags].concat()).expect("parses").serve
    }

    #[test]
    fn flags_have_the_defaults_they_say() {
        let plain = parse(&[]);
        assert!(plain.listen.is_empty() && plain.thinking.is_none());
        assert_eq!(plain.reasoning_field, ReasoningField::ReasoningContent);
        let serve = parse(&[
            "--listen",
            "0.0.0.0:80,[::]:80",
            "--kv-memory",
            "12GiB",
            "--sse-keepalive",
            "chunk",
            "--thinking",
            "off",
            "--reasoning-field",
            "both",
            "--cors",
            "*",
            "--request-timeout",
            "90",
            "--drain",
            "25",
        ]);
        assert_eq!((plain.request_timeout, plain.drain), (None, 300));
        assert_eq!((serve.request_timeout.map(NonZeroU32::get), serve.drain), (Some(90), 25));
        assert_eq!(serve.listen.len(), 2);
        assert_eq!(serve.kv_memory.map(|bytes| bytes.0), Some(12 << 30));
        assert_eq!((serve.sse_keepalive, serve.thinking), (KeepAliveStyle::Chunk, Some(Switch::Off)));
    }

    #[test]
    fn folders_and_cached_repositories_name_the_model() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let snapshot = dir.path().join("models--poolside--Laguna-S-2.1/snapshots/abc");
        std::fs::create_dir_all(&snapshot).expect("creates");
        assert_eq!(names(&snapshot), ("poolside/Laguna-S-2.1".to_owned(), vec!["Laguna-S-2.1".to_owned()]));
        let plain = dir.path().join("Laguna-XS.2");
        std::fs::create_dir_all(&plain).expect("creates");
        assert_eq!(names(&plain), ("Laguna-XS.2".to_owned(), vec![]));
    }

    #[test]
    fn the_checkpoint_says_whether_it_thinks() {
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/nano");
        let template = Template::load(&nano).expect("bundled");
        assert!(!thinks(&nano, &template));
        let dir = tempfile::tempdir().expect("temporary folder");
        let config = r#"{"default_chat_template_kwargs": {"enable_thinking": true}}"#;
        std::fs::write(dir.path().join("generation_config.json"), config).expect("writes");
        assert!(thinks(dir.path(), &template));
    }

    #[test]
    fn a_taken_port_is_named() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let address = taken.local_addr().expect("an address");
        let failure = bind(&[address]).expect_err("taken").to_string();
        assert!(failure.contains(&address.to_string()) && failure.contains("--listen"), "{failure}");
    }
}
