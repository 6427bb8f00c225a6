"""Compiling ahead of time."""

import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import CompileConfig, GenerationConfig, PreTrainedModel

from hf_diversed import support
from hf_diversed.generation.call import requested_gamma, resolve_verifier
from hf_diversed.generation.checks import CALLS, HEAD_SETTINGS, refuse
from hf_diversed.generation.compiling import how_to_compile
from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.static import SMALLEST_CAPACITY
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import CompileStats
from hf_diversed.verifiers import Verifier
from hf_diversed.verifiers.base import read_integer


def warmup(
    model: PreTrainedModel,
    assistant_model: PreTrainedModel,
    *,
    diversed_head: DiversedHead | str | os.PathLike | None = None,
    verifier: Verifier | str | None = None,
    batch_sizes: Sequence[int] = (1,),
    max_length: int = 512,
    num_assistant_tokens: int | None = None,
    do_sample: bool = True,
    compile_config: CompileConfig | None = None,
    **kwargs: Any,
) -> CompileStats:
    """Compile the code of later calls of `generate(..., cache_implementation="static")` by decoding random prompts.

    Functions are compiled per batch size (rounded up to a power of two), number of columns (256, 512, 1024, ...) and
    settings of the call: models, verifier, processors and `do_sample`. Pass the arguments of the later calls. Compiled
    functions are kept until the model is freed or `clear_compiled` is called. Other processes reuse inductor's disk
    cache (`TORCHINDUCTOR_CACHE_DIR`) and warm up in seconds instead of minutes.

    Args:
        model: the target model.
        assistant_model: the draft model.
        diversed_head: as for `generate`; mutually exclusive with `verifier`.
        verifier: as for `generate`.
        batch_sizes: batch sizes of the later calls.
        max_length: largest number of prompt and new tokens of a later call.
        num_assistant_tokens: gamma; None for the default of the verifier or the draft model, or 5.
        do_sample: False for greedy decoding.
        compile_config: as for `generate`; required on a CPU.
        kwargs: other arguments of the later calls: `temperature`, `top_k`, `output_token_records`, ...

    Returns:
        The summed compile statistics of these calls.

    Raises:
        ValueError: if there is no verifier, a size is out of range, or nothing can be compiled.

    Example:
        ```python
        options = {"verifier": "static:0.7", "compile_config": CompileConfig(mode="default"), "top_k": 0}
        hf_diversed.warmup(model, draft, batch_sizes=(1, 8), max_length=512, **options)
        model.generate(**inputs, assistant_model=draft, cache_implementation="static", do_sample=True, **options)
        ```
    """
    install_hook()
    chosen = {**dict.fromkeys(HEAD_SETTINGS), "diversed_head": diversed_head, "verifier": verifier}
    resolved = resolve_verifier(SimpleNamespace(**chosen), model.device)
    _check(model, assistant_model, batch_sizes, max_length, compile_config)
    settings = support.entries(model.generation_config)
    if num_assistant_tokens is not None:
        settings["num_assistant_tokens"] = num_assistant_tokens
    requested, name = requested_gamma(settings, resolved, assistant_model), "number of draft tokens"
    refuse(SimpleNamespace(requested_gamma=requested), {name: CALLS[name]})
    gamma = read_integer(requested) or DEFAULT_NUM_ASSISTANT_TOKENS
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
        for length in prompt_lengths(max_length, gamma):
            longest = min(_most_positions(model, assistant_model), length + gamma + 1)  # one round
            total.add(_decode(model, rows, length, options | {"max_new_tokens": longest - length}))
    return total


def _decode(model: PreTrainedModel, rows: int, length: int, options: dict[str, Any]) -> CompileStats:
    """Decode random prompts, without a change of the random state."""
    ids = min(map(support.known_ids, (model, options["assistant_model"])))
    # By default torch saves the state of every GPU, which creates a context on each.
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(0)
        prompts = torch.randint(ids, (rows, length)).to(model.device)
        output = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **options)
    if not output.stats.compile.num_used:
        raise ValueError(f"nothing was compiled; such calls run uncompiled: {output.stats.engine_reason}.")
    return output.stats.compile


def prompt_lengths(max_length: int, gamma: int) -> Iterator[int]:
    """Yield prompt lengths whose first round needs each buffer capacity that calls up to `max_length` can reach."""
    capacity = SMALLEST_CAPACITY
    yield 2  # the shortest prompt that static shapes support
    longest = max_length - 1  # of a row that is still decoded
    while capacity < longest + gamma:  # the last round may draft beyond max_length
        yield min(capacity + 1, longest)
        capacity *= 2


def _most_positions(*models: PreTrainedModel) -> int:
    return min((most for model in models if (most := support.max_positions(model)) is not None), default=2**31)


def _check(model, draft, batch_sizes, max_length: int, config: CompileConfig | None) -> None:
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
