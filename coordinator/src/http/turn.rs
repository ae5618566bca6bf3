//! One turn: a prompt into the engine, and what the model says back. The only source of events for every dialect,
//! streaming or not, so that both say the same.
//!
//! [`Ask`] → [`admit`] → [`Turn::next`], or [`Turn::whole`]. Dropping the turn cancels the request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::error::Fault;
use super::journal::Served;
use super::state::{App, Stopping};
use crate::chat::template::Thinking;
use crate::chat::{Ended, Event as Said, FinishReason, Parser, Reply, StopMatcher};
use crate::engine::request::{self, Event, PrefillProgress, Submission, Ticket};
use crate::engine::sampler::{Constraint, Sampling};
use crate::text::Detokenizer;

/// A request in no dialect.
pub struct Ask {
    /// Prompt ids.
    pub prompt: Vec<u32>,
    /// What the text of the answer means.
    pub reader: Reader,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Same seed, same text.
    pub seed: u64,
    /// Most new tokens; without it, what the context leaves.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are not part of it.
    pub stops: Vec<String>,
    /// Ids that end the answer.
    pub stop_ids: Arc<[u32]>,
    /// Alternatives to report per token, where log-probabilities are asked for.
    pub logprobs: Option<usize>,
    /// End the turn after its first call.
    pub single_call: bool,
    /// Which tokens may come.
    pub constraint: Option<Box<dyn Constraint>>,
}

/// What the text of an answer means.
pub enum Reader {
    /// Text.
    Plain,
    /// A turn in Laguna's protocol, beginning as the prompt's end says.
    Turn(Box<Parser>, Thinking),
}

/// A request the engine has taken.
pub struct Admitted {
    ticket: Ticket,
    submitted: Instant,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    reader: Reader,
    stops: Vec<String>,
    logprobs: bool,
    single_call: bool,
    served: Served,
}

/// Something happened.
#[derive(Debug)]
pub enum TurnEvent {
    /// The prompt is so far.
    Progress(PrefillProgress),
    /// The model said something; never [`Said::Finish`].
    Said {
        /// What.
        said: Said,
        /// The tokens it came with, where log-probabilities are asked for.
        tokens: Vec<TokenLogprobs>,
    },
    /// The turn is over; the last event.
    End(End),
}

/// A token and its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    /// Why.
    pub finish: FinishReason,
    /// The stop string that was found.
    pub stopped: Option<String>,
    /// Tokens that came with nothing said: markup, and what only the end made certain.
    pub tokens: Vec<TokenLogprobs>,
    /// What it took.
    pub usage: TurnUsage,
}

/// Tokens of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnUsage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of these, from the prefix cache.
    pub cached: usize,
    /// New ones, a stop id included.
    pub completion: usize,
    /// Of these, spent on reasoning.
    pub reasoning: usize,
}

/// A whole turn.
#[derive(Debug)]
pub struct Whole {
    /// What was said.
    pub reply: Reply,
    /// Log-probabilities of all tokens, where asked for.
    pub tokens: Vec<TokenLogprobs>,
    /// How it ended.
    pub end: End,
}

/// Hands a request to the engine; `served` is told what becomes of it.
///
/// # Errors
/// If it does not fit the context, or the engine does not take it.
pub fn admit(app: &App, ask: Ask, served: Served) -> Result<Admitted, Fault> {
    let engine = app.serving()?;
    let (context, prompt_tokens) = (app.context(), ask.prompt.len());
    if prompt_tokens >= context {
        let completion = ask.max_tokens.unwrap_or(0).max(1);
        return Err(Fault::TooLong { prompt: prompt_tokens, completion, context });
    }
    let ticket = engine.submit(Submission {
        prompt: ask.prompt,
        sampling: ask.sampling,
        seed: ask.seed,
        max_tokens: ask.max_tokens.unwrap_or(usize::MAX).min(context - prompt_tokens),
        stop_ids: ask.stop_ids,
        logprobs: ask.logprobs,
        constraint: ask.constraint,
        deadline: app.options.deadline.map(|deadline| Instant::now() + deadline),
    })?;
    served.admitted(prompt_tokens);
    Ok(Admitted {
        ticket,
        submitted: Instant::now(),
        prompt_tokens,
        reader: ask.reader,
        stops: ask.stops,
        logprobs: ask.logprobs.is_some(),
        single_call: ask.single_call,
        served,
    })
}

/// A running turn.
pub struct Turn<'a> {
    app: &'a App,
    /// None once the turn is over: dropped at once, so that the engine stops too.
    ticket: Option<Ticket>,
    submitted: Instant,
    detokenizer: Detokenizer<'a>,
    stops: Vec<String>,
    matcher: StopMatcher,
    /// Index of the stop string that was found.
    stopped: Option<usize>,
    /// None for plain text.
    parser: Option<Parser>,
    single_call: bool,
    usage: TurnUsage,
    /// Whether the model is reasoning, as far as was said.
    reasoning: bool,
    /// Whether log-probabilities are asked for.
    logprobs: bool,
    /// Tokens whose text was not said yet, with the bytes of text before each.
    unsaid: VecDeque<(usize, TokenLogprobs)>,
    /// Bytes of text decoded.
    decoded: usize,
    /// Bytes of text that passed the stop strings.
    passed: usize,
    ready: VecDeque<TurnEvent>,
    served: Served,
    stopping: Stopping,
}

impl<'a> Turn<'a> {
    /// The turn of an admitted request.
    pub fn new(app: &'a App, admitted: Admitted) -> Self {
        let (parser, thinking) = match admitted.reader {
            Reader::Plain => (None, Thinking::Closed),
            Reader::Turn(parser, thinking) => (Some(*parser), thinking),
        };
        Self {
            app,
            ticket: Some(admitted.ticket),
            submitted: admitted.submitted,
            detokenizer: Detokenizer::new(&app.text.tokenizer),
            matcher: StopMatcher::new(admitted.stops.clone()),
            stops: admitted.stops,
            stopped: None,
            parser,
            single_call: admitted.single_call,
            usage: TurnUsage { prompt: admitted.prompt_tokens, ..TurnUsage::default() },
            reasoning: thinking == Thinking::Open,
            logprobs: admitted.logprobs,
            unsaid: VecDeque::new(),
            decoded: 0,
            passed: 0,
            ready: VecDeque::new(),
            served: admitted.served,
            stopping: app.stopping.clone(),
        }
    }

    /// The next event; `None` after the end. May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    /// If the request failed. Nothing follows.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, Fault> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            let Some(ticket) = &mut self.ticket else { return Ok(None) };
            let taken = tokio::select! {
                biased;
                fault = self.stopping.cut() => Err(fault),
                event = ticket.next() => match event {
                    Some(event) => self.take(event),
                    None => Err(Fault::Internal("the engine ended before the request did".to_owned())),
                },
            };
            if let Err(fault) = taken {
                self.ticket = None;
                self.served.failed(&fault);
                return Err(fault);
            }
        }
    }

    /// Everything up to the end.
    ///
    /// # Errors
    /// If the request failed.
    pub async fn whole(mut self) -> Result<Whole, Fault> {
        let (mut reply, mut all) = (Reply::default(), Vec::new());
        while let Some(event) = self.next().await? {
            match event {
                TurnEvent::Progress(_) => {}
                TurnEvent::Said { said, tokens } => {
                    reply.add(said);
                    all.extend(tokens);
                }
                TurnEvent::End(end) => {
                    reply.add(Said::Finish(end.finish));
                    all.extend(end.tokens.iter().cloned());
                    return Ok(Whole { reply, tokens: all, end });
                }
            }
        }
        Err(Fault::Internal("the turn ended without an end".to_owned()))
    }

    fn take(&mut self, event: Event) -> Result<(), Fault> {
        match event {
            Event::Prefilled(progress) => {
                self.usage.cached = progress.cached;
                self.ready.push_back(TurnEvent::Progress(progress));
                Ok(())
            }
            Event::Token(token) => self.token(token),
            Event::Finished(finished) => {
                self.usage.cached = finished.usage.cached_tokens;
                // A stop id is no event, but was made.
                self.usage.completion = self.usage.completion.max(finished.usage.completion_tokens);
                match finished.reason {
                    request::FinishReason::Stop(_) => self.end(Ended::Token),
                    request::FinishReason::Length => self.end(Ended::Length),
                    request::FinishReason::Cancelled => Err(Fault::Unavailable {
                        message: "the server cancelled this request".to_owned(),
                        code: "cancelled",
                    }),
                }
            }
            Event::Failed(error) => Err(error.into()),
        }
    }

    fn token(&mut self, token: request::Token) -> Result<(), Fault> {
        if self.usage.completion == 0 {
            self.app.counters.first_token(self.submitted.elapsed());
        }
        self.usage.completion += 1;
        self.served.token(self.usage);
        if let Some(logprobs) = token.logprobs.filter(|_| self.logprobs) {
            let said = TokenLogprobs { id: token.id, chosen: logprobs.chosen, top: logprobs.top };
            self.unsaid.push_back((self.decoded, said));
        }
        let piece = self.detokenizer.push(token.id)?;
        let over = self.text(&piece);
        self.usage.reasoning += usize::from(self.reasoning);
        match over {
            None => Ok(()),
            Some(Over::StopString) => self.end(Ended::StopString),
            Some(Over::SingleCall) => {
                self.close(FinishReason::ToolCalls);
                Ok(())
            }
        }
    }

    /// Passes text on, and tells whether it ends the turn.
    fn text(&mut self, piece: &str) -> Option<Over> {
        self.decoded += piece.len();
        let passed = self.matcher.push(piece);
        self.passed += passed.text.len();
        let said = match &mut self.parser {
            Some(parser) => parser.push(&passed.text),
            None if passed.text.is_empty() => Vec::new(),
            None => vec![Said::Content(passed.text)],
        };
        if self.say(said) {
            return Some(Over::SingleCall);
        }
        self.stopped = passed.stopped;
        self.stopped.map(|_| Over::StopString)
    }

    /// Queues what was said. Whether it ends a turn of a single call.
    fn say(&mut self, said: Vec<Said>) -> bool {
        for said in said {
            self.reasoning = matches!(said, Said::Reasoning(_));
            let ends = self.single_call && matches!(said, Said::CallEnd { complete: true, .. });
            let tokens = self.said_tokens();
            self.ready.push_back(TurnEvent::Said { said, tokens });
            if ends {
                return true;
            }
        }
        false
    }

    /// Tokens whose text has passed the stop strings.
    fn said_tokens(&mut self) -> Vec<TokenLogprobs> {
        let passed = self.passed;
        let count = self.unsaid.iter().take_while(|(start, _)| *start < passed).count();
        self.unsaid.drain(..count).map(|(_, token)| token).collect()
    }

    /// Tells what was still held back, then the end.
    fn end(&mut self, ended: Ended) -> Result<(), Fault> {
        let mut ended = ended;
        if ended != Ended::StopString {
            let detokenizer =
                std::mem::replace(&mut self.detokenizer, Detokenizer::new(&self.app.text.tokenizer));
            let rest = detokenizer.finish()?;
            match self.text(&rest) {
                Some(Over::StopString) => ended = Ended::StopString,
                Some(Over::SingleCall) => {
                    self.close(FinishReason::ToolCalls);
                    return Ok(());
                }
                None => {}
            }
        }
        let held = std::mem::take(&mut self.matcher).finish();
        self.passed += held.len();
        let mut said = match &mut self.parser {
            Some(parser) => parser.push(&held),
            None if held.is_empty() => Vec::new(),
            None => vec![Said::Content(held)],
        };
        let plain = if ended == Ended::Length { FinishReason::Length } else { FinishReason::Stop };
        match self.parser.take() {
            Some(parser) => said.extend(parser.finish(ended)),
            None => said.push(Said::Finish(plain)),
        }
        let finish = match said.pop() {
            Some(Said::Finish(finish)) => finish,
            other => {
                said.extend(other);
                plain
            }
        };
        let finish = if self.say(said) { FinishReason::ToolCalls } else { finish };
        self.close(finish);
        Ok(())
    }

    fn close(&mut self, finish: FinishReason) {
        self.ticket = None;
        let stopped = self.stopped.and_then(|index| self.stops.get(index).cloned());
        let tokens = if stopped.is_some() {
            self.said_tokens()
        } else {
            self.unsaid.drain(..).map(|(_, token)| token).collect()
        };
        self.served.finished(finish, self.usage);
        let end = End { finish, stopped, tokens, usage: self.usage };
        self.ready.push_back(TurnEvent::End(end));
    }
}

/// Why a turn is over before the engine says so.
enum Over {
    StopString,
    SingleCall,
}
