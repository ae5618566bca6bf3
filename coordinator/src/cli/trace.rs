//! `--trace FILE`: a recording of where the time went, written when the command ends.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::output;
use crate::flight::summary::Summary;
use crate::flight::{Flight, chrome};

/// The file, opened before anything is loaded, so that one that cannot be written costs no load.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
}

impl TraceFile {
    /// Creates the file, if one was asked for.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn create(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        match File::create(path) {
            Ok(file) => Ok(Some(Self { path: path.to_owned(), file })),
            Err(error) => Err(Failure::usage(format!("--trace {}: {error}", path.display()))),
        }
    }

    /// Writes the recording, and says its summary.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self, flight: &Flight) -> Result<(), Failure> {
        let mut out = BufWriter::new(self.file);
        let written = chrome::write(flight.spans(), &mut out).and_then(|()| out.flush());
        written.map_err(|error| Failure::failed(format!("--trace {}: {error}", self.path.display())))?;
        output::say(format_args!("\n{}\n", Summary::of(flight.spans())));
        output::say(format_args!(
            "trace written to {}; it opens in ui.perfetto.dev and chrome://tracing",
            self.path.display()
        ));
        Ok(())
    }
}
