"""The files of a head's repository, from the head and its records. Uses no network."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.head.pulling import CONFIG, WEIGHTS
from hf_diversed.hub.card import render_card
from hf_diversed.hub.custom_generate import REQUIREMENTS, SCRIPT, script_files
from hf_diversed.hub.metadata import RESULTS_FOLDER, by_strictness, records_by_method, result_files, without_folders
from hf_diversed.hub.records import EVALUATION, TRAINING, HeadRecords
from hf_diversed.provenance import module_digest, publishable
from hf_diversed.tasks import TASKS


CARD = "README.md"


def publication(
    head: DiversedHead,
    records: HeadRecords,
    repo_id: str | None = None,
    revision: str | None = None,
    folder: str | None = None,
) -> dict[str, bytes]:
    """Return the files to publish, by path in the repository, without paths of this machine.

    Args:
        repo_id: the repository. None for a head that is not on the Hub; then there is no `custom_generate/`.
        revision: the branch, "main" by default.
        folder: where the head is stored, for the card of one without `repo_id`; of an absolute path, only the last
            part is shown. None for packaged heads.

    Raises:
        ValueError: if the evaluation was made with other weights, has no record of the head, or several of a method.
    """
    _check_measured(head, records)
    evaluation, training = publishable(records.evaluation), publishable(records.training)
    with tempfile.TemporaryDirectory() as written:
        head.save_pretrained(written)
        weights = (Path(written) / WEIGHTS).read_bytes()
        settings = json.loads((Path(written) / CONFIG).read_text())
    for name in ("base_model_name_or_path", "assistant_model_name_or_path"):
        settings[name] = without_folders(settings.get(name))
    config = DiversedHeadConfig.from_dict(settings)
    config.name_or_path = folder or ""
    texts = {
        CONFIG: json.dumps(settings, indent=2, sort_keys=True) + "\n",
        CARD: render_card(config, evaluation, training, repo_id, records.tags, records.license),
        **({EVALUATION: _json(evaluation)} if evaluation else {}),
        **({TRAINING: _json(training)} if training else {}),
        **result_files(evaluation),
    }
    if repo_id is not None:
        texts |= script_files(repo_id, revision or "main")
    return {WEIGHTS: weights} | {path: text.encode() for path, text in texts.items()}


def is_outdated(path: str, files: dict[str, bytes]) -> bool:
    """Return whether a file of an earlier push is to be removed: records and results that do not apply any more.
    Other files in their folders are kept."""
    tasks = "|".join(map(re.escape, TASKS))
    results = re.compile(rf"{re.escape(RESULTS_FOLDER)}/({tasks})(-strictness-[\d.e-]+)?\.yaml")
    ours = path in (EVALUATION, TRAINING, SCRIPT, REQUIREMENTS) or results.fullmatch(path) is not None
    return ours and path not in files


def _check_measured(head: DiversedHead, records: HeadRecords) -> None:
    """Raise ValueError if the evaluation was made with other weights.

    Older reports have no digest and are accepted.
    """
    made_with = records.evaluation.get("provenance") or {}
    found = by_strictness(records_by_method(records.evaluation))
    digest = module_digest(head)
    for methods in (made_with.get("methods") or {}, *(made_with.get("methods_of_evaluations") or [])):
        for label in {record["method"] for record in found.values()} & methods.keys():
            if digest not in methods[label]:
                raise ValueError(
                    f"the evaluation was made with other weights: {digest} of this head is not in {methods[label]}; "
                    "evaluate this head, or publish it without an evaluation."
                )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
