//! What a checkpoint contains, found by name without reading it.

pub mod inventory;
