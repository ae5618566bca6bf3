//! The other process of a measurement: this program again, started by itself with a role.
//!
//! A child says one line of JSON on stdout when it is ready, another one for each line it is asked on stdin, and ends
//! when its stdin does, so none outlives its parent.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::e2e::place::WorkerRole;
use crate::e2e::setup::Job;
use crate::error::BenchError;
use crate::exchange::payload::Sizes;
use crate::exchange::quic::QuicRole;
use crate::exchange::udp::UdpRole;
use crate::load::parts::PartRole;
use crate::machine::{Machine, peak_bytes};
use crate::{allocations, e2e, exchange, load};

/// What a child process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Answers raw UDP.
    Udp(UdpRole),
    /// Answers TCP.
    Tcp(Sizes),
    /// Answers TLS on TCP.
    Tls(Sizes),
    /// Answers QUIC by quinn's driver.
    Quinn(Sizes),
    /// A worker with an echo for a bank.
    Quic(QuicRole),
    /// A real worker.
    Worker(WorkerRole),
    /// One run of a set-up from end to end.
    Run(Job),
    /// Loads the trunk.
    Trunk(PartRole),
    /// Reads a node's part of a checkpoint.
    Read(PartRole),
}

impl Role {
    /// What it is called in messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Udp(_) => "udp",
            Self::Tcp(_) => "tcp",
            Self::Tls(_) => "tls",
            Self::Quinn(_) => "quinn",
            Self::Quic(_) => "quic",
            Self::Worker(_) => "worker",
            Self::Run(_) => "run",
            Self::Trunk(_) => "trunk",
            Self::Read(_) => "read",
        }
    }

    /// Plays the role; returns when it is over. This is the child's whole life.
    ///
    /// # Errors
    /// What went wrong; the parent then sees this child end.
    pub fn play(self) -> Result<(), BenchError> {
        answer_stdin();
        match self {
            Self::Udp(role) => exchange::udp::serve(role),
            Self::Tcp(sizes) => exchange::tcp::serve(sizes),
            Self::Tls(sizes) => exchange::tls::serve(sizes),
            Self::Quinn(sizes) => exchange::quinn::serve(sizes),
            Self::Quic(role) => exchange::quic::serve(&role),
            Self::Worker(role) => e2e::place::serve(&role),
            Self::Run(job) => e2e::setup::run(&job).and_then(|sample| say(&sample)),
            Self::Trunk(role) => load::parts::load_trunk(&role),
            Self::Read(role) => load::parts::read(&role),
        }
    }
}

/// How children are started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Processors that they are kept on, as `taskset -c` takes them; wherever the system likes if `None`.
    pub cpus: Option<String>,
}

impl Launch {
    /// Processors that the children may have, beside the one that this process is on.
    pub fn processors(&self) -> usize {
        match &self.cpus {
            None => Machine::here().cpus.saturating_sub(1),
            Some(list) => list.split(',').map(range).sum(),
        }
    }
}

/// How many numbers `3` or `2-5` stands for; none if it is neither.
fn range(text: &str) -> usize {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last => last - first + 1,
        _ => 0,
    }
}

/// A running child; killed when dropped.
pub struct Child {
    role: &'static str,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Child {
    /// Starts this program in a role.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(role: &Role, launch: &Launch) -> Result<Self, BenchError> {
        Self::spawn(role, launch, Stdio::inherit())
    }

    /// Starts this program in a role, and hears what it says on stderr.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_heard(role: &Role) -> Result<(Self, BufReader<ChildStderr>), BenchError> {
        let mut child = Self::spawn(role, &Launch::default(), Stdio::piped())?;
        let broken = || BenchError::Child { role: role.name(), reason: "no pipes".to_owned() };
        let stderr = BufReader::new(child.process.stderr.take().ok_or_else(broken)?);
        Ok((child, stderr))
    }

    fn spawn(role: &Role, launch: &Launch, stderr: Stdio) -> Result<Self, BenchError> {
        let name = role.name();
        let program = std::env::current_exe().map_err(BenchError::io("this program's own path"))?;
        let text = serde_json::to_string(role).map_err(BenchError::failed)?;
        let mut command = match &launch.cpus {
            None => Command::new(&program),
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus]).arg(&program);
                command
            }
        };
        let command = command.args(["child", &text]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let started = command.stderr(stderr).spawn();
        let mut process = started.map_err(BenchError::io(command.get_program().to_string_lossy()))?;
        let broken = || BenchError::Child { role: name, reason: "no pipes".to_owned() };
        let stdin = Some(process.stdin.take().ok_or_else(broken)?);
        let stdout = BufReader::new(process.stdout.take().ok_or_else(broken)?);
        Ok(Self { role: name, process, stdin, stdout })
    }

    /// Waits for the next line that the child says.
    ///
    /// # Errors
    /// If it ends instead, or says something else.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, BenchError> {
        let mut line = String::new();
        self.stdout.read_line(&mut line).map_err(BenchError::io(self.role))?;
        if line.is_empty() {
            let ended = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            return Err(BenchError::Child { role: self.role, reason: format!("ended early, {ended}") });
        }
        serde_json::from_str(&line)
            .map_err(|error| BenchError::Child { role: self.role, reason: format!("{error} in {line}") })
    }

    /// Most bytes that the child has had resident so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn peak_bytes(&mut self) -> Result<u64, BenchError> {
        self.ask(PEAK)
    }

    /// How often the child has asked for memory so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn allocations(&mut self) -> Result<u64, BenchError> {
        self.ask(ALLOCATIONS)
    }

    fn ask(&mut self, question: &str) -> Result<u64, BenchError> {
        if let Some(stdin) = &mut self.stdin {
            let asked = stdin.write_all(question.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
            asked.map_err(BenchError::io(self.role))?;
        }
        self.hear()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stdin = None;
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Says a line to the parent.
///
/// # Errors
/// If the parent is gone.
pub fn say<T: Serialize>(what: &T) -> Result<(), BenchError> {
    let mut line = serde_json::to_string(what).map_err(BenchError::failed)?;
    line.push('\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).map_err(BenchError::io("stdout"))
}

/// Answers each line of stdin with the number it asks for, and ends the process where stdin ends.
fn answer_stdin() {
    std::thread::spawn(|| {
        for line in io::stdin().lines() {
            let Ok(question) = line else { break };
            let answer = if question == ALLOCATIONS { allocations::count() } else { peak_bytes() };
            if say(&answer).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
}

const PEAK: &str = "peak";
const ALLOCATIONS: &str = "allocations";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_as_taskset_takes_them() {
        let of = |list: &str| Launch { cpus: Some(list.to_owned()) }.processors();
        assert_eq!((of("1"), of("0,2-4"), of("x"), of("4-2")), (1, 4, 0, 0));
        assert_eq!(Launch::default().processors(), Machine::here().cpus - 1);
    }
}
