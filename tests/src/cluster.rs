//! A cluster on 127.0.0.1: a folder with a topology file, every node's key, and a port for each worker.

use std::fmt::Write;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use tempfile::TempDir;

use crate::relay::{Link, Relay};
use crate::run::{Run, Running};

/// The folder. Removed when dropped.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    ports: Vec<u16>,
}

/// What is to be in the topology file.
#[derive(Clone, Debug)]
pub struct Plan<'p> {
    /// Checkpoint.
    pub model: &'p Path,
    /// Workers; they hold shards 0, 1, …
    pub workers: u16,
    /// Whether the coordinator holds the next shard itself.
    pub local_shard: bool,
    /// Lines of the `[link]` table.
    pub link: &'p str,
}

impl Cluster {
    /// Workers only, on the given checkpoint.
    pub fn new(model: &Path, workers: u16) -> Self {
        Self::planned(&Plan { model, workers, local_shard: false, link: "" })
    }

    /// Writes the file and makes the keys.
    pub fn planned(plan: &Plan<'_>) -> Self {
        let cluster = Self::without_keys(plan);
        cluster.keygen().finish().succeeded();
        cluster
    }

    /// Writes the file only.
    pub fn without_keys(plan: &Plan<'_>) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let ports: Vec<u16> = (0..plan.workers).map(|_| free_port()).collect();
        let mut text = format!("model = {:?}\n\n[coordinator]\n", plan.model.display().to_string());
        // Writing to a String does not fail.
        if plan.local_shard {
            let _ = writeln!(text, "shard = {}", plan.workers);
        }
        for (shard, port) in ports.iter().enumerate() {
            let _ = write!(text, "\n[[worker]]\nshard = {shard}\naddress = \"127.0.0.1:{port}\"\n");
        }
        if !plan.link.is_empty() {
            let _ = write!(text, "\n[link]\n{}\n", plan.link);
        }
        fs::write(folder.path().join("topology.toml"), text).expect("the folder can be written to");
        Self { folder, ports }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The topology file.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("topology.toml")
    }

    /// The key file of a node: `coordinator`, `shard-0`, …
    pub fn key(&self, node: &str) -> PathBuf {
        self.folder.path().join("keys").join(format!("{node}.pem"))
    }

    /// Address of a worker, as messages show it.
    pub fn address(&self, shard: usize) -> String {
        format!("127.0.0.1:{}", self.ports[shard])
    }

    /// Changes the topology file.
    pub fn edit(&self, edit: impl FnOnce(String) -> String) {
        let text = fs::read_to_string(self.file()).expect("the topology can be read");
        fs::write(self.file(), edit(text)).expect("the topology can be written");
    }

    /// The pin that the topology file gives a node: coordinator first, then workers by shard.
    ///
    /// # Panics
    /// If it gives none.
    pub fn pin(&self, node: &str) -> String {
        let text = fs::read_to_string(self.file()).expect("the topology can be read");
        let shard = node.strip_prefix("shard-").map(|shard| format!("shard = {shard}\n"));
        let mut tables = text.split("\n[");
        let table = tables.find(|table| match &shard {
            Some(shard) => table.starts_with("[worker]") && format!("{table}\n").contains(shard),
            None => table.starts_with("coordinator]"),
        });
        let pin = table.and_then(|table| table.split("pin = \"").nth(1)?.split('"').next());
        pin.unwrap_or_else(|| panic!("no pin of {node} in\n{text}")).to_owned()
    }

    /// A second folder with the same file and keys, which a test may spoil: what another machine has.
    pub fn elsewhere(&self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        fs::copy(self.file(), folder.path().join("topology.toml")).expect("the topology can be copied");
        fs::create_dir(folder.path().join("keys")).expect("the folder can be written to");
        for entry in fs::read_dir(self.folder().join("keys")).expect("there are keys") {
            let key = entry.expect("the folder can be listed").path();
            let name = key.file_name().expect("a key file has a name");
            fs::copy(&key, folder.path().join("keys").join(name)).expect("a key can be copied");
        }
        Self { folder, ports: self.ports.clone() }
    }

    /// What a coordinator has that reaches every worker through a relay of its own, and the relays, by shard.
    pub fn behind(&self, link: &Link, seed: u64) -> (Self, Vec<Relay>) {
        let mut far = self.elsewhere();
        let relay = |shard: usize| {
            let worker = self.address(shard).parse().expect("an address");
            Relay::start(worker, link, seed + shard as u64).expect("a relay can be started")
        };
        let relays: Vec<Relay> = (0..self.ports.len()).map(relay).collect();
        far.ports = relays.iter().map(|relay| relay.address().port()).collect();
        // With the quotes, since one port may begin another.
        let quoted = |cluster: &Self, shard| format!("{:?}", cluster.address(shard));
        let all = 0..self.ports.len();
        far.edit(|text| all.fold(text, |text, n| text.replace(&quoted(self, n), &quoted(&far, n))));
        (far, relays)
    }

    /// `laguna-coord keygen` on this file.
    pub fn keygen(&self) -> Run {
        Run::coord(["keygen", "--topology"]).arg(self.file())
    }

    /// `laguna-coord` with this topology and these arguments.
    pub fn coord(&self, args: &[&str]) -> Run {
        Run::coord(["--topology"]).arg(self.file()).args(args)
    }

    /// `laguna-worker` for a shard of this topology.
    pub fn worker(&self, shard: usize) -> Run {
        Run::worker(["--shard", &shard.to_string(), "--topology"]).arg(self.file())
    }

    /// A worker that serves.
    pub fn start(&self, shard: usize) -> Running {
        serving(self.worker(shard))
    }

    /// Every worker, serving. They load side by side.
    pub fn start_all(&self, args: &[&str]) -> Vec<Running> {
        let mut workers: Vec<Running> =
            (0..self.ports.len()).map(|shard| self.worker(shard).args(args).start()).collect();
        workers.iter_mut().for_each(until_serving);
        workers
    }
}

/// Starts a worker and waits until it says that it serves.
pub fn serving(run: Run) -> Running {
    let mut worker = run.start();
    until_serving(&mut worker);
    worker
}

fn until_serving(worker: &mut Running) {
    worker.until(|worker| worker.stderr().contains(" resident, bank "));
}

/// A UDP port of 127.0.0.1 that nobody has now. Not one of those that the system gives to outgoing sockets.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let own = (std::process::id() % 200) as u16 * 50;
        let port = FIRST_PORT + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Below the ports that Linux and macOS give to outgoing sockets.
const FIRST_PORT: u16 = 21_000;
const PORTS: u16 = 11_000;
