//! The command line as a user meets it: exit codes, one clear message, data alone on stdout, nothing half-written.
// In a test a panic is the report.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use laguna_tests::models::{self, Copy};
use laguna_tests::run::{Finished, Run};
use serde_json::Value;

/// `generate` in loopback on nano.
fn generate(args: &[&str]) -> Run {
    Run::coord(["generate", "--loopback", "--greedy", "--model"]).arg(models::nano()).args(args)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_command_has_help_on_stdout() {
    let help = |args: &[&str]| {
        let finished = Run::coord(args).finish().succeeded();
        assert_eq!(finished.stderr, "");
        finished.text()
    };
    let top = help(&["--help"]);
    for command in ["generate", "chat", "verify", "eval", "inspect", "keygen"] {
        assert!(top.contains(command), "{command}: {top}");
        let text = help(&[command, "--help"]);
        assert!(text.contains(&format!("Usage: laguna-coord {command}")), "{text}");
    }
    for command in [&["--help"][..], &["generate", "--help"], &["verify", "--help"], &["eval", "--help"]] {
        let text = help(command);
        for name in ["LAGUNA_TOPOLOGY", "LAGUNA_MODEL"] {
            assert!(text.contains(name), "{command:?} does not mention {name}: {text}");
        }
    }
    let worker = Run::worker(["--help"]).finish().succeeded().text();
    for word in ["LAGUNA_TOPOLOGY", "LAGUNA_MODEL", "--shard", "topology.toml", "keys/shard-0.pem"] {
        assert!(worker.contains(word), "{word}: {worker}");
    }
    for run in [Run::coord(["--version"]), Run::worker(["--version"])] {
        let version = env!("CARGO_PKG_VERSION");
        assert!(run.finish().succeeded().text().trim_end().ends_with(version));
    }
}

#[test]
fn mistakes_in_flags_are_exit_code_2() {
    let nano = models::nano();
    let nano = nano.to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["no topology file found", "--loopback --model DIR"]),
        (&["dance"], &["dance"]),
        (&["generate", "--loopback", "-m", nano], &["--prompt"]),
        (&["generate", "--loopback", "-m", nano, "say something"], &["generate -p \"say something\""]),
        (&["generate", "--loopback", "-m", nano, "-p", "say", "something"], &["\"something\"", "quotes"]),
        (&["generate", "--loopback", "-p", "x"], &["--loopback needs --model DIR"]),
        (&["--loopback", "-m", nano, "--ctx", "4096"], &["--ctx 4096", "2048"]),
        (&["--loopback", "-m", nano, "--request-timeout", "0"], &["--request-timeout"]),
        (&["generate", "-p", "x"], &["topology.toml", "--loopback --model DIR"]),
        (&["generate", "--loopback", "--loopback-quic", "-m", nano, "-p", "x"], &["exclude each other"]),
        (&["generate", "--loopback", "-t", "f.toml", "-p", "x"], &["--topology", "--loopback"]),
        (&["generate", "--loopback=0", "-m", nano, "-p", "x"], &["0"]),
        (&["generate", "--loopback=999", "-m", nano, "-p", "x"], &["999", "256"]),
        (&["generate", "--loopback-quic=999", "-m", nano, "-p", "x"], &["999", "256"]),
        (&["generate", "--loopback=two", "-m", nano, "-p", "x"], &["two"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--chunk", "0"], &["--chunk"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--bank", "abacus"], &["abacus", "reference"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--dtype", "f8"], &["f8", "bf16"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--temperature", "-1"], &["-1"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--top-p", "1.5"], &["1.5", "from 0 to 1"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--greedy", "--seed", "1"], &["--greedy"]),
        (&["generate", "--loopback", "-m", nano, "-p", "x", "--raw", "--chat"], &["--raw", "--chat"]),
        (&["inspect", nano, "--shards", "0"], &["0"]),
        (&["inspect", nano, "--shards", "300"], &["300", "256"]),
        (&["verify"], &["--reference"]),
    ];
    for (args, said) in cases {
        let finished = Run::coord(*args).finish().failed(2).says(said);
        assert!(finished.stdout.is_empty(), "{args:?}: {}", finished.text());
    }
    Run::worker([""; 0]).finish().failed(2).says(&["--shard"]);
    Run::worker(["--shard", "-1"]).finish().failed(2);
    Run::worker(["--shard", "0"]).finish().failed(2).says(&["topology.toml"]);
}

#[test]
fn paths_that_are_not_there() {
    let nano = models::nano();
    let nano = nano.to_str().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["generate", "--loopback", "-m", "/nowhere", "-p", "x"], &["model /nowhere: no such folder"]),
        (&["generate", "--loopback", "-m", empty, "-p", "x"], &[empty, "config.json"]),
        (&["generate", "-t", "/nowhere.toml", "-p", "x"], &["no topology file /nowhere.toml"]),
        (&["verify", "--loopback", "-r", "/nowhere"], &["reference /nowhere: no such folder"]),
        (&["verify", "--loopback", "-m", nano, "-r", empty], &[empty, "expected.safetensors"]),
        (&["inspect", "/nowhere"], &["/nowhere: no such folder"]),
        (&["inspect", empty], &[empty, "this folder holds no checkpoint", "config.json"]),
        (&["keygen", "-t", "/nowhere.toml"], &["no topology file /nowhere.toml"]),
        (
            &["eval", "--loopback", "-m", nano, "--prompts", "/nowhere", "--out", "x"],
            &["/nowhere", "No such file"],
        ),
    ];
    for (args, said) in cases {
        Run::coord(*args).finish().failed(2).says(said);
    }
}

#[test]
fn a_missing_tensor_is_named_and_so_is_every_other() {
    let copy = Copy::of(&models::nano());
    let missing =
        ["model.layers.2.self_attn.o_proj.weight", "model.layers.4.mlp.experts.9.up_proj.weight_packed"];
    missing.iter().for_each(|name| copy.remove_tensor(name));
    let model = copy.path().to_str().unwrap();
    let runs =
        [Run::coord(["generate", "--loopback", "-p", "x", "--model", model]), Run::coord(["inspect", model])];
    for run in runs {
        run.finish().failed(2).says(&missing).says(&["missing"]);
    }
}

#[test]
fn a_file_that_is_cut_short_is_named() {
    let copy = Copy::of(&models::nano());
    let file = copy.path().join("model-00002-of-00002.safetensors");
    let whole = fs::read(&file).unwrap();
    for length in [0, 5, 1000, whole.len() - 1] {
        fs::write(&file, &whole[..length]).unwrap();
        let finished = Run::coord(["inspect"]).arg(copy.path()).finish().failed(2);
        finished.says(&["model-00002-of-00002.safetensors"]);
    }
}

#[test]
fn a_config_that_is_refused_names_field_and_value() {
    type Edit = fn(&mut Value);
    let cases: &[(Edit, &[&str])] = &[
        (|config| config["num_experts_per_tok"] = 300.into(), &["num_experts_per_tok", "300", "256"]),
        (|config| config["gating"] = "sometimes".into(), &["gating", "sometimes"]),
        (|config| config["layer_types"][1] = "round".into(), &["layer_types", "round"]),
        (
            |config| config["moe_apply_router_weight_on_input"] = true.into(),
            &["moe_apply_router_weight_on_input", "true"],
        ),
    ];
    for (edit, said) in cases {
        let copy = Copy::of(&models::nano());
        copy.edit_json("config.json", edit);
        Run::coord(["inspect"]).arg(copy.path()).finish().failed(2).says(said).says(&["config.json"]);
    }
}

#[test]
fn generate_writes_the_text_and_one_newline_and_nothing_else() {
    let finished = generate(&["-p", "def read_lines(path):\n", "-n", "10"]).finish().succeeded();
    assert_eq!(finished.text(), "    \"\"\"Return the pathname of the path.\n");
    let nothing = generate(&["-p", "x", "-n", "0"]).finish().succeeded();
    assert_eq!(nothing.text(), "\n");
    // LAGUNA_LOG silences the log, and only that.
    let quiet = generate(&["-p", "x", "-n", "1"]).env("LAGUNA_LOG", "error").finish().succeeded();
    assert!(!quiet.stderr.contains("INFO") && quiet.stderr.contains("decode: 1 tokens"), "{}", quiet.stderr);
}

/// The tokenizer adds the opening token itself, so an empty text is a prompt of one token.
#[test]
fn an_empty_prompt_is_the_opening_token_alone() {
    let finished = generate(&["-p", "", "-n", "3"]).finish().succeeded().says(&["prompt: 1 tokens"]);
    assert!(!finished.text().contains('〈'), "{}", finished.text());
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let long = "word ".repeat(4000);
    generate(&["-p", &long]).finish().failed(2).says(&["the prompt has", "context is 2048"]);
}

/// A reader that goes away, as `head` does, is no failure.
#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let runs = [
        generate(&["-p", "class Stack:\n", "-n", "1900"]).reader_leaves(),
        generate(&["-p", "x", "-n", "8"]).reader_is_absent(),
        Run::coord(["inspect"]).arg(models::nano()).reader_is_absent(),
        Run::coord(["inspect", "--json"]).arg(models::nano()).reader_is_absent(),
        Run::coord(["verify", "--loopback", "--reference"]).arg(models::fixture("bf16")).reader_is_absent(),
        Run::coord(["--help"]).reader_is_absent(),
    ];
    for run in runs {
        let finished = run.finish().succeeded();
        assert!(!finished.stderr.contains("error"), "{}", finished.stderr);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }
}

fn inspect(model: &Path) -> (String, Value) {
    let run = |json: bool| {
        let run = Run::coord(["inspect", "--shards", "4"]).arg(model);
        let finished = if json { run.arg("--json") } else { run }.finish().succeeded();
        assert_eq!(finished.stderr, "");
        finished.text()
    };
    (run(false), serde_json::from_str(run(true).trim()).unwrap())
}

#[test]
fn inspect_says_what_nano_is() {
    let (text, json) = inspect(&models::nano());
    for part in [
        "13.7 M parameters",
        "5 layers (3 sliding, 4 sparse)",
        "hidden 128, 256 experts top-8",
        "nvfp4, one by one",
        "routed experts",
        "experts 192..256",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(json["num_experts"], 256);
    assert_eq!(json["layers"], 5);
    let shards = json["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4);
    assert_eq!(shards[3]["experts"], serde_json::json!([192, 256]));
    let routed = json["parts"]["routed experts"]["bytes"].as_u64().unwrap();
    let held: u64 = shards.iter().map(|shard| shard["bytes"].as_u64().unwrap()).sum();
    assert_eq!(held, routed, "the shards hold every expert once");
    let number = |value: &Value| value.as_u64().unwrap();
    let parts: u64 = json["parts"].as_object().unwrap().values().map(|part| number(&part["bytes"])).sum();
    assert_eq!(parts, number(&json["trunk_bytes"]) + routed);
    assert!(parts + number(&json["unused_bytes"]) <= number(&json["file_bytes"]));
}

#[test]
fn inspect_knows_every_bundled_layout() {
    for model in models::fixtures() {
        let (text, json) = inspect(&model);
        assert!(
            text.contains("512") && json["expert_layouts"].as_object().is_some_and(|l| !l.is_empty()),
            "{text}"
        );
        assert_eq!(json["num_experts"], 16, "{}", model.display());
    }
}

/// `eval` on nano with this text as its prompts file.
fn eval(folder: &Path, prompts: &str, out: &Path) -> Finished {
    let file = folder.join("prompts.json");
    fs::write(&file, prompts).unwrap();
    let run = Run::coord(["eval", "--loopback", "--model"]).arg(models::nano());
    run.arg("--prompts").arg(file).arg("--out").arg(out).finish()
}

#[test]
fn eval_refuses_prompts_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let cases: &[(&str, &[&str])] = &[
        ("nonsense", &["prompts.json", "expected a list like"]),
        (r#"{"key": "a"}"#, &["expected a list like"]),
        (r#"[{"key": "a"}]"#, &["input_ids"]),
        (r#"[{"key": "a", "input_ids": []}]"#, &["\"a\"", "no input_ids"]),
        (r#"[{"key": "a", "input_ids": [2], "greed": 3}]"#, &["greed"]),
        (r#"[{"key": "a", "input_ids": [2]}, {"key": "a", "input_ids": [2]}]"#, &["\"a\"", "twice"]),
        (r#"[{"key": "a", "input_ids": [-2]}]"#, &["-2"]),
    ];
    for (prompts, said) in cases {
        eval(folder.path(), prompts, &out).failed(2).says(said);
        assert_eq!(names(folder.path()), ["prompts.json"], "nothing is half-written");
    }
    // An id outside the vocabulary is known only once there is a model.
    let finished = eval(folder.path(), r#"[{"key": "a", "input_ids": [2, 2048]}]"#, &out);
    assert!(matches!(finished.status.code(), Some(1 | 2)), "{}", finished.stderr);
    finished.says(&["error:", "2048"]);
    assert_eq!(names(folder.path()), ["prompts.json"], "nothing is half-written");
}

#[test]
fn eval_writes_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = r#"[{"key": "a", "input_ids": [2, 17], "greedy": 2}]"#;
    let missing = folder.path().join("no/such/folder/out");
    eval(folder.path(), prompts, &missing).failed(2).says(&["--out", "no/such/folder"]);
    // A folder where the file should be.
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    let finished = eval(folder.path(), prompts, &taken);
    assert!(matches!(finished.status.code(), Some(1 | 2)), "{}", finished.stderr);
    assert!(finished.stderr.contains("taken"), "{}", finished.stderr);
    assert_eq!(names(folder.path()), ["prompts.json", "taken"], "nothing is half-written");
    // An old file stays what it was until the new one is whole.
    let out = folder.path().join("out");
    fs::write(&out, "old").unwrap();
    eval(folder.path(), "[{", &out).failed(2);
    assert_eq!(fs::read_to_string(&out).unwrap(), "old");
    let finished = eval(folder.path(), prompts, &out).succeeded();
    assert!(finished.stdout.is_empty(), "{}", finished.text());
    assert!(fs::metadata(&out).unwrap().len() > 2 * 2048 * 4);
    assert_eq!(names(folder.path()), ["out", "prompts.json", "taken"]);
}

#[test]
fn a_device_that_is_full_is_an_error() {
    if !Path::new("/dev/full").exists() {
        return;
    }
    let full = PathBuf::from("/dev/full");
    let run = Run::coord(["inspect"]).arg(models::nano());
    run.stdout_to(&full).finish().failed(1).says(&["stdout", "No space left"]);
}

#[test]
fn verify_says_what_a_trunk_of_fewer_bits_changes() {
    let verify = |bits: &str| {
        let run =
            Run::coord(["--loopback=2", "verify", "--json", "--trunk-bits", bits, "--prompt", "def main():"]);
        let finished = run.args(["--reference"]).arg(models::nano()).finish().succeeded();
        let lines: Vec<Value> =
            finished.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(lines.len() > 1 && lines[0]["prompt"] == "--prompt", "{lines:?}");
        lines.iter().map(|line| line["drift"]["kl_mean"].as_f64().expect("a number")).fold(0.0, f64::max)
    };
    let (eight, four) = (verify("8"), verify("4"));
    // Neither is free, and half the bits cost more than twice as much.
    assert!(0.0 < eight && 2.0 * eight < four, "{eight} {four}");
    let nothing =
        Run::coord(["--loopback=1", "verify", "--prompt", "x", "--model"]).arg(models::nano()).finish();
    nothing.failed(2).says(&["--trunk-bits"]);
}

#[test]
fn a_trace_shows_every_stage_of_every_layer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("trace.json");
    let generate = |trace: &Path| {
        let run = Run::coord(["--loopback=2", "generate", "--greedy", "-n", "6", "--prompt", "import os"]);
        run.arg("--trace").arg(trace).arg("--model").arg(models::nano()).finish()
    };
    let traced = generate(&file).succeeded().says(&["attention", "router", "worker compute", "head"]);
    let plain =
        Run::coord(["--loopback=2", "generate", "--greedy", "-n", "6", "--prompt", "import os", "--model"]);
    assert_eq!(traced.text(), plain.arg(models::nano()).finish().succeeded().text());

    let trace: Value = serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("it is JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let spans =
        |name: &str| events.iter().filter(|event| event["name"] == name && event["ph"] == "X").collect();
    let spans = |name: &str| -> Vec<&Value> { spans(name) };
    // A prompt's pass and five more; one of five layers is dense; two shards.
    assert_eq!(spans("pass").len(), 6);
    assert_eq!(spans("attention").len(), 30);
    assert_eq!((spans("dense MLP").len(), spans("router").len()), (6, 24));
    assert_eq!((spans("worker compute").len(), spans("head").len()), (48, 6));
    // The engine thread's stages lie inside their passes.
    let time = |event: &Value, key: &str| event[key].as_f64().expect("a number");
    let passes = spans("pass");
    for event in spans("attention") {
        let (start, end) = (time(event, "ts"), time(event, "ts") + time(event, "dur"));
        let inside =
            |pass: &&&Value| time(pass, "ts") <= start && end <= time(pass, "ts") + time(pass, "dur") + 0.01;
        assert_eq!(passes.iter().filter(inside).count(), 1, "{event}");
    }
    generate(&folder.path().join("no/such/folder.json")).failed(2).says(&["--trace", "no/such/folder.json"]);
}
