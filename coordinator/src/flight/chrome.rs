//! A recording as a Chrome trace (the "Trace Event Format"): opens in `chrome://tracing` and ui.perfetto.dev.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::recorder::{Span, Stage};

/// Writes the spans, one event a line. The engine thread and each shard have a track of their own; a shard's wire is
/// drawn as what surrounds its queue and arithmetic.
///
/// # Errors
/// Those of `out`.
pub fn write<'s>(spans: impl Iterator<Item = &'s Span>, out: &mut impl Write) -> io::Result<()> {
    let mut tracks = BTreeSet::new();
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut separator = "\n";
    // A round trip that surrounds the others shows its wire by itself.
    for span in spans.filter(|span| span.stage != Stage::Wire) {
        let track = track(span);
        if tracks.insert(track) {
            write!(out, "{separator}{}", name(span, track))?;
            separator = ",\n";
        }
        write!(out, "{separator}{}", event(span, track))?;
    }
    writeln!(out, "\n]}}")
}

fn event(span: &Span, track: u32) -> Value {
    let micros = |time: std::time::Duration| time.as_nanos() as f64 / 1e3;
    let mut args = json!({ "rows": span.rows });
    if let Some(layer) = span.layer {
        args["layer"] = layer.0.into();
    }
    json!({
        "name": span.stage.to_string(),
        "ph": "X",
        "ts": micros(span.start),
        "dur": micros(span.took),
        "pid": PROCESS,
        "tid": track,
        "args": args,
    })
}

/// The track's name, as the format wants it told.
fn name(span: &Span, track: u32) -> Value {
    let name = span.shard.map_or_else(|| "engine".to_owned(), |shard| shard.to_string());
    json!({ "name": "thread_name", "ph": "M", "pid": PROCESS, "tid": track, "args": { "name": name } })
}

fn track(span: &Span) -> u32 {
    span.shard.map_or(0, |shard| u32::from(shard.0) + 1)
}

/// Everything is shown as one process.
const PROCESS: u32 = 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use laguna_shared::ids::{LayerId, ShardId};

    use super::*;

    #[test]
    fn a_trace_is_json_with_named_tracks() {
        let span = |stage, shard| Span {
            stage,
            layer: Some(LayerId(4)),
            shard,
            rows: 2,
            start: Duration::from_nanos(1500),
            took: Duration::from_micros(7),
        };
        let spans = [
            span(Stage::Attention, None),
            span(Stage::Compute, Some(ShardId(0))),
            span(Stage::Wire, Some(ShardId(0))),
        ];
        let mut text = Vec::new();
        write(spans.iter(), &mut text).unwrap();
        let trace: Value = serde_json::from_slice(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<&str> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["thread_name", "attention", "thread_name", "worker compute"]);
        assert_eq!(events[3]["ts"], 1.5);
        assert_eq!(events[3]["dur"], 7.0);
        assert_eq!(events[3]["args"], json!({ "rows": 2, "layer": 4 }));
        assert_eq!(events[2]["args"]["name"], "shard 0");
        let mut empty = Vec::new();
        write([].iter(), &mut empty).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&empty).unwrap()["traceEvents"], json!([]));
    }
}
