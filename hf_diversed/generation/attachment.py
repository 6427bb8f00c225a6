"""Draft models and verifiers that are attached to a model, for code that cannot pass them to `generate`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed import support
from hf_diversed.generation import checks
from hf_diversed.generation.options import ARGUMENTS, Options
from hf_diversed.generation.patching import install_hook
from hf_diversed.generation.request import AttachedOptions, check_head_and_verifier, resolve_verifier
from hf_diversed.head import DiversedHead
from hf_diversed.verifiers import Verifier


# Open blocks of the current thread or task, innermost last.
_ATTACHED: ContextVar[tuple[tuple[torch.nn.Module, AttachedOptions], ...]] = ContextVar("_ATTACHED", default=())


def attached_to(model: torch.nn.Module) -> AttachedOptions | None:
    """Return the attachment of the innermost block for this model; None without one."""
    return next((attached for each, attached in reversed(_ATTACHED.get()) if each is model), None)


@contextmanager
def attach(
    model: PreTrainedModel,
    assistant_model: PreTrainedModel,
    diversed_head: "DiversedHead | str | os.PathLike | None" = None,
    *,
    verifier: Verifier | str | None = None,
    num_assistant_tokens: int | None = None,
    **settings: Any,
) -> Iterator[None]:
    """Use this draft model and verifier in the `model.generate(...)` calls of a `with` block that cannot pass them.

    Without `with`, nothing happens.

    The attachment is valid in the current thread or task. Threads started inside the block use it if they run in
    `contextvars.copy_context()`. Nothing is stored on the model: `state_dict`, `save_pretrained`, `deepcopy` and
    pickle do not change. Arguments of a call and entries of its generation config take precedence over the attachment.

    Args:
        diversed_head, verifier: exactly one of them, as in `generate`. num_assistant_tokens: as in `generate`.
        settings: `diversed_strictness` and the other settings of a head, as in `generate`.

    Raises:
        TypeError: for other settings. ValueError: for models, verifiers and settings that cannot be combined.

    Example:
        ```python
        with hf_diversed.attach(model, draft, head):
            pipeline("text-generation", model=model, tokenizer=tokenizer)("Question: ...")
        ```
    """
    if unknown := settings.keys() - ARGUMENTS.values():
        raise TypeError(f"attach got unknown settings {sorted(unknown)}; allowed are {[*ARGUMENTS.values()]}.")
    options = Options(diversed_head, verifier, **settings)
    if (diversed_head is None) == (verifier is None):
        given = "none" if verifier is None else "both"
        raise ValueError(f"attach needs exactly one of diversed_head= and verifier=, got {given}.")
    for candidate, role in ((model, "target"), (assistant_model, "draft")):
        checks.check_model(candidate, role)
    check_head_and_verifier(diversed_head, None)
    if verifier is not None:
        resolve_verifier(None, verifier, **options.head_settings())
    install_hook()
    entry = support.base_model(model), AttachedOptions(assistant_model, options, num_assistant_tokens)
    _ATTACHED.set((*_ATTACHED.get(), entry))
    try:
        yield
    finally:  # by identity, because generators may leave an outer block first
        _ATTACHED.set(tuple(each for each in _ATTACHED.get() if each is not entry))
