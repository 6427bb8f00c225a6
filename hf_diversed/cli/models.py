"""The pair that a command works on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hf_diversed.generation import checks
from hf_diversed.running.pair import Pair, load_model, load_tokenizer
from hf_diversed.zoo import load_demo_pair, packaged


Device = torch.device | str
LOOKUP = "lookup"  # in the place of a draft: what followed the text's last words where they stood before
DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_pair(
    target: str | None,
    draft: str | None,
    device: Device | None = None,
    chat: bool = False,
    dtype: str | None = None,
    two_models: bool = False,
) -> Pair:
    """Load a pair by name, or the embedded one with its heads, onto a device; the best one if left out.

    Args:
        target, draft: Hub ids, folders or names of packaged models; the draft may be "lookup".
        dtype: of `DTYPES`; None for the one that the weights were saved in.
        two_models: refuse looked-up drafts.

    Raises:
        ValueError: if only one of the two is named, for a device that is not here, for models that cannot decode
            together, or for `chat` and a tokenizer without a chat template; all before a named model is loaded.
    """
    check_pair(target, draft)
    if two_models:
        check_two_models(draft)
    if device is not None:
        check_device(device)
    kind = check_dtype(dtype)
    device = device or best_device()
    if target is None or draft is None:
        pair = load_demo_pair().to(device, kind if isinstance(kind, torch.dtype) else None)
        _check_chat(pair.tokenizer, chat)
        return pair
    target, draft = packaged.resolve(target), packaged.resolve(draft)
    with naming_model("--target", target):
        tokenizer = load_tokenizer(target)
    _check_chat(tokenizer, chat)
    if draft != LOOKUP:
        check_together(target, draft, tokenizer)
    with naming_model("--target", target):
        loaded = load_model(target, device, kind)
    if draft == LOOKUP:
        return Pair(loaded, None, tokenizer)
    with naming_model("--draft", draft):
        return Pair(loaded, load_model(draft, device, kind), tokenizer)


@contextmanager
def naming_model(option: str, name: str) -> Iterator[None]:
    """Name the option and the model in errors about a model that cannot be loaded.

    Raises:
        ValueError: for the path of a folder that does not exist. OSError: for a model that is not found or reached.
    """
    if (name.startswith((".", "/", "~")) or name.count("/") > 1) and not Path(name).is_dir():
        raise ValueError(f"{option}: the folder {name} does not exist.")
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise OSError(
            f"{option} {name} is no folder here and could not be loaded from the Hub: {reason}"
            if not Path(name).is_dir()
            else f"{option} {name} could not be loaded: {reason}"
        ) from error


def best_device() -> str:
    """The accelerator, of several the one that belongs to this process of `accelerate launch` or torchrun."""
    if torch.cuda.is_available():
        # A launcher may show each process its own GPU alone, whatever its rank.
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_pair(target: str | None, draft: str | None) -> None:
    if (target is None) != (draft is None):
        raise ValueError(
            "--target and --draft go together: pass both, for example --target Qwen/Qwen3-8B --draft "
            "Qwen/Qwen3-0.6B, or neither for the embedded pair. --draft lookup needs no second model."
        )


def check_two_models(draft: str | None) -> None:
    if draft == LOOKUP:
        raise ValueError("--draft lookup is no model, and this command wants two; name a draft.")


def check_device(device: Device) -> None:
    """Refuse a device that torch does not know, or that is not here."""
    try:
        torch.empty(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device must be cpu, or an accelerator that is here, as in cuda, cuda:1 or mps; got {str(device)!r}: "
            f"{reason}"
        ) from error


def check_dtype(dtype: str | None) -> torch.dtype | str:
    """The dtype of a name, for `from_pretrained`."""
    if dtype is None or dtype == "auto":
        return "auto"
    if dtype not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    kind: torch.dtype = getattr(torch, dtype)
    return kind


def check_together(target: str, draft: str, tokenizer) -> None:
    """Refuse two models that no rule could decode with, by their shapes and tokenizers, without their weights."""
    models = []
    for option, name in (("--target", target), ("--draft", draft)):
        with naming_model(option, name):
            models.append(without_weights(name))
    try:
        for model, role in zip(models, ("target", "draft")):
            checks.check_architecture(model, role)
        checks.check_vocabularies(*models)
    except ValueError as error:
        raise ValueError(f"--target {target} --draft {draft}: {error}") from error
    try:
        drafts = AutoTokenizer.from_pretrained(draft).get_vocab()
    except (OSError, ValueError):
        return  # a draft may come without one: the target's is used
    known = tokenizer.get_vocab()  # a new dict each time
    shared = sum(known.get(token) == index for token, index in drafts.items())
    if 2 * shared < len(drafts):  # one tokenizer with a few tokens added is one
        raise ValueError(
            f"--target {target} --draft {draft}: of the draft's {len(drafts):,} tokens only {shared:,} have their id "
            "in the target's tokenizer. Use a draft from the same family."
        )


def without_weights(name: str) -> PreTrainedModel:
    """The model's shapes alone: a config may not say what the output embedding sees."""
    config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.name_or_path = name
    return model


def _check_chat(tokenizer, chat: bool) -> None:
    if chat and tokenizer.chat_template is None:
        raise ValueError(
            "--chat needs a tokenizer with a chat template, and the target's has none; leave it out, or name "
            "instruction-tuned models."
        )
