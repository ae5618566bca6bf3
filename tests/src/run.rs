//! One process of a program under test: arguments, a deadline, captured output, signals.
//!
//! A process started here sees no LAGUNA_* variable, no topology and no configuration but what the test gives it, and
//! does not outlive the test.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::programs::Program;

/// A process that is not started yet.
#[derive(Debug)]
pub struct Run {
    command: Command,
    home: TempDir,
    deadline: Duration,
    reader: Reader,
    input: Option<String>,
}

/// What the test does with the process's stdout.
#[derive(Debug)]
enum Reader {
    /// Keeps all of it.
    Patient,
    /// Goes away after the first bytes, as `head` does.
    Leaving,
    /// Is away before the first byte.
    Absent,
    /// Is this file.
    File(PathBuf),
}

impl Run {
    /// `laguna-coord` with these arguments.
    pub fn coord<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::of(Program::Coordinator).args(args)
    }

    /// `laguna-worker` with these arguments.
    pub fn worker<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::of(Program::Worker).args(args)
    }

    fn of(program: Program) -> Self {
        let home = tempfile::tempdir().expect("a temporary folder can be made");
        let mut command = Command::new(program.path());
        let ours = |name: &OsStr| name.to_string_lossy().starts_with("LAGUNA_");
        for (name, _) in std::env::vars_os().filter(|(name, _)| ours(name)) {
            command.env_remove(name);
        }
        for name in ["XDG_CONFIG_HOME", "RUST_BACKTRACE", "RUST_LOG"] {
            command.env_remove(name);
        }
        command.env("HOME", home.path()).current_dir(home.path()).stdin(Stdio::null());
        Self { command, home, deadline: PATIENCE, reader: Reader::Patient, input: None }
    }

    /// One more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    /// An environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The folder to run in; an empty one if this is not called.
    #[must_use]
    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// How long it may take before it is killed and the test fails. Two minutes if this is not called.
    #[must_use]
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What it reads on stdin; nothing if this is not called.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        self.input = Some(text.to_owned());
        self.command.stdin(Stdio::piped());
        self
    }

    /// The reader of its stdout goes away after the first bytes.
    #[must_use]
    pub fn reader_leaves(mut self) -> Self {
        self.reader = Reader::Leaving;
        self
    }

    /// The reader of its stdout is gone before it starts.
    #[must_use]
    pub fn reader_is_absent(mut self) -> Self {
        self.reader = Reader::Absent;
        self
    }

    /// Its stdout is this file, and nothing of it is kept.
    #[must_use]
    pub fn stdout_to(mut self, file: &Path) -> Self {
        self.reader = Reader::File(file.to_owned());
        self
    }

    /// Starts it.
    pub fn start(mut self) -> Running {
        let what = format!("{:?}", self.command);
        let stdout = match &self.reader {
            Reader::File(file) => {
                Stdio::from(OpenOptions::new().write(true).open(file).expect("it can be opened"))
            }
            _ => Stdio::piped(),
        };
        let child = self.command.stdout(stdout).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{what}: {error}"));
        if let (Some(text), Some(mut pipe)) = (self.input, child.stdin.take()) {
            // By a thread: a long text does not fit the pipe. A process that reads none of it is no fault here.
            thread::spawn(move || pipe.write_all(text.as_bytes()));
        }
        let stdout = match (self.reader, child.stdout.take()) {
            (Reader::Patient, Some(pipe)) => Capture::until_enough(pipe, usize::MAX),
            (Reader::Leaving, Some(pipe)) => Capture::until_enough(pipe, 1),
            // The pipe's end is dropped here.
            (Reader::Absent | Reader::File(_), _) | (_, None) => Capture::nothing(),
        };
        let stderr = Capture::until_enough(child.stderr.take().expect("stderr is a pipe"), usize::MAX);
        let started = Instant::now();
        Running { child, stdout, stderr, started, deadline: self.deadline, what, _home: self.home }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it does not end within the deadline.
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.start().wait()
    }
}

/// A process that runs. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Capture,
    stderr: Capture,
    started: Instant,
    deadline: Duration,
    what: String,
    _home: TempDir,
}

impl Running {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has said on stderr so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// What it has written to stdout so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Waits until it is in a state that the test needs.
    ///
    /// # Panics
    /// If it ends before, or takes longer than its deadline.
    #[track_caller]
    pub fn until(&mut self, reached: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + self.deadline;
        while !reached(self) {
            let ended = self.child.try_wait().unwrap_or_else(|error| panic!("{}: {error}", self.what));
            if ended.is_some() || Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("{}: never came so far; {ended:?}\n{}", self.what, self.stderr());
            }
            thread::sleep(TICK);
        }
    }

    /// Sends a signal by name: `STOP`, `CONT`, `TERM`, `KILL`, `INT`.
    pub fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.pid());
        let status = Command::new("sh").args(["-c", &script]).status();
        assert!(status.is_ok_and(|status| status.success()), "{script}");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it does not end within the deadline.
    #[track_caller]
    pub fn wait(mut self) -> Finished {
        let deadline = Instant::now() + self.deadline;
        let status = loop {
            match self.child.try_wait().unwrap_or_else(|error| panic!("{}: {error}", self.what)) {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    let _ = self.child.kill();
                    let (stdout, stderr) = (self.stdout(), self.stderr());
                    panic!("{}: did not end in {:?}\n{stdout}\n{stderr}", self.what, self.deadline);
                }
                None => thread::sleep(TICK),
            }
        };
        let took = self.started.elapsed();
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Finished { status, stdout, stderr, took, what: self.what.clone() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub status: ExitStatus,
    /// All of stdout.
    pub stdout: Vec<u8>,
    /// All of stderr.
    pub stderr: String,
    /// From its start to its end.
    pub took: Duration,
    what: String,
}

impl Finished {
    /// Exit code 0, or the test fails.
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.status.code(), Some(0), "{}\n{}\n{}", self.what, self.text(), self.stderr);
        self
    }

    /// This exit code and one message without a backtrace, or the test fails.
    #[track_caller]
    pub fn failed(self, code: i32) -> Self {
        let told = || format!("{}\n{}\n{}", self.what, self.text(), self.stderr);
        assert_eq!(self.status.code(), Some(code), "{}", told());
        let messages = self.stderr.lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!(messages, 1, "one message, please: {}", told());
        for trace in ["panicked", "backtrace", "RUST_BACKTRACE", "\u{1b}["] {
            assert!(!self.stderr.contains(trace), "{trace:?}: {}", told());
        }
        self
    }

    /// Each of these stands in stderr, or the test fails.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        for part in parts {
            assert!(self.stderr.contains(part), "not said: {part:?}\n{}\n{}", self.what, self.stderr);
        }
        self
    }

    /// It took no longer, or the test fails.
    #[track_caller]
    pub fn within(self, limit: Duration) -> Self {
        assert!(self.took <= limit, "took {:?}, not {limit:?}: {}\n{}", self.took, self.what, self.stderr);
        self
    }

    /// The message: from `error:` to the end of stderr.
    pub fn message(&self) -> &str {
        self.stderr.find("error:").map_or("", |at| self.stderr[at..].trim_end())
    }

    /// stdout as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Bytes of a pipe, gathered by a thread.
#[derive(Debug)]
struct Capture {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    fn nothing() -> Self {
        Self { bytes: Arc::default(), thread: None }
    }

    /// Reads to the end, or until there are `enough` bytes; then the pipe is closed.
    fn until_enough(mut pipe: impl Read + Send + 'static, enough: usize) -> Self {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let shared = bytes.clone();
        let thread = thread::spawn(move || {
            let mut chunk = [0; 4096];
            let mut total = 0;
            while total < enough {
                match pipe.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(n) => {
                        total += n;
                        shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&chunk[..n]);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        });
        Self { bytes, thread: Some(thread) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn finish(&mut self) -> Vec<u8> {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the reading thread does not panic");
        }
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Long enough for a laden machine, short enough for a person.
const PATIENCE: Duration = Duration::from_secs(120);

/// Between two looks at a process.
const TICK: Duration = Duration::from_millis(3);
