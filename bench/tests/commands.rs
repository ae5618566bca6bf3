//! The program as it is used, at its quickest: every measurement runs, between real processes, and its JSON has the
//! fields that others read. No time is asserted.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Cargo builds a package's programs before its integration tests, into the folder above theirs.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    folder.join(format!("laguna-bench{}", std::env::consts::EXE_SUFFIX))
}

fn bench(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().expect("the program starts")
}

fn results(args: &[&str]) -> Vec<Value> {
    let output = bench(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["machine"]["cpus"].as_u64().is_some_and(|cpus| cpus > 0), "{report}");
    report["results"].as_array().expect("results").clone()
}

fn positive(result: &Value, fields: &[&str]) {
    for field in fields {
        assert!(result[field].as_f64().is_some_and(|value| value > 0.0), "{field} in {result}");
    }
}

#[test]
fn exchange_measures_every_variant() {
    let quick =
        ["exchange", "--json", "--quick", "--repeats", "2", "--workers", "1,2", "--payloads", "decode,3mib"];
    let results = results(&quick);
    // Decode to one and to two workers, 3 MiB to one, at two cadences.
    assert_eq!(results.len(), 3 * 2);
    for result in &results {
        positive(
            result,
            &[
                "udp_p50_us",
                "tcp_p50_us",
                "tls_p50_us",
                "quic_p50_us",
                "quic_p99_us",
                "ratio_p50",
                "in_memory_p50_us",
            ],
        );
    }
    assert_eq!((&results[0]["payload"], &results[0]["cadence"]), (&"decode".into(), &"back_to_back".into()));
}

#[test]
fn experts_are_near_the_oracle() {
    let results =
        results(&["experts", "--json", "--quick", "--banks", "cpu,mlx,reference", "--rows", "1,16"]);
    assert_eq!(results.len(), 6);
    for result in &results {
        positive(result, &["read_gb_s", "expert_gb_s", "share", "mlx_ratio", "load_ratio", "rms"]);
        assert!(result["rms"].as_f64().is_some_and(|rms| rms < 1e-5), "{result}");
    }
}

#[test]
fn products_are_measured_in_every_format() {
    let results = results(&["products", "--json", "--quick", "--rows", "1,5", "--threads", "1,2"]);
    assert_eq!(results.len(), 5 * 2 * 2);
    for result in &results {
        positive(result, &["p50_us", "read_gb_s", "weight_gb_s", "share"]);
    }
    assert_eq!((&results[8]["format"], &results[8]["rows"]), (&"affine4".into(), &1.into()));
}

#[test]
fn whole_models_run_in_every_set_up() {
    let results = results(&["e2e", "--json", "--repeats", "1", "--prompt", "12", "--tokens", "4"]);
    assert_eq!(results.len(), 4);
    for result in &results {
        positive(result, &["prefill_tok_s", "decode_tok_s", "us_per_layer", "peak_bytes"]);
    }
    positive(&results[3], &["worker_peak_bytes"]);
}

#[test]
fn links_are_measured_and_a_prediction_stands_beside() {
    let short = ["--repeats", "1", "--prompt", "12", "--tokens", "4", "--set-ups", "processes-1"];
    let results = results(&[&["e2e", "--json", "--link", "thunderbolt,wifi"], &short[..]].concat());
    assert_eq!(results.len(), 3);
    assert_eq!((&results[0]["link"], &results[0]["model"]), (&Value::Null, &Value::Null));
    for (result, link) in results[1..].iter().zip(["thunderbolt", "wifi"]) {
        assert_eq!(result["link"], link);
        positive(result, &["decode_tok_s", "predicted_tok_s", "of_predicted", "bank_us"]);
        positive(&result["model"], &["trunk_us", "layers", "bank_us", "protocol_us", "round_trip_us"]);
        assert_eq!(result["same_tokens"], true, "{result}");
    }
    let refused = bench(&["e2e", "--link", "wifi", "--set-ups", "loopback-1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a link needs a set-up of processes"));
    assert_eq!(bench(&["e2e", "--link", "dsl"]).status.code(), Some(2));
}

#[test]
fn every_preset_delays_at_least_as_it_says() {
    let results = results(&["link", "--json", "--quick"]);
    let names: Vec<_> = results.iter().map(|result| result["link"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["none", "plain", "thunderbolt", "10gbe", "wifi"]);
    for result in &results {
        positive(result, &["p50_us", "p99_us", "decode_p50_us", "bit_s"]);
        let number = |field: &str| result[field].as_f64().expect("a number");
        // Jitter may shorten one round trip, by a third of wifi's at most; a clock never does.
        assert!(number("p50_us") >= number("promised_us") * 0.3, "{result}");
    }
}

#[test]
fn every_axis_is_measured() {
    let results = results(&["scale", "--json", "--quick"]);
    let cases: Vec<_> =
        results.iter().map(|r| format!("{} {}", r["axis"], r["value"]).replace('"', "")).collect();
    let expected = [
        "shards 1",
        "shards 2",
        "rows 1",
        "rows 4",
        "prompt 4",
        "prompt 8",
        "experts 4",
        "experts 8",
        "link none",
        "link thunderbolt",
    ];
    assert_eq!(cases, expected);
    for result in &results {
        positive(
            result,
            &["prefill_tok_s", "decode_tok_s", "decode_ratio", "us_per_layer", "worker_peak_bytes"],
        );
    }
}

#[test]
fn the_recorders_calls_are_counted_and_timed() {
    let results = results(&["recorder", "--json", "--quick", "--set-ups", "loopback-1"]);
    assert_eq!(results.len(), 1);
    let times = ["stage_off_ns", "enter_off_ns", "call_off_ns", "step_off_us", "step_on_us"];
    positive(&results[0], &[&times[..], &["stages", "enters", "calls", "share_off", "ratio_on"]].concat());
}

#[test]
fn loads_are_measured_beside_reads() {
    let results = results(&["load", "--json", "--quick", "--shards", "1,4"]);
    let files = if cfg!(target_os = "linux") { 2 } else { 1 };
    assert_eq!(results.len(), 3 * files);
    for result in &results {
        positive(result, &["load_s", "read_s", "ratio", "peak_bytes", "shard_bytes", "peak_ratio"]);
        // The bundled model's process has more than its weights in memory, and never less.
        assert!(result["peak_ratio"].as_f64().is_some_and(|ratio| ratio > 1.0), "{result}");
    }
    let bytes = |n: usize| results[n * files]["shard_bytes"].as_u64().expect("bytes");
    assert_eq!(bytes(1), 4 * bytes(2));
}

#[test]
fn synthetic_checkpoints_are_written_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("model");
    let args = ["synth", "--shape", "tiny", "--layout", "stacked", "--out", out.to_str().expect("UTF-8")];
    assert!(bench(&args).status.success());
    assert!(Path::exists(&out.join("config.json")));
    let again = bench(&args);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("holds a checkpoint already"));
}
