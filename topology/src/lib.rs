//! Who owns which experts: a TOML file in, a checked plan out.
//!
//! Text and numbers only. This crate opens the topology file and nothing else: it knows no socket, no tensor, no
//! checkpoint and no key. Whoever needs those hands in numbers ([`ModelBytes`]) or takes names ([`Address`], [`Pin`]).
//!
//! Read in this order:
//!
//! - [`ids`]: layers, experts, shards and ranges, as plain numbers with a meaning
//! - [`node`], [`address`], [`pin`], [`memory`], [`spin`], `range`: the values a file is made of, each with its parser
//! - [`topology`]: the file once it is known to be sound; start here to use the crate
//! - `file` walks the TOML and keeps lines, `table` types its values, `check` compares fields with each other
//! - [`fault`]: what is wrong with a file, all of it at once, by line
//! - [`locate`]: which file a process means when it was told none
//! - [`mod@plan`]: ranges the file left out, and the bytes each node will hold
//! - [`mod@write_pins`]: puts what `keygen` made into the user's text without touching the rest
//!
//! A token passes through here: never. But each of its routed experts goes where [`Plan::owner`] said at start.
//!
//! ```
//! use std::path::Path;
//! use laguna_topology::{Bytes, ExpertId, LayerBytes, LayerId, ModelBytes, ShardId, Topology, plan};
//!
//! let text = r#"
//!     model = "/models/laguna"
//!     [coordinator]
//!     shard = 1
//!     [[worker]]
//!     shard = 0
//!     address = "10.0.5.2:4433"
//! "#;
//! let topology = Topology::parse(text, Path::new("/etc/laguna"))?;
//! let model = ModelBytes {
//!     num_experts: 256,
//!     layers: (1..48).map(|i| LayerBytes { layer: LayerId(i), expert: Bytes(5_308_416) }).collect(),
//!     trunk: Bytes(7_410_000_000),
//!     kv_per_token: Bytes(49_152),
//!     kv_fixed: Bytes(75_497_472),
//! };
//! let plan = plan(&topology, &model)?;
//! assert_eq!(plan.owner(ExpertId(127)), Some(ShardId(0)));
//! assert_eq!(plan.owner(ExpertId(128)), Some(ShardId(1)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod address;
pub mod fault;
pub mod ids;
pub mod locate;
pub mod memory;
pub mod node;
pub mod pin;
pub mod plan;
pub mod spin;
pub mod topology;
pub mod write_pins;

mod check;
mod file;
mod range;
mod table;

pub use address::Address;
pub use fault::{Fault, Faults, TopologyError};
pub use ids::{ExpertId, ExpertRange, LayerId, ShardId};
pub use locate::{Locate, NotFound};
pub use memory::{Bytes, NodeMemory};
pub use node::NodeName;
pub use pin::Pin;
pub use plan::{LayerBytes, ModelBytes, Plan, PlanError, ShardPlan, Shortage, plan};
pub use range::ParseRangeError;
pub use spin::{ParseSpinError, Spin};
pub use topology::{Coordinator, Link, MissingPins, Node, Pins, Shard, Topology, Worker};
pub use write_pins::{WritePinsError, write_pins};
