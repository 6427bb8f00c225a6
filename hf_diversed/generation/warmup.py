"""Compiling ahead of time."""

import os
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import CompileConfig, PreTrainedModel

from hf_diversed import support
from hf_diversed.generation.call import requested_gamma, resolve_verifier
from hf_diversed.generation.checks import HEAD_SETTINGS
from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.static import SMALLEST_CAPACITY
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import CompileStats
from hf_diversed.sampling import seeded
from hf_diversed.verifiers import Verifier


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
        max_length: largest number of prompt and new tokens of a later call, at least 3.
        num_assistant_tokens: gamma; None for the default of the verifier or the draft model, or 5.
        do_sample: False for greedy decoding.
        compile_config: as for `generate`; required on a CPU.
        kwargs: other arguments of the later calls: `temperature`, `top_k`, `output_token_records`, ...

    Returns:
        The summed compile statistics of these calls.

    Raises:
        ValueError: if there is no verifier, or nothing is compiled.

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
    settings = support.entries(model.generation_config)
    if num_assistant_tokens is not None:
        settings["num_assistant_tokens"] = num_assistant_tokens
    requested = requested_gamma(settings, resolved, assistant_model)
    gamma = DEFAULT_NUM_ASSISTANT_TOKENS if requested is None else requested
    positions = (support.max_positions(each) for each in (model, assistant_model))
    most = min((number for number in positions if number is not None), default=2**31)
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
            longest = min(most, length + gamma + 1)  # one round
            total.add(_decode(model, rows, length, options | {"max_new_tokens": longest - length}))
    return total


def _decode(model: PreTrainedModel, rows: int, length: int, options: dict[str, Any]) -> CompileStats:
    """Decode random prompts, without a change of the random state."""
    ids = min(map(support.known_ids, (model, options["assistant_model"])))
    with seeded(0, model.device):
        prompts = torch.randint(ids, (rows, length)).to(model.device)
        output = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), **options)
    if not output.stats.compile.num_used:
        reason = output.stats.engine_reason or "compilation is off: pass compile_config="
        raise ValueError(f"nothing was compiled; such calls run uncompiled: {reason}.")
    return output.stats.compile


def prompt_lengths(max_length: int, gamma: int) -> Iterator[int]:
    """Yield prompt lengths whose first round needs each buffer capacity that calls up to `max_length` can reach."""
    capacity = SMALLEST_CAPACITY
    yield 2  # the shortest prompt that static shapes support
    longest = max_length - 1  # of a row that is still decoded
    while capacity < longest + gamma:  # the last round may draft beyond max_length
        yield min(capacity + 1, longest)
        capacity *= 2
