//! Files of a synthetic checkpoint. What names the others comes last, so a half-written folder never opens.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::config::config;
use super::noise::Noise;
use super::shape::{Layout, Shape};
use super::tensors::{Tensor, tensors};
use crate::error::BenchError;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Tensors.
    pub tensors: usize,
    /// Bytes of tensor data.
    pub bytes: u64,
}

/// Writes a checkpoint to `dir`, which must not hold one, with the tokenizer of the folder `tokenizer`. `progress` is
/// told bytes as they are written.
///
/// # Errors
/// If the shape cannot be, or a file cannot be read or written.
pub fn write(
    dir: &Path,
    shape: &Shape,
    layout: Layout,
    seed: u64,
    tokenizer: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Written, BenchError> {
    if let Some(fault) = shape.fault() {
        return Err(BenchError::Usage(fault));
    }
    if dir.join(CONFIG).exists() {
        return Err(BenchError::Usage(format!("{} holds a checkpoint already", dir.display())));
    }
    fs::create_dir_all(dir).map_err(BenchError::io(dir.display()))?;
    let files = tensors(shape, layout);
    let (mut places, mut written) = (Map::new(), Written { tensors: 0, bytes: 0 });
    for (n, file) in files.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", n + 1, files.len());
        let path = dir.join(&name);
        write_file(&path, file, seed, progress).map_err(BenchError::io(path.display()))?;
        for tensor in file {
            written.bytes += tensor.bytes();
            written.tensors += 1;
            places.insert(tensor.name.clone(), Value::from(name.as_str()));
        }
    }
    for name in TOKENIZER {
        let (from, to) = (tokenizer.join(name), dir.join(name));
        fs::copy(&from, &to).map_err(BenchError::io(from.display()))?;
    }
    let index = json!({ "metadata": { "total_size": written.bytes }, "weight_map": places });
    for (name, value) in [("model.safetensors.index.json", index), (CONFIG, config(shape, layout))] {
        let path = dir.join(name);
        fs::write(&path, format!("{value:#}\n")).map_err(BenchError::io(path.display()))?;
    }
    Ok(written)
}

fn write_file(path: &Path, tensors: &[Tensor], seed: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0;
    for tensor in tensors {
        let begin = end;
        end += tensor.bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [begin, end]
        });
        header.insert(tensor.name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string();
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));

    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(text.len() as u64).to_le_bytes())?;
    file.write_all(text.as_bytes())?;
    let mut buffer = vec![0; BUFFER];
    for tensor in tensors {
        let mut noise = Noise::new(seed, &tensor.name);
        let mut left = tensor.bytes();
        while left > 0 {
            let len = left.min(BUFFER as u64) as usize;
            tensor.fill.fill(&mut noise, &mut buffer[..len]);
            file.write_all(&buffer[..len])?;
            progress(len as u64);
            left -= len as u64;
        }
    }
    file.into_inner()?.sync_data()
}

const CONFIG: &str = "config.json";

/// Files that make a folder usable with text.
const TOKENIZER: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/// Bytes made at a time; a multiple of 8.
const BUFFER: usize = 1 << 20;
