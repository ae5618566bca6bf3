"""Writes one Laguna checkpoint in the forms that the peers read. Runs in the venv of `setup`.

    target/peers/venv/bin/python bench/peers/formats.py CHECKPOINT OUT

CHECKPOINT is what `laguna-bench synth --layout stacked` wrote: bf16 trunk, NVFP4 experts of MLX.

    OUT/mlx-f32    the trunk in f32 (mlx-lm computes in its type, and its CPU backend is 8-16 times slower in bf16)
    OUT/mlx-4bit   the trunk's matrices in MLX affine 4 bit, groups of 64; laguna reads this one too, so both sides
                   have the same weights
    OUT/q4_0.gguf  everything in Q4_0, 4.5 bits a weight
    OUT/nvfp4.gguf the trunk in Q4_0, the experts' NVFP4 codes and scales byte for byte

The router and the norms stay f32 everywhere, and the embedding in the two MLX forms.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType as Type

TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
GROUP = 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def say(text):
    print(f"formats: {text}", file=sys.stderr, flush=True)


def files(checkpoint):
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text())
    return sorted(set(index["weight_map"].values()))


def is_trunk_matrix(name, tensor):
    """What `--trunk-bits` quantises too: every matrix but the router and the embedding."""
    other = ("switch_mlp" in name) or name.endswith("mlp.gate.weight") or "embed_tokens" in name
    return tensor.ndim == 2 and not other


def mlx(checkpoint, out, bits):
    if (out / "config.json").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_text())
    experts = config["quantization"]
    table = dict(experts) if bits == 32 else {"group_size": GROUP, "bits": bits}
    places, total = {}, 0
    for file in files(checkpoint):
        tensors = {}
        for name, tensor in mx.load(str(checkpoint / file)).items():
            if "switch_mlp" in name:
                tensors[name] = tensor
                if bits != 32 and name.endswith(".scales"):
                    table[name.removesuffix(".scales")] = experts
            elif bits != 32 and is_trunk_matrix(name, tensor):
                stem = name.removesuffix(".weight")
                parts = mx.quantize(tensor.astype(mx.float32), group_size=GROUP, bits=bits)
                tensors |= zip([name, f"{stem}.scales", f"{stem}.biases"], parts)
            else:
                tensors[name] = tensor.astype(mx.float32)
        mx.save_safetensors(str(out / file), tensors, {"format": "mlx"})
        places |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
        say(f"{out.name}/{file}")
    config |= {"quantization": table, "quantization_config": table, "torch_dtype": "float32"}
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in TOKENIZER:
        shutil.copy(checkpoint / name, out / name)
    # Last: a folder without it is not a checkpoint.
    (out / "config.json").write_text(json.dumps(config, indent=1))


def metadata(writer, config):
    """As the converter in llama.cpp's sources writes it for this architecture, but without a tokenizer."""
    full = config["rope_parameters"]["full_attention"]
    sliding = config["rope_parameters"]["sliding_attention"]
    dim = config["head_dim"]
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads_per_layer"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(config["moe_routed_scaling_factor"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(dim * full["partial_rotary_factor"]))
    writer.add_rope_freq_base_swa(sliding["rope_theta"])
    writer.add_rope_dimension_count_swa(int(dim * sliding["partial_rotary_factor"]))
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(full["factor"])
    writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
    # Without these the program falls back to its own, which are not every Laguna's.
    writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])


def nvfp4_blocks(weight, scales):
    """MLX's codes, low nibble first, and E4M3 scales -> blocks of four scales and 32 bytes for 64 weights, where a
    byte holds weights n and n + 8 of its 16."""
    codes = np.array(weight).view(np.uint8)
    groups = codes.reshape(*codes.shape[:-1], -1, 8)
    nibbles = np.stack([groups & 15, groups >> 4], axis=-1).reshape(*groups.shape[:-1], 16)
    packed = nibbles[..., :8] | nibbles[..., 8:] << 4
    blocks = (*packed.shape[:-2], packed.shape[-2] // 4)
    four = np.array(scales).view(np.uint8).reshape(*blocks, 4)
    return np.concatenate([four, packed.reshape(*blocks, 32)], axis=-1).reshape(*blocks[:-1], -1)


def e4m3(byte):
    exponent, mantissa = (byte >> 3).astype(np.int32), (byte & 7).astype(np.float32)
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * np.exp2(exponent - 7.0)).astype(np.float32)


def nvfp4_values(weight, scales):
    codes = np.array(weight).view(np.uint8)
    values = E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)]
    return values * np.repeat(e4m3(np.array(scales).view(np.uint8)), 16, axis=-1)


def check_blocks(weight, scales):
    """The generator's own reader sees in the blocks what the codes and scales say."""
    blocks = nvfp4_blocks(weight, scales)
    seen = gguf.quants.dequantize(blocks, Type.NVFP4)
    if not np.array_equal(seen, nvfp4_values(weight, scales)):
        sys.exit("formats: the NVFP4 blocks do not hold the checkpoint's values")


def to_gguf(checkpoint, out, experts):
    if out.exists():
        return
    config = json.loads((checkpoint / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LAGUNA, config["num_hidden_layers"])
    draft = out.with_suffix(".draft")
    writer = gguf.GGUFWriter(draft, "laguna")
    metadata(writer, config)
    checked = False
    for file in files(checkpoint):
        tensors = mx.load(str(checkpoint / file))
        for name, tensor in tensors.items():
            if name.endswith(".scales"):
                continue
            # The table has the names of the layout with one tensor an expert.
            usual = name.replace("switch_mlp.", "experts.").replace("e_score_correction_bias", "e_score_correction.bias")
            mapped = names.get_name(usual, try_suffixes=(".weight", ".bias"))
            if mapped is None:
                sys.exit(f"formats: {name} has no name in GGUF")
            if "switch_mlp" in name:
                scales = tensors[name.removesuffix(".weight") + ".scales"]
                if not checked:
                    check_blocks(tensor[:2, :4], scales[:2, :4])
                    checked = True
                if experts == Type.NVFP4:
                    data = nvfp4_blocks(tensor, scales)
                else:
                    data = gguf.quants.quantize(nvfp4_values(tensor, scales), experts)
                writer.add_tensor(mapped, data, raw_dtype=experts)
            else:
                plain = np.array(tensor.astype(mx.float32))
                kind = Type.Q4_0 if is_trunk_matrix(name, tensor) or "embed_tokens" in name else Type.F32
                writer.add_tensor(mapped, gguf.quants.quantize(plain, kind), raw_dtype=kind)
        say(f"{out.name}: {file}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.rename(out)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    checkpoint, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    mx.set_default_device(mx.cpu)
    mlx(checkpoint, out / "mlx-f32", 32)
    mlx(checkpoint, out / "mlx-4bit", 4)
    to_gguf(checkpoint, out / "q4_0.gguf", Type.Q4_0)
    to_gguf(checkpoint, out / "nvfp4.gguf", Type.NVFP4)


if __name__ == "__main__":
    main()
