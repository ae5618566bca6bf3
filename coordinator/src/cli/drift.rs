//! `verify --trunk-bits`: what fewer bits change, on the user's own prompt or on a reference's.

use serde_json::json;

use super::args::{Args, VerifyArgs};
use super::cluster::{self, Cluster};
use super::failure::Failure;
use super::loading::unwatched;
use super::output;
use crate::model::quantize::TrunkBits;
use crate::reference::drift::Drift;
use crate::reference::expected::read_cases;
use crate::reference::passes::run_prefill;
use crate::text::TextTokenizer;

/// Runs the prompts with the trunk as stored, then with fewer bits, and prints the difference.
///
/// # Errors
/// With one message.
pub fn run(args: &Args, command: &VerifyArgs, bits: TrunkBits) -> Result<(), Failure> {
    let mut stored = args.cluster.clone();
    stored.trunk_bits = TrunkBits::Stored.into();
    let reference = command.reference.first().map(std::path::PathBuf::as_path);
    let mut cluster = cluster::open(&stored, cluster::native_activation(), reference, &unwatched)?;
    let prompts = prompts(&cluster, command)?;
    let before = logits(&mut cluster, &prompts)?;
    cluster.model.quantize(bits).map_err(Failure::failed)?;
    let after = logits(&mut cluster, &prompts)?;

    let vocab = cluster.model.config().vocab_size;
    let mut text = format!(
        "  {:<14} {:>9} {:>12} {:>10} {:>10} {:>12}\n",
        "prompt", "positions", "max |Δlogit|", "mean KL", "max KL", "greedy equal"
    );
    for ((name, _), (before, after)) in prompts.iter().zip(before.iter().zip(&after)) {
        let drift = Drift::of(before, after, vocab);
        if command.json {
            output::data(&format!(
                "{}\n",
                json!({ "prompt": name, "trunk_bits": args.cluster.trunk_bits.bits(), "drift": drift })
            ))?;
        }
        let equal = format!("{}/{}", drift.greedy_equal, drift.positions);
        text += &format!(
            "  {name:<14} {:>9} {:>12.3} {:>10.1e} {:>10.1e} {equal:>12}\n",
            drift.positions, drift.logit_max, drift.kl_mean, drift.kl_max
        );
    }
    if !command.json {
        output::data(&text)?;
    }
    output::say(format_args!(
        "a {}-bit trunk beside the stored one; KL in nats, stored ‖ quantised",
        args.cluster.trunk_bits.bits()
    ));
    Ok(())
}

/// Names and ids; long ones are cut, because every position's logits are kept.
fn prompts(cluster: &Cluster, command: &VerifyArgs) -> Result<Vec<(String, Vec<u32>)>, Failure> {
    let mut prompts = Vec::new();
    if let Some(text) = &command.prompt {
        let tokenizer = TextTokenizer::load(&cluster.dir).map_err(Failure::usage)?;
        let ids = tokenizer.encode_raw(text).map_err(Failure::failed)?;
        prompts.push(("--prompt".to_owned(), ids));
    }
    for dir in &command.reference {
        let cases = read_cases(dir, cluster.model.config().vocab_size).map_err(Failure::usage)?;
        prompts.extend(cases.into_iter().map(|case| (case.key, case.input_ids)));
    }
    for (name, ids) in &mut prompts {
        if ids.len() > POSITIONS {
            output::say(format_args!("{name}: the first {POSITIONS} of {} tokens", ids.len()));
            ids.truncate(POSITIONS);
        }
    }
    Ok(prompts)
}

/// `[positions, vocab]` of each prompt.
fn logits(cluster: &mut Cluster, prompts: &[(String, Vec<u32>)]) -> Result<Vec<Vec<f32>>, Failure> {
    let Cluster { model, experts, chunk, .. } = cluster;
    let run = |(_, ids): &(String, Vec<u32>)| run_prefill(model, experts, ids, *chunk).map(|run| run.logits);
    prompts.iter().map(run).collect::<Result<_, _>>().map_err(Failure::failed)
}

/// 512 positions of a vocabulary of 100,000 take 200 MB, twice.
const POSITIONS: usize = 512;
