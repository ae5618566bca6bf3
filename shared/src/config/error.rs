//! Why a configuration was refused. One error carries every fault found.

use std::{fmt, path::PathBuf};

/// A configuration file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what its name says: too large, not JSON, not an object.
    #[error("{path}: {message}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// Fields that are absent, out of range, contradictory or unsupported.
    #[error("{path}: {}", join(issues), path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Every fault found, in the order of discovery.
        issues: Vec<ConfigIssue>,
    },
}

impl ConfigError {
    /// The faults of an [`ConfigError::Invalid`]; empty otherwise.
    pub fn issues(&self) -> &[ConfigIssue] {
        match self {
            Self::Invalid { issues, .. } => issues,
            Self::Io { .. } | Self::Unreadable { .. } => &[],
        }
    }
}

/// One field that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigIssue {
    /// Dotted path in the file, e.g. `rope_parameters.full_attention.factor`.
    pub field: String,
    /// The value as JSON, shortened; `None` when the key is absent.
    pub found: Option<String>,
    /// What would have been accepted.
    pub expected: String,
}

impl fmt::Display for ConfigIssue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            Some(found) => write!(f, "`{}` is {found}, expected {}", self.field, self.expected),
            None => write!(f, "`{}` is missing, expected {}", self.field, self.expected),
        }
    }
}

fn join(issues: &[ConfigIssue]) -> String {
    match issues {
        [one] => one.to_string(),
        _ => issues.iter().fold(format!("{} faults", issues.len()), |text, i| format!("{text}\n  {i}")),
    }
}
