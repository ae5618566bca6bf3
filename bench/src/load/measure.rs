//! Loads and reads in turn. A load counts from the start of the process to the moment it serves; a read counts alone.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::ChildStderr;
use std::time::Instant;

use serde::Serialize;

use super::parts::{self, Part, PartRole, Took};
use crate::child::{Child, Launch, Role};
use crate::e2e::place::{WorkerRole, free_addresses, write_topology};
use crate::error::BenchError;
use crate::report::Row;
use crate::scratch;
use crate::stats::{median, ratio};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Checkpoint folder.
    pub model: PathBuf,
    /// Parts, case by case.
    pub parts: Vec<Part>,
    /// Arithmetic of the experts.
    pub bank: String,
    /// Bits of a trunk weight.
    pub trunk_bits: String,
    /// Runs of each.
    pub repeats: usize,
}

/// One part, from warm or cold files; medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// `trunk`, or `shard 0 of N`.
    pub part: String,
    /// Whether the files were in memory before: `warm`, or `cold`.
    pub files: &'static str,
    /// Arithmetic of the experts, or bits of the trunk.
    pub kind: String,
    /// Bytes of the checkpoint that this part is.
    pub shard_bytes: u64,
    /// Seconds from the start of the process until it serves.
    pub load_s: f64,
    /// Seconds that reading those bytes takes, into one buffer of 4 MiB, by another process.
    pub read_s: f64,
    /// `load_s` over `read_s`.
    pub ratio: f64,
    /// Most bytes resident in the process that loaded.
    pub peak_bytes: u64,
    /// `peak_bytes` over `shard_bytes`.
    pub peak_ratio: f64,
}

impl Plan {
    /// Measures every part. `progress` is told what comes next.
    ///
    /// # Errors
    /// If a process fails.
    pub fn run(&self, progress: &mut dyn FnMut(&str)) -> Result<Vec<Record>, BenchError> {
        let mut records = Vec::new();
        for &part in &self.parts {
            let part_name = match part {
                Part::Trunk => "trunk".to_owned(),
                Part::Shard { of } => format!("shard 0 of {of}"),
            };
            let bytes = parts::bytes(&self.model, part)?;
            for (files, cold) in [("warm", false), ("cold", true)] {
                if cold && !cfg!(target_os = "linux") {
                    continue;
                }
                let (mut loads, mut reads, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
                for repeat in 1..=self.repeats {
                    progress(&format!("{part_name}, {files}, run {repeat} of {}", self.repeats));
                    self.prepare(part, cold)?;
                    reads.push(self.read(part)?.seconds);
                    self.prepare(part, cold)?;
                    let (seconds, peak) = self.load(part)?;
                    loads.push(seconds);
                    peaks.push(peak as f64);
                }
                let (load_s, read_s, peak) = (median(loads), median(reads), median(peaks));
                records.push(Record {
                    part: part_name.clone(),
                    files,
                    kind: match part {
                        Part::Trunk => format!("{} bit", self.trunk_bits),
                        Part::Shard { .. } => self.bank.clone(),
                    },
                    shard_bytes: bytes,
                    load_s,
                    read_s,
                    ratio: ratio(load_s, read_s),
                    peak_bytes: peak as u64,
                    peak_ratio: ratio(peak, bytes as f64),
                });
            }
        }
        Ok(records)
    }

    /// All of the part's bytes in memory, or none of the checkpoint's.
    fn prepare(&self, part: Part, cold: bool) -> Result<(), BenchError> {
        if cold { parts::forget(&self.model) } else { self.read(part).map(drop) }
    }

    fn read(&self, part: Part) -> Result<Took, BenchError> {
        Child::start(&Role::Read(self.role(part)), &Launch::default())?.hear()
    }

    /// Seconds until it serves, and the most bytes it had resident then.
    fn load(&self, part: Part) -> Result<(f64, u64), BenchError> {
        match part {
            Part::Trunk => {
                let begun = Instant::now();
                let mut child = Child::start(&Role::Trunk(self.role(part)), &Launch::default())?;
                let took: Took = child.hear()?;
                Ok((begun.elapsed().as_secs_f64(), took.peak_bytes))
            }
            Part::Shard { of } => {
                let dir = scratch("load")?;
                let topology = write_topology(dir.path(), "topology.toml", &self.model, &free_addresses(of))?;
                let role = WorkerRole { shard: 0, topology, bank: self.bank.clone(), logs: true };
                let begun = Instant::now();
                let (mut child, mut said) = Child::start_heard(&Role::Worker(role))?;
                until_serving(&mut said)?;
                Ok((begun.elapsed().as_secs_f64(), child.peak_bytes()?))
            }
        }
    }

    fn role(&self, part: Part) -> PartRole {
        PartRole { part, model: self.model.clone(), trunk_bits: self.trunk_bits.clone() }
    }
}

/// Reads the worker's log up to the line that says so.
fn until_serving(log: &mut BufReader<ChildStderr>) -> Result<(), BenchError> {
    let mut all = String::new();
    loop {
        let from = all.len();
        let read = log.read_line(&mut all).map_err(BenchError::io("the worker's log"))?;
        if read == 0 {
            return Err(BenchError::Child { role: "worker", reason: format!("ended early:\n{all}") });
        }
        if all[from..].contains(SERVING) {
            return Ok(());
        }
    }
}

impl Row for Record {
    const BENCH: &'static str = "load";
    const HEADS: &'static [&'static str] =
        &["part", "files", "kind", "MB", "load s", "read s", "×", "peak MB", "× part"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.part.clone(),
            self.files.to_owned(),
            self.kind.clone(),
            format!("{:.0}", self.shard_bytes as f64 / 1e6),
            format!("{:.3}", self.load_s),
            format!("{:.3}", self.read_s),
            format!("{:.2}", self.ratio),
            format!("{:.0}", self.peak_bytes as f64 / 1e6),
            format!("{:.2}", self.peak_ratio),
        ]
    }
}

/// Part of the line that a worker says once it serves.
const SERVING: &str = " resident, bank ";
