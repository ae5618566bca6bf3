//! A checkpoint opened from its headers: what it is and where its parts lie. Nothing is loaded here.

use std::path::{Path, PathBuf};

use laguna_shared::compute::{ActivationType, ExpertBank};
use laguna_shared::config::{ConfigError, ConfigOptions, GenerationConfig, ModelConfig};
use laguna_shared::fingerprint::{ModelFingerprint, WeightDigest};
use laguna_shared::ids::{ExpertRange, ShardId};
use laguna_shared::weights::account::{Account, LayerExperts};
use laguna_shared::weights::{Checkpoint, CheckpointError, Inventory, InventoryError};
use laguna_shared::wire::{BUILD, Hello, Welcome};
use laguna_topology::{Bytes, LayerBytes, ModelBytes};

use crate::memory;

/// An opened checkpoint.
#[derive(Debug)]
pub struct OpenModel {
    /// Files and their tables.
    pub checkpoint: Checkpoint,
    /// `config.json`.
    pub config: ModelConfig,
    /// `generation_config.json`.
    pub generation: GenerationConfig,
    /// Where each part lies.
    pub inventory: Inventory,
}

/// Why a checkpoint could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A folder of something else.
    #[error("{}: this folder holds no checkpoint: there is no config.json in it", .0.display())]
    NoCheckpoint(PathBuf),
    /// `config.json` or `generation_config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The safetensors files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Tensors that are missing, unexpected, misshapen, or in a format not supported.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
}

impl OpenModel {
    /// Reads the headers in `dir` and finds every part of the model.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(dir: &Path, options: &ConfigOptions) -> Result<Self, OpenError> {
        if !dir.join("config.json").exists() {
            return Err(OpenError::NoCheckpoint(dir.to_owned()));
        }
        let config = ModelConfig::from_dir(dir, options)?;
        let generation = GenerationConfig::from_dir(dir)?;
        let checkpoint = Checkpoint::open(dir)?;
        let inventory = Inventory::resolve(&checkpoint, &config)?;
        Ok(Self { checkpoint, config, generation, inventory })
    }

    /// Ids that end a turn, by either file.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids = self.config.eos_token_ids.clone();
        ids.extend(&self.generation.eos_token_ids);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Sizes for the planner, as stored in the checkpoint; keys and values in bf16.
    ///
    /// Independent of any flag, because both ends must plan the same ranges.
    pub fn bytes(&self) -> ModelBytes {
        let account = Account::of(&self.checkpoint, &self.inventory);
        let layer =
            |experts: &LayerExperts| LayerBytes { layer: experts.layer, expert: Bytes(experts.largest()) };
        let pair = (2 * self.config.num_key_value_heads * self.config.head_dim * BF16) as u64;
        let windows = || self.config.layers.iter().map(|layer| layer.sliding_window);
        ModelBytes {
            num_experts: self.config.num_experts as u16,
            layers: account.experts.iter().map(layer).collect(),
            trunk: Bytes(account.trunk_bytes()),
            kv_per_token: Bytes(pair * windows().filter(Option::is_none).count() as u64),
            kv_fixed: Bytes(windows().flatten().map(|window| pair * window as u64).sum()),
        }
    }

    /// What a coordinator expects of the worker of a shard.
    ///
    /// # Errors
    /// If the shard's weights cannot be sampled.
    pub fn hello(
        &self,
        shard: ShardId,
        range: ExpertRange,
        activation: ActivationType,
    ) -> Result<Hello, CheckpointError> {
        Ok(Hello {
            build: BUILD.to_owned(),
            fingerprint: ModelFingerprint::of(&self.config).0,
            shard,
            range,
            weights: Some(WeightDigest::of(&self.checkpoint, &self.inventory, range)?.0),
            sparse_layers: self.config.sparse_layers().collect(),
            hidden: self.config.hidden_size as u32,
            activation,
        })
    }

    /// What the worker of a shard is, its experts loaded.
    ///
    /// # Errors
    /// If the shard's weights cannot be sampled.
    pub fn welcome(&self, shard: ShardId, bank: &dyn ExpertBank) -> Result<Welcome, CheckpointError> {
        let fingerprint = ModelFingerprint::of(&self.config).0;
        let layers = self.config.sparse_layers().collect();
        Ok(Welcome {
            weights: Some(WeightDigest::of(&self.checkpoint, &self.inventory, bank.range())?.0),
            free_memory_bytes: memory::available().0,
            ..Welcome::of(bank, shard, fingerprint, self.config.hidden_size as u32, layers)
        })
    }
}

/// Bytes of a bf16 number.
const BF16: usize = 2;
