//! Greetings: round trips, every mismatch, versions, garbage.

use proptest::prelude::*;

use super::*;
use crate::wire::frame::FRAME_HEADER;

fn welcome() -> Welcome {
    Welcome {
        build: "0.1.0".to_owned(),
        fingerprint: [1; 32],
        shard: ShardId(1),
        range: ExpertRange::new(128, 256),
        weights: Some([2; 32]),
        sparse_layers: (1..48).map(LayerId).collect(),
        hidden: 3072,
        activations: vec![ActivationType::F32],
        backend: "mlx".to_owned(),
        free_memory_bytes: 1 << 34,
        resident_bytes: 1 << 35,
    }
}

#[test]
fn greetings_round_trip() {
    let mut out = BytesMut::new();
    let welcome = welcome();
    welcome.encode(&mut out).unwrap();
    assert_eq!(Welcome::decode(&out[FRAME_HEADER..]), Ok(welcome.clone()));

    let hello = welcome.expected_hello(ActivationType::Bf16);
    out.clear();
    hello.encode(&mut out).unwrap();
    assert_eq!(Hello::decode(&out[FRAME_HEADER..]), Ok(hello));

    let refusal = Refusal::Mismatch(GreetingError::version_mismatch(1, 2));
    out.clear();
    refusal.encode(&mut out).unwrap();
    assert_eq!(Refusal::decode(&out[FRAME_HEADER..]), Ok(refusal));
}

#[test]
fn each_difference_is_named_with_both_values() {
    let worker = welcome();
    let fits = worker.expected_hello(ActivationType::F32);
    assert_eq!(fits.check(&worker), Ok(()));
    let unknown = Hello { weights: None, ..fits.clone() };
    assert_eq!(unknown.check(&worker), Ok(()));

    let cases = [
        (
            Hello { build: "0.2.0".to_owned(), ..fits.clone() },
            "release: coordinator has 0.2.0, worker has 0.1.0",
        ),
        (Hello { fingerprint: [3; 32], ..fits.clone() }, "model fingerprint: coordinator has 0303"),
        (Hello { shard: ShardId(0), ..fits.clone() }, "shard: coordinator has shard 0, worker has shard 1"),
        (
            Hello { range: ExpertRange::new(0, 128), ..fits.clone() },
            "expert range: coordinator has 0..128, worker has 128..256",
        ),
        (Hello { weights: Some([9; 32]), ..fits.clone() }, "weight digest: coordinator has 0909"),
        (
            Hello { sparse_layers: vec![LayerId(2)], ..fits.clone() },
            "sparse layers: coordinator has 1 layers, 2..=2",
        ),
        (Hello { hidden: 64, ..fits.clone() }, "row width: coordinator has 64, worker has 3072"),
        (
            Hello { activation: ActivationType::Bf16, ..fits },
            "activation type: coordinator has bf16, worker has f32",
        ),
    ];
    for (hello, text) in cases {
        let found = hello.check(&worker).unwrap_err().to_string();
        assert!(found.starts_with(text), "{found}");
    }
}

#[test]
fn layers_that_differ_inside_do_not_read_alike() {
    let worker = welcome();
    let mut hello = worker.expected_hello(ActivationType::F32);
    hello.sparse_layers[5] = hello.sparse_layers[4];
    let found = hello.check(&worker).unwrap_err();
    assert_ne!(found.coordinator, found.worker);
}

#[test]
fn another_version_is_read_before_anything_else() {
    let mut payload = 7_u32.to_le_bytes().to_vec();
    payload.extend(b"a later protocol's hello");
    assert_eq!(Hello::decode(&payload), Err(GreetingError::Version(7)));
    assert!(matches!(Hello::decode(&payload[..3]), Err(GreetingError::Wire(WireError::Length { .. }))));
}

#[test]
fn a_claimed_length_is_not_believed() {
    let mut payload = PROTOCOL_VERSION.to_le_bytes().to_vec();
    payload.extend(u64::MAX.to_le_bytes());
    assert!(matches!(Hello::decode(&payload), Err(GreetingError::Wire(WireError::Undecodable { .. }))));
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut payload = PROTOCOL_VERSION.to_le_bytes().to_vec();
        payload.extend(bytes);
        let _ = Hello::decode(&payload);
        let _ = Welcome::decode(&payload);
        let _ = Refusal::decode(&payload);
    }
}
