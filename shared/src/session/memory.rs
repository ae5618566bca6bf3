//! Every shard in the coordinator's own process and thread: the same bytes, the same two state machines, no runtime.
//!
//! This is `--loopback`. It reads the system clock, because it stands where a transport stands.

use std::sync::Arc;
use std::time::Instant;

use super::caller::CallerSettings;
use super::fault::{ConnectError, Fault, Gone, ShardError};
use super::links::{Links, Reply, ShardInfo, Switchboard};
use super::server::Server;
use crate::compute::{ExpertBank, ExpertBatch};
use crate::wire::{CallId, Hello, Welcome};

/// One worker that lives in this process.
pub struct InMemoryWorker {
    /// What the coordinator expects of it.
    pub hello: Hello,
    /// What it is.
    pub welcome: Welcome,
    /// Its experts.
    pub bank: Box<dyn ExpertBank>,
}

/// Links to workers in this process. A call is computed when its reply is asked for.
pub struct InMemoryLinks {
    board: Switchboard,
    workers: Vec<Worker>,
}

struct Worker {
    offer: Arc<Welcome>,
    server: Server,
    bank: Box<dyn ExpertBank>,
}

impl InMemoryLinks {
    /// Greets every worker, in the order of the links.
    ///
    /// # Errors
    /// Every worker that does not fit.
    pub fn new(workers: Vec<InMemoryWorker>, settings: CallerSettings) -> Result<Self, ConnectError> {
        let now = Instant::now();
        let shards = workers.iter().map(|worker| (Arc::from("in memory"), worker.hello.clone())).collect();
        let workers = workers.into_iter().map(|InMemoryWorker { welcome, bank, .. }| {
            let offer = Arc::new(welcome);
            Worker { server: Server::new(offer.clone(), now), offer, bank }
        });
        let mut links = Self { board: Switchboard::new(shards, settings, now), workers: workers.collect() };
        let greetings = (0..links.workers.len()).map(|link| links.greet(link));
        let errors: Vec<ShardError> = greetings.filter_map(Result::err).collect();
        if errors.is_empty() { Ok(links) } else { Err(ConnectError(errors)) }
    }

    fn greet(&mut self, link: usize) -> Result<(), ShardError> {
        self.exchange(link);
        self.board.poll_greeting(link).unwrap_or(Ok(()))
    }

    /// Moves bytes both ways until neither end has any.
    fn exchange(&mut self, link: usize) {
        let (caller, Worker { server, .. }) = (self.board.caller(link), &mut self.workers[link]);
        loop {
            let mut quiet = true;
            while let Some(bytes) = caller.poll_transmit() {
                server.handle_bytes(&bytes, Instant::now());
                quiet = false;
            }
            while let Some(bytes) = server.poll_transmit() {
                caller.handle_bytes(&bytes, Instant::now());
                quiet = false;
            }
            if quiet {
                break;
            }
        }
        if let Some(end) = server.end() {
            caller.handle_closed(Fault::PeerGone(Gone::Closed(end.close_code())));
        }
    }
}

impl Links for InMemoryLinks {
    fn shards(&self) -> &[ShardInfo] {
        self.board.shards()
    }

    fn send(&mut self, link: usize, batch: &ExpertBatch<'_>) -> Result<CallId, ShardError> {
        let call = self.board.call(link, batch, Instant::now())?;
        self.exchange(link);
        Ok(call)
    }

    fn recv(&mut self) -> Result<Option<Reply>, ShardError> {
        loop {
            if let Some(event) = self.board.poll() {
                return event.map(Some);
            }
            let Some(link) = self.workers.iter().position(|worker| worker.server.has_call()) else {
                return Ok(None);
            };
            let Worker { server, bank, .. } = &mut self.workers[link];
            server.run_next(&mut **bank, Instant::now);
            self.exchange(link);
        }
    }

    fn recycle(&mut self, reply: Reply) {
        self.board.recycle(reply);
    }

    fn progress(&mut self) {}

    fn abandon(&mut self) {
        self.board.abandon();
    }

    fn reconnect(&mut self, link: usize) -> Result<(), ShardError> {
        let now = Instant::now();
        self.board.restart(link, now);
        let worker = &mut self.workers[link];
        worker.server = Server::new(worker.offer.clone(), now);
        self.greet(link)
    }
}

#[cfg(test)]
mod tests;
