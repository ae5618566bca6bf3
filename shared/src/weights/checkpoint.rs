//! A directory of safetensors files: which tensors, where. Reads headers at opening and byte ranges when asked, by
//! positioned reads or through a map; never reads whole files. Must not know what a Laguna is.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::{self, File},
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Component, Path, PathBuf},
    sync::OnceLock,
};

use serde_json::Value;

use super::{
    header::{self, Dtype},
    inventory::Slice,
    mapped::{FileMap, WeightBytes},
    names,
};

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<CheckpointFile>,
    tensors: HashMap<String, TensorInfo>,
}

/// One tensor: what the header says, and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name as stored, prefix included.
    pub stored_name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The bytes.
    pub slice: Slice,
}

/// Why a checkpoint cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The directory holds no weights.
    #[error("{dir}: no *.safetensors here", dir = dir.display())]
    NoWeights {
        /// As asked.
        dir: PathBuf,
    },
    /// A file or directory cannot be opened or read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Files, headers and index contradict each other; every fault found.
    #[error("{dir}: {}", faults.join("\n  "), dir = dir.display())]
    Faulty {
        /// The checkpoint.
        dir: PathBuf,
        /// One sentence each.
        faults: Vec<String>,
    },
    /// A read outside a file, or into a buffer of another size: a fault of the caller.
    #[error("{dir}: bad read of {slice:?}: {reason}", dir = dir.display())]
    BadRead {
        /// The checkpoint.
        dir: PathBuf,
        /// As asked.
        slice: Slice,
        /// What does not fit.
        reason: String,
    },
    /// Tensors that should stack differ, or hold an unusable number.
    #[error("{name}: {reason}")]
    Unusable {
        /// Checkpoint name of the tensor.
        name: String,
        /// Why.
        reason: String,
    },
}

#[derive(Debug)]
struct CheckpointFile {
    path: PathBuf,
    file: File,
    len: u64,
    /// Made when first asked for.
    map: OnceLock<FileMap>,
}

impl Checkpoint {
    /// Opens the checkpoint in `dir`: by its index, or else its `model.safetensors`, or else every `*.safetensors`.
    pub fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let mut faults = Vec::new();
        let index = read_index(dir, &mut faults)?;
        let names = match &index {
            Some(index) => index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(),
            None => list_files(dir, &mut faults)?,
        };
        let mut checkpoint = Self { dir: dir.to_owned(), files: Vec::new(), tensors: HashMap::new() };
        if u16::try_from(names.len()).is_err() {
            faults.push(format!("{} files are more than 65535", names.len()));
        }
        let mut present = BTreeSet::new();
        for name in names.iter().take(usize::from(u16::MAX)) {
            match checkpoint.add(name, &mut faults) {
                Ok(()) => _ = present.insert(name.as_str()),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(index) = &index {
            checkpoint.compare(index, &present, &mut faults);
        }
        if faults.is_empty() {
            Ok(checkpoint)
        } else {
            Err(CheckpointError::Faulty { dir: dir.to_owned(), faults })
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of all weight files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// Paths of the weight files; [`Slice::file`] counts in this order.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// The tensor of that name (without `language_model.`).
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor of that name and its canonical name, for as long as the checkpoint lives.
    pub(super) fn get_key_value(&self, name: &str) -> Option<(&str, &TensorInfo)> {
        self.tensors.get_key_value(name).map(|(name, info)| (name.as_str(), info))
    }

    /// Every tensor by canonical name, in no order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// Reads `slice` into `out`, which has exactly its length.
    pub fn read(&self, slice: Slice, out: &mut [u8]) -> Result<(), CheckpointError> {
        let file = self.file_of(slice)?;
        if slice.len != out.len() as u64 {
            return Err(self.bad_read(slice, format!("the buffer has {} bytes", out.len())));
        }
        let read = file.file.read_exact_at(out, slice.offset);
        read.map_err(|error| CheckpointError::Io { path: file.path.clone(), source: file.shorter(error) })
    }

    /// The bytes of `slice` where they lie in the file: see [`super::mapped`]. Read from disk when first looked at, or
    /// by [`Checkpoint::populate`].
    pub fn map(&self, slice: Slice) -> Result<WeightBytes, CheckpointError> {
        let file = self.file_of(slice)?;
        let part = file
            .range(slice)
            .and_then(|range| file.map()?.part(range).ok_or_else(|| io::Error::other("out of range")));
        part.map(WeightBytes::Mapped)
            .map_err(|source| CheckpointError::Io { path: file.path.clone(), source })
    }

    /// Reads the bytes of `slices` from disk into the files' maps: in the order of the files, neighbours in one go,
    /// which is what disks are fastest at. `progress` is told the slices' bytes as they are there.
    pub fn populate(&self, slices: &[Slice], progress: &mut dyn FnMut(u64)) -> Result<(), CheckpointError> {
        for slice in slices {
            self.file_of(*slice)?;
        }
        for Run { span, bytes } in runs(slices) {
            let file = self.file_of(span)?;
            let failed = |source| CheckpointError::Io { path: file.path.clone(), source };
            let (map, range) = (file.map().map_err(failed)?, file.range(span).map_err(failed)?);
            let step = |from: usize| from..range.end.min(from.saturating_add(STEP));
            map.ask_for(step(range.start));
            let mut told = 0;
            for from in range.clone().step_by(STEP) {
                let now = step(from);
                let done = (now.end - range.start) as u128;
                map.ask_for(step(now.end));
                map.populate(now).map_err(failed)?;
                // What lies between the slices is not theirs.
                let share = (u128::from(bytes) * done / u128::from(span.len)) as u64;
                progress(share - told);
                told = share;
            }
        }
        Ok(())
    }

    /// The bytes of `slice`.
    pub fn read_vec(&self, slice: Slice) -> Result<Vec<u8>, CheckpointError> {
        let len = usize::try_from(slice.len).map_err(|_| CheckpointError::BadRead {
            dir: self.dir.clone(),
            slice,
            reason: "more bytes than memory can address".into(),
        })?;
        let mut bytes = vec![0; len];
        self.read(slice, &mut bytes)?;
        Ok(bytes)
    }

    /// The file that has all bytes of `slice`.
    fn file_of(&self, slice: Slice) -> Result<&CheckpointFile, CheckpointError> {
        let Some(file) = self.files.get(usize::from(slice.file)) else {
            return Err(self.bad_read(slice, format!("there are {} files", self.files.len())));
        };
        if slice.offset.checked_add(slice.len).is_none_or(|end| end > file.len) {
            return Err(self.bad_read(slice, format!("the file has {} bytes", file.len)));
        }
        Ok(file)
    }

    fn bad_read(&self, slice: Slice, reason: String) -> CheckpointError {
        CheckpointError::BadRead { dir: self.dir.clone(), slice, reason }
    }

    /// Opens one file and adds its tensors.
    fn add(&mut self, name: &str, faults: &mut Vec<String>) -> Result<(), String> {
        let path = self.dir.join(name);
        let failed = |e: io::Error| format!("{name}: {e}");
        // Looked at first: to open a pipe is to wait for whoever writes it.
        let metadata = fs::metadata(&path).map_err(failed)?;
        if !metadata.is_file() {
            return Err(format!("{name}: not a file"));
        }
        let file = File::open(&path).map_err(failed)?;
        let len = metadata.len();
        let mut first = [0; header::PREFIX as usize];
        if len < header::PREFIX {
            return Err(format!("{name}: {len} bytes are too few for a safetensors file"));
        }
        file.read_exact_at(&mut first, 0).map_err(failed)?;
        let header_len = header::header_len(first, len).map_err(|e| format!("{name}: {e}"))?;
        let mut json = vec![0; header_len as usize];
        file.read_exact_at(&mut json, header::PREFIX).map_err(failed)?;
        let entries = header::parse_header(&json, len).map_err(|e| format!("{name}: {e}"))?;
        let index = self.files.len() as u16;
        for entry in entries {
            let header::HeaderEntry { name: stored_name, dtype, shape, offset, len } = entry;
            let canonical = names::canonical(&stored_name).to_owned();
            let slice = Slice { file: index, offset, len };
            let info = TensorInfo { stored_name, dtype, shape, slice };
            if let Some(other) = self.tensors.get(&canonical) {
                let first = self.files.get(usize::from(other.slice.file)).map_or(path.as_path(), |f| &f.path);
                faults.push(format!(
                    "tensor `{}` of {name} is already in {} as `{}`",
                    info.stored_name,
                    first.file_name().unwrap_or_default().display(),
                    other.stored_name
                ));
            } else {
                self.tensors.insert(canonical, info);
            }
        }
        self.files.push(CheckpointFile { path, file, len, map: OnceLock::new() });
        Ok(())
    }

    /// Notes index entries whose tensor is not in the file they name. (Absent files are noted already.)
    fn compare(&self, index: &Index, present: &BTreeSet<&str>, faults: &mut Vec<String>) {
        let mut absent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (tensor, file) in index.iter().filter(|(_, file)| present.contains(file.as_str())) {
            let found = self.tensors.get(names::canonical(tensor));
            let holder = found.and_then(|info| self.files.get(usize::from(info.slice.file)));
            if holder.is_none_or(|holder| holder.path != self.dir.join(file)) {
                absent.entry(file).or_default().push(tensor.clone());
            }
        }
        for (file, tensors) in absent {
            let list = super::report::condense(tensors.into_iter()).join(", ");
            faults.push(format!("{file}: the index names tensors that are not in it: {list}"));
        }
    }
}

impl CheckpointFile {
    fn map(&self) -> io::Result<&FileMap> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = FileMap::open(&self.file, self.len)?;
        Ok(self.map.get_or_init(|| map))
    }

    /// What an error in reading means, if the file has become too short for what its header promises.
    fn shorter(&self, error: io::Error) -> io::Error {
        match self.file.metadata() {
            Ok(now) if error.kind() == io::ErrorKind::UnexpectedEof && now.len() < self.len => {
                let (now, then) = (now.len(), self.len);
                io::Error::other(format!(
                    "{now} bytes long, but it had {then} when it was opened: is something still writing it?"
                ))
            }
            _ => error,
        }
    }

    fn range(&self, slice: Slice) -> io::Result<Range<usize>> {
        let at = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        Ok(at(slice.offset)?..at(slice.offset.saturating_add(slice.len))?)
    }
}

/// Slices that lie so close that they are read in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// From the first one's begin to the last one's end.
    pub(super) span: Slice,
    /// Of the slices alone.
    pub(super) bytes: u64,
}

/// Runs of slices that have passed [`Checkpoint::file_of`], in the order of the files.
pub(super) fn runs(slices: &[Slice]) -> Vec<Run> {
    let mut slices: Vec<Slice> = slices.iter().copied().filter(|slice| slice.len > 0).collect();
    slices.sort_unstable_by_key(|slice| (slice.file, slice.offset));
    let mut runs: Vec<Run> = Vec::new();
    for slice in slices {
        match runs.last_mut() {
            Some(Run { span, bytes })
                if span.file == slice.file && slice.offset <= span.offset + span.len + GAP =>
            {
                let end = (span.offset + span.len).max(slice.offset + slice.len);
                span.len = end - span.offset;
                *bytes += slice.len;
            }
            _ => runs.push(Run { span: slice, bytes: slice.len }),
        }
    }
    runs
}

/// Tensor name → file name.
type Index = BTreeMap<String, String>;

fn read_index(dir: &Path, faults: &mut Vec<String>) -> Result<Option<Index>, CheckpointError> {
    let path = dir.join("model.safetensors.index.json");
    let io = |source| CheckpointError::Io { path: path.clone(), source };
    let len = match fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(e)),
    };
    let faulty = |fault: String| CheckpointError::Faulty { dir: dir.to_owned(), faults: vec![fault] };
    if len > MAX_INDEX {
        return Err(faulty(format!("the index has {len} bytes, more than {MAX_INDEX}")));
    }
    let json: Value = serde_json::from_slice(&fs::read(&path).map_err(io)?)
        .map_err(|e| faulty(format!("model.safetensors.index.json is not JSON: {e}")))?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(faulty("model.safetensors.index.json has no object `weight_map`".into()));
    };
    let mut index = Index::new();
    for (tensor, file) in map {
        match file.as_str() {
            Some(file) if is_inside(file) => _ = index.insert(tensor.clone(), file.to_owned()),
            _ => faults.push(format!("the index puts `{tensor}` in {file}, not a file of this directory")),
        }
    }
    if index.is_empty() && faults.is_empty() {
        faults.push("model.safetensors.index.json names no tensor".into());
    }
    Ok(Some(index))
}

/// Whether a file name from the index stays in the directory. (What it is, a symlink into a cache say, is the user's
/// business; where it points, an index must not choose.)
fn is_inside(name: &str) -> bool {
    let path = Path::new(name);
    path.components().count() > 0
        && path.components().all(|part| matches!(part, Component::Normal(_)))
        && path.extension().is_some_and(|e| e == "safetensors")
}

/// Weight files of a directory without an index.
fn list_files(dir: &Path, faults: &mut Vec<String>) -> Result<Vec<String>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") && !name.starts_with('.') {
            names.push(name);
        }
    }
    names.sort_unstable();
    if names.iter().any(|name| name == SINGLE) {
        names = vec![SINGLE.to_owned()];
    }
    if names.is_empty() {
        return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
    }
    // Without an index the file names alone tell that a download is incomplete.
    for name in &names {
        if let Some((_, total)) = name.trim_end_matches(".safetensors").rsplit_once("-of-")
            && let Ok(total) = total.parse::<usize>()
            && total > names.len()
        {
            faults.push(format!("{name} is one of {total} files, but only {} are here", names.len()));
            break;
        }
    }
    Ok(names)
}

const SINGLE: &str = "model.safetensors";
/// Bytes of an index: 150,000 tensors take about 15 MB.
const MAX_INDEX: u64 = 256 << 20;

/// Bytes between two slices that are read along: global scales, and less than a page of anything else.
const GAP: u64 = 4096;

/// Bytes that are populated at a time: some 3 ms of a Mac's disk.
const STEP: usize = 16 << 20;
