//! `inspect`: what a checkpoint is, from its headers alone.

use std::fmt::Write;

use laguna_shared::weights::account::{Account, Amount};
use laguna_topology::{Bytes, Plan};
use laguna_worker::model::OpenModel;
use serde_json::{Value, json};

use super::args::{Args, InspectArgs};
use super::cluster::config_options;
use super::failure::Failure;
use super::output;

/// Runs the command.
///
/// # Errors
/// With one message.
pub fn run(args: &Args, command: &InspectArgs) -> Result<(), Failure> {
    if !command.dir.is_dir() {
        return Err(Failure::usage(format!("{}: no such folder", command.dir.display())));
    }
    let opened = OpenModel::open(&command.dir, &config_options(&args.cluster)).map_err(Failure::usage)?;
    let account = Account::of(&opened.checkpoint, &opened.inventory);
    let plan = Plan::even(opened.config.num_experts as u16, command.shards).map_err(Failure::usage)?;
    if command.json {
        output::data(&format!("{}\n", as_json(&opened, &account, &plan)))
    } else {
        output::data(&as_text(&opened, &account, &plan))
    }
}

fn as_text(opened: &OpenModel, account: &Account, plan: &Plan) -> String {
    let config = &opened.config;
    let total = account.total();
    let sparse = config.sparse_layers().count();
    let sliding = config.layers.iter().filter(|l| l.sliding_window.is_some()).count();
    let mut text = String::new();
    // Writing to a String does not fail.
    let mut line = |content: String| _ = writeln!(text, "{content}");
    line(format!("{}", opened.checkpoint.dir().display()));
    line(format!(
        "  {} parameters, {} in {} files; context {}",
        count(total.parameters),
        Bytes(account.file_bytes),
        opened.checkpoint.files().count(),
        config.max_position_embeddings
    ));
    line(format!(
        "  {} layers ({} sliding, {sparse} sparse), hidden {}, {} experts top-{} of {}, vocabulary {}",
        config.layers.len(),
        sliding,
        config.hidden_size,
        config.num_experts,
        config.num_experts_per_tok,
        config.moe_intermediate_size,
        config.vocab_size
    ));
    line("\nexperts".to_owned());
    for (layout, layers) in &account.layouts {
        let range = match (layers.first(), layers.last()) {
            (Some(first), Some(last)) => format!("layers {}..={}", first.0, last.0),
            _ => "no layers".to_owned(),
        };
        line(format!("  {layout}: {} {range}", layers.len()));
    }
    line("\npart".to_owned());
    for (part, amount) in &account.parts {
        line(row(&part.to_string(), *amount));
    }
    line("\nformat".to_owned());
    for (format, amount) in &account.formats {
        line(row(format, *amount));
    }
    if account.unused_bytes > 0 {
        line(format!("  {:<28} {:>10} {:>10}", "not used", "", Bytes(account.unused_bytes).to_string()));
    }
    line(format!(
        "\n{} shards of equal size, besides a trunk of {}",
        plan.shards().len(),
        Bytes(account.trunk_bytes())
    ));
    for shard in plan.shards() {
        line(format!(
            "  {:<12} experts {:<10} {:>10}",
            shard.id.to_string(),
            shard.range.to_string(),
            Bytes(account.shard_bytes(shard.range)).to_string()
        ));
    }
    text
}

fn as_json(opened: &OpenModel, account: &Account, plan: &Plan) -> Value {
    let amount = |a: &Amount| json!({ "parameters": a.parameters, "bytes": a.bytes });
    let parts: serde_json::Map<String, Value> =
        account.parts.iter().map(|(part, a)| (part.to_string(), amount(a))).collect();
    let formats: serde_json::Map<String, Value> =
        account.formats.iter().map(|(format, a)| (format.clone(), amount(a))).collect();
    let layouts: serde_json::Map<String, Value> = account
        .layouts
        .iter()
        .map(|(layout, layers)| (layout.clone(), json!(layers.iter().map(|l| l.0).collect::<Vec<_>>())))
        .collect();
    let shards: Vec<Value> = plan
        .shards()
        .iter()
        .map(|s| {
            json!({
                "shard": s.id.0,
                "experts": [s.range.start, s.range.end],
                "bytes": account.shard_bytes(s.range),
            })
        })
        .collect();
    json!({
        "dir": opened.checkpoint.dir(),
        "parameters": account.total().parameters,
        "file_bytes": account.file_bytes,
        "unused_bytes": account.unused_bytes,
        "layers": opened.config.layers.len(),
        "num_experts": opened.config.num_experts,
        "trunk_bytes": account.trunk_bytes(),
        "parts": parts,
        "formats": formats,
        "expert_layouts": layouts,
        "shards": shards,
    })
}

fn row(name: &str, amount: Amount) -> String {
    format!("  {name:<28} {:>10} {:>10}", count(amount.parameters), Bytes(amount.bytes).to_string())
}

/// `117.6 B`, `33.4 M`, `812`.
fn count(n: u64) -> String {
    let scaled = |divisor: f64, unit: &str| format!("{:.1} {unit}", n as f64 / divisor);
    match n {
        1_000_000_000.. => scaled(1e9, "B"),
        1_000_000.. => scaled(1e6, "M"),
        10_000.. => scaled(1e3, "k"),
        _ => n.to_string(),
    }
}
