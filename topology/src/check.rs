//! How the fields of a file fit together, and the step from a sound file to a [`Topology`].
//!
//! Runs on whatever could be read, so that faulty fields elsewhere hide nothing here.

use std::path::PathBuf;

use crate::address::{Address, Host};
use crate::fault::Fault;
use crate::file::{File, WorkerTable};
use crate::node::NodeName;
use crate::table::At;
use crate::topology::{Coordinator, Topology, Worker};

/// Adds every fault that lies between fields.
pub(crate) fn cross(file: &File, faults: &mut Vec<Fault>) {
    if !file.is_toml {
        return;
    }
    shards(file, faults);
    pins(file, faults);
    addresses(file, faults);
}

/// The topology of a file without faults; `None` where something needed is absent.
pub(crate) fn topology(file: File, path: Option<PathBuf>) -> Option<Topology> {
    let coordinator = match file.coordinator {
        None => Coordinator { line: 1, pin: None, memory: None, shard: None, experts: None, context: None },
        Some(table) => Coordinator {
            line: table.line,
            pin: table.pin.map(|pin| pin.value),
            memory: table.memory,
            shard: table.shard.map(|shard| shard.value),
            experts: table.experts.map(|experts| experts.value),
            context: table.context,
        },
    };
    let workers = file.workers.into_iter().map(worker).collect::<Option<_>>()?;
    Some(Topology { file: path, model: file.model?, keys: file.keys?, coordinator, workers, link: file.link })
}

fn worker(table: WorkerTable) -> Option<Worker> {
    let address = table.address?.value;
    Some(Worker {
        line: table.line,
        shard: table.shard?.value,
        listen: table.listen.map_or_else(|| address.default_listen(), |listen| listen.value),
        address,
        pin: table.pin.map(|pin| pin.value),
        memory: table.memory,
        experts: table.experts.map(|experts| experts.value),
        model: table.model,
    })
}

fn shards(file: &File, faults: &mut Vec<Fault>) {
    let own = file.coordinator.as_ref().and_then(|table| table.shard.as_ref());
    let all = own.into_iter().chain(file.workers.iter().filter_map(|worker| worker.shard.as_ref()));
    let mut taken: Vec<_> = all.clone().map(|shard| shard.value.0).collect();
    // Two gaps of the sorted numbers never give the same free one: it is taken at once.
    let mut seen: Vec<&At<_>> = Vec::new();
    for shard in all {
        if let Some(first) = seen.iter().find(|first| first.value == shard.value) {
            let free = (0..u16::MAX).find(|number| !taken.contains(number)).unwrap_or(u16::MAX);
            taken.push(free);
            faults.push(Fault {
                line: shard.line,
                message: format!(
                    "`shard` is {}, which line {} has already: write another number, as in shard = {free}",
                    shard.value.0, first.line
                ),
            });
        } else {
            seen.push(shard);
        }
    }
    if let Some(table) = file.coordinator.as_ref().filter(|table| !table.names_shard)
        && let Some(experts) = &table.experts
    {
        faults.push(Fault {
            line: experts.line,
            message: format!(
                "`experts` is \"{}\" and [coordinator] holds no shard: add shard = 0 or another free number, or remove the line",
                experts.value
            ),
        });
    }
    let holds_shard = file.coordinator.as_ref().is_some_and(|table| table.names_shard);
    if !file.names_workers && !holds_shard {
        let line = file.coordinator.as_ref().map_or(1, |table| table.line);
        let message =
            "no node holds experts: add a [[worker]] table, or shard = 0 under [coordinator]".into();
        faults.push(Fault { line, message });
    }
}

fn pins(file: &File, faults: &mut Vec<Fault>) {
    let own = file.coordinator.as_ref().and_then(|table| table.pin.as_ref());
    let own = own.map(|pin| (NodeName::Coordinator.to_string(), pin));
    let workers = file.workers.iter().filter_map(|worker| {
        let name = worker.shard.as_ref().map(|shard| NodeName::Worker(shard.value).to_string());
        Some((name.unwrap_or_else(|| "another worker".into()), worker.pin.as_ref()?))
    });
    let mut seen: Vec<(String, &At<_>)> = Vec::new();
    for (name, pin) in own.into_iter().chain(workers) {
        if let Some((other, first)) = seen.iter().find(|(_, first)| first.value == pin.value) {
            let message = format!(
                "`pin` is the same as that of {other} in line {}: each node has a key of its own; let `laguna-coord keygen` write them",
                first.line
            );
            faults.push(Fault { line: pin.line, message });
        } else {
            seen.push((name, pin));
        }
    }
}

fn addresses(file: &File, faults: &mut Vec<Fault>) {
    let mut seen: Vec<(&At<Address>, u16, &WorkerTable)> = Vec::new();
    for worker in &file.workers {
        let Some(address) = &worker.address else { continue };
        let bound = worker.listen.as_ref().map_or(address.value.port, |listen| listen.value.port());
        let same_host = |other: &Host| *other == address.value.host;
        if let Some((first, ..)) = seen.iter().find(|(first, ..)| first.value == address.value) {
            let message = format!(
                "`address` is {}, which line {} has already: write another port, and `listen` on it",
                address.value, first.line
            );
            faults.push(Fault { line: address.line, message });
        } else if let Some((first, ..)) =
            seen.iter().find(|(first, port, _)| same_host(&first.value.host) && *port == bound)
        {
            let line = worker.listen.as_ref().map_or(address.line, |listen| listen.line);
            let message = format!(
                "port {bound} is bound on the same machine by the worker of line {}: write another port in `listen`",
                first.line
            );
            faults.push(Fault { line, message });
        }
        seen.push((address, bound, worker));
    }
}
