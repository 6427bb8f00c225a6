"""The model card of a head, rendered from its configuration and its evaluation and training records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_diversed.evaluation.table import number, with_bounds
from hf_diversed.head import DiversedHeadConfig
from hf_diversed.tasks import TASKS
from hf_diversed.verifiers.base import AS_TRAINED
from hf_diversed.verifiers.names import DIVERSED


TEMPLATE = Path(__file__).parent / "templates" / "head_card.md"
LICENSE = "apache-2.0"
TAGS = ("diversed", "speculative-decoding", "arxiv:2604.07622")
# Settings of an evaluation, in the sentence below the table.
_SETTINGS = {
    "task": "task {}",
    "n": "{} prompts",
    "samples_per_prompt": "completions per prompt: {}",
    "temperature": "temperature {}",
    "top_k": "top_k {}",
    "top_p": "top_p {}",
    "num_assistant_tokens": "draft tokens per round: {}",
    "max_new_tokens": "at most {} new tokens",
    "batch_size": "batch size {}",
    "seed": "seed {}",
}

Record = Mapping[str, Any]


def render_card(
    config: DiversedHeadConfig,
    evaluation: Record,
    training: Record,
    repo_id: str | None = None,
    source: str | None = None,
    tags: Sequence[str] = (),
    license: str = LICENSE,
) -> str:
    """Return the README.md of a head: YAML front matter and Markdown. All figures come from the two records.

    Args:
        config: the head's.
        evaluation: what `evaluate` writes, {"records": [...], "provenance": {...}}; {} without evaluation.
        training: the trainer's provenance.json; {} if it does not exist.
        repo_id: the repository on the Hub. source: where the snippet loads the head from, by default the repository.
            Without both, it uses the packaged head of the task.
        tags: additional ones. license: a license id of the Hub.

    Example:
        ```python
        text = render_card(head.config, json.loads(report.read_text()), json.loads(provenance.read_text()), "org/head")
        ```
    """
    records = evaluation.get("records") or []
    labels = (DIVERSED, f"{DIVERSED}@{config.strictness:g}", f"{DIVERSED}@{AS_TRAINED}")  # the first that was measured
    by_label = {record["method"]: record for record in reversed(records)}
    own: Record = next((by_label[label] for label in labels if label in by_label), {})
    target, draft = config.base_model_name_or_path, config.assistant_model_name_or_path
    dataset = TASKS[config.task].source if config.task in TASKS else None
    kind = None if config.token_features else "mixture"
    name = repo_id.split("/")[-1] if repo_id else "-".join(filter(None, ("diversed", config.task, kind)))
    pair = [str(target), str(draft)]
    on_hub = all(map(is_hub_id, pair))
    results = _eval_results(own)
    data = ModelCardData(
        # huggingface.js does not list hf_diversed, so its name would give no code snippet and no download count.
        library_name="transformers",
        pipeline_tag="text-generation",
        license=license,
        base_model=pair if on_hub else None,
        base_model_relation="adapter" if on_hub else None,
        datasets=None if dataset is None else [dataset.dataset],
        tags=list(dict.fromkeys([*TAGS, *(["custom_generate"] if repo_id else []), *tags])),
        model_name=name if results else None,
        eval_results=results or None,
    )
    measured = (evaluation.get("provenance") or {}).get("evaluation") or {}
    settings = training.get("training") or {}
    card = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        name=name,
        config=config,
        repo_id=repo_id,
        source=source or repo_id,
        embedded=not target and not draft and config.task in TASKS and dataset is None,
        models={
            "target": (target, config.base_model_revision, measured.get("target") or {}),
            "draft": (draft, config.assistant_model_revision, measured.get("draft") or {}),
        },
        sampling=_sampling(config, own, settings),
        chat=(training.get("options") or {}).get("chat"),
        table=_table(records),
        measured_with=_about(records),
        calibrated_with=_about([{**(config.calibration or {}), "task": None}]),
        training=training,
        settings={key: value for key, value in settings.items() if value is not None},
    )
    return str(card).rstrip("\n") + "\n"


def is_hub_id(name: str) -> bool:
    """Return whether a name is a possible Hub id, "org/model", and not a local folder."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return "/" in name and not Path(name).exists()


def _sampling(config: DiversedHeadConfig, own: Record, settings: Record) -> dict[str, Any]:
    """Return the arguments of `generate` of the calibration, or else of the evaluation, or else of the training."""
    calibrated = config.calibration or {}
    known = {"temperature": config.training_temperature, "max_new_tokens": settings.get("max_completion_length", 128)}
    found = {}
    for name in ("temperature", "top_k", "top_p", "max_new_tokens", "num_assistant_tokens"):
        given = (record.get(name) for record in (calibrated, own, settings, known))
        found[name] = next((value for value in given if value is not None), None)
    if found["temperature"]:
        return {"do_sample": True, **found}
    lengths = {name: found[name] for name in ("max_new_tokens", "num_assistant_tokens")}
    return {"do_sample": False if found["temperature"] == 0 else None, **lengths}


def _table(records: Sequence[Record]) -> list[list[str]]:
    """Return the table of all methods, header first; without rows if nothing was measured."""
    metric = records[0].get("metric") if records else None
    rows = [["method", metric or "quality", "drop", "accepted / drafted", "tokens per round"]]
    for record in records:
        figures = [with_bounds(record, name) for name in ("quality", "quality_drop", "acceptance_rate")]
        rows.append([f"`{record['method']}`", *figures, number(record.get("block_efficiency"))])
    return rows


def _about(records: Sequence[Record]) -> str:
    """Return the settings of an evaluation, which all its records share."""
    first = records[0] if records else {}
    return ", ".join(text.format(first[name]) for name, text in _SETTINGS.items() if first.get(name) is not None)


def _eval_results(own: Record) -> list[EvalResult]:
    """Return the head's figures for the card's metadata, which requires a dataset on the Hub."""
    source = TASKS[own["task"]].source if own.get("task") in TASKS else None
    figures = {
        own.get("metric"): "quality",
        "acceptance_rate": "acceptance_rate",
        "block_efficiency": "block_efficiency",
    }
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=source.dataset,
            dataset_name=source.dataset,
            dataset_config=source.config,
            metric_type=metric,
            metric_value=own[name],
        )
        for metric, name in figures.items()
        if source is not None and metric is not None and own.get(name) is not None
    ]
