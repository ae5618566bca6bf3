//! The coordinator's end of every link, over QUIC, on the thread that calls it.
//!
//! Bytes move only inside these methods. There is no reactor thread and no channel: each sleep and wake-up between
//! threads costs 5 µs and more, and a token makes 47 round trips.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use laguna_topology::Pin;
use rustix::event::PollFd;

use super::dial::{Dial, Dialling, any};
use super::drive::wait::{Spin, sleep};
use super::drive::{ConnId, Drive};
use super::end;
use super::host::{Host, Listener};
use super::identity::Identity;
use super::path;
use super::server::{ServeError, ServeSettings};
use super::wire::Wire;
use crate::compute::ExpertBatch;
use crate::session::{
    CallerSettings, ConnectError, Fault, InMemoryWorker, Links, Reply, ShardError, ShardInfo, Switchboard,
};
use crate::wire::{CallId, CloseCode, Hello};

/// One worker to connect to.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Host and port: `10.0.5.2:4433` or `mac-2.local:4433`.
    pub address: String,
    /// Certificate that the worker must show.
    pub pin: Pin,
    /// What it must be.
    pub hello: Hello,
    /// Bytes of UDP payload to send at most, `1200..=65507`; `None` chooses by path. Probing finds what really passes.
    pub mtu: Option<u16>,
}

/// How a coordinator waits, how long, and for what.
#[derive(Clone, Copy, Debug)]
pub struct QuicSettings {
    /// For the handshake with a worker. Defaults to 5 seconds.
    pub connect_timeout: Duration,
    /// For welcome and replies.
    pub caller: CallerSettings,
    /// Whether to spin for a while for each reply, rather than to sleep at once: see [`spins`](super::spins). Defaults
    /// to no.
    pub spin: bool,
}

impl Default for QuicSettings {
    fn default() -> Self {
        Self { connect_timeout: Duration::from_secs(5), caller: CallerSettings::default(), spin: false }
    }
}

/// Links over QUIC.
pub struct QuicLinks {
    identity: Arc<Identity>,
    dials: Vec<Dial>,
    /// One for each address family in use: a wake-up finds every worker's replies at once.
    drives: Vec<Drive>,
    /// Workers on this thread: `--loopback-quic`.
    hosts: Vec<Host>,
    board: Switchboard,
    /// Each with its drive.
    wires: Vec<Option<(usize, Wire)>>,
    spin: bool,
}

impl QuicLinks {
    /// Connects to every worker, all at once, and greets them.
    ///
    /// # Errors
    /// Every worker that could not be reached, authenticated or used.
    pub fn connect(
        identity: Identity,
        peers: Vec<Peer>,
        settings: QuicSettings,
    ) -> Result<Self, ConnectError> {
        Self::greet_all(Vec::new(), identity, peers, settings)
    }

    /// Real QUIC over 127.0.0.1 to workers that run on this very thread, with keys made in memory: `--loopback-quic`.
    ///
    /// A bank runs only inside the methods of these links, so everything stays on one thread, as MLX wants it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn loopback(workers: Vec<InMemoryWorker>, settings: QuicSettings) -> Result<Self, ConnectError> {
        let expected = workers.iter().map(|worker| (LOOPBACK.into(), worker.hello.clone())).collect();
        match start_workers(workers) {
            // There is nobody else to wait for, so nothing to spin for.
            Ok((hosts, identity, peers)) => {
                Self::greet_all(hosts, identity, peers, QuicSettings { spin: false, ..settings })
            }
            Err(error) => Err(everywhere(expected, &error)),
        }
    }

    fn greet_all(
        hosts: Vec<Host>,
        identity: Identity,
        peers: Vec<Peer>,
        settings: QuicSettings,
    ) -> Result<Self, ConnectError> {
        let (dials, shards): (Vec<_>, Vec<_>) = peers
            .into_iter()
            .map(|Peer { address, pin, hello, mtu }| {
                let address: Arc<str> = address.into();
                let timeout = settings.connect_timeout;
                (Dial { address: address.clone(), pin, mtu, timeout }, (address, hello))
            })
            .unzip();
        let mut links = Self {
            identity: Arc::new(identity),
            drives: Vec::new(),
            hosts,
            board: Switchboard::new(shards, settings.caller, Instant::now()),
            wires: dials.iter().map(|_| None).collect(),
            dials,
            spin: settings.spin,
        };
        // All dial at once, and only when the slowest has an answer do the sessions' deadlines begin.
        let dialling = (0..links.dials.len()).map(|link| links.dial(link)).collect();
        let dialled = links.join(dialling);
        dialled.into_iter().enumerate().for_each(|(link, dialled)| links.start(link, dialled));
        let greetings: Vec<_> = (0..links.dials.len()).map(|link| links.greet(link)).collect();
        let errors: Vec<_> = greetings.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(links) } else { Err(ConnectError(errors)) }
    }

    /// Begins to connect, on the drive that it returns.
    fn dial(&mut self, link: usize) -> Result<(usize, Dialling), Fault> {
        let remote = self.dials[link].resolve()?;
        let cannot = |error: io::Error| Fault::Local(format!("cannot open a UDP socket: {error}"));
        let at = self.drive_towards(remote.ip()).map_err(cannot)?;
        let now = Instant::now();
        Ok((at, self.dials[link].start(&mut self.drives[at], remote, &self.identity, now)?))
    }

    fn drive_towards(&mut self, remote: IpAddr) -> io::Result<usize> {
        let found = self.drives.iter().position(|drive| drive.address().is_ipv4() == remote.is_ipv4());
        if let Some(at) = found {
            return Ok(at);
        }
        self.drives.push(Drive::new(path::socket(any(remote))?, path::endpoint(), None)?);
        Ok(self.drives.len() - 1)
    }

    /// Waits until every connection stands or never will.
    fn join(&mut self, mut dialling: Vec<Result<(usize, Dialling), Fault>>) -> Vec<Dialled> {
        let mut dialled: Vec<Option<Dialled>> = dialling.iter().map(|_| None).collect();
        loop {
            let again = self.turn(true);
            let now = Instant::now();
            let mut due = None;
            for (dialling, dialled) in dialling.iter_mut().zip(&mut dialled) {
                match dialling {
                    _ if dialled.is_some() => {}
                    Err(fault) => *dialled = Some(Err(fault.clone())),
                    Ok((at, dialling)) => {
                        let drive = &mut self.drives[*at];
                        let outcome = drive.conn(dialling.conn).and_then(|conn| dialling.poll(conn, now));
                        if outcome.is_none() {
                            due = earlier(due, Some(dialling.due()));
                        } else if let Some(Err(_)) = outcome {
                            close(drive, dialling.conn, CloseCode::Done);
                        }
                        *dialled = outcome.map(|outcome| outcome.map(|()| (*at, Wire::new(dialling.conn))));
                    }
                }
            }
            if dialled.iter().all(Option::is_some) {
                return dialled.into_iter().flatten().collect();
            }
            if !again {
                self.sleep(due);
            }
        }
    }

    /// Starts a session on a connection, or notes why there is none.
    fn start(&mut self, link: usize, dialled: Dialled) {
        self.board.restart(link, Instant::now());
        match dialled {
            Ok(wire) => self.wires[link] = Some(wire),
            Err(fault) => self.board.caller(link).handle_closed(fault),
        }
    }

    /// Waits for a fresh link's greeting.
    fn greet(&mut self, link: usize) -> Result<(), ShardError> {
        loop {
            if let Some(greeting) = self.board.poll_greeting(link) {
                return greeting.inspect_err(|error| self.hang_up(error));
            }
            self.wait(Some(link));
        }
    }

    /// Blocks until a session has something to say: this one, or any. What the others have to say meanwhile is kept.
    fn wait(&mut self, link: Option<usize>) {
        let began = Instant::now();
        let spin = Spin::new(self.spin, began);
        // Whoever computed until a deadline had passed looks for what came in time, before anyone is late.
        let overdue = self.board.poll_timeout().is_some_and(|due| due <= began);
        let mut look = self.spin || overdue || self.has_many_sockets();
        loop {
            let again = self.turn(look);
            if self.has_event(link) {
                return;
            }
            let now = Instant::now();
            let due = self.tick(now);
            if self.has_event(link) {
                return;
            }
            if again {
                continue;
            }
            let spins = spin.goes_on(now);
            if !spins {
                self.sleep(due);
            }
            look = spins || self.has_many_sockets();
        }
    }

    /// Whether sleeping is on several sockets, and does not read them.
    fn has_many_sockets(&self) -> bool {
        self.drives.len() + self.hosts.len() != 1
    }

    fn has_event(&mut self, link: Option<usize>) -> bool {
        let links = link.map_or(0..self.board.len(), |link| link..link + 1);
        links.into_iter().any(|link| self.board.caller(link).has_event())
    }

    /// Lets the sessions see the time, and asks for workers that have been silent. Returns when to do so again.
    fn tick(&mut self, now: Instant) -> Option<Instant> {
        let mut due = self.board.poll_timeout();
        if due.is_some_and(|due| due <= now) {
            self.board.handle_timeout(now);
            due = self.board.poll_timeout();
        }
        for (link, wire) in self.wires.iter_mut().enumerate() {
            let Some((at, wire)) = wire else { continue };
            let caller = self.board.caller(link);
            if let Some(conn) = self.drives[*at].conn(wire.conn) {
                wire.ask(conn, caller, now);
            }
            due = earlier(due, wire.probe_due(caller));
        }
        due
    }

    /// Moves bytes on every link without blocking, after a look at the sockets or without. Returns whether to turn again at
    /// once.
    fn turn(&mut self, look: bool) -> bool {
        let Self { drives, hosts, board, wires, .. } = self;
        let now = Instant::now();
        let mut again = false;
        for drive in drives.iter_mut() {
            again |= drive.advance(look, now);
        }
        for (link, wire) in wires.iter_mut().enumerate() {
            if let Some((at, wire)) = wire
                && let Some(conn) = drives[*at].conn(wire.conn)
            {
                wire.pump(conn, board.caller(link));
            }
        }
        drives.iter_mut().for_each(|drive| drive.flush(now));
        for host in hosts {
            again |= host.turn(look);
        }
        again
    }

    /// Sleeps until a datagram comes, a timer of the connections is due, or until then.
    fn sleep(&mut self, until: Option<Instant>) {
        let Self { drives, hosts, .. } = self;
        let due = drives.iter().map(Drive::due).chain(hosts.iter().map(Host::due)).flatten().min();
        let due = earlier(due, until);
        match (drives.as_mut_slice(), hosts.as_slice()) {
            ([drive], []) => drive.sleep(due),
            _ => {
                let drives = drives.iter().map(Drive::poll_fd);
                let mut all: Vec<PollFd<'_>> = drives.chain(hosts.iter().map(Host::poll_fd)).collect();
                sleep(&mut all, due);
            }
        }
    }

    /// Ends the connection of a link that is down.
    fn hang_up(&mut self, error: &ShardError) {
        if !error.fault.leaves_link_up()
            && let Some((at, wire)) = self.wires[error.link].take()
        {
            close(&mut self.drives[at], wire.conn, error.fault.close_code());
        }
    }
}

impl Links for QuicLinks {
    fn shards(&self) -> &[ShardInfo] {
        self.board.shards()
    }

    fn send(&mut self, link: usize, batch: &ExpertBatch<'_>) -> Result<CallId, ShardError> {
        let now = Instant::now();
        let call = self.board.call(link, batch, now)?;
        if let Some((at, wire)) = &mut self.wires[link] {
            let (drive, caller) = (&mut self.drives[*at], self.board.caller(link));
            if let Some(conn) = drive.conn(wire.conn)
                && let Err(fault) = wire.write(conn, caller)
            {
                caller.handle_closed(fault);
            }
            // The call leaves before the engine computes on.
            drive.flush(now);
        }
        Ok(call)
    }

    fn recv(&mut self) -> Result<Option<Reply>, ShardError> {
        loop {
            match self.board.poll() {
                Some(Ok(reply)) => return Ok(Some(reply)),
                Some(Err(error)) => {
                    self.hang_up(&error);
                    return Err(error);
                }
                None if self.board.is_waiting() => self.wait(None),
                // The end of a link may have come behind the last reply.
                None if self.turn(true) => {}
                None => return self.board.poll().transpose().inspect_err(|error| self.hang_up(error)),
            }
        }
    }

    fn recycle(&mut self, reply: Reply) {
        self.board.recycle(reply);
    }

    fn progress(&mut self) {
        while self.turn(true) {}
        // With calls in flight `recv` tells; without any, nobody else would take note of a worker that has gone.
        while !self.board.is_waiting()
            && let Some(event) = self.board.poll()
        {
            if let Err(error) = event {
                tracing::warn!("{error}");
                self.hang_up(&error);
            }
        }
    }

    fn abandon(&mut self) {
        self.board.abandon();
    }

    fn reconnect(&mut self, link: usize) -> Result<(), ShardError> {
        if let Some((at, wire)) = self.wires[link].take() {
            close(&mut self.drives[at], wire.conn, CloseCode::Done);
        }
        let dialling = self.dial(link);
        for dialled in self.join(vec![dialling]) {
            self.start(link, dialled);
        }
        self.greet(link)
    }
}

impl Drop for QuicLinks {
    fn drop(&mut self) {
        for (at, wire) in self.wires.iter().flatten() {
            close(&mut self.drives[*at], wire.conn, CloseCode::Done);
        }
    }
}

/// A connection with its drive, its stream open, or why there is none.
type Dialled = Result<(usize, Wire), Fault>;

/// Closes a connection and lets go of it; the close leaves at once.
fn close(drive: &mut Drive, conn: ConnId, close: CloseCode) {
    let now = Instant::now();
    if let Some(conn) = drive.conn(conn) {
        conn.close(now, end::code(close), close.to_string().into());
    }
    drive.release(conn);
    drive.flush(now);
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

/// One worker a host, each on a port of its own, all with keys made just now.
fn start_workers(workers: Vec<InMemoryWorker>) -> Result<(Vec<Host>, Identity, Vec<Peer>), ServeError> {
    let identity = Identity::generate()?;
    let (mut hosts, mut peers) = (Vec::new(), Vec::new());
    for InMemoryWorker { hello, welcome, bank } in workers {
        let keys = Identity::generate()?;
        let pin = keys.pin();
        let listener = Listener::bind(&ServeSettings {
            identity: keys,
            listen: ([127, 0, 0, 1], 0).into(),
            coordinators: vec![identity.pin()],
            mtu: None,
            spin: false,
        })?
        .quiet();
        peers.push(Peer { address: listener.address().to_string(), pin, hello, mtu: None });
        hosts.push(listener.serve(welcome, bank));
    }
    Ok((hosts, identity, peers))
}

/// One local reason why no shard can be reached.
fn everywhere(expected: Vec<(Arc<str>, Hello)>, reason: &dyn ToString) -> ConnectError {
    let board = Switchboard::new(expected, CallerSettings::default(), Instant::now());
    let fault = Fault::Local(reason.to_string());
    ConnectError((0..board.len()).map(|link| board.error(link, fault.clone(), Vec::new())).collect())
}

/// Address shown where a loopback worker could not be started.
const LOOPBACK: &str = "127.0.0.1";
