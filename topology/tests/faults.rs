//! Every fault of a topology file is reported, all at once, each with its line and what to write instead.

use std::fs;
use std::path::Path;

use laguna_topology::{Topology, TopologyError};
use proptest::prelude::*;

/// The faults of `text` are exactly these, as (line, parts of the message).
fn assert_faults(text: &str, expected: &[(u32, &[&str])]) {
    let faults = Topology::parse(text, Path::new("/etc")).expect_err("the text has faults").faults;
    let shown: Vec<_> = faults.iter().map(|fault| format!("{}: {}", fault.line, fault.message)).collect();
    assert_eq!(faults.len(), expected.len(), "{shown:#?}");
    for (fault, (line, parts)) in faults.iter().zip(expected) {
        assert_eq!(fault.line, *line, "{shown:#?}");
        for part in *parts {
            assert!(fault.message.contains(part), "{part:?} is not in {:?}", fault.message);
        }
    }
}

/// A sound file with `line` as the fifth line, in the table of a worker.
fn in_worker(line: &str) -> String {
    format!("model = \"m\"\n[[worker]]\nshard = 0\naddress = \"a:1\"\n{line}\n")
}

#[test]
fn all_at_once() {
    let text = r#"modle = "/m"
keys = 3

[coordinator]
pin = "sha256:12"
memory = 0
shard = 0
experts = "0-95"
context = 0
address = "10.0.0.1:1"

[[worker]]
shard = 0
address = "10.0.5.2"
pin = "md5:00"
memory = "48 G"
experts = [96, 256]
listen = "4433"
color = "red"

[[worker]]
address = "10.0.5.256:4433"
shard = 65536

[link]
call_timeout_ms = 1
connect_timeout_ms = 5.0
mtu = "8952"
spin = true
speed = 9
"#;
    assert_faults(
        text,
        &[
            (1, &["`model` is missing", "add model = \"/path"]),
            (1, &["unknown key `modle`", "write `model`"]),
            (2, &["`keys` is 3", "write keys = \"keys\""]),
            (5, &["`pin` is \"sha256:12\"", "2 characters", "keygen"]),
            (6, &["`memory` is 0", "\"48 GB\""]),
            (8, &["`experts` is \"0-95\"", "write \"0..96\""]),
            (9, &["`context` is 0", "from 1 to 16777216 tokens"]),
            (10, &["unknown key `address` in [coordinator]", "move it to [[worker]]"]),
            (13, &["`shard` is 0", "line 7", "shard = 1"]),
            (14, &["`address` is \"10.0.5.2\"", "no port"]),
            (15, &["`pin` is \"md5:00\"", "sha256:"]),
            (16, &["`memory` is \"48 G\"", "GiB"]),
            (17, &["`experts` is a list", "experts = \"0..96\""]),
            (18, &["`listen` is \"4433\"", "listen = \"0.0.0.0:4433\""]),
            (19, &["unknown key `color` in [[worker]]", "remove it"]),
            (22, &["`address` is \"10.0.5.256:4433\"", "neither a host name nor an IP"]),
            (23, &["`shard` is 65536", "from 0 to 65535"]),
            (26, &["`call_timeout_ms` is 1", "from 10 to 600000 milliseconds"]),
            (27, &["`connect_timeout_ms` is 5.0", "whole number"]),
            (28, &["`mtu` is the text \"8952\"", "from 1200 to 65507"]),
            (29, &["`spin` is true", "write spin = \"auto\""]),
            (30, &["unknown key `speed` in [link]"]),
        ],
    );
}

#[test]
fn values_of_a_worker() {
    let cases: [(&str, &[&str]); 13] = [
        ("memory = 48", &["`memory` is 48 bytes", "\"48 GB\""]),
        ("memory = -1", &["`memory` is -1", "whole number"]),
        ("memory = 1.5", &["`memory` is 1.5", "\"48 GB\""]),
        ("experts = \"5..5\"", &["holds no expert"]),
        ("experts = \"9..5\"", &["5 must be above 9"]),
        ("experts = \"0..4, 8..12\"", &["one range without holes"]),
        ("experts = 96", &["`experts` is 96"]),
        ("listen = \"studio.local:4433\"", &["an interface's IP address"]),
        ("listen = \"0.0.0.0:0\"", &["port 0"]),
        ("model = \"\"", &["`model` is empty"]),
        ("model = \"~other/m\"", &["own home folder"]),
        ("keys = \"k\"", &["unknown key `keys` in [[worker]]", "move it to the top of the file"]),
        ("pin = true", &["`pin` is true", "keygen"]),
    ];
    for (line, parts) in cases {
        assert_faults(&in_worker(line), &[(5, parts)]);
    }
    Topology::parse(&in_worker(""), Path::new("")).expect("sound without the line");
}

#[test]
fn between_nodes() {
    let pin = format!("sha256:{}", "ab".repeat(32));
    let text = format!(
        r#"model = "m"
[coordinator]
experts = "0..4"
pin = "{pin}"
[[worker]]
shard = 7
address = "10.0.5.2:4433"
pin = "{pin}"
[[worker]]
shard = 7
address = "10.0.5.2:4433"
[[worker]]
shard = 7
address = "10.0.5.2:4434"
listen = "0.0.0.0:4433"
"#
    );
    assert_faults(
        &text,
        &[
            (3, &["`experts` is \"0..4\"", "holds no shard", "shard = 0"]),
            (8, &["`pin` is the same as that of coordinator in line 4", "keygen"]),
            (10, &["`shard` is 7", "line 6", "shard = 0"]),
            (11, &["`address` is 10.0.5.2:4433", "line 7", "another port"]),
            (13, &["`shard` is 7", "line 6", "shard = 1"]),
            (15, &["port 4433", "worker of line 7", "`listen`"]),
        ],
    );
}

#[test]
fn missing_and_misshapen_tables() {
    assert_faults("", &[(1, &["`model` is missing"]), (1, &["no node holds experts", "[[worker]]"])]);
    assert_faults("model = \"m\"\n\n[coordinator]", &[(3, &["no node holds experts", "shard = 0"])]);
    assert_faults(
        "model = \"m\"\n[worker]\nadress = \"a:1\"",
        &[
            (2, &["`address` is missing in [[worker]]"]),
            (2, &["`shard` is missing in [[worker]]"]),
            (2, &["`worker` is a table", "[[worker]]"]),
            (3, &["unknown key `adress`", "write `address`"]),
        ],
    );
    assert_faults(
        "model = \"m\"\nworker = [1]\nlink = 5\n[[coordinator]]",
        &[
            (2, &["a worker is 1"]),
            (3, &["`link` is 5", "[link]"]),
            (4, &["`coordinator` is a list", "[coordinator]"]),
        ],
    );
    assert_faults(
        "[coordinator]\nshard = 0\nmodel = \"m\"",
        &[
            (1, &["`model` is missing"]),
            (3, &["unknown key `model` in [coordinator]", "move it to the top of the file"]),
        ],
    );
}

#[test]
fn what_is_not_toml_comes_alone() {
    assert_faults("colour = 1\nmodel = \n", &[(2, &["not TOML"])]);
    assert_faults("model = \"m\"\nmodel = \"n\"\ncolour = 1", &[(2, &["not TOML", "duplicate key"])]);
}

#[test]
fn a_file_is_named_in_each_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("topology.toml");
    fs::write(&path, "model = \"m\"\n\n[link]\nmtu = 1\n").unwrap();
    let error = Topology::load(&path).unwrap_err();
    assert!(matches!(error, TopologyError::Faulty(_)));
    let shown = error.to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with(&format!("{}:1: no node holds experts", path.display())), "{shown}");
    assert!(lines[1].starts_with(&format!("{}:4: `mtu` is 1", path.display())), "{shown}");

    let error = Topology::load(&dir.path().join("none.toml")).unwrap_err();
    assert!(error.to_string().contains("none.toml: "), "{error}");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(matches!(Topology::load(&path), Err(TopologyError::Unreadable { .. })));
}

/// Lines that are often nearly right, so that texts get past the TOML parser.
fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "model", "keys", "shard", "address", "pin", "memory", "experts", "listen", "context", "mtu",
        "worker", "x.y",
    ]);
    let value = prop_oneof![
        any::<u32>().prop_map(|n| (n % 5).to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        "[a-z0-9.:%~/ \\[\\]-]{0,12}".prop_map(|text| format!("{text:?}")),
        "(0|5|96|256)\\.\\.(5|96|256)".prop_map(|text| format!("{text:?}")),
        Just("[1, {}, [\"a\"]]".to_string()),
    ];
    prop_oneof![
        4 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => prop::sample::select(vec!["[coordinator]", "[[worker]]", "[link]", "[worker]"]).prop_map(str::to_owned),
        1 => ".{0,20}",
    ]
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        drop(Topology::parse(&text, Path::new("")));
    }

    #[test]
    fn no_nearly_right_text_panics_and_faults_are_within_it(lines in prop::collection::vec(line(), 0..16)) {
        let text = lines.join("\n");
        if let Err(faults) = Topology::parse(&text, Path::new("")) {
            prop_assert!(!faults.faults.is_empty());
            let last = u32::try_from(text.split('\n').count()).unwrap();
            prop_assert!(faults.faults.iter().all(|fault| (1..=last).contains(&fault.line)));
        }
    }
}
