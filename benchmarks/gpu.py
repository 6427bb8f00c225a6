"""Time rounds of two pairs with random weights on a GPU, most important first.

make gpu

Every step writes one JSON file at its end. A later run starts with the first step without a file, so `make gpu` can be
stopped at any time and repeated. `--dry-run` runs the same steps on the CPU with small shapes.
"""

import argparse
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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/gpu"), help="folder of the JSON files")
    parser.add_argument("--steps", default=",".join(STEPS), help="steps to run; all by default")
    parser.add_argument("--dry-run", type=Path, help="config.json of a small model to use instead, on the CPU")
    options = parser.parse_args(argv)
    for name in options.steps.split(","):
        path = options.output / f"{name}.json"
        if not path.exists():
            print(name, flush=True)
            speed.main([*arguments(name, options.dry_run), "--output", str(path)])
            gc.collect()
            torch.cuda.empty_cache()


def arguments(name: str, dry_run: Path | None) -> list[str]:
    """Return the arguments of `benchmarks.speed` for a step; in a dry run, for a small model on the CPU."""
    pair, acceptance, _, size, engine = name.split("-")
    chosen = ["--methods", ENGINES[engine], "--acceptance", acceptance, "--batch-sizes", size, "--draft-length", "5"]
    if dry_run is None:
        return [*chosen, *PAIRS[pair], *CUDA]
    small = ["--target-config", str(dry_run), "--draft-config", str(dry_run), "--context-length", "8"]
    return [*chosen, *small, "--device", "cpu", "--max-new-tokens", "18", "--repeats", "1", "--backend", "eager"]


if __name__ == "__main__":
    main()
