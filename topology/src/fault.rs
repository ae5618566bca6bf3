//! What is wrong with a topology file: every fault at once, each with its line and what to write instead.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One thing wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Line in the file, counted from 1.
    pub line: u32,
    /// What is wrong with which value, and what to write instead.
    pub message: String,
}

/// Everything wrong with the file, by line; never empty. Displays as one `file:line: message` a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The file, if the text came from one.
    pub file: Option<PathBuf>,
    /// The faults, ascending by line.
    pub faults: Vec<Fault>,
}

/// Why there is no [`Topology`](crate::Topology).
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("cannot read the topology file {}: {error}", path.display())]
    Unreadable {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file can be read and is wrong.
    #[error(transparent)]
    Faulty(#[from] Faults),
}

impl Faults {
    pub(crate) fn new(file: Option<PathBuf>, mut faults: Vec<Fault>) -> Self {
        faults.sort();
        faults.dedup();
        Self { file, faults }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match &self.file {
                Some(file) => write!(f, "{}:{}: {}", file.display(), fault.line, fault.message)?,
                None => write!(f, "line {}: {}", fault.line, fault.message)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}
