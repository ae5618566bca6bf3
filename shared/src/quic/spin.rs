//! Whether an end that waits for the other spins before it sleeps.
//!
//! Being woken costs more than all else in a decode step's exchange, but spinning costs a core and power: worth it where
//! a core is to spare and the power comes out of a wall.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::thread::available_parallelism;

use laguna_topology::Spin;

/// Where this process runs, as far as it matters for spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Threads that can run at the same time.
    pub cores: usize,
    /// Where its power comes from.
    pub power: Power,
}

/// What else this machine computes while a node of the cluster waits.
///
/// The node's own pool is not among it: whoever waits is the thread that the pool works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// Other processes of the cluster on this machine; any may be what is waited for.
    pub processes: usize,
    /// Threads that each of them computes with: those of this node's own pool, as nodes of one machine choose alike.
    pub threads: usize,
    /// Threads of this process that go on while it waits.
    pub own: usize,
}

/// Where a machine's power comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Out of a wall, or nobody knows.
    Mains,
    /// Out of a battery that is getting empty.
    Battery,
}

impl Machine {
    /// This one, now.
    pub fn look() -> Self {
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        Self { cores, power: Power::look() }
    }
}

impl Power {
    /// This machine's, now.
    pub fn look() -> Self {
        if cfg!(target_os = "macos") { Self::of_pmset(&pmset()) } else { Self::in_sysfs(Path::new(SUPPLIES)) }
    }

    /// As Linux lists its supplies: a folder each, in it a `type` and a `status`.
    fn in_sysfs(supplies: &Path) -> Self {
        let Ok(supplies) = fs::read_dir(supplies) else { return Self::Mains };
        let says = |supply: &Path, file: &str, what: &str| {
            fs::read_to_string(supply.join(file)).is_ok_and(|text| text.trim() == what)
        };
        let empties = |supply: &Path| {
            // A mouse has a battery, too.
            says(supply, "type", "Battery")
                && says(supply, "status", "Discharging")
                && !says(supply, "scope", "Device")
        };
        if supplies.flatten().any(|supply| empties(&supply.path())) { Self::Battery } else { Self::Mains }
    }

    /// As `pmset -g ps` says it on a Mac, in its first line.
    fn of_pmset(text: &str) -> Self {
        let first = text.lines().next().unwrap_or_default();
        if first.contains("'Battery Power'") { Self::Battery } else { Self::Mains }
    }
}

/// Whether to spin, given what is wanted.
///
/// Left to itself it does where a core is to spare for the spinning thread, and the machine is not on battery. A thread
/// that spins on a core that the others compute with makes what it waits for come later.
pub fn spins(wanted: Spin, machine: Machine, others: Others) -> bool {
    match wanted {
        Spin::On => true,
        Spin::Off => false,
        Spin::Auto => machine.cores > others.busy() && machine.power == Power::Mains,
    }
}

impl Others {
    /// Threads that may be busy.
    const fn busy(self) -> usize {
        self.processes.saturating_mul(self.threads).saturating_add(self.own)
    }
}

/// What the system's own tool says; nothing where it is not.
fn pmset() -> String {
    let output = std::process::Command::new("/usr/bin/pmset").args(["-g", "ps"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

const SUPPLIES: &str = "/sys/class/power_supply";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_counts_and_auto_looks_around() {
        let plugged = Machine { cores: 4, power: Power::Mains };
        let unplugged = Machine { power: Power::Battery, ..plugged };
        let others = |processes, threads, own| Others { processes, threads, own };
        assert!(spins(Spin::On, unplugged, others(9, 9, 9)) && !spins(Spin::Off, plugged, others(0, 4, 0)));
        let auto = |machine, others| spins(Spin::Auto, machine, others);
        // Alone on its machine, a node has every core to itself while it waits, however large its pool.
        assert!(auto(plugged, others(0, 4, 0)) && auto(plugged, others(0, 4, 1)));
        assert!(!auto(unplugged, others(0, 4, 0)));
        // What computes meanwhile needs its threads: a neighbour with a pool of all cores leaves none.
        assert!(!auto(plugged, others(1, 4, 0)) && auto(plugged, others(1, 3, 0)));
        assert!(!auto(plugged, others(1, 3, 1)) && !auto(plugged, others(3, 2, 0)));
        // One that computes on a GPU has a thread.
        assert!(auto(plugged, others(2, 1, 1)) && !auto(plugged, others(3, 1, 1)));
        assert!(!auto(plugged, others(usize::MAX, 2, 1)));
        assert!(Machine::look().cores > 0);
    }

    #[test]
    fn a_battery_counts_while_it_empties() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Power::in_sysfs(&folder.path().join("none")), Power::Mains);
        assert_eq!(Power::in_sysfs(folder.path()), Power::Mains);
        let supply = |name: &str, files: &[(&str, &str)]| {
            let supply = folder.path().join(name);
            fs::create_dir_all(&supply).unwrap();
            for (file, text) in files {
                fs::write(supply.join(file), format!("{text}\n")).unwrap();
            }
        };
        supply("AC", &[("type", "Mains"), ("online", "1")]);
        supply("mouse", &[("type", "Battery"), ("status", "Discharging"), ("scope", "Device")]);
        supply("BAT0", &[("type", "Battery"), ("status", "Charging")]);
        assert_eq!(Power::in_sysfs(folder.path()), Power::Mains);
        supply("BAT0", &[("status", "Discharging")]);
        assert_eq!(Power::in_sysfs(folder.path()), Power::Battery);
    }

    #[test]
    fn a_mac_says_it_in_the_first_line() {
        let text = |from: &str| format!("Now drawing from '{from}'\n -InternalBattery-0 (id=1)\t87%; ...\n");
        assert_eq!(Power::of_pmset(&text("Battery Power")), Power::Battery);
        assert_eq!(Power::of_pmset(&text("AC Power")), Power::Mains);
        assert_eq!(Power::of_pmset(""), Power::Mains);
    }
}
