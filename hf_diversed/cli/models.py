"""Loading of the pair that a command uses."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hf_diversed.cli.options import LOOKUP
from hf_diversed.generation import checks
from hf_diversed.harness.pair import Pair, load_model, load_tokenizer
from hf_diversed.zoo import load_demo_pair


Device = torch.device | str
DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_pair(
    target: str | None,
    draft: str | None,
    device: Device | None = None,
    chat: bool = False,
    dtype: str | None = None,
    two_models: bool = False,
) -> Pair:
    """Load a pair by name, or the embedded pair with its heads.

    Args:
        target, draft: Hub ids or folders; the draft may be "lookup". None for both loads the embedded pair.
        device: None for the best available device.
        chat: whether the tokenizer must have a chat template.
        dtype: one of `DTYPES`; None for the dtype of the saved weights.
        two_models: whether "lookup" is not allowed as draft.

    Raises:
        ValueError: if only one model is named, the device is not available, the models cannot decode together, or
            `chat` is set and the tokenizer has no chat template; all before a named model is loaded.
    """
    check_pair(target, draft)
    if two_models:
        check_draft_model(draft)
    if device is not None:
        check_device(device)
    kind = check_dtype(dtype)
    device = device or best_device()
    if target is None or draft is None:
        pair = load_demo_pair().to(device, kind if isinstance(kind, torch.dtype) else None)
        check_chat(pair.tokenizer, chat)
        return pair
    with naming_model("target model", target):
        tokenizer = load_tokenizer(target)
    check_chat(tokenizer, chat)
    if draft != LOOKUP:
        check_together(target, draft, tokenizer)
    with naming_model("target model", target):
        loaded = load_model(target, device, kind)
    if draft == LOOKUP:
        return Pair(loaded, None, tokenizer)
    with naming_model("draft model", draft):
        return Pair(loaded, load_model(draft, device, kind), tokenizer)


@contextmanager
def naming_model(role: str, name: str) -> Iterator[None]:
    """Add the role and the name of the model to errors raised in loading it.

    Raises:
        ValueError: if the folder does not exist. OSError: if the model is not found or cannot be downloaded.
    """
    if (name.startswith((".", "/", "~")) or name.count("/") > 1) and not Path(name).is_dir():
        raise ValueError(f"{role}: the folder {name} does not exist.")
    try:
        yield
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise OSError(
            f"{role} {name} is not a local folder and could not be loaded from the Hub: {reason}"
            if not Path(name).is_dir()
            else f"{role} {name} could not be loaded: {reason}"
        ) from error


def best_device() -> str:
    """Return the accelerator, or "cpu". Processes of `accelerate launch` and torchrun get different GPUs."""
    if torch.cuda.is_available():
        # A launcher may make only one GPU visible to each process, whatever its rank.
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_pair(target: str | None, draft: str | None) -> None:
    if (target is None) != (draft is None):
        raise ValueError(
            "--target and --draft go together: pass both, for example --target Qwen/Qwen3-8B --draft "
            "Qwen/Qwen3-0.6B, or neither for the embedded pair. --draft lookup needs no second model."
        )


def check_draft_model(draft: str | None) -> None:
    """Raise ValueError for prompt lookup, in commands that need a draft model."""
    if draft == LOOKUP:
        raise ValueError("--draft must be a model for this command, got lookup; name a draft model.")


def check_device(device: Device) -> None:
    """Raise ValueError if torch does not support a device, or the device is not available."""
    try:
        torch.empty(1, dtype=torch.float32, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"--device must be cpu, or an available accelerator, as in cuda, cuda:1 or mps; got {str(device)!r}: "
            f"{reason}"
        ) from error


def check_dtype(dtype: str | None) -> torch.dtype | str:
    """Return the dtype of a name, for `from_pretrained`."""
    if dtype is None or dtype == "auto":
        return "auto"
    if dtype not in DTYPES:
        raise ValueError(f"--dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    kind: torch.dtype = getattr(torch, dtype)
    return kind


def check_together(target: str, draft: str, tokenizer) -> None:
    """Raise ValueError if the architectures or tokenizers of two models do not match. Weights are not loaded."""
    models = []
    for role, name in (("target model", target), ("draft model", draft)):
        with naming_model(role, name):
            models.append(without_weights(name))
    try:
        for model, role in zip(models, ("target", "draft")):
            checks.check_architecture(model, role)
        checks.check_vocabularies(*models)
    except ValueError as error:
        raise ValueError(f"--target {target} --draft {draft}: {error}") from error
    try:
        draft_ids = AutoTokenizer.from_pretrained(draft).get_vocab()
    except (OSError, ValueError):
        return  # a draft model may have no tokenizer; the target's is used
    target_ids = tokenizer.get_vocab()
    shared = sum(target_ids.get(token) == index for token, index in draft_ids.items())
    if 2 * shared < len(draft_ids):  # a few added tokens are accepted
        raise ValueError(
            f"--target {target} --draft {draft}: only {shared:,} of the draft model's {len(draft_ids):,} tokens have "
            "the same id in the target's tokenizer. Use a draft model from the same family."
        )


def without_weights(name: str) -> PreTrainedModel:
    """Build a model on the meta device. A config alone may lack the input width of the output embedding."""
    config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.name_or_path = name
    return model


def check_chat(tokenizer, chat: bool) -> None:
    """Raise ValueError if `chat` is set and the tokenizer has no chat template."""
    if chat and tokenizer.chat_template is None:
        raise ValueError(
            "chat prompts need a chat template, which the target's tokenizer lacks; name an instruction-tuned model, "
            "or leave out `chat`."
        )
