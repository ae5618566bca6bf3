"""One run of mlx-lm, as JSON on stdout. Runs in the venv of `setup`.

    target/peers/venv/bin/python bench/peers/mlx_lm_run.py CHECKPOINT IDS TOKENS

IDS is a JSON list of prompt ids. mlx-lm's own laguna.py is used as it is; the output says so.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.models import laguna
from mlx_lm.utils import load_model


def most_resident():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(model, prompt, tokens):
    """Seconds to the first token, seconds for the others, and the ids."""
    ids, begun, first = [], time.perf_counter(), None
    for token, _ in generate_step(mx.array(prompt), model, max_tokens=tokens):
        ids.append(int(token))
        first = first or time.perf_counter()
    return first - begun, time.perf_counter() - first, ids


def main():
    checkpoint, prompt, tokens = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
    mx.set_default_device(mx.cpu)
    begun = time.perf_counter()
    model, _ = load_model(checkpoint)
    load = time.perf_counter() - begun
    run(model, prompt[:4], 2)
    prefill, decode, ids = run(model, prompt, tokens)
    print(json.dumps({
        "program": f"mlx-lm {mlx_lm.__version__} on mlx {mx.__version__}",
        "model_file": laguna.__file__,
        "patched": False,
        "load_s": load,
        "prefill_tok_s": len(prompt) / prefill,
        "decode_tok_s": (len(ids) - 1) / decode,
        "peak_bytes": most_resident(),
        "ids": ids,
    }))


if __name__ == "__main__":
    main()
