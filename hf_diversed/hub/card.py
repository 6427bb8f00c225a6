"""The model card of a head, rendered from its configuration and its evaluation and training records."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from hf_diversed.formatting import LOSSLESS, PLAIN, number, percent, with_bounds
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.head import LOOKED_UP, DiversedHeadConfig
from hf_diversed.hub.markdown import code, one_line, render, text
from hf_diversed.hub.metadata import (
    SCRIPT_TAG,
    by_strictness,
    card_data,
    hub_id,
    hub_source,
    own_record,
    records_by_method,
    strictness_labels,
    without_folders,
)
from hf_diversed.hub.records import LICENSE
from hf_diversed.method_names import AS_TRAINED, DIVERSED, MethodName
from hf_diversed.provenance import publishable
from hf_diversed.tasks import TASKS
from hf_diversed.verifiers import VERIFIERS


TEMPLATE = Path(__file__).parent / "templates" / "head_card.md"
_SEEN = {
    "hidden": "the last hidden states of both models",
    "distribution": "eight features of the two distributions",
    "both": "the last hidden states of both models and eight features of the two distributions",
}
_SETTINGS = (
    "learning_rate", "lr_scheduler_type", "max_steps", "num_iterations", "per_device_train_batch_size",
    "num_generations", "num_assistant_tokens", "temperature", "top_k", "top_p", "max_completion_length",
    "initial_weight", "initial_lenience", "baseline", "clip_range",
)  # fmt: skip
_OF_CONSTRAINT = ("dual_learning_rate", "dual_window", "reference_generations")


def render_card(
    config: DiversedHeadConfig,
    evaluation: Mapping[str, Any],
    training: Mapping[str, Any],
    repo_id: str | None = None,
    tags: Sequence[str] = (),
    license: str = LICENSE,
) -> str:
    """Return the README.md of a head: YAML front matter and Markdown.

    All figures come from the two records. A missing one appears as "-" in a table, and its sentence is left out.
    Values of configuration and records are escaped, or written as literals in the Python block.

    Args:
        config: the head's. Without a `repo_id`, the card names the folder in `name_or_path`, if any.
        evaluation: what `evaluate` writes, {"records": [...], "provenance": {...}}, with a record "diversed" besides
            those of other methods, which are all shown; {} without evaluation.
        training: the trainer's provenance.json; {} if it does not exist.
        repo_id: the repository on the Hub. tags: additional ones. license: a license id of the Hub.

    Raises:
        ValueError: if there are records, but none of the head, or several of a method.

    Example:
        ```python
        text = render_card(head.config, json.loads(report.read_text()), json.loads(provenance.read_text()), "org/head")
        ```
    """
    records = records_by_method(evaluation)
    own = own_record(records)
    tags = [*([SCRIPT_TAG] if repo_id else []), *tags]
    kind = None if config.token_features else "mixture"
    name = repo_id.split("/")[-1] if repo_id else "-".join(filter(None, ("diversed", config.task, kind)))
    card = render(
        TEMPLATE,
        card_data=Markup(card_data(config, own, name, tags, license).to_yaml()),
        name=name,
        config=config,
        repo_id=repo_id,
        source=repo_id or publishable(config.name_or_path),
        own=own,
        **_about_pair(config, evaluation),
        **_about_decoding(config, own, training),
        results=_results(records, own, config.strictness),
        source_of_results=hub_source(own.get("task")),
        setting=_setting(own),
        evaluated_with=_made_with(evaluation.get("provenance") or {}),
        strictness=_strictness(records, own),
        competitor=_competitor(records, own),
        as_trained=AS_TRAINED,
        **_about_training(training),
        points=_points,
        percent=percent,
    )
    return card.rstrip("\n") + "\n"


# Values of the template. Tables are lists of rows with the header first, or empty


def _about_pair(config: DiversedHeadConfig, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    target, draft = config.base_model_name_or_path, config.assistant_model_name_or_path
    task = config.task if config.task in TASKS else None
    looked_up, lookups = draft == LOOKED_UP, config.num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
    return {
        # The pair of a head without a known task is unknown.
        "embedded": not target and not draft and task is not None and hub_source(task) is None,
        "target": without_folders(target) or "the-target",
        "draft": without_folders(draft) or "the-draft",
        "looked_up": looked_up,
        "drafts": f"prompt_lookup_num_tokens={lookups}" if looked_up else "assistant_model=draft",
        "pair": _pair(config, evaluation),
        "seen": _inputs(config),
    }


def _inputs(config: DiversedHeadConfig) -> str:
    parts = (
        _SEEN[config.features],
        config.token_features and ", and five features of the draft token: it predicts a weight per token",
    )
    return "".join(part for part in parts if part)


def _about_decoding(config: DiversedHeadConfig, own: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling settings of training; of the evaluation, where training has none."""
    trained = training.get("training") or {}
    known = {"temperature": config.training_temperature}
    sampling = {}
    for name in ("temperature", "top_k", "top_p"):
        given = (record.get(name) for record in (trained, known, own))
        sampling[name] = next((value for value in given if value is not None), None)
    length = own.get("max_new_tokens") or trained.get("max_completion_length") or 128
    return {"sampling": sampling, "max_new_tokens": length}


def _about_training(training: Mapping[str, Any]) -> dict[str, Any]:
    settings = training.get("training") or {}
    not_its_start = "initial_weight" if settings.get("token_features") else "initial_lenience"
    constrained = bool(settings) and settings.get("acceptance_coef") is None
    relevant = _SETTINGS + (_OF_CONSTRAINT if constrained else ())
    shown = [name for name in relevant if name != not_its_start and settings.get(name) is not None]
    return {
        "training": training,
        "command": Markup(one_line(shlex.join(map(str, training.get("argv") or [])))),
        "rollouts": _rollouts(training),
        "constrained": constrained,
        "kept": constraint_kept(training),
        "training_settings": Markup(", ".join(f"`{name}` {text(settings[name])}" for name in shown)),
        "trained_with": _made_with(training),
    }


def constraint_kept(training: Mapping[str, Any]) -> bool | None:
    """Return whether the head kept its training constraint on the evaluation prompts; None if unknown."""
    measured, bound = training.get("validation") or {}, (training.get("training") or {}).get("max_quality_drop")
    if bound is None or "quality_drop_error" not in measured:
        return None
    return measured["quality_drop"] + measured["quality_drop_error"] <= bound


def _pair(config: DiversedHeadConfig, evaluation: Mapping[str, Any]) -> list[list[str]]:
    measured = (evaluation.get("provenance") or {}).get("evaluation") or {}
    names = {
        "target": (config.base_model_name_or_path, config.base_model_revision),
        "draft": (config.assistant_model_name_or_path, config.assistant_model_revision),
    }
    rows = [["", "model", "revision", "parameters", "dtype"]]
    for role, (name, revision) in names.items():
        model, found = measured.get(role) or {}, hub_id(name)
        shown = Markup(f"[{found}](https://huggingface.co/{found})") if found else without_folders(name) or "-"
        count = model.get("parameters")
        parameters = "-" if count is None else f"{count / 1e6:,.2f} M"
        rows.append([role, shown, revision or "-", parameters, model.get("dtype") or "-"])
    columns = [column for column in zip(*rows) if column[1:] != ("-", "-")]
    return [list(row) for row in zip(*columns)] if len(columns) > 1 else []


def _results(
    records: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any], default_strictness: float
) -> list[list[str]]:
    if not records:
        return []
    names = {PLAIN: Markup("`target` (no drafting)"), LOSSLESS: Markup("`lossless`")}
    own_labels = strictness_labels(records).values()
    own_name = Markup("**DIVERSED**")
    if default_strictness != AS_TRAINED:
        own_name += f", strictness {AS_TRAINED:g}"
    names |= {label: code(publishable(label)) for label in records if label not in (*names, *own_labels)}
    rows = [["method", *_figure_names(own), "accepted / verified", "tokens per round", "mean weight"]]
    for record, name in [
        *((records[label], name) for label, name in names.items() if label in records),
        (own, own_name),
    ]:
        tail = [percent(record.get("verified_acceptance_rate")), number(record.get("block_efficiency"))]
        rows.append([name, *_figures(record), *tail, number(record.get("mean_weight"))])
    return rows


_NEAR = 0.001  # acceptance rates that differ by less count as equal


def _competitor(records: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the best training-free family at the head's acceptance rate, and the head's quality minus that of it.

    Each family's curve is interpolated linearly between its measured points and lossless decoding; its ends are used
    up to `_NEAR` beyond them. None if no curve contains the head's acceptance rate.
    """
    at, quality = own.get("acceptance_rate"), own.get("quality")
    curves: dict[str, list[tuple[float, float]]] = {}
    for label, record in records.items():
        method = MethodName.parse(label)
        rate, score = record.get("acceptance_rate"), record.get("quality")
        is_training_free = method.name in VERIFIERS and method.name != DIVERSED and not method.compiled
        if is_training_free and rate is not None and score is not None:
            curves.setdefault(method.family[0], []).append((rate, score))
    lossless = curves.pop(LOSSLESS, [])
    found: dict[str, float] = {}
    for family, points in curves.items():
        rates, qualities = zip(*sorted(points + lossless))
        if at is not None and quality is not None and rates[0] - _NEAR <= at <= rates[-1] + _NEAR:
            found[family] = quality - float(np.interp(at, rates, qualities))
    if not found:
        return None
    best = min(found, key=lambda family: found[family])
    bounds = own.get("static_gain_ci") if best == "static" else None
    return {"family": best, "gain": found[best], "bounds": bounds}


def _strictness(records: Mapping[str, Mapping[str, Any]], own: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of results by strictness, if more than one was measured."""
    found = by_strictness(records)
    if len(found) < 2:
        return []
    header = [Markup("`diversed_strictness`"), *_figure_names(own), "tokens per round"]
    return [header] + [
        [f"{value:g}", *_figures(record), number(record.get("block_efficiency"))] for value, record in found.items()
    ]


def _figure_names(own: Mapping[str, Any]) -> list[str]:
    return [own.get("metric") or "quality", "drop", "accepted / drafted"]


def _figures(record: Mapping[str, Any]) -> list[str]:
    return [with_bounds(record, name) for name in ("quality", "quality_drop", "acceptance_rate")]


# Parts of sentences


def _setting(own: Mapping[str, Any]) -> str:
    """Return the settings of an evaluation that its record contains."""
    samples = own.get("samples_per_prompt")
    shown = (
        ("{} prompts", own.get("n")),
        ("{} completion each" if samples == 1 else "{} completions each", samples),
        ("temperature {}", own.get("temperature")),
        ("top_k {}", own.get("top_k")),
        ("top_p {}", own.get("top_p")),
        ("{} draft tokens per round", own.get("num_assistant_tokens")),
        ("at most {} new tokens", own.get("max_new_tokens")),
        ("seed {}", own.get("seed")),
    )
    return ", ".join(words.format(value) for words, value in shown if value is not None)


def _made_with(record: Mapping[str, Any]) -> str:
    """Return commit, machine, versions and time of a provenance record."""
    commit, versions = record.get("git_commit"), record.get("versions") or {}
    shown = (
        ("commit {}", None if commit is None else code(commit)),
        ("{}", record.get("device")),
        ("CPU threads: {}", record.get("threads")),
        ("{}", ", ".join(f"{name} {version}" for name, version in versions.items()) or None),
        ("{}", record.get("time")),
    )
    return Markup("; ".join(words.format(text(value)) for words, value in shown if value is not None))


def _rollouts(training: Mapping[str, Any]) -> int | None:
    """Return the number of rollouts up to the step of the head, over all devices."""
    settings: dict[str, Any] = {"world_size": training.get("world_size"), **(training.get("training") or {})}
    names = ("max_steps", "num_iterations", "per_device_train_batch_size", "world_size")
    values: list[Any] = [settings.get(name) for name in names]
    if None in values:
        return None
    max_steps, num_iterations, batch, world_size = values
    step = training.get("step")
    generations = math.ceil((max_steps if step is None else step) / num_iterations)
    return generations * batch * world_size


# Numbers


def _points(value: float) -> str:
    """Return a difference of two rates in percentage points, with its sign."""
    shown = f"{100 * value:+.1f}"
    return "0.0" if shown in ("-0.0", "+0.0") else shown
