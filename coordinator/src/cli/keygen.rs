//! `keygen`: one key a node, and every pin in the topology file.

use std::path::Path;

use laguna_shared::quic::Identity;
use laguna_topology::{Locate, NodeName, Pin, Topology, write_pins};

use super::args::{Args, KeygenArgs};
use super::failure::Failure;
use super::output;

/// Runs the command: makes the keys that are missing, then writes all pins into the topology file.
///
/// # Errors
/// With one message. Keys that were made stay; running it again goes on from there.
pub fn run(args: &Args, command: &KeygenArgs) -> Result<(), Failure> {
    let file = Locate::from_process(args.cluster.topology.clone()).find().map_err(Failure::usage)?;
    let topology = Topology::load(&file).map_err(Failure::usage)?;
    let text =
        std::fs::read_to_string(&file).map_err(|e| Failure::usage(format!("{}: {e}", file.display())))?;
    std::fs::create_dir_all(&topology.keys)
        .map_err(|e| Failure::failed(format!("{}: {e}", topology.keys.display())))?;

    let mut pins: Vec<(NodeName, Pin)> = Vec::new();
    for node in topology.nodes() {
        let path = topology.key_file(node);
        if command.renew && path.exists() {
            std::fs::remove_file(&path).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
        }
        let identity = match (path.exists(), topology.pin(node)) {
            (true, _) => Identity::load(&path).map_err(Failure::failed)?,
            // The key of a node may lie on that node only; its pin is here already.
            (false, Some(pin)) if !command.renew => {
                pins.push((node, pin));
                output::say(format_args!("{node}: pinned already, key not here"));
                continue;
            }
            (false, _) => Identity::create(&path).map_err(Failure::failed)?,
        };
        pins.push((node, identity.pin()));
        output::say(format_args!("{node}: {}", path.display()));
    }
    let pinned = write_pins(&text, &pins).map_err(Failure::failed)?;
    if pinned == text {
        output::say(format_args!("{} has every pin already", file.display()));
        return Ok(());
    }
    replace(&file, &pinned)?;
    output::say(format_args!(
        "pins written to {}\nnext: copy that file to every machine, and to each machine its own key (keep it private), \
         into a folder {} beside it",
        file.display(),
        topology.keys.file_name().unwrap_or_default().display()
    ));
    Ok(())
}

/// Writes beside the file, then renames: a failure leaves the old file whole.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let fail = |e: std::io::Error| Failure::failed(format!("{}: {e}", file.display()));
    // Through a link: what it points to is the file that others read.
    let file = &std::fs::canonicalize(file).map_err(fail)?;
    let mut draft = file.as_os_str().to_owned();
    draft.push(".draft");
    std::fs::write(&draft, text).map_err(fail)?;
    std::fs::rename(&draft, file).map_err(fail)
}
