"""Run the CUDA tests on a GPU, then the benchmarks, most important first.

make gpu

Every step writes one JSON file at its end. A later run starts with the first step without a file, so `make gpu` can be
stopped at any time and repeated. `--dry-run` runs the same steps on the CPU with small shapes.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks import speed
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance


LIMIT = 500.0  # seconds; below the timeout of `make gpu`
TESTS = ["tests/generation/test_cuda.py", "tests/generation/test_transfers.py"]
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
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds after which no step starts")
    parser.add_argument("--steps", help=f"some of tests, {', '.join(STEPS)}; all by default")
    parser.add_argument("--dry-run", type=Path, help="config.json of a small model to use instead, on the CPU")
    options = parser.parse_args(argv)
    if options.dry_run is None and not torch.cuda.is_available():
        parser.error("no CUDA device was found; --dry-run CONFIG tries the steps on a CPU.")
    options.output.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for name in ["tests", *STEPS] if options.steps is None else options.steps.split(","):
        path = options.output / f"{name}.json"
        if path.exists():
            continue
        left = options.limit - (time.perf_counter() - began)
        if left <= 0:
            print(f"{name} and later steps have not run: run the command again.")
            break
        print(name, flush=True)
        if name == "tests":
            write_json(path, run_tests(left, options.dry_run is not None))
            continue
        speed.main([*arguments(name, options.dry_run), "--output", str(path)])
        gc.collect()
        torch.cuda.empty_cache()


def run_tests(limit: float, dry_run: bool) -> dict:
    """Run the CUDA tests in a separate process and return the end of its output.

    Raises:
        SystemExit: if the tests fail or exceed the limit; their output is printed.
    """
    environment = {**os.environ, "HF_DIVERSED_DEVICE": "cpu" if dry_run else "cuda"}
    command = [sys.executable, "-m", "pytest", "-rs", *(TESTS[:1] if dry_run else TESTS)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        print((error.stdout or b"").decode(errors="replace"))
        raise SystemExit(
            f"The CUDA tests exceeded {limit:.0f} s; run the command again, or name other steps with --steps."
        ) from error
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n")
        raise SystemExit(
            f"The CUDA tests failed with exit code {done.returncode}; fix them and run the command again."
        )
    return {"output": done.stdout[-4000:], "provenance": provenance(0)}


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
