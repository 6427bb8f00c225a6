"""Time rounds of two pairs with random weights on a GPU, most important first.

make gpu

Every step writes one JSON file at its end. A later run starts with the first step without a file, so `make gpu` can be
stopped at any time and repeated.
"""

import gc
from pathlib import Path

import torch

from benchmarks import speed


PAIRS = {
    "llama": ["--target-config", "llama-3.1-8b", "--draft-config", "llama-3.2-1b"],
    "qwen": ["--target-config", "qwen3-8b", "--draft-config", "qwen3-0.6b"],
}
ENGINES = {"eager": "target,upstream,lossless", "compiled": "compiled:target,compiled:lossless"}
# Batch 1 before 8, and all engines of a pair before the next pair.
STEPS = [
    f"{pair}-{acceptance}-batch-{size}-{engine}"
    for acceptance in (0.7, 0.85)
    for size in (1, 8)
    for pair in PAIRS
    for engine in ENGINES
]
CUDA = ["--device", "cuda", "--dtype", "bfloat16", "--max-new-tokens", "128", "--repeats", "5"]
OUTPUT = Path("results/gpu")


def main() -> None:
    for name in STEPS:
        path = OUTPUT / f"{name}.json"
        if not path.exists():
            print(name, flush=True)
            speed.main([*arguments(name), "--output", str(path)])
            gc.collect()
            torch.cuda.empty_cache()


def arguments(name: str) -> list[str]:
    """Return the arguments of `benchmarks.speed` for a step."""
    pair, acceptance, _, size, engine = name.split("-")
    chosen = ["--methods", ENGINES[engine], "--acceptance", acceptance, "--batch-sizes", size, "--draft-length", "5"]
    return [*chosen, *PAIRS[pair], *CUDA]


if __name__ == "__main__":
    main()
