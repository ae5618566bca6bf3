//! A node's part of a checkpoint, as byte ranges, and what it takes to read them and nothing else.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

use laguna_coordinator::cli::args::{TrunkArg, TrunkBitsArg};
use laguna_coordinator::cli::cluster::native_activation;
use laguna_coordinator::model::Model;
use laguna_coordinator::model::linear::TrunkMath;
use laguna_coordinator::model::load::TrunkSettings;
use laguna_shared::config::ConfigOptions;
use laguna_shared::ids::ExpertRange;
use laguna_shared::weights::inventory::{MatrixSource, Slice, SwigluSource};
use laguna_topology::Plan;
use laguna_worker::bank;
use laguna_worker::model::OpenModel;
use serde::{Deserialize, Serialize};

use crate::child::say;
use crate::error::BenchError;
use crate::machine::peak_bytes;

/// What a node loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The coordinator's.
    Trunk,
    /// The first of this many workers'.
    Shard {
        /// Workers.
        of: u16,
    },
}

/// A child that reads or loads a part, and says [`Took`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartRole {
    /// Which.
    pub part: Part,
    /// Checkpoint folder.
    pub model: PathBuf,
    /// Bits of a trunk weight, for loading it.
    pub trunk_bits: String,
}

/// What a child found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Took {
    /// Seconds that the reads alone took; 0 of a load, which the parent times.
    pub seconds: f64,
    /// Bytes of the part.
    pub bytes: u64,
    /// Most bytes resident.
    pub peak_bytes: u64,
}

/// A consecutive piece of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    file: PathBuf,
    offset: u64,
    len: u64,
}

/// Reads the part into one buffer, over and over.
///
/// # Errors
/// If the checkpoint cannot be read.
pub fn read(role: &PartRole) -> Result<(), BenchError> {
    let pieces = pieces(&open(&role.model)?, role.part)?;
    let mut buffer = vec![0; BUFFER];
    let begun = Instant::now();
    for piece in &pieces {
        read_piece(piece, &mut buffer).map_err(BenchError::io(piece.file.display()))?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = pieces.iter().map(|piece| piece.len).sum();
    say(&Took { seconds, bytes, peak_bytes: peak_bytes() })
}

/// Loads the trunk as the coordinator does.
///
/// # Errors
/// If the checkpoint cannot be loaded.
pub fn load_trunk(role: &PartRole) -> Result<(), BenchError> {
    use clap::ValueEnum;
    let opened = open(&role.model)?;
    let bits = TrunkBitsArg::from_str(&role.trunk_bits, false).map_err(BenchError::Usage)?;
    let OpenModel { checkpoint, inventory, config, .. } = &opened;
    let math = match TrunkArg::default() {
        TrunkArg::Mlx => TrunkMath::Mlx,
        TrunkArg::Cpu => TrunkMath::Cpu(bank::pool(None)),
    };
    let settings = TrunkSettings { activation: native_activation(), bits: bits.into(), math };
    let model = Model::load(checkpoint, inventory, config, &settings, &mut |_| {});
    let model = model.map_err(BenchError::failed)?;
    say(&Took { seconds: 0.0, bytes: part_bytes(&opened, Part::Trunk)?, peak_bytes: peak_bytes() })?;
    drop(model);
    Ok(())
}

/// Bytes of a part.
///
/// # Errors
/// If the part cannot be.
pub fn bytes(model: &Path, part: Part) -> Result<u64, BenchError> {
    part_bytes(&open(model)?, part)
}

fn part_bytes(opened: &OpenModel, part: Part) -> Result<u64, BenchError> {
    Ok(pieces(opened, part)?.iter().map(|piece| piece.len).sum())
}

/// Takes the checkpoint's files out of the page cache, as far as the system can be told to.
///
/// # Errors
/// If a file cannot be opened.
pub fn forget(model: &Path) -> Result<(), BenchError> {
    #[cfg(target_os = "linux")]
    for path in open(model)?.checkpoint.files() {
        use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
        let file = File::open(path).map_err(BenchError::io(path.display()))?;
        // Pages that are not written yet stay.
        file.sync_all().map_err(BenchError::io(path.display()))?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)
            .map_err(|error| BenchError::io(path.display())(error.into()))?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = model;
    Ok(())
}

fn open(model: &Path) -> Result<OpenModel, BenchError> {
    OpenModel::open(model, &ConfigOptions::default()).map_err(BenchError::failed)
}

/// In file order, neighbours joined.
fn pieces(opened: &OpenModel, part: Part) -> Result<Vec<Piece>, BenchError> {
    let mut of_experts = Vec::new();
    let range = match part {
        Part::Trunk => ExpertRange::new(0, opened.bytes().num_experts),
        Part::Shard { of } => {
            let plan = Plan::even(opened.config.num_experts as u16, usize::from(of));
            let plan = plan.map_err(|error| BenchError::Usage(error.to_string()))?;
            plan.shards().first().map(|shard| shard.range).unwrap_or_default()
        }
    };
    for layer in opened.config.sparse_layers() {
        let Some(sparse) = opened.inventory.sparse(layer) else { continue };
        for (expert, source) in (0..).map(laguna_shared::ids::ExpertId).zip(&sparse.experts) {
            if range.contains(expert) {
                of_experts.extend(swiglu(source));
            }
        }
    }
    let files: Vec<&Path> = opened.checkpoint.files().collect();
    let piece = |slice: Slice| -> Option<Piece> {
        let file = files.get(usize::from(slice.file))?;
        Some(Piece { file: file.to_path_buf(), offset: slice.offset, len: slice.len })
    };
    let experts = joined(of_experts.into_iter().filter_map(piece).collect());
    Ok(match part {
        Part::Shard { .. } => experts,
        Part::Trunk => {
            let all = opened.checkpoint.tensors().filter_map(|(_, tensor)| piece(tensor.slice)).collect();
            without(joined(all), &experts)
        }
    })
}

fn swiglu(source: &SwigluSource) -> Vec<Slice> {
    let matrix = |m: &MatrixSource| {
        let global = m.global_scale.as_ref().map(|global| global.slice);
        [Some(m.weight), m.scales, m.biases, global]
    };
    [&source.gate, &source.up, &source.down].into_iter().flat_map(matrix).flatten().collect()
}

fn joined(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_unstable();
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.file == piece.file && last.offset + last.len >= piece.offset => {
                let end = (last.offset + last.len).max(piece.offset + piece.len);
                last.len = end - last.offset;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// `all` less `holes`; both joined.
fn without(all: Vec<Piece>, holes: &[Piece]) -> Vec<Piece> {
    let mut rest = Vec::new();
    for mut piece in all {
        let end = piece.offset + piece.len;
        let inside = |hole: &&Piece| {
            hole.file == piece.file && hole.offset < end && hole.offset + hole.len > piece.offset
        };
        let holes: Vec<&Piece> = holes.iter().filter(inside).collect();
        for hole in holes {
            if hole.offset > piece.offset {
                rest.push(Piece { len: hole.offset - piece.offset, ..piece.clone() });
            }
            piece.offset = end.min(hole.offset + hole.len);
            piece.len = end - piece.offset;
        }
        if piece.len > 0 {
            rest.push(piece);
        }
    }
    rest
}

fn read_piece(piece: &Piece, buffer: &mut [u8]) -> std::io::Result<()> {
    let mut file = File::open(&piece.file)?;
    file.seek(SeekFrom::Start(piece.offset))?;
    let mut left = piece.len;
    while left > 0 {
        let len = left.min(buffer.len() as u64) as usize;
        file.read_exact(&mut buffer[..len])?;
        left -= len as u64;
    }
    Ok(())
}

/// Bytes read at a time.
const BUFFER: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, len: u64) -> Piece {
        Piece { file: "a".into(), offset, len }
    }

    #[test]
    fn pieces_join_and_have_holes() {
        let pieces = joined(vec![piece(30, 10), piece(0, 10), piece(10, 5), piece(12, 8)]);
        assert_eq!(pieces, [piece(0, 20), piece(30, 10)]);
        let other = Piece { file: "b".into(), ..piece(0, 100) };
        assert_eq!(
            without(pieces.clone(), &[piece(5, 5), piece(18, 2), piece(30, 10), other]),
            [piece(0, 5), piece(10, 8)]
        );
        assert_eq!(without(pieces.clone(), &[]), pieces);
        assert_eq!(without(pieces, &[piece(0, 20)]), [piece(30, 10)]);
    }

    #[test]
    fn trunk_and_shards_are_the_whole_checkpoint() {
        let model = crate::nano();
        let total: u64 = open(&model).unwrap().checkpoint.tensors().map(|(_, tensor)| tensor.slice.len).sum();
        let trunk = bytes(&model, Part::Trunk).unwrap();
        let [all, half] = [1, 2].map(|of| bytes(&model, Part::Shard { of }).unwrap());
        assert_eq!(trunk + all, total);
        assert_eq!(2 * half, all);
        assert!(bytes(&model, Part::Shard { of: 0 }).is_err());
    }
}
