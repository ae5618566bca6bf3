//! Where a measurement was made, and what this process took of it.

use std::fs;
use std::thread::available_parallelism;

use serde::Serialize;

/// The machine and how busy it was. Absolute numbers of different machines, or of different loads, do not compare.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// `linux`, `macos`.
    pub os: &'static str,
    /// Model name, where the system tells.
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
    /// Runnable processes, averaged over the last minute before the measurement.
    pub load: Option<f64>,
    /// Seconds since 1970 when the measurement began.
    pub unix_seconds: u64,
    /// Whether this program was built with optimisations.
    pub optimised: bool,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            os: std::env::consts::OS,
            cpu: fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| cpu(&text)).unwrap_or_default(),
            cpus: available_parallelism().map_or(1, usize::from),
            load: fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text)),
            unix_seconds: since.map_or(0, |since| since.as_secs()),
            optimised: !cfg!(debug_assertions),
        }
    }
}

/// Most bytes of memory that this process has had resident.
pub fn peak_bytes() -> u64 {
    peak().unwrap_or_default()
}

/// From /proc: the `ru_maxrss` of a fresh process starts at its parent's on Linux.
#[cfg(target_os = "linux")]
fn peak() -> Option<u64> {
    high_water(&fs::read_to_string("/proc/self/status").ok()?)
}

#[cfg(not(target_os = "linux"))]
fn peak() -> Option<u64> {
    use nix::sys::resource::{UsageWho, getrusage};
    // Bytes on a Mac.
    u64::try_from(getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss()).ok()
}

#[cfg(any(target_os = "linux", test))]
fn high_water(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn cpu(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

fn load(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_as_they_are_written() {
        assert_eq!(high_water("VmPeak:\t  900 kB\nVmHWM:\t   123 kB\n"), Some(123 * 1024));
        assert_eq!(high_water("VmPeak:\t  900 kB\n"), None);
        assert_eq!(cpu("processor\t: 0\nmodel name\t: A CPU @ 2\n").as_deref(), Some("A CPU @ 2"));
        assert_eq!(load("0.52 0.48 0.40 1/230 99\n"), Some(0.52));
    }

    #[test]
    fn this_process_has_memory() {
        let before = peak_bytes();
        let held = vec![1_u8; 64 << 20];
        assert!(held.iter().map(|byte| u64::from(*byte)).sum::<u64>() == 64 << 20);
        assert!(before > 0 && peak_bytes() >= before);
    }
}
