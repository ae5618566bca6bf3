//! Pins are written into the user's text, and nothing else of it changes.

use laguna_topology::{NodeName, Pin, ShardId, write_pins};

const PINS: [(NodeName, Pin); 2] =
    [(NodeName::Coordinator, Pin([0xab; 32])), (NodeName::Worker(ShardId(3)), Pin([0x01; 32]))];

#[test]
fn comments_and_layout_stay() {
    let text = "# mine\nmodel = 'm'   # here\n\n[coordinator]\npin   =  \"old\"  # ours\nshard = 1\n\n\
                # the other\n[[worker]]\nshard   = 3 # three\naddress = \"a:1\"\n\n[link]\nmtu = 1200\n";
    let written = write_pins(text, &PINS).unwrap();
    let (ab, one) = ("ab".repeat(32), "01".repeat(32));
    let expected = text
        .replace("\"old\"", &format!("\"sha256:{ab}\""))
        .replace("\"a:1\"\n", &format!("\"a:1\"\npin = \"sha256:{one}\"\n"));
    assert_eq!(written, expected);
    assert_eq!(write_pins(&written, &PINS).unwrap(), written);
}

#[test]
fn other_ways_to_write_tables() {
    let text = "model = \"m\"\r\nworker = [{ shard = 3, address = \"a:1\" }]\r\n";
    let written = write_pins(text, &PINS).unwrap();
    let worker =
        format!("worker = [{{ shard = 3, address = \"a:1\" , pin = \"sha256:{}\" }}]\r\n", "01".repeat(32));
    assert!(written.contains(&worker), "{written}");
    assert!(written.contains("[coordinator]\r\npin = \"sha256:abab"), "{written}");
    assert!(!written.replace("\r\n", "").contains('\n'));
}

#[test]
fn refuses_nodes_the_file_does_not_have() {
    let error = |text| write_pins(text, &PINS).unwrap_err().to_string();
    assert!(error("[[worker]]\nshard = 4").contains("shard = 3"));
    assert!(error("").contains("shard = 3"));
    assert!(error("worker = 1").contains("no table"));
    assert!(error("coordinator = 1").contains("no table"));
    assert!(error("= 1").contains("not TOML"));
}
