//! What every handler shares: the served model, its text, the options, and the engine once it is there.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use laguna_shared::config::GenerationConfig;
use tokio::sync::{Semaphore, watch};

use super::auth::Keys;
use super::error::Fault;
use super::guard::Access;
use super::metrics::Counters;
use super::spelling::Spellings;
use crate::chat::template::WallTime;
use crate::chat::{CallForm, Conversation, RenderOptions, Rendered, Template};
use crate::engine::grammar::Vocabulary;
use crate::engine::handle::EngineHandle;
use crate::engine::sampler::Sampling;
use crate::text::TextTokenizer;

/// The application's state, one per process.
pub struct App {
    /// The model as clients see it.
    pub model: ServedModel,
    /// Text to ids and back.
    pub text: Text,
    /// What the flags say.
    pub options: Options,
    /// Counted here, not by the engine.
    pub counters: Counters,
    /// When the process began to serve.
    pub started: Started,
    /// Whether answers that still run are to end now.
    pub stopping: Stopping,
    engine: OnceLock<EngineHandle>,
    loading: Mutex<Loading>,
    /// Bodies that may be parsed and tokenised at once: each takes memory many times its size.
    readers: Arc<Semaphore>,
}

/// A handle on the state that tasks can keep.
pub type SharedApp = Arc<App>;

/// The model as clients see it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// Its id, as `/v1/models` and every reply say it.
    pub id: String,
    /// Other names `/v1/models/{name}` knows it by; requests may use any name at all, there is one model.
    pub aliases: Vec<String>,
    /// Tokens of the served context, until the engine tells its own limit.
    pub context: usize,
    /// Tokens of the context the checkpoint was made for.
    pub trained_context: usize,
    /// Ids that end a turn, `{2, 24}` for Laguna.
    pub stop_ids: Arc<[u32]>,
}

/// Text to ids and back.
pub struct Text {
    /// The checkpoint's tokenizer.
    pub tokenizer: TextTokenizer,
    /// The checkpoint's chat template.
    pub template: Template,
    /// How single tokens are spelled.
    pub spellings: Spellings,
    /// How the template writes calls.
    pub call_form: CallForm,
    /// Made when a request first asks for a form.
    vocabulary: OnceLock<Result<Arc<Vocabulary>, String>>,
}

/// What the flags and the checkpoint say about every request.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sampling where a request says nothing.
    pub sampling: Sampling,
    /// Thinking where a request says nothing.
    pub thinking: bool,
    /// Where reasoning goes in OpenAI's chat dialect.
    pub reasoning_field: ReasoningField,
    /// How streams show that they are alive.
    pub keep_alive: KeepAlive,
    /// Longest a request may take, queue included.
    pub deadline: Option<Duration>,
    /// Keys that open the server; none, and no key is asked for.
    pub keys: Keys,
    /// Which hosts and origins are let in.
    pub access: Access,
    /// Bytes of a request body.
    pub body_limit: usize,
}

/// The name of the field that carries reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReasoningField {
    /// `reasoning_content`
    #[default]
    #[value(name = "reasoning_content")]
    ReasoningContent,
    /// `reasoning`
    Reasoning,
    /// Both, with the same text
    Both,
}

impl ReasoningField {
    /// The names.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::ReasoningContent => &["reasoning_content"],
            Self::Reasoning => &["reasoning"],
            Self::Both => &["reasoning_content", "reasoning"],
        }
    }
}

/// What breaks the silence of a chat stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KeepAliveStyle {
    /// A comment, which event parsers drop
    #[default]
    Comment,
    /// A chunk with an empty delta, for clients whose idle timers count events only
    Chunk,
}

/// How streams show that they are alive.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// Longest silence, by the wall clock.
    pub every: Duration,
    /// With what; Anthropic's and Responses streams have events of their own for it.
    pub style: KeepAliveStyle,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self { every: Duration::from_secs(10), style: KeepAliveStyle::Comment }
    }
}

impl Options {
    /// The defaults for a checkpoint that says `generation` of itself.
    pub fn for_checkpoint(generation: &GenerationConfig) -> Self {
        let neutral = Sampling::default();
        // A checkpoint that says not to sample means greedy, unless a temperature is asked for.
        let temperature = match generation.do_sample {
            Some(false) => Some(0.0),
            _ => generation.temperature.map(|t| t as f32),
        };
        let sampling = Sampling {
            temperature: temperature.unwrap_or(neutral.temperature),
            top_k: generation.top_k.unwrap_or(neutral.top_k),
            top_p: generation.top_p.map_or(neutral.top_p, |p| p as f32),
            min_p: generation.min_p.map_or(neutral.min_p, |p| p as f32),
            repetition_penalty: generation.repetition_penalty.map_or(1.0, |p| p as f32),
            ..neutral
        };
        Self {
            sampling,
            thinking: true,
            reasoning_field: ReasoningField::default(),
            keep_alive: KeepAlive::default(),
            deadline: None,
            keys: Keys::default(),
            access: Access::default(),
            body_limit: BODY_LIMIT,
        }
    }
}

/// How far the model is loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loading {
    /// Share done, 0 to 1; unknown at first.
    pub progress: Option<f32>,
    /// What is being loaded.
    pub what: String,
}

/// Tells running turns that the time for finishing is over.
#[derive(Clone, Debug)]
pub struct Stopping(Arc<watch::Sender<bool>>);

impl Default for Stopping {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Stopping {
    /// Ends every turn that still runs, and every later one.
    pub fn cut_now(&self) {
        self.0.send_replace(true);
    }

    /// What a turn ends with, once it has to; pending until then.
    pub async fn cut(&self) -> Fault {
        // The sender is ours, so waiting can't fail.
        let _ = self.0.subscribe().wait_for(|cut| *cut).await;
        let message = "the server is stopping and could not wait for this answer any longer".to_owned();
        Fault::Unavailable { message, code: "shutting_down" }
    }
}

/// When the process began, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// For durations.
    pub at: Instant,
    /// Seconds since 1970, for `created` of the model.
    pub unix: u64,
}

impl App {
    /// State without an engine: everything that needs one answers 503 until [`Self::ready`].
    pub fn new(model: ServedModel, tokenizer: TextTokenizer, template: Template, options: Options) -> Self {
        let spellings = Spellings::of(&tokenizer);
        Self {
            model,
            text: Text {
                call_form: CallForm::of(&template),
                tokenizer,
                template,
                spellings,
                vocabulary: OnceLock::new(),
            },
            options,
            counters: Counters::default(),
            started: Started { at: Instant::now(), unix: unix_now() },
            stopping: Stopping::default(),
            engine: OnceLock::new(),
            loading: Mutex::new(Loading::default()),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// The model is loaded: requests go to `engine` from now on. A second engine is not taken.
    pub fn ready(&self, engine: EngineHandle) {
        if self.engine.set(engine).is_err() {
            tracing::error!("the server has an engine already; the new one is not used");
        }
    }

    /// Tells how far loading is.
    pub fn set_loading(&self, loading: Loading) {
        *self.loading.lock().unwrap_or_else(PoisonError::into_inner) = loading;
    }

    /// How far loading is; `None` once it is done.
    pub fn loading(&self) -> Option<Loading> {
        let loading = || self.loading.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.engine.get().is_none().then(loading)
    }

    /// The engine, if it is there, whatever state its shards are in.
    pub fn engine(&self) -> Option<&EngineHandle> {
        self.engine.get()
    }

    /// The engine, if it can serve now.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] while loading, or with the missing shard.
    pub fn serving(&self) -> Result<&EngineHandle, Fault> {
        let Some(engine) = self.engine.get() else {
            let Loading { progress, what } = self.loading().unwrap_or_default();
            let share = progress.map_or_else(String::new, |share| format!(" ({:.0} %)", share * 100.0));
            let what = if what.is_empty() { what } else { format!(": {what}") };
            return Err(Fault::Unavailable {
                message: format!("the model is loading{share}{what}"),
                code: "loading",
            });
        };
        match engine.status().trouble {
            Some(message) => Err(Fault::Unavailable { message, code: "shard_unavailable" }),
            None => Ok(engine),
        }
    }

    /// The tokens as grammars need them. Takes a moment when it is first asked for.
    ///
    /// # Errors
    /// [`Fault::Internal`] if the tokenizer has no stop id, or is none that grammars can be kept over.
    pub fn vocabulary(&self) -> Result<&Arc<Vocabulary>, Fault> {
        let Text { tokenizer, spellings, vocabulary, .. } = &self.text;
        let made = vocabulary.get_or_init(|| {
            let stop_ids = self.model.stop_ids.clone();
            Vocabulary::new(spellings.iter(), tokenizer.control_tokens(), stop_ids).map(Arc::new)
        });
        made.as_ref()
            .map_err(|reason| Fault::Internal(format!("the tokenizer can't be used for grammars: {reason}")))
    }

    /// Tokens of the served context, prompt and new ones together: what one request may use of the engine's limits.
    pub fn context(&self) -> usize {
        let Some(engine) = self.engine.get() else { return self.model.context };
        let limits = engine.limits();
        let bytes = limits.kv_bytes.saturating_sub(limits.kv_fixed);
        let affordable = bytes.checked_div(limits.kv_per_token).unwrap_or(u64::MAX);
        limits.context.min(usize::try_from(affordable).unwrap_or(usize::MAX))
    }

    /// Ids of a rendered prompt.
    ///
    /// # Errors
    /// [`Fault::TooLong`] without tokenising all of it, if it is far longer than the context.
    pub fn encode(&self, prompt: &Rendered) -> Result<Vec<u32>, Fault> {
        self.require_fit(&prompt.text, self.context())?;
        Ok(self.text.tokenizer.encode_prompt(prompt)?)
    }

    /// Refuses a text that is far longer than `limit` tokens.
    ///
    /// # Errors
    /// [`Fault::TooLong`].
    pub fn require_fit(&self, text: &str, limit: usize) -> Result<(), Fault> {
        match self.text.tokenizer.exceeds(text, limit)? {
            Some(prompt) => Err(Fault::TooLong { prompt, completion: 1, context: limit }),
            None => Ok(()),
        }
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// [`Fault::BadRequest`] if the template refuses the conversation.
    pub fn render(&self, conversation: &Conversation, mut options: RenderOptions) -> Result<Rendered, Fault> {
        options.now = Some(WallTime::new(i64::try_from(unix_now()).unwrap_or(i64::MAX), 0));
        Ok(self.text.template.render(conversation, &options)?)
    }
}

/// Runs `work` where it may take its time: bodies are large, and so are prompts.
///
/// # Errors
/// Those of `work`.
pub async fn off_thread<T: Send + 'static>(
    app: &SharedApp,
    work: impl FnOnce(&App) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    // Held until the work is done, even if the client hangs up before.
    let place = app.readers.clone().acquire_owned().await;
    let place = place.map_err(|e| Fault::Internal(format!("reading the request failed: {e}")))?;
    let app = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _place = place;
        work(&app)
    })
    .await;
    done.unwrap_or_else(|e| Err(Fault::Internal(format!("reading the request failed: {e}"))))
}

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Long sessions of agents are several MiB.
pub const BODY_LIMIT: usize = 64 << 20;

/// As many as there are cores to spare.
const READERS: usize = 2;

/// Tokens that are counted for whoever only asks how many there are.
pub const COUNTED: usize = 1 << 20;
