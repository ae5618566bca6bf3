//! Every form in which checkpoints state their rotary embedding.

use super::*;

#[test]
fn nested_rope() {
    let config = parsed(&[]);
    let (full, sliding) = ropes(&config);
    assert_eq!(
        *full,
        RopeConfig {
            theta: 5e5,
            rotary_dims: 64,
            scaling: yarn(32.0, 8192.0, 64.0),
            attention_factor: 1.3465735902799727
        }
    );
    assert_eq!(*sliding, plain(1e4, 128));
    assert_eq!(config.layers[3].rope, *full);
    let heads: Vec<_> = config.layers.iter().map(|layer| layer.num_attention_heads).collect();
    assert_eq!(heads, [4, 6, 6, 4]);
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.sliding_window).collect();
    assert_eq!(windows, [None, Some(16), Some(16), None]);
    assert_eq!(config.sparse_layers().map(|layer| layer.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(config.eos_token_ids, [2, 24]);
    assert_eq!(config.bos_token_id, Some(2));
}

#[test]
fn scalars_beside_nested_entries_are_their_defaults() {
    let nested = |loose: u32, own: Option<u32>| {
        let mut full = json!({
            "rope_theta": 5e5, "rope_type": "yarn", "factor": 64.0, "beta_fast": 64.0, "partial_rotary_factor": 0.5
        });
        if let Some(own) = own {
            full["original_max_position_embeddings"] = json!(own);
        }
        let sliding = json!({ "rope_type": "default", "rope_theta": 10000.0 });
        json!({
            "original_max_position_embeddings": loose, "full_attention": full, "sliding_attention": sliding
        })
    };
    let loose = parsed(&[("rope_parameters", nested(4096, None))]);
    let (full, sliding) = ropes(&loose);
    assert_eq!(full.scaling, yarn(64.0, 4096.0, 64.0));
    assert!((full.attention_factor - 1.4158883083359672).abs() < 1e-12, "derived: 0.1 ln 64 + 1");
    assert_eq!(*sliding, plain(1e4, 128));

    let own = parsed(&[("rope_parameters", nested(4096, Some(1024)))]);
    assert_eq!(ropes(&own).0.scaling, yarn(64.0, 1024.0, 64.0));

    // XS.2: the top-level share is the full layers'; a sliding layer rotates its whole head.
    let top = parsed(&[("rope_parameters", nested(4096, None)), ("partial_rotary_factor", json!(0.5))]);
    assert_eq!(ropes(&top).1.rotary_dims, 128);
}

#[test]
fn flat_rope_with_and_without_a_sliding_set() {
    let flat = json!({
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 64.0,
        "beta_slow": 1.0, "attention_factor": 1.0
    });
    let swa = json!({ "partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "linear" });
    let top = [("rope_theta", json!(500_000.0)), ("partial_rotary_factor", json!(0.5))];
    let [theta, partial] = &top;
    let expected =
        RopeConfig { theta: 5e5, rotary_dims: 64, scaling: yarn(32.0, 4096.0, 64.0), attention_factor: 1.0 };

    let pre_release = [("rope_parameters", flat.clone()), ("swa_rope_parameters", swa.clone())];
    let config = parsed(&[&pre_release[..], &top].concat());
    assert_eq!(ropes(&config), (&expected, &plain(1e4, 128)));

    let mut old = flat.clone();
    old["type"] = old.as_object_mut().unwrap().remove("rope_type").unwrap();
    let scaling = [("rope_parameters", ABSENT), ("rope_scaling", old), ("swa_rope_parameters", swa)];
    let config = parsed(&[&scaling[..], &top].concat());
    assert_eq!(ropes(&config), (&expected, &plain(1e4, 128)));

    let config = parsed(&[("rope_parameters", flat), theta.clone(), partial.clone()]);
    assert_eq!(ropes(&config), (&expected, &expected));
}

#[test]
fn a_layer_type_without_an_entry_uses_the_top_level_keys() {
    let only = |kind: &str| {
        let entry = base()["rope_parameters"][kind].clone();
        ("rope_parameters", json!({ kind: entry }))
    };
    assert_eq!(*ropes(&parsed(&[only("full_attention")])).1, plain(5e5, 128));
    let top = [("rope_theta", json!(30_000.0)), ("partial_rotary_factor", json!(0.5))];
    let config = parsed(&[&[only("sliding_attention")][..], &top].concat());
    assert_eq!(ropes(&config), (&plain(3e4, 64), &plain(1e4, 128)));
}

#[test]
fn absent_rope_has_the_reference_defaults() {
    for value in [ABSENT, Value::Null, json!({})] {
        let config = parsed(&[("rope_parameters", value)]);
        assert_eq!(ropes(&config), (&plain(5e5, 64), &plain(1e4, 128)));
    }
}

#[test]
fn linear_rope() {
    let config = parsed(&[("rope_parameters", json!({ "rope_type": "linear", "factor": 4.0 }))]);
    assert_eq!(ropes(&config).0.scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn attention_factor_from_config_or_derived() {
    let factor = |stated: Value, extra: &[(&str, f64)], options| {
        let mut config = base();
        let full = &mut config["rope_parameters"]["full_attention"];
        full["attention_factor"] = stated;
        for (key, value) in extra {
            full[*key] = json!(value);
        }
        let options = ConfigOptions { attention_factor: options };
        let config = ModelConfig::from_json(&config.to_string(), &options).unwrap();
        config.layers[0].rope.attention_factor
    };
    let derived = 0.1 * 32_f64.ln() + 1.0;
    assert_eq!(factor(json!(1.9), &[], AttentionFactor::FromConfig), 1.9);
    assert_eq!(factor(json!(1.0), &[], AttentionFactor::FromConfig), 1.0);
    assert_eq!(factor(json!(1.9), &[], AttentionFactor::Derived), derived);
    assert_eq!(factor(Value::Null, &[], AttentionFactor::FromConfig), derived);
    assert_eq!(factor(json!(0), &[], AttentionFactor::FromConfig), derived);
    let mscales = [("mscale", 2.0), ("mscale_all_dim", 1.0)];
    let ratio = (0.2 * 32_f64.ln() + 1.0) / derived;
    assert_eq!(factor(Value::Null, &mscales, AttentionFactor::FromConfig), ratio);
}
