"""Measure quality, acceptance and cost of methods on a task's prompts; finished calls are stored."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed import _compat, model_facts
from hf_diversed.evaluation.calls import measured_call
from hf_diversed.evaluation.results import Results, open_file, read_results, remove_results
from hf_diversed.evaluation.settings import EvaluationSettings
from hf_diversed.evaluation.summary import summarize
from hf_diversed.files import append_lines, write_json
from hf_diversed.harness.decode import Decoder, notify, with_progress
from hf_diversed.harness.methods import HeadLike, Method, MethodLike, build_methods
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import encode, plan_batches
from hf_diversed.head import LOOKED_UP
from hf_diversed.provenance import data_digest, provenance, weights_digest
from hf_diversed.tasks import PromptedTask, Task


REPORT = "evaluation.json"
_WARM_UP_TOKENS = 8
_MOST_CUT_OFF = 0.05  # share of completions that end at the limit, above which a warning is logged

logger = _compat.get_logger(__name__)


def evaluate(
    pair: Pair,
    task: Task | PromptedTask,
    examples: Sequence[Mapping[str, Any]],
    methods: Sequence[MethodLike],
    settings: EvaluationSettings | None = None,
    *,
    head: HeadLike | None = None,
    output: Path | str | None = None,
    overwrite: bool = False,
) -> list[dict]:
    """Measure quality, acceptance and cost of several methods on the same prompts under the same seeds.

    Args:
        pair: `target`, `draft` and `tokenizer`. task: prompts and scores; `PromptedTask` adds shots or a chat
            template. examples: the task's records.
        methods: names or (label, verifier) pairs, see `build_methods`. head: the head of "diversed".
        output: a folder that stores every finished call. An interrupted evaluation continues where it stopped and
            returns the same records; methods can be added later; several processes (`settings.rank` of
            `settings.world_size`) share it. When all calls are finished, `evaluation.json` is written there:
            {"records": [...], "provenance": {...}}. The provenance is that of the first session that measured calls;
            `sessions` has those of the others, which continued it or ran beside it.
        overwrite: remove earlier results in `output`, but not in its subfolders, once all checks below have passed.

    Returns:
        One record per method, see `summarize`, including the methods already in the folder. The list is empty while
        other processes have unfinished calls: the last process returns the records, or `report` later.

    Raises:
        ValueError: before anything is written, for unknown methods, a head of another pair, prompts that have no
            tokens or do not fit in the learned positions of a model, an output folder with results of other settings
            (unless `overwrite`), or `overwrite` with several processes.

    Example:
        ```python
        pair = load_demo_pair()
        records = evaluate(pair, task, examples, ["target", "lossless"], EvaluationSettings(num_examples=100))
        ```
    """
    run = Run(pair, task, examples, methods, settings or EvaluationSettings(), head, output)
    prepare([run], overwrite)
    return run.complete()


def prepare(runs: Sequence["Run"], overwrite: bool) -> None:
    """Check all runs, then remove earlier results if `overwrite`."""
    for run in runs:
        run.check(overwrite)
    for run in runs:
        if overwrite and run.output is not None:
            remove_results(run.output)


def report(output: Path | str, labels: Sequence[str] | None = None) -> list[dict]:
    """Summarise an output folder with the files of all processes, and write its `evaluation.json`.

    Args:
        labels: the methods to include; None for all in the folder.

    Raises:
        ValueError: if calls are missing, or files differ in their settings.
    """
    results = read_results(output)
    records = summarize(results, labels)
    seed = results.header["settings"]["seed"]
    sessions = results.sessions
    if not results.all_recorded:
        sessions = [provenance(seed, results.header["device"]), *sessions]
    source = sessions[0] | {"evaluation": results.header, "methods": definitions(results), "sessions": sessions[1:]}
    write_json(Path(output) / REPORT, {"records": records, "provenance": source})
    return records


def definitions(results: Results) -> dict[str, str]:
    """Return the definition of each method by its label, see `Method.definition`."""
    return {entry["method"]: entry["definition"] for entry in results.entries.values()}


class Run:
    """The calls of an evaluation that one process runs; the arguments are those of `evaluate`."""

    def __init__(
        self,
        pair: Pair,
        task: Task | PromptedTask,
        examples: Sequence[Mapping[str, Any]],
        methods: Sequence[MethodLike],
        settings: EvaluationSettings,
        head: HeadLike | None,
        output: Path | str | None,
    ):
        self.methods = build_methods(methods, head, pair.target.device)
        self.task, self.examples, self.settings = task, list(examples)[: settings.num_examples], settings
        self.output = None if output is None else Path(output)
        if not self.examples:
            raise ValueError("`examples` must hold at least one record, got none.")
        if settings.world_size > 1 and output is None:
            raise ValueError(
                f"world_size = {settings.world_size} needs `output`, the folder that the processes share."
            )
        sampling = settings.sampling(task.stop_strings, task.max_new_tokens)
        self.decoder = Decoder(pair, sampling)
        prompts = [task.prompt(example) for example in self.examples]
        self.prompts = encode(pair.tokenizer, prompts, settings.add_special_tokens)
        self.decoder.check_prompts(self.prompts)
        self.batches = plan_batches([len(prompt) for prompt in self.prompts], settings.batch_size)
        self.header = {
            "task": task.name,
            "metric": task.metric,
            "n": len(self.examples),
            "num_batches": len(self.batches),
            "max_new_tokens": sampling.max_new_tokens,
            "stop_strings": list(sampling.stop_strings),
            "target": _model_identity(pair.target),
            "draft": {"name": LOOKED_UP} if pair.draft is None else _model_identity(pair.draft),
            "device": pair.target.device.type,
            "data": data_digest([prompts, self.examples]),
            "settings": settings.identity(),
            **getattr(task, "prompt_format", {}),  # plain tasks have none
        }

    def check(self, overwrite: bool) -> None:
        """Check the stored results, unless they will be removed, and decode a few tokens with each unfinished method.

        Raises:
            ValueError: for stored results of other settings or methods, for `overwrite` with several processes, or
                for a method that does not support the pair or the sampling settings.
        """
        if overwrite and self.settings.world_size > 1:
            raise ValueError(
                f"`overwrite` must be False with several processes, got world_size = {self.settings.world_size}; "
                "delete the results before the run."
            )
        results = Results(self.header) if overwrite else self._stored()
        found = definitions(results)
        for method in self.methods:
            if found.get(method.label, method.definition) != method.definition:
                raise ValueError(
                    f"the output folder holds {method.label!r} as {found[method.label]}, got {method.definition}; "
                    "choose another label or folder, or remove the older results (--overwrite on the command line)."
                )
        self._warm_up(self._unfinished(results))

    def complete(self) -> list[dict]:
        """Run the unfinished calls, and return the records of all finished methods; [] if calls are missing."""
        results, labels = self._run_calls(), [method.label for method in self.methods]
        if self.output is None:
            records = summarize(results, labels)
        elif results.missing(labels):
            return []
        else:
            others = [label for label in results.labels() if label not in labels and not results.missing([label])]
            records = report(self.output, labels + others)
        _warn_about_cut_off_answers(records)
        return records

    def _stored(self) -> Results:
        return Results(self.header) if self.output is None else read_results(self.output, self.header)

    def _unfinished(self, results: Results) -> list[tuple[Method, int, int]]:
        """Return the unfinished calls of this process: all methods on one batch, then the next batch."""
        mine = range(self.settings.rank, len(self.batches), self.settings.world_size)
        open_calls = set(results.missing(method.label for method in self.methods))
        return [
            (method, batch, sample)
            for batch in mine
            for sample in range(self.settings.samples_per_prompt)
            for method in self.methods
            if (method.label, batch, sample) in open_calls
        ]

    def _run_calls(self) -> Results:
        results = self._stored()
        calls = self._unfinished(results)
        words = f"{self.task.name} at temperature {self.settings.temperature:g}"
        if calls and self.settings.progress is not False:
            notify(f"{words}: {len(calls)} calls, each with up to {self.settings.batch_size} prompts")
        file = None if self.output is None else open_file(self.output, self.settings.rank, self.header)
        if file is not None and calls:
            append_lines(file, [{"provenance": provenance(self.settings.seed, self.decoder.pair.target.device)}])
        for call in with_progress(calls, words, "call", self.settings.progress, stage=lambda call: call[1]):
            entry = self._entry(*call)
            results.add(entry)
            if file is not None:
                append_lines(file, [entry])
        # Includes calls that other processes have finished meanwhile.
        return results if self.output is None else self._stored()

    def _warm_up(self, calls: list[tuple[Method, int, int]]) -> None:
        """Decode a few tokens with each method: the first call is slow, and an invalid method fails early."""
        most = self.decoder.sampling.max_new_tokens
        for method in {call[0].label: call[0] for call in calls}.values():
            prompt = self.prompts[self.batches[calls[0][1]][0]]
            self.decoder(method, [prompt], seed=0, max_new_tokens=min(_WARM_UP_TOKENS, most))

    def _entry(self, method: Method, batch: int, sample: int) -> dict:
        """Decode and score one batch; return a JSON-serialisable entry."""
        indices = self.batches[batch]
        seed = self.settings.call_seed(batch, sample)
        prompts = [self.prompts[index] for index in indices]
        rows, cost = measured_call(self.decoder, method, prompts, seed, self.settings.records)
        scores = self.task.score_batch(rows["text"], [self.examples[index] for index in indices])
        if len(scores) != len(indices) or not all(0.0 <= score <= 1.0 for score in scores):
            raise ValueError(
                f"task {self.task.name!r} must give one score in [0, 1] per completion, got {scores!r} for "
                f"{len(indices)} completions."
            )
        return {
            "method": method.label,
            "definition": method.definition,
            "static_weight": method.static_weight,
            "batch": batch,
            "sample": sample,
            **cost,
            "rows": {"prompt": list(indices), "score": [float(score) for score in scores], **rows},
        }


def _warn_about_cut_off_answers(records: Sequence[dict]) -> None:
    shares = {record["method"]: record["cut_off_rate"] for record in records}
    many = {method: share for method, share in shares.items() if share is not None and share > _MOST_CUT_OFF}
    if many:
        listed = ", ".join(f"{share:.0%} ({method})" for method, share in many.items())
        logger.warning(
            f"Answers that were cut off at max_new_tokens={records[0]['max_new_tokens']}: {listed}. Raise it: their "
            "scores also measure the limit."
        )


def _model_identity(model) -> dict:
    """Return data that distinguishes models; of a local folder, its name only."""
    config = dict(model.generation_config.to_diff_dict())
    config.pop("transformers_version", None)
    return {
        "name": model_facts.model_name(model),
        "parameters": model.num_parameters(),
        "weights": weights_digest(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "generation_config": json.loads(json.dumps(config, default=str)),
    }
