//! The TOML as a user writes it, field by field, each value with its line. Unknown keys are faults.
//!
//! A field is `None` when it is absent and when it is faulty: the faults tell which. How fields fit together is
//! `check`'s business.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::address::Address;
use crate::fault::Fault;
use crate::ids::{ExpertRange, ShardId};
use crate::memory::Bytes;
use crate::pin::Pin;
use crate::table::{At, Reading, Table, described};
use crate::topology::Link;

/// Where relative paths start, and what `~` is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'p> {
    pub(crate) dir: &'p Path,
    pub(crate) home: Option<&'p Path>,
}

/// The whole file.
#[derive(Default)]
pub(crate) struct File {
    pub(crate) model: Option<PathBuf>,
    pub(crate) keys: Option<PathBuf>,
    pub(crate) coordinator: Option<CoordinatorTable>,
    pub(crate) workers: Vec<WorkerTable>,
    /// Whether there is a `worker` at all, sound or not.
    pub(crate) names_workers: bool,
    pub(crate) link: Link,
    /// Whether the text was TOML at all; if not, its other faults say nothing.
    pub(crate) is_toml: bool,
}

/// `[coordinator]`.
pub(crate) struct CoordinatorTable {
    pub(crate) line: u32,
    pub(crate) pin: Option<At<Pin>>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) shard: Option<At<ShardId>>,
    /// Whether there is a `shard` at all, sound or not.
    pub(crate) names_shard: bool,
    pub(crate) experts: Option<At<ExpertRange>>,
    pub(crate) context: Option<u64>,
}

/// `[[worker]]`.
pub(crate) struct WorkerTable {
    pub(crate) line: u32,
    pub(crate) shard: Option<At<ShardId>>,
    pub(crate) address: Option<At<Address>>,
    pub(crate) listen: Option<At<SocketAddr>>,
    pub(crate) pin: Option<At<Pin>>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) experts: Option<At<ExpertRange>>,
    pub(crate) model: Option<PathBuf>,
}

/// Everything that can be read, and everything wrong with the rest.
pub(crate) fn read(text: &str, place: Place<'_>) -> (File, Vec<Fault>) {
    let mut reading = Reading::new(text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let line = error.span().map_or(1, |span| reading.line(&span));
        reading.fault(line, format!("not TOML: {}", error.message().replace('\n', ", ")));
    }
    if !errors.is_empty() {
        return (File::default(), reading.faults);
    }
    let top = Table::new("the top of the file", 1, document.get_ref());
    let file = file(&top, &mut reading, place);
    (file, reading.faults)
}

fn file(top: &Table<'_, '_>, reading: &mut Reading<'_>, place: Place<'_>) -> File {
    top.refuse_unknown(
        reading,
        TOP,
        &[("[coordinator]", COORDINATOR), ("[[worker]]", WORKER), ("[link]", LINK)],
    );
    top.require(reading, "model", MODEL_EXAMPLE);
    File {
        model: path(top, reading, "model", MODEL_EXAMPLE, place),
        keys: match top.get("keys") {
            Some(_) => path(top, reading, "keys", "keys = \"keys\"", place),
            None => Some(place.dir.join("keys")),
        },
        coordinator: coordinator(top, reading),
        workers: workers(top, reading, place),
        names_workers: top
            .get("worker")
            .is_some_and(|value| value.get_ref().as_array().is_none_or(|items| !items.is_empty())),
        link: link(top, reading),
        is_toml: true,
    }
}

fn coordinator(top: &Table<'_, '_>, reading: &mut Reading<'_>) -> Option<CoordinatorTable> {
    let table = single(top, reading, "coordinator", "[coordinator]")?;
    table.refuse_unknown(reading, COORDINATOR, &[(ABOVE, TOP), ("[[worker]]", WORKER), ("[link]", LINK)]);
    Some(CoordinatorTable {
        line: table.line,
        pin: table.parsed(reading, "pin", PIN_EXAMPLE),
        memory: memory(&table, reading),
        shard: shard(&table, reading),
        names_shard: table.get("shard").is_some(),
        experts: experts(&table, reading),
        context: table.number(reading, "context", CONTEXT_BOUNDS, "tokens").map(|context| context.value),
    })
}

fn workers(top: &Table<'_, '_>, reading: &mut Reading<'_>, place: Place<'_>) -> Vec<WorkerTable> {
    let Some(value) = top.get("worker") else { return Vec::new() };
    let items: &[Spanned<DeValue<'_>>] = match value.get_ref() {
        DeValue::Array(items) => items,
        other => {
            let line = reading.line(&value.span());
            let found = described(other);
            reading.fault(
                line,
                format!("`worker` is {found}: write one [[worker]] table for each, in two pairs of brackets"),
            );
            // A lone table is read all the same, for its own faults.
            std::slice::from_ref(value)
        }
    };
    let mut workers = Vec::new();
    for item in items {
        let line = reading.line(&item.span());
        match item.get_ref() {
            DeValue::Table(entries) => {
                workers.push(worker(&Table::new("[[worker]]", line, entries), reading, place));
            }
            other if matches!(value.get_ref(), DeValue::Array(_)) => {
                let found = described(other);
                reading.fault(line, format!("a worker is {found}: write one [[worker]] table for each"));
            }
            _ => {}
        }
    }
    workers
}

fn worker(table: &Table<'_, '_>, reading: &mut Reading<'_>, place: Place<'_>) -> WorkerTable {
    table.refuse_unknown(reading, WORKER, &[(ABOVE, TOP), ("[coordinator]", COORDINATOR), ("[link]", LINK)]);
    table.require(reading, "shard", "shard = 0, a number of its own for each");
    table.require(reading, "address", ADDRESS_EXAMPLE);
    WorkerTable {
        line: table.line,
        shard: shard(table, reading),
        address: table.parsed(reading, "address", ADDRESS_EXAMPLE),
        listen: listen(table, reading),
        pin: table.parsed(reading, "pin", PIN_EXAMPLE),
        memory: memory(table, reading),
        experts: experts(table, reading),
        model: path(table, reading, "model", MODEL_EXAMPLE, place),
    }
}

fn link(top: &Table<'_, '_>, reading: &mut Reading<'_>) -> Link {
    let mut link = Link::default();
    let Some(table) = single(top, reading, "link", "[link]") else { return link };
    table.refuse_unknown(
        reading,
        LINK,
        &[(ABOVE, TOP), ("[coordinator]", COORDINATOR), ("[[worker]]", WORKER)],
    );
    if let Some(At { value, .. }) =
        table.number(reading, "call_timeout_ms", CALL_TIMEOUT_BOUNDS, "milliseconds")
    {
        link.call_timeout = Duration::from_millis(value);
    }
    if let Some(At { value, .. }) =
        table.number(reading, "connect_timeout_ms", CONNECT_TIMEOUT_BOUNDS, "milliseconds")
    {
        link.connect_timeout = Duration::from_millis(value);
    }
    link.mtu = table
        .number(reading, "mtu", MTU_BOUNDS, "bytes of UDP payload")
        .and_then(|mtu| u16::try_from(mtu.value).ok());
    if let Some(At { value, .. }) = table.parsed(reading, "spin", SPIN_EXAMPLE) {
        link.spin = value;
    }
    link
}

/// A table that there is at most one of.
fn single<'d, 't>(
    top: &Table<'d, 't>,
    reading: &mut Reading<'_>,
    key: &str,
    name: &'static str,
) -> Option<Table<'d, 't>> {
    let value = top.get(key)?;
    let line = reading.line(&value.span());
    match value.get_ref() {
        DeValue::Table(entries) => Some(Table::new(name, line, entries)),
        other => {
            let found = described(other);
            reading.fault(line, format!("`{key}` is {found}: write one {name} table, in single brackets"));
            None
        }
    }
}

fn shard(table: &Table<'_, '_>, reading: &mut Reading<'_>) -> Option<At<ShardId>> {
    let At { line, value } = table.number(reading, "shard", SHARD_BOUNDS, "")?;
    Some(At { line, value: ShardId(u16::try_from(value).ok()?) })
}

fn experts(table: &Table<'_, '_>, reading: &mut Reading<'_>) -> Option<At<ExpertRange>> {
    table.parsed(reading, "experts", "one range as text, end not included, as in experts = \"0..96\"")
}

/// A budget: a text with a unit, or plain bytes.
fn memory(table: &Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Bytes> {
    let value = table.get("memory")?;
    let found = match value.get_ref() {
        DeValue::Integer(_) => {
            let At { line, value } = table.number(reading, "memory", 0..=u64::MAX, "bytes")?;
            At { line, value: Bytes(value) }
        }
        _ => table.parsed(reading, "memory", "a size as text, as in memory = \"48 GB\"")?,
    };
    match found.value {
        Bytes(0) => {
            let advice = "a node with no memory holds nothing: write as in \"48 GB\", or remove the line for no budget";
            reading.fault(found.line, format!("`memory` is 0: {advice}"));
            None
        }
        Bytes(bytes) if bytes < SMALLEST_BUDGET => {
            let advice = format!("give it a unit, as in memory = \"{bytes} GB\"");
            reading
                .fault(found.line, format!("`memory` is {bytes} bytes, too little for any expert: {advice}"));
            None
        }
        bytes => Some(bytes),
    }
}

fn listen(table: &Table<'_, '_>, reading: &mut Reading<'_>) -> Option<At<SocketAddr>> {
    let At { line, value } = table.text(reading, "listen", LISTEN_EXAMPLE)?;
    match value.trim().parse::<SocketAddr>() {
        Ok(listen) if listen.port() > 0 => Some(At { line, value: listen }),
        Ok(_) => {
            reading.fault(
                line,
                format!(
                    "`listen` is \"{value}\": with port 0 nobody knows where to call; write {LISTEN_EXAMPLE}"
                ),
            );
            None
        }
        Err(_) => {
            reading.fault(line, format!("`listen` is {:?}: an interface's IP address and a port belong here; write {LISTEN_EXAMPLE}", value.chars().take(80).collect::<String>()));
            None
        }
    }
}

fn path(
    table: &Table<'_, '_>,
    reading: &mut Reading<'_>,
    key: &str,
    example: &str,
    place: Place<'_>,
) -> Option<PathBuf> {
    let At { line, value } = table.text(reading, key, example)?;
    let Some(rest) = value.strip_prefix('~') else { return Some(place.dir.join(&value)) };
    let rest = if rest.is_empty() { Some("") } else { rest.strip_prefix('/') };
    match (rest, place.home) {
        (Some(rest), Some(home)) => Some(home.join(rest)),
        (Some(_), None) => {
            reading.fault(
                line,
                format!(
                    "`{key}` is {value:?} and no home folder is known (HOME is not set): write the full path"
                ),
            );
            None
        }
        (None, _) => {
            reading.fault(line, format!("`{key}` is {value:?}: only \"~/\", one's own home folder, is understood; write the full path"));
            None
        }
    }
}

const TOP: &[&str] = &["model", "keys", "coordinator", "worker", "link"];
const COORDINATOR: &[&str] = &["pin", "memory", "shard", "experts", "context"];
const WORKER: &[&str] = &["shard", "address", "pin", "memory", "experts", "listen", "model"];
const LINK: &[&str] = &["call_timeout_ms", "connect_timeout_ms", "mtu", "spin"];
const ABOVE: &str = "the top of the file, above the first [table]";

const MODEL_EXAMPLE: &str = "model = \"/path/to/the/checkpoint\"";
const ADDRESS_EXAMPLE: &str = "address = \"10.0.5.2:4433\"";
const LISTEN_EXAMPLE: &str = "listen = \"0.0.0.0:4433\"";
const SPIN_EXAMPLE: &str = "spin = \"auto\", \"on\" or \"off\"";
const PIN_EXAMPLE: &str = "pin = \"sha256:\" and 64 hex digits, or let `laguna-coord keygen` write it";

const SHARD_BOUNDS: std::ops::RangeInclusive<u64> = 0..=u16::MAX as u64;
/// Tokens; the largest is 64 times what Laguna was trained for.
const CONTEXT_BOUNDS: std::ops::RangeInclusive<u64> = 1..=16_777_216;
const CALL_TIMEOUT_BOUNDS: std::ops::RangeInclusive<u64> = 10..=600_000;
const CONNECT_TIMEOUT_BOUNDS: std::ops::RangeInclusive<u64> = 10..=60_000;
/// From what QUIC demands of every path to the largest UDP payload over IPv4.
const MTU_BOUNDS: std::ops::RangeInclusive<u64> = 1_200..=65_507;
/// Bytes. A budget below this is a number whose unit was forgotten.
const SMALLEST_BUDGET: u64 = 4_096;
