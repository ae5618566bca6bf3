//! The two binaries. Knows cargo and the target folder; nothing of what the programs do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The programs under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `laguna-coord`.
    Coordinator,
    /// `laguna-worker`.
    Worker,
}

impl Program {
    /// Path of the binary, built on first use with the profile of the running test.
    ///
    /// # Panics
    /// With cargo's output if it does not build.
    pub fn path(self) -> PathBuf {
        built().join(match self {
            Self::Coordinator => "laguna-coord",
            Self::Worker => "laguna-worker",
        })
    }
}

/// Root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace")
}

/// Folder of the built binaries.
fn built() -> &'static Path {
    // A failure is kept too: it fails every test, and is not tried again by each.
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = profile_folder();
        // nextest starts a process a test; one of them builds, and the mark tells the others.
        let run = std::env::var("NEXTEST_RUN_ID").ok();
        let mark = folder.join(".laguna-tests-built");
        if run.is_some() && fs::read_to_string(&mark).ok() == run {
            return Ok(folder);
        }
        build(&folder)?;
        if let Some(run) = run {
            fs::write(&mark, run).expect("the target folder can be written to");
        }
        Ok(folder)
    });
    built.as_ref().unwrap_or_else(|output| panic!("cargo build:\n{output}"))
}

/// `target/debug`, as the test itself lies in `target/debug/deps`.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("a test lies in PROFILE/deps");
    folder.to_owned()
}

fn build(folder: &Path) -> Result<(), String> {
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => panic!("{}: no profile in this path", folder.display()),
    };
    // The whole workspace, as the tests were built: asked for less, cargo chooses fewer features for the
    // dependencies, and compile them all once more.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "--workspace", "--bins", "--profile", profile]);
    // What cargo tells a test about its package would make build scripts, ring's for one, run again.
    let about_the_package = |name: &str| {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_"];
        name == "OUT_DIR" || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| about_the_package(&name.to_string_lossy())) {
        cargo.env_remove(name);
    }
    // With --target, a folder of that name lies between; the target folder itself carries the tag.
    let above = folder.parent().expect("a profile's folder lies in the target folder");
    match (above.file_name(), above.parent()) {
        (Some(triple), Some(target)) if target.join("CACHEDIR.TAG").exists() => {
            cargo.arg("--target").arg(triple).arg("--target-dir").arg(target);
        }
        _ => {
            cargo.arg("--target-dir").arg(above);
        }
    }
    let output = cargo.output().expect("cargo can be started");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}
