//! Results on stdout, as a table for eyes or as JSON for machines; progress on stderr. Nothing else writes there.
#![allow(clippy::print_stderr)]

use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

use crate::error::BenchError;
use crate::exchange::measure::{Record as Exchange, Spinning};
use crate::machine::Machine;
use crate::products::measure::Record as Products;
use crate::{e2e::measure::Record as EndToEnd, experts::measure::Record as Experts};

/// A result that has a line in a table.
pub trait Row: Serialize {
    /// Name of the measurement.
    const BENCH: &'static str;

    /// Column heads.
    const HEADS: &'static [&'static str];

    /// One text a column.
    fn cells(&self) -> Vec<String>;
}

/// Tells a person what is going on.
pub fn progress(line: &str) {
    eprintln!("bench: {line}");
}

/// Writes results to stdout.
///
/// # Errors
/// If stdout is gone.
pub fn print<R: Row>(machine: &Machine, rows: &[R], as_json: bool) -> Result<(), BenchError> {
    let text = if as_json {
        format!("{:#}\n", json!({ "bench": R::BENCH, "machine": machine, "results": rows }))
    } else {
        let Machine { os, cpu, cpus, load, .. } = machine;
        let load = load.map_or_else(|| "unknown".to_owned(), |load| load.to_string());
        let slow = if machine.optimised { "" } else { "  (not optimised: build with --release)\n" };
        format!("{}: {os}, {cpus} CPUs, {cpu}, load {load}\n{slow}{}", R::BENCH, table(rows))
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(BenchError::io("stdout"))
}

/// A variant's name as JSON has it.
pub fn name(variant: &impl Serialize) -> String {
    let value = serde_json::to_value(variant).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn table<R: Row>(rows: &[R]) -> String {
    let heads = R::HEADS.iter().map(|head| (*head).to_owned()).collect();
    let lines: Vec<Vec<String>> = std::iter::once(heads).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..R::HEADS.len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (n, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let width = *width;
            // Names to the left, numbers to the right.
            text.push_str(&if n == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") });
        }
        text.push('\n');
    }
    text
}

impl Row for Exchange {
    const BENCH: &'static str = "exchange";
    const HEADS: &'static [&'static str] = &[
        "payload",
        "cadence",
        "workers",
        "UDP µs",
        "TCP µs",
        "TLS µs",
        "quinn µs",
        "QUIC µs",
        "p99 µs",
        "bank µs",
        "memory µs",
        "×UDP",
        "×TLS",
        "p99/p50",
        "spin: UDP µs",
        "QUIC µs",
        "p99 µs",
        "×UDP",
        "allocations",
        "worker's",
    ];

    fn cells(&self) -> Vec<String> {
        let spin = |number: fn(&Spinning) -> f64, digits: usize| {
            self.spin.as_ref().map_or_else(|| "–".to_owned(), |spin| format!("{:.digits$}", number(spin)))
        };
        vec![
            name(&self.payload),
            name(&self.cadence),
            self.workers.to_string(),
            format!("{:.1}", self.udp_p50_us),
            format!("{:.1}", self.tcp_p50_us),
            format!("{:.1}", self.tls_p50_us),
            format!("{:.1}", self.quinn_p50_us),
            format!("{:.1}", self.quic_p50_us),
            format!("{:.1}", self.quic_p99_us),
            format!("{:.1}", self.quic_bank_p50_us),
            format!("{:.1}", self.in_memory_p50_us),
            format!("{:.2}", self.ratio_p50),
            format!("{:.2}", self.ratio_tls_p50),
            format!("{:.2}", self.ratio_tail),
            spin(|spin| spin.udp_p50_us, 1),
            spin(|spin| spin.quic_p50_us, 1),
            spin(|spin| spin.quic_p99_us, 1),
            spin(|spin| spin.ratio_p50, 2),
            format!("{:.1}", self.allocations_per_call),
            format!("{:.1}", self.worker_allocations_per_call),
        ]
    }
}

impl Row for Products {
    const BENCH: &'static str = "products";
    const HEADS: &'static [&'static str] =
        &["format", "isa", "threads", "rows", "calls", "ms", "read GB/s", "weight GB/s", "share"];

    fn cells(&self) -> Vec<String> {
        vec![
            name(&self.format),
            self.isa.to_owned(),
            self.threads.to_string(),
            self.rows.to_string(),
            self.calls.to_string(),
            format!("{:.2}", self.p50_us / 1e3),
            format!("{:.2}", self.read_gb_s),
            format!("{:.2}", self.weight_gb_s),
            format!("{:.0} %", self.share * 100.0),
        ]
    }
}

impl Row for Experts {
    const BENCH: &'static str = "experts";
    const HEADS: &'static [&'static str] = &[
        "bank",
        "rows",
        "calls",
        "ms",
        "read GB/s",
        "expert GB/s",
        "share",
        "GFLOP/s",
        "×mlx",
        "×mlx bf16",
        "load ×read",
        "rms",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.bank.clone(),
            self.rows.to_string(),
            self.calls.to_string(),
            format!("{:.2}", self.p50_us / 1e3),
            format!("{:.2}", self.read_gb_s),
            format!("{:.3}", self.expert_gb_s),
            format!("{:.2} %", self.share * 100.0),
            format!("{:.2}", self.gflop_s),
            format!("{:.2}", self.mlx_ratio),
            format!("{:.1}", self.mlx_bf16_ratio),
            format!("{:.2}", self.load_ratio),
            format!("{:.1e}", self.rms),
        ]
    }
}

impl Row for EndToEnd {
    const BENCH: &'static str = "e2e";
    const HEADS: &'static [&'static str] = &[
        "set-up",
        "link",
        "bank",
        "prompt",
        "tokens",
        "prefill tok/s",
        "decode tok/s",
        "decode ×",
        "predicted",
        "of it",
        "µs/layer",
        "p99",
        "peak MB",
        "worker MB",
        "same tokens",
    ];

    fn cells(&self) -> Vec<String> {
        let megabytes = |bytes: u64| format!("{:.0}", bytes as f64 / 1e6);
        vec![
            name(&self.set_up),
            self.link.clone().unwrap_or_else(|| "none".to_owned()),
            self.bank.clone(),
            self.prompt.to_string(),
            self.tokens.to_string(),
            format!("{:.1}", self.prefill_tok_s),
            format!("{:.1}", self.decode_tok_s),
            format!("{:.2}", self.decode_ratio),
            self.predicted_tok_s.map_or_else(String::new, |predicted| format!("{predicted:.1}")),
            self.of_predicted.map_or_else(String::new, |part| format!("{part:.2}")),
            format!("{:.0}", self.us_per_layer),
            format!("{:.0}", self.us_per_layer_p99),
            megabytes(self.peak_bytes),
            megabytes(self.worker_peak_bytes),
            if self.same_tokens { "yes" } else { "no" }.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Line(&'static str, f64);

    impl Row for Line {
        const BENCH: &'static str = "lines";
        const HEADS: &'static [&'static str] = &["name", "µs"];

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_string()]
        }
    }

    #[test]
    fn columns_line_up() {
        let text = table(&[Line("a", 1.5), Line("longer", 100.0)]);
        assert_eq!(text, "name     µs\na       1.5\nlonger  100\n");
    }
}
