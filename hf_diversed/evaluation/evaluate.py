"""Measure quality, acceptance and speed of methods on a task's prompts.

Finished calls are stored in a folder as JSON lines: a header, then one line per session and finished call. An
interrupted evaluation continues from them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from hf_diversed import support
from hf_diversed.evaluation.decoder import (
    Call,
    Decoded,
    Decoder,
    HeadLike,
    MethodLike,
    Sampling,
    build_methods,
    decode_calls,
    encode,
    plan_batches,
    warm_up,
)
from hf_diversed.evaluation.statistics import COUNTERS, Results, summarize
from hf_diversed.files import append_lines, read_lines, write_json
from hf_diversed.provenance import data_digest, provenance, weights_digest
from hf_diversed.tasks import PromptedTask, Task
from hf_diversed.zoo.loader import LOOKUP, Pair


LINES, REPORT = "batches-0.jsonl", "evaluation.json"
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class EvaluationSettings(Sampling):
    """Settings that all methods of an evaluation share, in addition to those of `Sampling`.

    Args:
        stop_strings: replaced by those of the task. max_new_tokens: maximum length; None for the task's limit.
        samples_per_prompt: completions of each prompt.
        seed: seed of sampling and of the bootstrap.
        split: the split of the examples; recorded, and compared when a run continues.
        progress: whether a progress bar is shown on standard error.

    Raises:
        ValueError: for values out of range, or several greedy samples of a prompt.
    """

    max_new_tokens: int | None = None  # type: ignore[assignment]
    samples_per_prompt: int = 1
    seed: int = 0
    split: str | None = None
    progress: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(samples_per_prompt=1, seed=0)
        if self.temperature == 0 and self.samples_per_prompt > 1:
            raise ValueError(
                f"`samples_per_prompt` must be 1 at temperature 0, got {self.samples_per_prompt}: greedy samples of "
                "one prompt are all the same."
            )

    def identity(self) -> dict[str, Any]:
        """Return the settings that results depend on."""
        return {name: value for name, value in vars(self).items() if name not in ("stop_strings", "progress")}

    def call_seed(self, batch: int, sample: int) -> int:
        """Return the seed of one call. It is the same for all methods, and any call can be repeated alone."""
        state = np.random.SeedSequence([self.seed, batch, sample]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))


def read_results(folder: Path | str, header: dict | None = None) -> Results:
    """Read the finished calls in a folder.

    Args:
        header: the required header; None for any.

    Raises:
        ValueError: if the header differs, or, without `header`, there are no results.
    """
    path = Path(folder) / LINES
    lines = read_lines(path) if path.is_file() else []
    if not lines:
        if header is None:
            raise ValueError(f"{folder} contains no results ({LINES}); run an evaluation first.")
        return Results(header)
    results = Results(lines[0])
    current, stored = _flat(json.loads(json.dumps(header or {}))), _flat(lines[0])
    if changes := [name for name in sorted(current) if stored.get(name) != current[name]]:
        shown = "; ".join(f"{name}: {stored.get(name)!r} there, {current[name]!r} here" for name in changes)
        raise ValueError(
            f"{path} holds results of other settings ({shown}); use these settings, choose another output folder, or "
            "remove this one."
        )
    for entry in lines[1:]:
        if "provenance" in entry:
            results.sessions.append(entry["provenance"])
        else:
            results.add(entry)
    return results


def _flat(header: dict) -> dict:
    """Return the header with its settings on the same level; its own values take precedence."""
    return header.get("settings", {}) | {name: value for name, value in header.items() if name != "settings"}


def evaluate(
    pair: Pair,
    task: Task | PromptedTask,
    examples: Sequence[Mapping[str, Any]],
    methods: Sequence[MethodLike],
    settings: EvaluationSettings | None = None,
    *,
    head: HeadLike | None = None,
    output: Path | str | None = None,
) -> list[dict]:
    """Measure quality, acceptance and cost of several methods on the same prompts under the same seeds.

    Args:
        pair: `target`, `draft` and `tokenizer`. task: prompts and scores; `PromptedTask` adds shots or a chat
            template. examples: the task's records.
        methods: names or `Method`s, see `build_methods`. head: the head of "diversed".
        output: a folder that stores every finished call. An interrupted evaluation continues where it stopped and
            returns the same records; methods can be added later. At the end, `evaluation.json` is written there:
            {"records": [...], "provenance": {...}}. The provenance is that of the first session that measured calls;
            `sessions` has those of the others.

    Returns:
        One record per method, see `summarize`, including the complete methods that are already in the folder.

    Raises:
        ValueError: before anything is written, for unknown methods, a head of another pair, or an output folder with
            results of other settings.

    Example:
        ```python
        pair = load_demo_pair()
        records = evaluate(pair, task, examples, ["target", "lossless"], EvaluationSettings(seed=1))
        ```
    """
    settings = settings or EvaluationSettings()
    built, examples = build_methods(methods, head, pair.target.device), list(examples)
    if not examples:
        raise ValueError("`examples` must hold at least one record, got none.")
    limit = settings.max_new_tokens or task.max_new_tokens
    decoder = Decoder(pair, replace(settings, stop_strings=tuple(task.stop_strings), max_new_tokens=limit))
    texts = [task.prompt(example) for example in examples]
    form: dict[str, Any] = {}
    if isinstance(task, PromptedTask):
        form = {"shots": task.shots, "chat": task.chat, "thinking": task.thinking}
    prompts = encode(pair.tokenizer, texts, add_special_tokens=not form.get("chat"))  # chat templates contain them
    batches = plan_batches(list(map(len, prompts)), settings.batch_size)
    header = {
        "task": task.name,
        "metric": task.metric,
        "n": len(examples),
        "num_batches": len(batches),
        "max_new_tokens": decoder.sampling.max_new_tokens,
        "stop_strings": decoder.stop_strings,
        "target": _identity(pair.target),
        "draft": {"name": LOOKUP} if pair.draft is None else _identity(pair.draft),
        "device": pair.target.device.type,
        "data": data_digest([texts, examples]),
        "settings": settings.identity(),
        **form,
    }
    folder = None if output is None else Path(output)
    results = Results(header) if folder is None else read_results(folder, header)
    found = results.definitions()
    for method in built:
        if found.get(method.label, method.definition) != method.definition:
            raise ValueError(
                f"the output folder holds {method.label!r} as {found[method.label]}, got {method.definition}; choose "
                "another label or folder, or remove the older results."
            )
    by_label = {method.label: method for method in built}
    samples = settings.samples_per_prompt

    def turn(key: tuple[str, int, int]) -> tuple[int, int, int]:
        label, batch, sample = key
        return batch, sample, (list(by_label).index(label) - batch * samples - sample) % len(by_label)

    # All methods decode a batch before the next one, and each in turn is the first: machine load affects all of them.
    calls = [
        Call(
            decoder,
            by_label[label],
            [prompts[index] for index in batches[batch]],
            settings.call_seed(batch, sample),
            (batch, sample),
        )
        for label, batch, sample in sorted(results.missing(by_label), key=turn)
    ]
    warm_up(calls, max_new_tokens=min(_WARM_UP_TOKENS, header["max_new_tokens"]))
    session = {"provenance": provenance(settings.seed, pair.target.device)}
    if calls:
        results.sessions.append(session["provenance"])
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        is_new = not (folder / LINES).exists()
        append_lines(folder / LINES, [*([header] if is_new else []), *([session] if calls else [])])
    for call, decoded in decode_calls(
        calls, f"{task.name} at temperature {settings.temperature:g}", settings.progress
    ):
        batch, sample = call.key
        rows = _rows(decoder, decoded)
        scores = task.score_batch(rows["text"], [examples[index] for index in batches[batch]])
        entry = {"method": call.method.label, "definition": call.method.definition, "batch": batch, "sample": sample}
        rows |= {"prompt": list(batches[batch]), "score": [float(score) for score in scores]}
        entry |= {"seconds": decoded.seconds, "rows": rows}
        results.add(entry)
        if folder is not None:
            append_lines(folder / LINES, [entry])
    others = [label for label in results.labels() if label not in by_label and not results.missing([label])]
    records = summarize(results, [*by_label, *others])
    if folder is not None:
        measured, *more = results.sessions or [session["provenance"]]
        source = measured | {"evaluation": header, "methods": results.definitions(), "sessions": more}
        write_json(folder / REPORT, {"records": records, "provenance": source})
    return records


def _rows(decoder: Decoder, decoded: Decoded) -> dict[str, list[Any]]:
    """Return lists of length B: texts, numbers of tokens, and the counters of our loop."""
    texts = [decoder.text(ids) for ids in decoded.tokens]
    rows: dict[str, list[Any]] = {
        "text": texts,
        "tokens": [len(ids) for ids in decoded.tokens],
        "cut_off": [decoder.is_cut_off(ids, text) for ids, text in zip(decoded.tokens, texts)],
    }
    if decoded.stats is not None:
        per_row = decoded.stats.per_row
        rows |= {name: [getattr(stats, name) for stats in per_row] for name in COUNTERS}
    return rows


def _identity(model: PreTrainedModel) -> dict:
    """Return data that distinguishes models; of a local folder, its name only."""
    config = dict(model.generation_config.to_diff_dict())
    config.pop("transformers_version", None)
    return {
        "name": support.model_name(model),
        "parameters": model.num_parameters(),
        "weights": weights_digest(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "generation_config": json.loads(json.dumps(config, default=str)),
    }
