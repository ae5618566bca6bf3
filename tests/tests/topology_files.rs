//! Topology files and keys as a user handles them: where the file is looked for, what is said of its faults, and
//! `keygen`.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use laguna_tests::cluster::{Cluster, Plan};
use laguna_tests::models;
use laguna_tests::run::Run;

/// A folder with a topology file of this text.
fn folder_with(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("topology.toml"), text).unwrap();
    folder
}

/// Both programs refuse the file, with the same words.
#[track_caller]
fn both_refuse(file: &Path, said: &[&str]) {
    let coordinator = Run::coord(["generate", "-p", "x", "--topology"]).arg(file).finish().failed(2);
    let worker = Run::worker(["--shard", "0", "--topology"]).arg(file).finish().failed(2).says(said);
    assert_eq!(coordinator.message(), worker.message());
}

#[test]
fn every_fault_is_told_at_once_with_its_line() {
    let text = "modle = \"x\"\n\n[coordinator]\nmemory = \"lots\"\n\n[[worker]]\nshard = 0\n\n\
                [[worker]]\nshard = 0\naddress = \"nowhere\"\n\n[link]\nmtu = 7\n";
    let folder = folder_with(text);
    let file = folder.path().join("topology.toml");
    let at = |line: u32| format!("{}:{line}: ", file.display());
    both_refuse(
        &file,
        &[
            &format!("{}unknown key `modle` in the top of the file: write `model`", at(1)),
            &format!("{}`model` is missing", at(1)),
            &format!("{}`memory` is \"lots\"", at(4)),
            &format!("{}`address` is missing", at(6)),
            &format!("{}`shard` is 0, which line 7 has already", at(10)),
            &format!("{}`address` is \"nowhere\"", at(11)),
            &format!("{}`mtu` is 7: write a whole number from 1200", at(14)),
        ],
    );
}

#[test]
fn a_file_that_is_not_toml_names_the_line() {
    let folder = folder_with("model = \"x\"\n[coordinator\nshard = 0\n");
    let file = folder.path().join("topology.toml");
    both_refuse(&file, &[&format!("{}:2: not TOML: ", file.display())]);
    let folder = folder_with("");
    both_refuse(&folder.path().join("topology.toml"), &["`model` is missing", "no node holds experts"]);
}

#[test]
fn faults_between_the_file_and_the_model() {
    let nano = models::nano();
    let cluster = Cluster::new(&nano, 2);
    let generate = || cluster.coord(&["generate", "-p", "x", "--wait", "0"]);
    cluster.edit(|text| text.replace("shard = 0\n", "shard = 0\nexperts = \"0..100\"\n"));
    cluster.edit(|text| text.replace("shard = 1\n", "shard = 1\nexperts = \"120..256\"\n"));
    generate().finish().failed(2).says(&["100", "120"]);
    cluster.edit(|text| text.replace("120..256", "100..300"));
    generate().finish().failed(2).says(&["100..300", "256"]);
    cluster.worker(1).finish().failed(2).says(&["100..300", "256"]);
    let missing = Cluster::new(Path::new("/nowhere"), 1);
    missing.coord(&["generate", "-p", "x"]).finish().failed(2).says(&["model /nowhere: no such folder"]);
    missing.worker(0).finish().failed(2).says(&["model /nowhere: no such folder", "--model DIR"]);
}

#[test]
fn a_shard_that_no_worker_holds_names_those_there_are() {
    let nano = models::nano();
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 2, local_shard: true, link: "" });
    let nobodys = cluster.worker(7).finish().failed(2);
    nobodys.says(&["no [[worker]] has shard = 7", "workers there: 0, 1"]);
    let own = cluster.worker(2).finish().failed(2);
    own.says(&["shard 2 is the coordinator's own", "laguna-coord holds it", "workers there: 0, 1"]);
}

/// What a plan is made for must be what the model can do; a file that is silent asks for no more than that.
#[test]
fn a_context_above_the_models_is_refused_with_both_numbers() {
    let nano = models::nano();
    let cluster = Cluster::planned(&Plan { model: &nano, workers: 0, local_shard: true, link: "" });
    cluster.coord(&["generate", "-p", "x", "-n", "1"]).finish().succeeded();
    cluster.edit(|text| text.replace("[coordinator]\n", "[coordinator]\ncontext = 2048\n"));
    cluster.coord(&["generate", "-p", "x", "-n", "1"]).finish().succeeded();
    cluster.edit(|text| text.replace("context = 2048", "context = 4096"));
    let refused = cluster.coord(&["generate", "-p", "x", "-n", "1"]).finish().failed(2);
    refused.says(&["context = 4096 in [coordinator]", "2048 tokens"]);
}

#[test]
fn without_pins_or_keys_keygen_is_what_is_advised() {
    let nano = models::nano();
    let cluster = Cluster::without_keys(&Plan { model: &nano, workers: 2, local_shard: false, link: "" });
    let generate = cluster.coord(&["generate", "-p", "x"]).finish().failed(2);
    generate.says(&["no pin for coordinator, shard-0, shard-1", "laguna-coord keygen"]);
    cluster.worker(0).finish().failed(2).says(&["laguna-coord keygen"]);

    cluster.keygen().finish().succeeded();
    for node in ["coordinator", "shard-0"] {
        fs::remove_file(cluster.key(node)).unwrap();
    }
    let generate = cluster.coord(&["generate", "-p", "x"]).finish().failed(2);
    generate.says(&["cannot read", "coordinator.pem", "laguna-coord keygen"]);
    cluster.worker(0).finish().failed(2).says(&["cannot read", "shard-0.pem", "laguna-coord keygen"]);
}

#[test]
fn a_key_that_others_could_read_is_refused() {
    let cluster = Cluster::new(&models::nano(), 1);
    for node in ["coordinator", "shard-0"] {
        let mode = |bits| fs::set_permissions(cluster.key(node), fs::Permissions::from_mode(bits)).unwrap();
        mode(0o640);
        let run =
            if node == "coordinator" { cluster.coord(&["generate", "-p", "x"]) } else { cluster.worker(0) };
        run.finish().failed(2).says(&[&format!("{node}.pem has mode 0640"), "chmod 600"]);
        mode(0o600);
    }
    fs::write(cluster.key("shard-0"), "not a key").unwrap();
    cluster.worker(0).finish().failed(2).says(&["shard-0.pem holds no certificate in PEM"]);
}

#[test]
fn keygen_is_idempotent_and_renews_on_demand() {
    let cluster = Cluster::new(&models::nano(), 2);
    let state = || {
        let nodes = ["coordinator", "shard-0", "shard-1"];
        let keys = nodes.map(|node| fs::read(cluster.key(node)).unwrap());
        let modes = nodes.map(|node| fs::metadata(cluster.key(node)).unwrap().permissions().mode() & 0o777);
        assert_eq!(modes, [0o600; 3]);
        let left = fs::read_dir(cluster.folder().join("keys")).unwrap().count();
        assert_eq!(left, 3, "no draft is left");
        assert_eq!(fs::read_dir(cluster.folder()).unwrap().count(), 2, "no draft is left");
        (keys, nodes.map(|node| cluster.pin(node)), fs::read_to_string(cluster.file()).unwrap())
    };
    let before = state();
    let finished = cluster.keygen().finish().succeeded();
    assert!(finished.stdout.is_empty(), "{}", finished.text());
    assert_eq!(state(), before);
    cluster.keygen().arg("--renew").finish().succeeded();
    let after = state();
    for node in 0..3 {
        assert_ne!(after.0[node], before.0[node]);
        assert_ne!(after.1[node], before.1[node]);
    }
    let worker = cluster.start(0);
    drop(worker);
}

/// keygen touches nothing in the file but the pins.
#[test]
fn keygen_keeps_comments_and_order() {
    let text = "# ours\nmodel = \"x\" # here\n\n[[worker]] # the other one\nshard   = 0\n\
                address = \"127.0.0.1:4433\"\n\n[coordinator]\ncontext = 4096 # enough\n";
    let folder = folder_with(text);
    let file = folder.path().join("topology.toml");
    Run::coord(["keygen", "--topology"]).arg(&file).finish().succeeded();
    let pinned = fs::read_to_string(&file).unwrap();
    let kept: Vec<&str> = pinned.lines().filter(|line| !line.starts_with("pin ")).collect();
    assert_eq!(kept.join("\n") + "\n", text);
    assert_eq!(pinned.lines().filter(|line| line.starts_with("pin ")).count(), 2, "{pinned}");
}

/// A node whose key lies elsewhere keeps its pin: keys are never all in one place after they were handed out.
#[test]
fn keygen_keeps_the_pin_of_a_key_that_is_elsewhere() {
    let cluster = Cluster::new(&models::nano(), 2);
    let pin = cluster.pin("shard-1");
    fs::remove_file(cluster.key("shard-1")).unwrap();
    cluster.keygen().finish().succeeded().says(&["shard-1: pinned already, key not here"]);
    assert_eq!(cluster.pin("shard-1"), pin);
    assert!(!cluster.key("shard-1").exists());
}

/// Each place names a file of its own that does not have shard 9; the message shows which was read.
#[test]
fn a_worker_looks_for_the_topology_in_order() {
    let place = |name: &str| {
        let text = "model = \"x\"\n[[worker]]\nshard = 1\naddress = \"127.0.0.1:4433\"\n";
        let folder = tempfile::Builder::new().prefix(name).tempdir().unwrap();
        fs::create_dir(folder.path().join("laguna")).unwrap();
        for file in ["topology.toml", "laguna/topology.toml"] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        folder
    };
    let [flag, variable, working, settings] = ["flag", "variable", "working", "settings"].map(place);
    let empty = tempfile::tempdir().unwrap();
    let file = |folder: &tempfile::TempDir| folder.path().join("topology.toml");
    // 1 to 4 of the places are set.
    let read = |places: usize| {
        let mut run = Run::worker(["--shard", "9"]).env("XDG_CONFIG_HOME", settings.path());
        if places >= 2 {
            run = run.dir(working.path());
        }
        if places >= 3 {
            run = run.env("LAGUNA_TOPOLOGY", file(&variable));
        }
        if places >= 4 {
            run = run.arg("--topology").arg(file(&flag));
        }
        run.finish().failed(2).says(&["no [[worker]] has shard = 9"])
    };
    read(1).says(&[&settings.path().join("laguna/topology.toml").display().to_string()]);
    read(2).says(&["error: ./topology.toml"]);
    read(3).says(&[&file(&variable).display().to_string()]);
    read(4).says(&[&file(&flag).display().to_string()]);

    // One that was asked for and is not there is not replaced by another.
    let run = Run::worker(["--shard", "9"]).dir(working.path()).env("LAGUNA_TOPOLOGY", "/nowhere.toml");
    run.finish().failed(2).says(&["no topology file /nowhere.toml (from LAGUNA_TOPOLOGY)"]);
    // With none at all, every place is named.
    let run = Run::worker(["--shard", "9"]).dir(empty.path()).env("HOME", empty.path());
    let config = empty.path().join(".config/laguna/topology.toml");
    run.finish().failed(2).says(&["./topology.toml", &config.display().to_string()]);
}

/// A variable in the environment is a default, not a demand: `--loopback` on the command line wins.
#[test]
fn loopback_wins_over_the_environment() {
    let run = Run::coord(["generate", "--loopback", "--greedy", "-p", "x", "-n", "1", "--model"]);
    run.arg(models::nano()).env("LAGUNA_TOPOLOGY", "/nowhere.toml").finish().succeeded();
    let run = Run::coord(["generate", "--loopback", "--greedy", "-p", "x", "-n", "1"]);
    run.env("LAGUNA_MODEL", models::nano()).finish().succeeded();
    let run = Run::coord(["inspect"]).arg(models::nano());
    run.env("LAGUNA_TOPOLOGY", "/nowhere.toml").finish().succeeded();
}

/// The shipped files are sound; their models are not here.
#[test]
fn shipped_topologies_are_sound() {
    let folder = laguna_tests::programs::workspace().join("topology");
    for name in ["two-macs.toml", "three-macs.toml", "loopback.toml"] {
        let copy = tempfile::tempdir().unwrap();
        let file = copy.path().join(name);
        fs::copy(folder.join(name), &file).unwrap();
        Run::coord(["keygen", "--topology"]).arg(&file).finish().succeeded();
        let topology = laguna_topology::Topology::load(&file).unwrap();
        assert!(topology.require_pins().is_ok(), "{name}");
        let node = topology.workers[0].shard.0.to_string();
        let finished = Run::worker(["--shard", &node, "--topology"]).arg(&file).finish().failed(2);
        finished.says(&["no such folder"]);
    }
}
