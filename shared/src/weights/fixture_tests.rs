//! Every bundled checkpoint resolves.

use std::path::{Path, PathBuf};

use super::{Checkpoint, Inventory};
use crate::config::{ConfigOptions, GenerationConfig, ModelConfig};

/// Model directories of the bundle, and of `LAGUNA_SHARED` when set.
pub(crate) fn model_dirs() -> Vec<PathBuf> {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    let outside = std::env::var_os("LAGUNA_SHARED").map(PathBuf::from);
    let mut dirs = Vec::new();
    for root in [Some(bundle), outside].into_iter().flatten() {
        dirs.push(root.join("nano"));
        let listed = std::fs::read_dir(root.join("fixtures")).into_iter().flatten().flatten();
        dirs.extend(listed.map(|entry| entry.path()));
    }
    dirs.retain(|dir| dir.join("config.json").exists());
    dirs.sort();
    dirs
}

#[test]
fn every_bundled_checkpoint_resolves() {
    for dir in model_dirs() {
        let name = dir.display();
        let config =
            ModelConfig::from_dir(&dir, &ConfigOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        GenerationConfig::from_dir(&dir).unwrap_or_else(|e| panic!("{name}: {e}"));
        let checkpoint = Checkpoint::open(&dir).unwrap_or_else(|e| panic!("{name}: {e}"));
        Inventory::resolve(&checkpoint, &config).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
