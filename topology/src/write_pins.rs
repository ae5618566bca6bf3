//! Puts pins into the text of a topology file and leaves every other character of it alone.

use toml_edit::{DocumentMut, Item, Table, TableLike, Value, value};

use crate::ids::ShardId;
use crate::node::NodeName;
use crate::pin::Pin;

/// Why the text was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WritePinsError {
    /// It is not TOML.
    #[error("not TOML: {0}")]
    NotToml(#[from] toml_edit::TomlError),
    /// The file has no table for the node.
    #[error("there is no [[worker]] with shard = {0} to write a pin for: add it first")]
    NoWorker(u16),
    /// `coordinator` or `worker` is something else than a table.
    #[error("`{0}` is no table: write {0} as the shipped files do")]
    NoTable(&'static str),
}

/// The text with `pin` set in the table of each node given. A pin that is there is replaced in place; `[coordinator]`
/// is added if the file has none. Comments, order and layout stay.
///
/// # Errors
///
/// A text that is not TOML, or a node it has no table for; then nothing is written for any node.
pub fn write_pins(text: &str, pins: &[(NodeName, Pin)]) -> Result<String, WritePinsError> {
    let mut document: DocumentMut = text.parse()?;
    for (node, pin) in pins {
        match node {
            NodeName::Coordinator => {
                let item = document.entry("coordinator").or_insert_with(|| Item::Table(Table::new()));
                set(item.as_table_like_mut().ok_or(WritePinsError::NoTable("coordinator"))?, *pin);
            }
            NodeName::Worker(shard) => {
                let item = document.get_mut("worker").ok_or(WritePinsError::NoWorker(shard.0))?;
                set(worker(item, *shard)?.ok_or(WritePinsError::NoWorker(shard.0))?, *pin);
            }
        }
    }
    let written = document.to_string();
    Ok(if text.contains("\r\n") { written.replace("\r\n", "\n").replace('\n', "\r\n") } else { written })
}

fn worker(item: &mut Item, shard: ShardId) -> Result<Option<&mut dyn TableLike>, WritePinsError> {
    let is_it =
        |table: &dyn TableLike| table.get("shard").and_then(Item::as_integer) == Some(i64::from(shard.0));
    match item {
        Item::ArrayOfTables(tables) => {
            Ok(tables.iter_mut().map(|table| table as &mut dyn TableLike).find(|table| is_it(*table)))
        }
        Item::Value(Value::Array(tables)) => {
            let tables = tables.iter_mut().filter_map(Value::as_inline_table_mut);
            Ok(tables.map(|table| table as &mut dyn TableLike).find(|table| is_it(*table)))
        }
        _ => Err(WritePinsError::NoTable("worker")),
    }
}

fn set(table: &mut dyn TableLike, pin: Pin) {
    let mut new = Value::from(pin.to_string());
    match table.get_mut("pin") {
        // The decor is what stands around the value: spaces before, a comment behind.
        Some(Item::Value(old)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        Some(other) => *other = value(new),
        None => {
            table.insert("pin", value(new));
        }
    }
}
