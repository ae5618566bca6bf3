//! Lists with an entry per layer: attention type, heads, window, dense or sparse.

use serde_json::Value;

use super::{
    fields::{Fields, Found, Issues},
    model::{LayerConfig, MlpKind, ModelConfig},
    parse::{ConfigOptions, MAX_HEADS},
    rope::RopeConfig,
    rotary,
};

/// Attention type of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttentionKind {
    Full,
    Sliding,
}

impl AttentionKind {
    /// Names it goes by, the usual one first.
    pub(super) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Full => &["full_attention", "global_attention", "full", "global"],
            Self::Sliding => &["sliding_attention", "sliding_window_attention", "sliding", "swa"],
        }
    }

    /// The kind with that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Full, Self::Sliding].into_iter().find(|kind| kind.names().contains(&name))
    }
}

/// One entry per decoder layer. `config` has everything but its layers.
pub(super) fn read(
    top: &Fields<'_>,
    config: &ModelConfig,
    count: usize,
    options: &ConfigOptions,
    issues: &mut Issues,
) -> Vec<LayerConfig> {
    let kinds = attention_kinds(top, count, issues);
    let heads = heads(top, config, count, issues);
    let mlps = mlp_kinds(top, config, count, issues);
    let window = sliding_window(top, issues);
    let mut rope = |kind| {
        if kinds.contains(&kind) {
            rotary::read(top, kind, config, options, issues)
        } else {
            RopeConfig::default()
        }
    };
    let (full, sliding) = (rope(AttentionKind::Full), rope(AttentionKind::Sliding));
    kinds
        .into_iter()
        .zip(heads)
        .zip(mlps)
        .map(|((kind, num_attention_heads), mlp)| LayerConfig {
            num_attention_heads,
            sliding_window: window.filter(|_| kind == AttentionKind::Sliding),
            rope: if kind == AttentionKind::Full { full.clone() } else { sliding.clone() },
            mlp,
        })
        .collect()
}

fn attention_kinds(top: &Fields<'_>, count: usize, issues: &mut Issues) -> Vec<AttentionKind> {
    per_layer(top, "layer_types", count, issues, |value, path, issues| {
        let kind = value.as_str().and_then(AttentionKind::named);
        if kind.is_none() {
            issues.wrong(&Found { path, value }, "\"full_attention\" or \"sliding_attention\"");
        }
        kind
    })
    .unwrap_or_else(|| vec![AttentionKind::Full; count])
}

fn heads(top: &Fields<'_>, config: &ModelConfig, count: usize, issues: &mut Issues) -> Vec<usize> {
    const KEY: &str = "num_attention_heads_per_layer";
    let kv = config.num_key_value_heads;
    let divisible = |n: usize, found: &Found<'_>, issues: &mut Issues| {
        if !n.is_multiple_of(kv) {
            issues.wrong(found, format!("a multiple of num_key_value_heads, {kv}"));
        }
    };
    let listed = per_layer(top, KEY, count, issues, |value, path, issues| {
        let found = Found { path, value };
        let n = issues.integer(&found, 1..=MAX_HEADS)?;
        divisible(n, &found, issues);
        Some(n)
    });
    if let Some(listed) = listed {
        return listed;
    }
    let n = issues.count(top, "num_attention_heads", 1..=MAX_HEADS, None);
    if let Some(found) = top.get("num_attention_heads") {
        divisible(n, &found, issues);
    }
    vec![n; count]
}

fn mlp_kinds(top: &Fields<'_>, config: &ModelConfig, count: usize, issues: &mut Issues) -> Vec<MlpKind> {
    let experts = config.num_experts;
    let listed = per_layer(top, "mlp_layer_types", count, issues, |value, path, issues| {
        let kind = match value.as_str() {
            Some("dense") => Some(MlpKind::Dense),
            Some("sparse") if experts > 0 => Some(MlpKind::Sparse),
            _ => None,
        };
        if kind.is_none() {
            let expected =
                if experts > 0 { "\"dense\" or \"sparse\"" } else { "\"dense\", as num_experts is 0" };
            issues.wrong(&Found { path, value }, expected);
        }
        kind
    });
    if let Some(listed) = listed {
        return listed;
    }
    // Absent keys mean: layer 0 dense, every other one sparse.
    let step = issues.count(top, "decoder_sparse_step", 1..=count.max(1), Some(1));
    let dense = match issues.array(top, "mlp_only_layers") {
        None => vec![0],
        Some((path, items)) => items
            .iter()
            .enumerate()
            .filter_map(|(i, value)| {
                issues.integer(&Found { path: format!("{path}.{i}"), value }, 0..=count - 1)
            })
            .collect(),
    };
    let sparse = |n: &usize| experts > 0 && !dense.contains(n) && (n + 1).is_multiple_of(step);
    (0..count).map(|n| if sparse(&n) { MlpKind::Sparse } else { MlpKind::Dense }).collect()
}

/// Keys in the window, the query's own included; `None` when the config says 0 or `null`.
fn sliding_window(top: &Fields<'_>, issues: &mut Issues) -> Option<usize> {
    if top.raw("sliding_window").is_some_and(|found| found.value.is_null()) {
        return None;
    }
    Some(issues.count(top, "sliding_window", 0..=1 << 30, Some(512))).filter(|n| *n > 0)
}

/// A list with one entry a layer; `None` when the key is absent or the list unusable (then noted).
fn per_layer<'a, T>(
    top: &Fields<'a>,
    key: &str,
    count: usize,
    issues: &mut Issues,
    mut read: impl FnMut(&'a Value, String, &mut Issues) -> Option<T>,
) -> Option<Vec<T>> {
    let (path, items) = issues.array(top, key)?;
    if items.len() != count {
        issues.at(
            &path,
            Some(format!("{} entries", items.len())),
            format!("one per layer, num_hidden_layers = {count}"),
        );
        return None;
    }
    let read: Vec<_> =
        items.iter().enumerate().map(|(i, value)| read(value, format!("{path}.{i}"), issues)).collect();
    read.into_iter().collect()
}
