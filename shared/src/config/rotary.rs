//! The rope schemas: nested per layer type, flat, loose, old (`rope_scaling`, `swa_rope_parameters`), or absent.

use serde_json::{Map, Value};

use super::{
    fields::{Fields, Issues},
    layers::AttentionKind,
    model::ModelConfig,
    parse::{AttentionFactor, ConfigOptions},
    rope::{RopeConfig, RopeScaling},
};

/// Rotary embedding of the layers of `kind`.
pub(super) fn read(
    top: &Fields<'_>,
    kind: AttentionKind,
    config: &ModelConfig,
    options: &ConfigOptions,
    issues: &mut Issues,
) -> RopeConfig {
    let source = find(top, kind, issues);
    let theta = issues
        .optional_number(&source.entry, "rope_theta", THETA)
        .or_else(|| source.top_theta.then(|| issues.optional_number(top, "rope_theta", THETA))?)
        .unwrap_or(source.default_theta);
    let partial = issues
        .optional_number(&source.entry, "partial_rotary_factor", PARTIAL)
        .or_else(|| {
            source.top_partial.then(|| issues.optional_number(top, "partial_rotary_factor", PARTIAL))?
        })
        .unwrap_or(source.default_partial);
    // Truncated, as the reference does.
    let rotary_dims = (config.head_dim as f64 * partial) as usize;
    if rotary_dims == 0 || !rotary_dims.is_multiple_of(2) {
        issues.at(
            &source.entry.path("partial_rotary_factor"),
            Some(partial.to_string()),
            format!("a share of head_dim ({}) that is even and not 0", config.head_dim),
        );
    }
    let (scaling, attention_factor) = scaling(&source.entry, top, kind, config, options, issues);
    RopeConfig { theta, rotary_dims, scaling, attention_factor }
}

/// Where a layer type's parameters come from, and what fills the gaps.
struct Source<'a> {
    entry: Fields<'a>,
    /// Whether the top-level `rope_theta` applies before the default.
    top_theta: bool,
    /// Whether the top-level `partial_rotary_factor` applies before the default.
    top_partial: bool,
    default_theta: f64,
    default_partial: f64,
}

fn find<'a>(top: &Fields<'a>, kind: AttentionKind, issues: &mut Issues) -> Source<'a> {
    for key in ["rope_parameters", "rope_scaling", "swa_rope_parameters"] {
        if let Some(found) = top.get(key).filter(|found| !found.value.is_object()) {
            issues.wrong(&found, "an object");
        }
    }
    let sliding = kind == AttentionKind::Sliding;
    let old = top.object("rope_scaling").filter(|(_, map)| !map.is_empty());
    let parameters = top.object("rope_parameters").filter(|(_, map)| !map.is_empty()).or_else(|| old.clone());
    let entry = |entry, top_partial| Source {
        entry,
        top_theta: true,
        top_partial,
        default_theta: FULL_THETA,
        default_partial: 1.0,
    };

    let nested = parameters.as_ref().filter(|(_, map)| is_nested(map));
    if let Some((path, map)) = nested
        && let Some((name, own)) =
            kind.names().iter().find_map(|name| Some((name, map.get(*name)?.as_object()?)))
    {
        // Scalars beside the entries are defaults of each. A sliding layer rotates the whole head unless its own
        // entry says otherwise: the top-level share is the full layers'.
        return entry(Fields::new(&format!("{path}.{name}"), own).or(path, map), !sliding);
    }
    if sliding && let Some((path, map)) = top.object("swa_rope_parameters") {
        return Source {
            entry: Fields::new(&path, map),
            top_theta: false,
            top_partial: false,
            default_theta: SLIDING_THETA,
            default_partial: 1.0,
        };
    }
    match parameters {
        // Other types have an entry, this one has none: plain rope from the top-level keys.
        Some(_) if nested.is_some() => entry(Fields::default(), true),
        // Flat: one set for every layer.
        Some((path, map)) => {
            let own = Fields::new(&path, map);
            let own = match &old {
                Some((old_path, old_map)) if *old_path != path => own.or(old_path, old_map),
                _ => own,
            };
            entry(own, true)
        }
        None => Source {
            entry: Fields::default(),
            top_theta: !sliding,
            top_partial: !sliding,
            default_theta: if sliding { SLIDING_THETA } else { FULL_THETA },
            default_partial: if sliding { 1.0 } else { 0.5 },
        },
    }
}

fn is_nested(map: &Map<String, Value>) -> bool {
    map.iter().any(|(key, value)| value.is_object() && AttentionKind::named(key).is_some())
}

fn scaling(
    entry: &Fields<'_>,
    top: &Fields<'_>,
    kind: AttentionKind,
    config: &ModelConfig,
    options: &ConfigOptions,
    issues: &mut Issues,
) -> (RopeScaling, f64) {
    const NONE: (RopeScaling, f64) = (RopeScaling::Default, 1.0);
    let Some(found) = entry.get("rope_type").or_else(|| entry.get("type")) else { return NONE };
    match found.value.as_str() {
        Some("default") => NONE,
        // An old schema writes "linear" without a factor where it means "default".
        Some("linear") => match issues.number(entry, "factor", FACTOR, 1.0) {
            1.0 => NONE,
            factor => (RopeScaling::Linear { factor }, 1.0),
        },
        Some("yarn") => {
            let original = issues
                .optional_number(entry, ORIGINAL, 1.0..=1e12)
                .or_else(|| issues.optional_number(top, ORIGINAL, 1.0..=1e12))
                .unwrap_or(config.max_position_embeddings as f64);
            let factor = issues.optional_number(entry, "factor", FACTOR).unwrap_or_else(|| {
                if entry.get("factor").is_none() {
                    issues.missing(&entry.path("factor"), "a number from 1 up, as rope_type is \"yarn\"");
                }
                1.0
            });
            let beta_fast = issues.number(entry, "beta_fast", BETA, 32.0);
            let beta_slow = issues.number(entry, "beta_slow", BETA, 1.0);
            if beta_slow > beta_fast {
                let expected = format!("at most beta_fast, {beta_fast}");
                issues.at(&entry.path("beta_slow"), Some(beta_slow.to_string()), expected);
            }
            let scaling = RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
            };
            (scaling, attention_factor(entry, kind, factor, options, issues))
        }
        _ => {
            issues.wrong(&found, "\"default\", \"linear\" or \"yarn\"");
            NONE
        }
    }
}

fn attention_factor(
    entry: &Fields<'_>,
    kind: AttentionKind,
    factor: f64,
    options: &ConfigOptions,
    issues: &mut Issues,
) -> f64 {
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let scale = |key, issues: &mut Issues| issues.optional_number(entry, key, 0.0..=1e3).filter(|m| *m > 0.0);
    let derived = match (scale("mscale", issues), scale("mscale_all_dim", issues)) {
        (Some(own), Some(all)) => mscale(own) / mscale(all),
        _ => mscale(1.0),
    };
    // 0 means "not stated", as in the reference.
    let Some(stated) = scale("attention_factor", issues) else { return derived };
    let used = match options.attention_factor {
        AttentionFactor::FromConfig => stated,
        AttentionFactor::Derived => derived,
    };
    if (stated - derived).abs() > 1e-6 * derived {
        tracing::warn!(
            field = %entry.path("attention_factor"),
            stated,
            derived,
            used,
            "attention_factor of {} layers is not what the YaRN factor {factor} gives",
            if kind == AttentionKind::Full { "full" } else { "sliding" },
        );
    }
    used
}

const ORIGINAL: &str = "original_max_position_embeddings";
/// transformers' defaults.
const FULL_THETA: f64 = 500_000.0;
const SLIDING_THETA: f64 = 10_000.0;
/// Base 1 would make every frequency 1 (and YaRN divide by ln 1).
const THETA: std::ops::RangeInclusive<f64> = 1.000_1..=1e15;
const PARTIAL: std::ops::RangeInclusive<f64> = 0.0..=1.0;
const FACTOR: std::ops::RangeInclusive<f64> = 1.0..=1e6;
const BETA: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
