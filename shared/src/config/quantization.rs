//! The MLX table: `quantization`, or `quantization_config` where it is of the same form. Other quantisers' tables are
//! not read: what a tensor is, its own dtype tells.

use serde_json::{Map, Value};

use crate::weights::names;

use super::{
    fields::{Fields, Found, Issues},
    model::{MlxMode, MlxQuantization, Quantization},
};

pub(super) fn read(top: &Fields<'_>, issues: &mut Issues) -> Quantization {
    let mlx = |key| {
        top.object(key).filter(|(_, map)| map.contains_key("bits") && !map.contains_key("quant_method"))
    };
    let Some((path, map)) = mlx("quantization").or_else(|| mlx("quantization_config")) else {
        return Quantization::default();
    };
    let default = entry(&path, map, issues);
    let mut overrides = std::collections::BTreeMap::new();
    for (key, value) in map {
        let at = format!("{path}.{key}");
        let own = match value {
            Value::Object(own) => entry(&at, own, issues),
            // `true`: as the default says.
            Value::Bool(true) if key.contains('.') => default,
            Value::Bool(false) if key.contains('.') => None,
            _ => continue,
        };
        overrides.insert(names::canonical(key).to_owned(), own);
    }
    Quantization { default, overrides }
}

fn entry(path: &str, map: &Map<String, Value>, issues: &mut Issues) -> Option<MlxQuantization> {
    let fields = Fields::new(path, map);
    // Without a mode an entry is affine, also under another default: mlx's own rule.
    let mode = match fields.get("mode") {
        None => MlxMode::Affine,
        Some(found) => match found.value.as_str() {
            Some("affine") => MlxMode::Affine,
            Some("nvfp4") => MlxMode::Nvfp4,
            _ => {
                issues.wrong(&found, "\"affine\" or \"nvfp4\"");
                return None;
            }
        },
    };
    let (bits, groups, group): (&[usize], &[usize], usize) = match mode {
        MlxMode::Affine => (&[2, 3, 4, 5, 6, 8], &[32, 64, 128], 64),
        MlxMode::Nvfp4 => (&[4], &[16], 16),
    };
    let mut one_of = |key, allowed: &[usize], default| match fields.get(key) {
        None => Some(default),
        Some(found) => pick(&found, allowed, issues),
    };
    Some(MlxQuantization {
        mode,
        bits: u32::try_from(one_of("bits", bits, 4)?).ok()?,
        group_size: one_of("group_size", groups, group)?,
    })
}

fn pick(found: &Found<'_>, allowed: &[usize], issues: &mut Issues) -> Option<usize> {
    let value = super::fields::integer(found.value).filter(|n| allowed.contains(n));
    if value.is_none() {
        let names: Vec<_> = allowed.iter().map(usize::to_string).collect();
        issues.wrong(found, format!("one of {}", names.join(", ")));
    }
    value
}
