//! `verify`: this build against reference outputs.

use std::num::NonZeroUsize;
use std::path::Path;

use laguna_shared::compute::ActivationType;
use serde_json::json;

use super::args::{Args, VerifyArgs};
use super::cluster::{self, Cluster};
use super::failure::Failure;
use super::loading::unwatched;
use super::{drift, output};
use crate::model::quantize::TrunkBits;
use crate::reference::compare::{Difference, compare};
use crate::reference::expected::read_cases;

/// Runs the command: exit code 1 if any reference differs.
///
/// # Errors
/// With one message.
pub fn run(args: &Args, command: &VerifyArgs) -> Result<(), Failure> {
    for dir in &command.reference {
        if !dir.is_dir() {
            return Err(Failure::usage(format!("reference {}: no such folder", dir.display())));
        }
    }
    match TrunkBits::from(args.cluster.trunk_bits) {
        TrunkBits::Stored if command.prompt.is_some() => {
            return Err(Failure::usage(
                "--prompt has nothing to be compared with; it goes with --trunk-bits 8 or 4",
            ));
        }
        TrunkBits::Stored => {}
        bits => return drift::run(args, command, bits),
    }
    let chunk = args.cluster.chunk.unwrap_or(DEFAULT_CHUNK);
    // One cluster serves every reference, unless each reference is its own checkpoint.
    let own = (args.cluster.loopback.is_some() || args.cluster.loopback_quic.is_some())
        && args.cluster.model.is_none();
    let mut shared: Option<Cluster> = None;
    let mut failed = Vec::new();
    let mut largest = 0.0_f32;
    for dir in &command.reference {
        let cluster = match &mut shared {
            Some(cluster) if !own => cluster,
            slot => slot.insert(cluster::open(&args.cluster, ActivationType::F32, Some(dir), &unwatched)?),
        };
        let differences = differences(cluster, dir, chunk)?;
        largest = differences.iter().map(Difference::max).fold(largest, f32::max);
        let passed = differences.iter().all(|d| d.within(command.tolerance));
        if command.json {
            let line = json!({ "reference": dir, "passed": passed, "tolerance": command.tolerance, "prompts": differences });
            output::data(&format!("{line}\n"))?;
        } else {
            output::data(&table(dir, &differences, command.tolerance))?;
        }
        if !passed {
            failed.push(dir.display().to_string());
        }
    }
    match failed.as_slice() {
        [] => {
            output::say(format_args!(
                "agrees: largest |Δlogit| {largest:.1e} (limit {:.0e}), routing and greedy ids equal",
                command.tolerance
            ));
            Ok(())
        }
        names => Err(Failure::failed(format!(
            "{} of {} references differ by more than {}: {}",
            names.len(),
            command.reference.len(),
            command.tolerance,
            names.join(", ")
        ))),
    }
}

fn differences(cluster: &mut Cluster, dir: &Path, chunk: NonZeroUsize) -> Result<Vec<Difference>, Failure> {
    let cases = read_cases(dir, cluster.model.config().vocab_size).map_err(Failure::usage)?;
    cases
        .iter()
        .map(|case| {
            compare(&cluster.model, &mut cluster.experts, case, chunk)
                .map_err(|e| Failure::failed(format!("{}, prompt {}: {e}", dir.display(), case.key)))
        })
        .collect()
}

fn table(dir: &Path, differences: &[Difference], tolerance: f32) -> String {
    let number = |value: Option<f32>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.1e}"));
    let mut text = format!(
        "{}\n  {:<14} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8}\n",
        dir.display(),
        "prompt",
        "tokens",
        "prefill",
        "chunked",
        "decode",
        "routing",
        "greedy"
    );
    for d in differences {
        let routing = d.routing_mismatches.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let greedy = format!("{}/{}", d.greedy_mismatches, d.greedy_steps);
        let verdict = if d.within(tolerance) { "" } else { "  DIFFERS" };
        text += &format!(
            "  {:<14} {:>6} {:>9} {:>9} {:>9} {routing:>8} {greedy:>8}{verdict}\n",
            d.prompt,
            d.tokens,
            number(d.prefill_max),
            number(d.chunked_max),
            number(d.decode_max),
        );
    }
    text
}

/// Small and odd, so that chunks end everywhere in the sliding windows of test models.
const DEFAULT_CHUNK: NonZeroUsize = NonZeroUsize::new(37).expect("37 is not 0");
