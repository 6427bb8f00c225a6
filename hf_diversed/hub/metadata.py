"""Metadata that the Hub reads: the card's front matter, and files with evaluation results. Only ids that exist on the
Hub are included."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCardData, eval_result_entries_to_yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_diversed.head import LOOKED_UP, DiversedHeadConfig
from hf_diversed.hub.records import LICENSE
from hf_diversed.method_names import AS_TRAINED, DIVERSED, MethodName
from hf_diversed.tasks import TASKS, HubSource


TAGS = ("diversed", "speculative-decoding", "arxiv:2604.07622")
SCRIPT_TAG = "custom_generate"
RESULTS_FOLDER = ".eval_results"

Record = Mapping[str, Any]


def card_data(
    config: DiversedHeadConfig, own: Record, name: str, tags: Sequence[str] = (), license: str = LICENSE
) -> ModelCardData:
    """Return the front matter: `own` is the record of the head as trained, {} if it was not measured."""
    target, draft = config.base_model_name_or_path, config.assistant_model_name_or_path
    pair = [hub_id(model) for model in (target, draft) if model != LOOKED_UP]
    base_model = [model for model in pair if model] if all(pair) else None
    source = hub_source(config.task)
    results = _eval_results(own)
    return ModelCardData(
        # huggingface.js does not list hf_diversed, so its name would give no code snippet and no download count.
        library_name="transformers",
        pipeline_tag="text-generation",
        license=license,
        base_model=base_model,
        base_model_relation="adapter" if base_model else None,
        datasets=None if source is None else [source.dataset],
        metrics=[own["metric"]] if results and own.get("metric") else None,
        tags=list(dict.fromkeys([*TAGS, *tags])),
        model_name=name if results else None,
        eval_results=results or None,
    )


def result_files(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return `.eval_results/*.yaml`, which leaderboards read: one file per strictness of the head.

    Figures are in percent. Tasks without a dataset on the Hub have none.
    """
    date = (evaluation.get("provenance") or {}).get("time")
    files = {}
    for strictness, record in by_strictness(records_by_method(evaluation)).items():
        source = hub_source(record.get("task"))
        if source is None or record.get("quality") is None:
            continue
        entry = EvalResultEntry(
            dataset_id=source.dataset,
            task_id="default",
            value=round(100 * record["quality"], 4),
            date=date,
            notes=_notes(strictness, record),
        )
        suffix = "" if strictness == AS_TRAINED else f"-strictness-{strictness:g}"
        text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True, width=1000)
        files[f"{RESULTS_FOLDER}/{record['task']}{suffix}.yaml"] = text
    return files


def records_by_method(evaluation: Mapping[str, Any]) -> dict[str, Record]:
    """Return the records of an evaluation by method. Raises ValueError if it has several settings of a method."""
    records = evaluation.get("records") or []
    found = {record["method"]: record for record in records}
    if len(found) < len(records):
        counts = Counter(record["method"] for record in records)
        several = ", ".join(method for method, count in counts.items() if count > 1)
        raise ValueError(
            f"the evaluation has several records of {several}; publish one temperature and number of draft "
            "tokens. The folder *.parts next to the file has an evaluation.json of each: use one of them instead."
        )
    return found


def own_record(records: Mapping[str, Record]) -> Record:
    """Return the record of the head as trained, {} without records. Raises ValueError if only others exist."""
    if not records:
        return {}
    for label in (DIVERSED, f"{DIVERSED}@{AS_TRAINED}"):
        if label in records:
            return records[label]
    raise ValueError(
        f'the evaluation must have a record of the head, method "{DIVERSED}", got {", ".join(records)}; evaluate it '
        "with `hf-diversed evaluate --methods target,lossless,lenience:0.3,static:0.5,diversed`."
    )


def by_strictness(records: Mapping[str, Record]) -> dict[float, Record]:
    """Return the head's records by strictness, from permissive to strict, including the head as trained."""
    if not records:
        return {}
    found = {strictness: records[label] for strictness, label in strictness_labels(records).items()}
    found[AS_TRAINED] = own_record(records)
    return dict(sorted(found.items()))


def strictness_labels(records: Mapping[str, Record]) -> dict[float, str]:
    """Return the labels of the head's records by strictness. "diversed:<source>" can be another head."""
    names = {label: MethodName.parse(label) for label in records}
    own = {label: name for label, name in names.items() if name == MethodName(DIVERSED, None, name.strictness)}
    return {AS_TRAINED if name.strictness is None else name.strictness: label for label, name in own.items()}


def hub_id(name: str | None) -> str | None:
    """Return the name if it is a possible Hub id, "org/model", and not a local folder."""
    if name is None or name.count("/") != 1 or Path(name).exists():
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def without_folders(name: str | None) -> str | None:
    """Return a model's name without local folders."""
    return hub_id(name) or (Path(name).name if name else None)


def hub_source(task: str | None) -> HubSource | None:
    return TASKS[task].source if task in TASKS else None


def _eval_results(own: Record) -> list[EvalResult]:
    """Return the head's figures for `model-index`, which requires a dataset on the Hub."""
    source = hub_source(own.get("task"))
    if source is None:
        return []
    figures = (
        (own.get("metric"), own.get("quality"), f"{own.get('metric')} (mean over completions)"),
        ("acceptance_rate", own.get("acceptance_rate"), "accepted / drafted tokens"),
        ("block_efficiency", own.get("block_efficiency"), "tokens per target forward"),
    )
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=source.dataset,
            dataset_name=source.dataset,
            dataset_config=source.config,
            metric_type=metric,
            metric_value=value,
            metric_name=label,
        )
        for metric, value, label in figures
        if metric is not None and value is not None
    ]


def _notes(strictness: float, record: Record) -> str:
    """Return the settings of a measurement and its acceptance rate."""
    rate = record.get("acceptance_rate")
    parts = (
        f"DIVERSED relaxed speculative decoding, diversed_strictness {strictness:g}",
        record.get("metric"),
        f"{record['n']} prompts" if record.get("n") is not None else None,
        f"temperature {record['temperature']}" if record.get("temperature") is not None else None,
        f"{rate:.1%} of draft tokens accepted" if rate is not None else None,
    )
    return ", ".join(part for part in parts if part)
