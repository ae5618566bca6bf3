//! Checkpoints: the bundled ones, the project's shared ones, and copies with one thing wrong.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tempfile::TempDir;

/// The bundled trained model.
pub fn nano() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("nano")
}

/// One bundled fixture, by name: `bf16`, `nvfp4_ct`, `mlx_nvfp4`, `mlx_fused_nvfp4`, `mlx_affine4`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Every bundled fixture.
pub fn fixtures() -> Vec<PathBuf> {
    in_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures"))
}

/// Every fixture of the project's shared folder, and its nano; `None` where `LAGUNA_SHARED` is not set.
pub fn shared() -> Option<Vec<PathBuf>> {
    let folder = PathBuf::from(std::env::var_os("LAGUNA_SHARED")?);
    let mut all = in_folder(&folder.join("fixtures"));
    all.push(folder.join("nano"));
    Some(all)
}

/// Folders with a checkpoint and reference outputs, by name.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("expected/expected.safetensors").is_file())
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{}: no fixtures", folder.display());
    found
}

/// A copy of a checkpoint that a test may spoil.
#[derive(Debug)]
pub struct Copy {
    folder: TempDir,
}

impl Copy {
    /// Copies a checkpoint's folder.
    pub fn of(model: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        copy_folder(model, folder.path());
        Self { folder }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Changes the bytes of one tensor, in whatever file of the checkpoint it lies.
    ///
    /// # Panics
    /// If no file has it.
    pub fn edit_tensor(&self, name: &str, edit: impl FnOnce(&mut [u8])) {
        let file = self.file_of(name);
        edit_tensor(&file, name, edit);
    }

    /// Takes one tensor out of its file, and out of the index.
    ///
    /// # Panics
    /// If no file has it.
    pub fn remove_tensor(&self, name: &str) {
        let file = self.file_of(name);
        let bytes = fs::read(&file).expect("the file can be read");
        let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("the file is safetensors");
        let rest = tensors.tensors().into_iter().filter(|(other, _)| other != name);
        let rest = safetensors::serialize(rest, None).expect("what was read can be written");
        fs::write(&file, rest).expect("the copy can be written");
        self.edit_json("model.safetensors.index.json", |index| {
            index["weight_map"].as_object_mut().expect("an index has a map").remove(name);
        });
    }

    /// Changes a JSON file.
    pub fn edit_json(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.path().join(name);
        let text = fs::read_to_string(&path).expect("the file can be read");
        let mut value = serde_json::from_str(&text).expect("the file is JSON");
        edit(&mut value);
        fs::write(&path, value.to_string()).expect("the copy can be written");
    }

    fn file_of(&self, tensor: &str) -> PathBuf {
        let files = fs::read_dir(self.path()).expect("the copy can be read");
        let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
        let has = |path: &PathBuf| {
            path.extension().is_some_and(|ext| ext == "safetensors")
                && header(&fs::read(path).expect("the copy can be read")).0.contains_key(tensor)
        };
        files.find(has).unwrap_or_else(|| panic!("no file has {tensor}"))
    }
}

/// Changes the bytes of one tensor of a safetensors file in place.
///
/// # Panics
/// If the file does not have it.
pub fn edit_tensor(file: &Path, name: &str, edit: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let (tensors, start) = header(&bytes);
    let offsets =
        &tensors.get(name).unwrap_or_else(|| panic!("{} lacks {name}", file.display()))["data_offsets"];
    let at = |n: usize| start + offsets[n].as_u64().expect("an offset is a number") as usize;
    edit(&mut bytes[at(0)..at(1)]);
    fs::write(file, bytes).expect("the copy can be written");
}

/// The table of a safetensors file, and where its data begins.
fn header(bytes: &[u8]) -> (Map<String, Value>, usize) {
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a safetensors file has a length");
    let length = u64::from_le_bytes(*length) as usize;
    let table = serde_json::from_slice(&rest[..length]).expect("a safetensors header is JSON");
    (table, 8 + length)
}

fn copy_folder(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let source = entry.expect("the folder can be listed").path();
        let target = to.join(source.file_name().expect("an entry has a name"));
        if source.is_dir() {
            fs::create_dir(&target).expect("the copy can be written");
            copy_folder(&source, &target);
        } else {
            // Not `fs::copy`, which would copy a read-only mode too.
            let bytes = fs::read(&source).expect("the model can be read");
            fs::write(&target, bytes).expect("the copy can be written");
        }
    }
}
