//! Bytes arrive as stored, in one allocation, and with the right multiplier.

use super::{
    Dtype, Inventory,
    decode::decode_matrix,
    forge::{EXPERTS, Forge, HIDDEN, MLP, WIDTH},
    inventory::{FloatType, MatrixFormat, MatrixSource, MlpSource, SwigluSource},
    load::{RawMatrix, read_matrix, stack_experts, stack_experts_with_progress},
};

fn experts(inventory: &Inventory, layer: usize) -> &[SwigluSource] {
    match &inventory.layers[layer].mlp {
        MlpSource::Sparse(sparse) => &sparse.experts,
        MlpSource::Dense(_) => panic!("layer {layer} is sparse"),
    }
}

#[test]
fn nvfp4_stacks_are_the_stored_bytes() {
    let forge = Forge::compressed();
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    let sources: Vec<_> = experts(&inventory, 1).iter().map(|expert| &expert.gate).collect();
    let mut told = 0;
    let stack = stack_experts_with_progress(&checkpoint, &sources, &mut |bytes| told += bytes).unwrap();
    assert_eq!((stack.count, stack.rows, stack.cols), (EXPERTS, WIDTH, HIDDEN));
    assert_eq!(told, (stack.weight.len() + stack.scales.len()) as u64);
    let stored =
        |e: usize, part: &str| forge.tensors[&format!("{MLP}.experts.{e}.gate_proj.{part}")].2.clone();
    let all = |part: &str| (0..EXPERTS).flat_map(|e| stored(e, part)).collect::<Vec<_>>();
    assert_eq!(stack.weight, all("weight_packed"));
    assert_eq!(stack.scales, all("weight_scale"));
    for (e, multiplier) in stack.multipliers.iter().enumerate() {
        let global = stored(e, "weight_global_scale");
        let global = f32::from_le_bytes([global[0], global[1], global[2], global[3]]);
        assert_eq!(*multiplier, 1.0 / global, "compressed-tensors divides");
    }

    // Pre-stacked, the same bytes: pairs in U8 are words in u32.
    let mut stacked = forge.clone();
    stacked.stack(&format!("{MLP}.switch_mlp"));
    let (checkpoint, inventory) = stacked.write().resolve().unwrap();
    let sources: Vec<_> = experts(&inventory, 1).iter().map(|expert| &expert.gate).collect();
    assert_eq!(stack_experts(&checkpoint, &sources).unwrap(), stack);
}

#[test]
fn part_of_a_stack_is_read_alone() {
    let mut forge = Forge::bf16();
    forge.stack(&format!("{MLP}.switch_mlp"));
    forge.fuse(&format!("{MLP}.switch_mlp"));
    let (checkpoint, inventory) = forge.write().resolve().unwrap();
    let sources: Vec<_> = experts(&inventory, 1)[1..3].iter().map(|expert| &expert.up).collect();
    let stack = stack_experts(&checkpoint, &sources).unwrap();
    let matrix = WIDTH * HIDDEN * 2;
    let fused = &forge.tensors[&format!("{MLP}.switch_mlp.gate_up_proj.weight")].2;
    let up = |e: usize| &fused[(2 * e + 1) * matrix..][..matrix];
    assert_eq!(stack.weight, [up(1), up(2)].concat());
    assert_eq!(stack.multipliers, [1.0, 1.0]);
}

#[test]
fn what_differs_does_not_stack() {
    let (checkpoint, inventory) = Forge::compressed().write().resolve().unwrap();
    let expert = &experts(&inventory, 1)[0];
    let error = |sources: &[&MatrixSource]| stack_experts(&checkpoint, sources).unwrap_err().to_string();
    assert_eq!(
        error(&[&expert.gate, &expert.down]),
        "model.layers.1.mlp.experts.0.down_proj.weight_packed: [64, 32] Nvfp4 does not stack with \
         model.layers.1.mlp.experts.0.gate_proj.weight_packed, [32, 64] Nvfp4"
    );
    assert_eq!(error(&[]), "stack: no matrix to stack");
}

#[test]
fn a_global_scale_of_nothing_is_refused() {
    for bad in [0.0_f32, f32::NAN, f32::INFINITY] {
        let mut forge = Forge::compressed();
        let name = format!("{MLP}.experts.0.up_proj.weight_global_scale");
        forge.set(&name, Dtype::F32, &[1], bad.to_le_bytes().to_vec());
        let (checkpoint, inventory) = forge.write().resolve().unwrap();
        let error = read_matrix(&checkpoint, &experts(&inventory, 1)[0].up).unwrap_err();
        assert!(error.to_string().contains("gives no finite multiplier"), "{error}");
    }
}

#[test]
fn plain_floats_and_affine_codes_decode() {
    let raw = |format, weight: Vec<u8>, scales, biases| RawMatrix {
        rows: 1,
        cols: 32,
        format,
        weight,
        scales,
        biases,
        multiplier: 1.0,
    };
    let numbers: Vec<f32> = (0..32).map(|n| n as f32 / 8.0 - 2.0).collect();
    let f32s = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let f16s = numbers.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    let bf16s = numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
    for (float, bytes) in [(FloatType::F32, f32s), (FloatType::F16, f16s), (FloatType::Bf16, bf16s)] {
        assert_eq!(decode_matrix(&raw(MatrixFormat::Plain(float), bytes, Vec::new(), Vec::new())), numbers);
    }
    // Codes 0..16 twice, scale 1/8, bias -2, in f32.
    let codes = (0..16).map(|n: u8| (2 * n % 16) | (2 * n % 16 + 1) << 4).collect();
    let (scale, bias) = (0.125_f32.to_le_bytes().to_vec(), (-2_f32).to_le_bytes().to_vec());
    let format = MatrixFormat::Affine { bits: 4, group_size: 32, scale_type: FloatType::F32 };
    let decoded = decode_matrix(&raw(format, codes, scale, bias));
    assert_eq!(decoded[..16], numbers[..16]);
    assert_eq!(decoded[16..], numbers[..16]);
}
