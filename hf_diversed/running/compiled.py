"""Compiled decoding: the default compile configuration, and compiling ahead of time."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from hf_diversed import _compat
from hf_diversed.engines.buffers import SMALLEST_CAPACITY
from hf_diversed.engines.compiling import how_to_compile
from hf_diversed.generation.hook import install_hook, resolve_verifier
from hf_diversed.generation.planning import draft_length
from hf_diversed.outputs import CompileStats
from hf_diversed.running.decode import seeded
from hf_diversed.verifiers import Verifier


if TYPE_CHECKING:
    from hf_diversed.head import DiversedHead

_ATTEMPTS = 8


def default_compile_config(device: torch.device, backend: str = "inductor") -> CompileConfig:
    """The compile configuration of compiled methods on a device: static shapes, with CUDA graphs on CUDA.

    Args:
        backend: of `torch.compile`; "eager" only traces, for tests.
    """
    graphs = device.type == "cuda" and backend == "inductor"
    config = CompileConfig(backend=backend, mode="reduce-overhead" if graphs else "default", dynamic=False)
    config._compile_all_devices = True  # else upstream does not compile plain decoding on a CPU
    return config


def warmup(
    model: PreTrainedModel,
    assistant_model: PreTrainedModel,
    *,
    diversed_head: "DiversedHead | str | os.PathLike | None" = None,
    verifier: Verifier | str | None = None,
    batch_sizes: Sequence[int] = (1,),
    max_length: int = 512,
    num_assistant_tokens: int | None = None,
    do_sample: bool = True,
    compile_config: CompileConfig | None = None,
    **kwargs: Any,
) -> CompileStats:
    """Compile what later calls of `generate(..., cache_implementation="static")` run, by decoding random prompts.

    Rounds are compiled for a batch size (the next power of two), a number of columns (256, 512, 1024, ...) and the
    settings of a call: models, verifier, processors, and whether it samples. Pass the arguments of the later calls.
    Compiled functions are kept until the model is freed, or until `clear_compiled`. Another process reuses inductor's
    cache on disk (`TORCHINDUCTOR_CACHE_DIR`), and warms up in seconds instead of minutes.

    Where only forwards are compiled (`stats.engine` is "compiled (forwards)"), later calls may still compile a forward
    of a width that did not occur here.

    Args:
        model: the target model. assistant_model: the draft model.
        diversed_head, verifier: one of the two, as for `generate`.
        batch_sizes: rows of later calls. max_length: the largest number of columns of a call, prompt and new tokens.
        num_assistant_tokens: gamma; None for the verifier's default, the draft model's, or 5.
        do_sample: False for greedy decoding.
        compile_config: as for `generate`; on a CPU nothing is compiled without one.
        kwargs: other arguments of the later calls: `temperature`, `top_k`, `output_token_records` ...

    Returns:
        the compile statistics of these calls, summed.

    Raises:
        ValueError: without a verifier, on sizes out of range, and where nothing can be compiled.

    Example:
        ```python
        options = {"verifier": "static:0.7", "compile_config": CompileConfig(mode="default"), "top_k": 0}
        hf_diversed.warmup(model, draft, batch_sizes=(1, 8), max_length=512, **options)
        model.generate(**inputs, assistant_model=draft, cache_implementation="static", do_sample=True, **options)
        ```
    """
    install_hook()
    resolved = resolve_verifier(diversed_head, verifier, model.device)
    _check(model, assistant_model, resolved, batch_sizes, max_length, compile_config)
    assert resolved is not None
    gamma = draft_length(model.generation_config, num_assistant_tokens, resolved, assistant_model)
    options = {
        "assistant_model": assistant_model,
        "diversed_head": diversed_head,
        "verifier": verifier,
        "num_assistant_tokens": gamma,
        "do_sample": do_sample,
        "cache_implementation": "static",
        "compile_config": compile_config,
        "return_dict_in_generate": True,
        **kwargs,
    }
    total = CompileStats()
    for rows in batch_sizes:
        for length in _prompt_lengths(max_length, gamma):
            # Room for a second round: in the first one a verifier has no state yet.
            longest = min(_most_positions(model, assistant_model), length + 2 * (gamma + 1))
            total.add(_decode(model, rows, length, options | {"max_new_tokens": longest - length}))
    return total


def _decode(model: PreTrainedModel, rows: int, length: int, options: dict[str, Any]) -> CompileStats:
    """Decode random prompts until one takes two rounds, which an early EOS may prevent."""
    draft, total = options["assistant_model"], CompileStats()
    ids = min(map(_compat.known_ids, (model, draft)))
    for seed in range(_ATTEMPTS):
        with seeded(seed, model.device):
            prompts = torch.randint(ids, (rows, length)).to(model.device)
            output = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **options)
        total.add(output.stats.compile)
        if not output.stats.compile.num_used:
            raise ValueError(f"nothing was compiled, calls like this run uncompiled: {output.stats.engine_reason}.")
        if max(row.num_rounds for row in output.stats.per_row) > 1:
            break
    return total


def _prompt_lengths(max_length: int, gamma: int) -> Iterator[int]:
    """Prompt lengths that together lead to every number of columns that calls of up to `max_length` use."""
    capacity = SMALLEST_CAPACITY
    yield min(2, max_length - 1)
    while capacity < max_length - 1 + gamma:  # a round's draft tokens may reach beyond the last column
        yield min(capacity + 1, max_length - 1)
        capacity *= 2


def _most_positions(*models: PreTrainedModel) -> int:
    return min((most for model in models if (most := _compat.max_positions(model)) is not None), default=2**31)


def _check(
    model, draft, resolved: Verifier | None, batch_sizes, max_length: int, config: CompileConfig | None
) -> None:
    if resolved is None:
        raise ValueError("warmup needs the verifier of later calls: pass diversed_head= or verifier=.")
    if not batch_sizes or not all(isinstance(size, int) and size >= 1 for size in batch_sizes):
        raise ValueError(f"batch_sizes must be integers >= 1, at least one, got {batch_sizes!r}.")
    most = _most_positions(model, draft)
    if not 3 <= max_length <= most:
        raise ValueError(
            f"max_length must lie in [3, {most}], the positions of both models, got {max_length!r}; it counts prompt "
            "and new tokens."
        )
    settings = GenerationConfig(compile_config=config or model.generation_config.compile_config)
    if how_to_compile(settings, model.device) is None:
        raise ValueError(
            f"nothing would be compiled on {model.device.type}: pass the compile_config= of later calls, for example "
            'transformers.CompileConfig(mode="default").'
        )
