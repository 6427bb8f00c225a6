"""`hf-diversed compile`: compile the rounds of later calls and store them on disk."""

import time

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from hf_diversed.cli.generate import build_method
from hf_diversed.cli.models import load_pair
from hf_diversed.cli.options import CompileOptions
from hf_diversed.cli.preparing import numbers
from hf_diversed.cli.terminal import console, notes, show_own_warnings_only
from hf_diversed.formatting import PLAIN
from hf_diversed.generation.schedules import MAX_GAMMA
from hf_diversed.harness.compiled import default_compile_config, warmup
from hf_diversed.harness.sampling import Sampling


def compile_rounds(options: CompileOptions) -> None:
    """Compile what generate(..., cache_implementation="static") runs, ahead of the first call."""
    show_own_warnings_only()
    if (options.target is None) != (options.draft is None):
        raise ValueError("TARGET and DRAFT go together: name both, or neither for the embedded pair.")
    sizes = numbers("--batch-sizes", options.batch_sizes, int)
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.num_assistant_tokens)
    if options.method == PLAIN:
        raise ValueError('--method target has no rounds; name a verifier, as in "static:0.7".')
    build_method(options)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if (options.num_assistant_tokens or 0) > MAX_GAMMA:
        notes.print(
            f"Compiling rounds of {options.num_assistant_tokens} draft tokens can take many minutes; 3 to 8 suit most "
            "pairs.",
            soft_wrap=True,
        )
    pair = load_pair(options.target, options.draft, options.device, dtype=options.dtype, two_models=True)
    label, verifier = build_method(options, pair.target.device)
    kwargs, began = sampling.generate_kwargs(), time.perf_counter()
    stats = warmup(
        pair.target,
        pair.draft,
        verifier=verifier,
        batch_sizes=sizes,
        max_length=options.max_length,
        num_assistant_tokens=options.num_assistant_tokens,
        compile_config=default_compile_config(pair.target.device, options.backend),
        # A repetition penalty is read from the target's generation config, as in later calls.
        **{name: kwargs[name] for name in kwargs if name not in ("max_new_tokens", "repetition_penalty")},
    )
    seconds = time.perf_counter() - began
    console.print(f"{label}: compiled {stats.num_compiled} functions in {seconds:.0f} s.", highlight=False)
    if options.backend == "inductor":
        notes.print(f"Later processes find the code in {cache_dir()} (TORCHINDUCTOR_CACHE_DIR).", soft_wrap=True)
