//! The seam between the engine and its remote shards, and what every implementation of it has in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::caller::{Caller, CallerEvent, CallerSettings};
use super::fault::{Fault, ShardError};
use crate::compute::ExpertBatch;
use crate::ids::{ExpertRange, ShardId};
use crate::wire::{CallId, ExpertReply, Hello, WorkerTimes};

/// Every remote shard of the cluster, driven from the engine thread.
///
/// Nothing happens on any other thread: bytes move inside these methods. Calls to different links, and several calls
/// to one link, may be in flight together; replies come in any order, each exactly once. An error names its link; every
/// other link stays usable.
pub trait Links {
    /// The shards, in the order of their links.
    fn shards(&self) -> &[ShardInfo];

    /// Sends a batch and returns at once: the bytes are on their way, the reply comes out of [`recv`](Self::recv).
    ///
    /// At most [`MAX_CALLS_IN_FLIGHT`](crate::wire::MAX_CALLS_IN_FLIGHT) calls wait on one link. `link` is an index
    /// into [`shards`](Self::shards); the batch may only name experts of that shard.
    fn send(&mut self, link: usize, batch: &ExpertBatch<'_>) -> Result<CallId, ShardError>;

    /// Blocks until a call is answered, fails or passes its deadline; `None` when no call is in flight.
    ///
    /// An error carries the calls it took along. After one that takes the link down, `send` on that link is an error
    /// until [`reconnect`](Self::reconnect) succeeds.
    fn recv(&mut self) -> Result<Option<Reply>, ShardError>;

    /// Takes a reply's memory back, so that the next one needs none. Dropping a reply is correct, only slower.
    fn recycle(&mut self, reply: Reply);

    /// Moves bytes without blocking, for use every second or so while idle. Where no call is in flight it also takes
    /// note of workers that have gone: their [`ShardInfo::up`] becomes false.
    fn progress(&mut self);

    /// Forgets every call in flight on every link: late replies are dropped, not returned.
    fn abandon(&mut self);

    /// Connects a link again, blocking for at most the connect timeout. A link that is up is closed first.
    fn reconnect(&mut self, link: usize) -> Result<(), ShardError>;
}

/// One remote shard, as its worker introduced itself.
#[derive(Clone, Debug)]
pub struct ShardInfo {
    /// Shard as the topology names it.
    pub shard: ShardId,
    /// Experts held.
    pub range: ExpertRange,
    /// `10.0.5.2:4433`, or `in memory`.
    pub address: Arc<str>,
    /// Name of the arithmetic there.
    pub backend: String,
    /// Bytes of weights resident there.
    pub resident_bytes: u64,
    /// Bytes of memory that the worker could still use when it said hello.
    pub free_memory_bytes: u64,
    /// Whether calls can be sent.
    pub up: bool,
}

/// Sums of one call. Owned, so that replies can be held until every shard has answered.
#[derive(Debug)]
pub struct Reply {
    link: usize,
    round_trip: Duration,
    reply: ExpertReply,
}

impl Reply {
    /// Index of the link that answered.
    pub fn link(&self) -> usize {
        self.link
    }

    /// The call it answers.
    pub fn call(&self) -> CallId {
        self.reply.id()
    }

    /// `[rows, hidden]`, row-major, in the order of the batch's rows. May hold NaN or infinity.
    pub fn sums(&self) -> &[f32] {
        self.reply.sums()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.reply.rows()
    }

    /// From `send` to the arrival of this reply.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Where the time went at the worker; the rest of [`round_trip`](Self::round_trip) is the wire, and what the caller
    /// did before it looked.
    pub fn times(&self) -> WorkerTimes {
        self.reply.times()
    }
}

/// The coordinator's ends of all links: numbers calls, finds what happened, names who it happened to.
///
/// A transport owns one, feeds each [`Caller`] and asks it for events; it is no transport itself.
#[derive(Debug)]
pub struct Switchboard {
    settings: CallerSettings,
    callers: Vec<Caller>,
    infos: Vec<ShardInfo>,
    next_call: u64,
}

impl Switchboard {
    /// Ends for these shards: where each is expected and what is expected of it.
    pub fn new(shards: Vec<(Arc<str>, Hello)>, settings: CallerSettings, now: Instant) -> Self {
        let infos = shards.iter().map(|(address, hello)| ShardInfo {
            shard: hello.shard,
            range: hello.range,
            address: address.clone(),
            backend: String::new(),
            resident_bytes: 0,
            free_memory_bytes: 0,
            up: false,
        });
        let infos = infos.collect();
        let callers = shards.into_iter().map(|(_, hello)| Caller::new(hello, settings, now)).collect();
        Self { settings, callers, infos, next_call: 1 }
    }

    /// The shards, in the order of their links.
    pub fn shards(&self) -> &[ShardInfo] {
        &self.infos
    }

    /// Number of links.
    pub fn len(&self) -> usize {
        self.callers.len()
    }

    /// Whether there are no links.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// The end of one link, `0..len()`.
    pub fn caller(&mut self, link: usize) -> &mut Caller {
        &mut self.callers[link]
    }

    /// Queues a call on a link.
    pub fn call(&mut self, link: usize, batch: &ExpertBatch<'_>, now: Instant) -> Result<CallId, ShardError> {
        let id = CallId(self.next_call);
        self.callers[link].call(id, batch, now).map_err(|fault| self.error(link, fault, Vec::new()))?;
        self.next_call += 1;
        Ok(id)
    }

    /// The next reply or error of any link, lowest link first. Greetings are taken note of on the way.
    pub fn poll(&mut self) -> Option<Result<Reply, ShardError>> {
        for link in 0..self.callers.len() {
            while let Some(event) = self.callers[link].poll_event() {
                match event {
                    CallerEvent::Ready => self.note_welcome(link),
                    CallerEvent::Reply { reply, round_trip } => {
                        return Some(Ok(Reply { link, round_trip, reply }));
                    }
                    CallerEvent::Failed { call, code, message } => {
                        let fault = Fault::Refused { call: Some(call), code, message };
                        return Some(Err(self.error(link, fault, vec![call])));
                    }
                    CallerEvent::Closed { fault, calls } => {
                        self.infos[link].up = false;
                        return Some(Err(self.error(link, fault, calls)));
                    }
                }
            }
        }
        None
    }

    /// Whether somebody waits for a reply.
    pub fn is_waiting(&self) -> bool {
        self.callers.iter().any(|caller| caller.waiting() > 0)
    }

    /// Earliest deadline of any link.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.callers.iter().filter_map(Caller::poll_timeout).min()
    }

    /// Time has passed on every link.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.callers.iter_mut().for_each(|caller| caller.handle_timeout(now));
    }

    /// See [`Links::recycle`].
    pub fn recycle(&mut self, reply: Reply) {
        self.callers[reply.link].recycle(reply.reply);
    }

    /// See [`Links::abandon`].
    pub fn abandon(&mut self) {
        self.callers.iter_mut().for_each(Caller::abandon);
    }

    /// A fresh end for a link whose transport was established anew.
    pub fn restart(&mut self, link: usize, now: Instant) {
        let hello = self.callers[link].hello().clone();
        self.callers[link] = Caller::new(hello, self.settings, now);
        self.infos[link].up = false;
    }

    /// How the greeting of a fresh link went; `None` while it is under way. Other links are not touched.
    pub fn poll_greeting(&mut self, link: usize) -> Option<Result<(), ShardError>> {
        match self.callers[link].poll_event()? {
            CallerEvent::Ready => {
                self.note_welcome(link);
                Some(Ok(()))
            }
            CallerEvent::Closed { fault, calls } => Some(Err(self.error(link, fault, calls))),
            CallerEvent::Reply { .. } | CallerEvent::Failed { .. } => None,
        }
    }

    /// An error of this link.
    pub fn error(&self, link: usize, fault: Fault, calls: Vec<CallId>) -> ShardError {
        let info = &self.infos[link];
        ShardError { link, shard: info.shard, address: info.address.clone(), fault, calls }
    }

    fn note_welcome(&mut self, link: usize) {
        let info = &mut self.infos[link];
        if let Some(welcome) = self.callers[link].welcome() {
            info.backend.clone_from(&welcome.backend);
            info.resident_bytes = welcome.resident_bytes;
            info.free_memory_bytes = welcome.free_memory_bytes;
            info.up = true;
        }
    }
}
