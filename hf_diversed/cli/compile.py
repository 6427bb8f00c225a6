"""`hf-diversed compile`: compile the rounds of later calls ahead of time, into a cache on disk."""

from typing import Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import console, hear_own_warnings_only, notes


def compile_rounds(
    target: Annotated[
        str | None, typer.Argument(help="Hub id or folder; the embedded pair by default.", show_default=False)
    ] = None,
    draft: Annotated[
        str | None, typer.Argument(help="Hub id or folder of the draft model.", show_default=False)
    ] = None,
    head: options.HeadSource = None,
    method: options.Method = None,
    task: options.HeadTask = "math",
    batch_sizes: Annotated[
        str, typer.Option(help="Batch sizes of later calls; each also serves smaller batches.")
    ] = "1",
    max_length: Annotated[int, typer.Option(min=3, help="Most tokens of a row, prompt included.")] = 512,
    num_assistant_tokens: options.Gamma = None,
    temperature: options.Temperature = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads of later processes.")] = None,
    backend: Annotated[
        str, typer.Option(help="Backend of torch.compile; eager only traces and stores nothing.")
    ] = "inductor",
    device: options.Device = None,
    dtype: options.Dtype = None,
) -> None:
    """Compile what generate(..., cache_implementation="static") runs, ahead of the first call.

    The code stays on disk, where inductor keeps it: in TORCHINDUCTOR_CACHE_DIR, or a folder of yours under the
    temporary one. A later process with the same models, rule, sizes, sampling and threads still traces its first
    round, but compiles nothing: seconds instead of minutes. In a process of your own, hf_diversed.warmup does both.
    """
    import time

    import torch
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    from hf_diversed import warmup
    from hf_diversed.cli.models import load_pair
    from hf_diversed.cli.preparing import numbers
    from hf_diversed.cli.streaming import build_method, check_method
    from hf_diversed.generation.schedules import LONGEST
    from hf_diversed.running.compiled import default_compile_config
    from hf_diversed.running.sampling import Sampling

    hear_own_warnings_only()
    if (target is None) != (draft is None):
        raise ValueError("TARGET and DRAFT go together: name both, or neither for the embedded pair.")
    sizes = numbers("--batch-sizes", batch_sizes, int)
    sampling = Sampling(temperature, top_k, top_p, num_assistant_tokens)
    if method == "target":
        raise ValueError('--method target has no rounds; name a rule, as in "static:0.7".')
    dials = dict.fromkeys(("strictness", "max_bias", "bias_budget"))
    check_method(method, head, task, target, dials)
    if threads is not None:
        torch.set_num_threads(threads)
    if (num_assistant_tokens or 0) > LONGEST:
        notes.print(
            f"Compiling rounds of {num_assistant_tokens} draft tokens can take many minutes; 3 to 8 suit most pairs.",
            soft_wrap=True,
        )
    pair = load_pair(target, draft, device, dtype=dtype, two_models=True)
    label, rule = build_method(pair, method, head or pair.heads.get(task), dials)
    drawn = sampling.generate_kwargs()
    del drawn["max_new_tokens"]
    began = time.perf_counter()
    stats = warmup(
        pair.target,
        pair.draft,
        verifier=rule,
        batch_sizes=sizes,
        max_length=max_length,
        num_assistant_tokens=num_assistant_tokens,
        compile_config=default_compile_config(pair.target.device, backend),
        **drawn,
    )
    seconds = time.perf_counter() - began
    console.print(f"{label}: compiled {stats.num_compiled} functions in {seconds:.0f} s.", highlight=False)
    if backend == "inductor":
        notes.print(f"Their code lies in {cache_dir()} (TORCHINDUCTOR_CACHE_DIR) for later processes.", soft_wrap=True)
