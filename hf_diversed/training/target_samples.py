"""Completions of the target model for distillation, stored in a file."""

import bisect
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accelerate.utils import broadcast_object_list, gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed import _compat
from hf_diversed.generation.processing import stop_criterion
from hf_diversed.provenance import model_digest
from hf_diversed.running.decode import timed_call
from hf_diversed.running.files import append_lines, drop_torn_line, read_lines, writing
from hf_diversed.running.pair import eos_ids, pad_id
from hf_diversed.running.prompts import left_padded
from hf_diversed.running.sampling import Sampling


if TYPE_CHECKING:
    from hf_diversed.training.draft_tuning import DraftTuningConfig

Ids = tuple[int, ...]
_SAMPLING = ("temperature", "max_completion_length", "num_samples_per_prompt", "seed")


def sample_completions(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Iterable[Ids],
    args: "DraftTuningConfig",
    stop_strings: Sequence[str] = (),
) -> dict[Ids, list[Ids]]:
    """Draw `args.num_samples_per_prompt` completions of the target per prompt.

    Completions in `target_samples.jsonl` of `args.output_dir` are reused; new ones are appended after each batch.

    Returns:
        Token ids of the completions by the prompt's token ids, including EOS if it was drawn.

    Raises:
        ValueError: if the file was made with other settings.
    """
    path = Path(args.output_dir) / "target_samples.jsonl"
    settings = {name: getattr(args, name) for name in _SAMPLING} | {
        "target": _compat.model_name(target),
        "target_weights": model_digest(target),
        "stop_strings": list(stop_strings),
    }
    # Only the first process reads the file: other nodes may not share its disk.
    samples = _read_samples(path, settings) if args.process_index == 0 else {}
    samples = broadcast_object_list([samples])[0]
    missing = sorted({*prompts} - samples.keys(), key=lambda prompt: (len(prompt), prompt))
    portion = max(1, args.generation_batch_size // args.num_samples_per_prompt) * args.world_size
    for start in range(0, len(missing), portion):
        local = missing[start : start + portion][args.process_index :: args.world_size]
        drawn = gather_object(list(zip(local, _draw(target, tokenizer, local, args, stop_strings) if local else [])))
        samples |= dict(drawn)
        if args.process_index == 0:
            append_lines(
                path, [{"prompt_ids": prompt, "completion_ids": completions} for prompt, completions in drawn]
            )
    return samples


def _draw(target, tokenizer, prompts: list[Ids], args: "DraftTuningConfig", stop_strings) -> list[list[Ids]]:
    """Draw the completions of a batch. The seed depends on the prompts, so a resumed run draws the same ones."""
    n = args.num_samples_per_prompt
    end = end_ids(target, tokenizer)
    pad = pad_id(tokenizer, target)
    stops = {"stopping_criteria": [stop_criterion(tokenizer, stop_strings)]} if stop_strings else {}
    _, rows, _ = timed_call(
        target,
        random.Random(f"{args.seed}/{prompts}").getrandbits(48),
        **left_padded([prompt for prompt in prompts for _ in range(n)], pad, target.device),
        **Sampling(args.temperature, max_new_tokens=args.max_completion_length).generate_kwargs(),
        eos_token_id=end,
        pad_token_id=pad,
        **stops,
    )
    drawn = [_until_stop(until_end(row, end), tokenizer, stop_strings) for row in rows]
    return [drawn[start : start + n] for start in range(0, len(drawn), n)]


def until_end(ids: Sequence[int], end: list[int]) -> Ids:
    """Return the ids up to and including the first EOS."""
    stop = next((place + 1 for place, token in enumerate(ids) if token in end), None)
    return tuple(ids[:stop])


def _until_stop(ids: Ids, tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str]) -> Ids:
    """Return the ids up to the token that completes a stop string; `generate` pads the rest, possibly with EOS."""

    def stopped(length: int) -> bool:
        text = tokenizer.decode(ids[:length])
        return any(stop in text for stop in stop_strings)

    return ids[: bisect.bisect_left(range(len(ids)), True, key=stopped)]


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that end a completion: the tokenizer's EOS, then those of the model's generation config."""
    return list(dict.fromkeys([tokenizer.eos_token_id, *eos_ids(model)]))


def _read_samples(path: Path, settings: dict) -> dict[Ids, list[Ids]]:
    """Return the stored samples by prompt. A missing file is created; an incomplete last line is removed."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_torn_line(path)
    if not path.exists() or path.stat().st_size == 0:
        append_lines(path, [{"settings": settings}])
    header, *lines = read_lines(path)
    stored = header.get("settings", {})
    if changed := sorted(name for name in settings if stored.get(name) != settings[name]):
        raise ValueError(
            f"{path.name} holds completions that were drawn with other settings ({', '.join(changed)}); use another "
            "output_dir, or remove the file to draw them again."
        )
    return {tuple(line["prompt_ids"]): [tuple(ids) for ids in line["completion_ids"]] for line in lines}
