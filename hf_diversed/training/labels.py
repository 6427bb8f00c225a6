"""Labels of rejected draft tokens: the loss of score from keeping one, measured by continuing both branches.

Completions are drawn by lossless speculative decoding. At some of its rejections, the text with the rejected draft
token (*kept*) and the text with the residual token (*replaced*) are each continued several times by the target and
scored. The branches share the completion's keys and values. A score compares with the record's reference, or with the
completion itself (`LabelSettings.agreement`). At temperature 0, the continuation of the replaced branch is the
completion itself. The label is the mean score of the replaced branch minus that of the kept branch: the first-order
cost of keeping the token, since the rest of the text follows the target. Interactions between kept tokens are not
included.

Each draft token x is rejected with probability max(0, 1 - p/q), so x has the distribution max(q - p, 0) / TV(p, q):
these are the tokens on which a relaxed verifier and the lossless one differ. If all rejections are labelled, the mean
of the labels is the cost per rejection of lossless decoding; `LabelSettings.rejections` gives completions with many
rejections a smaller share.

A label is noisy: with K continuations its variance is (Var kept + Var replaced) / K, plus the variance over residual
tokens, of which one is drawn. `Labels.noise` estimates the first part.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import DynamicCache, StoppingCriteriaList

from hf_diversed import _compat, model_facts
from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.files import append_lines, differences, drop_torn_line, read_lines
from hf_diversed.formatting import PLAIN, duration
from hf_diversed.generation.processing import stop_criterion
from hf_diversed.harness.decode import Decoder, notify, with_progress
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import Prompt, encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import SOURCES
from hf_diversed.provenance import data_digest, provenance, weights_digest
from hf_diversed.tasks import Record, Task
from hf_diversed.verifiers import DiversedVerifier
from hf_diversed.verifiers.base import check_count, check_range
from hf_diversed.verifiers.mixture import Weights


BRANCHES = ("kept", "replaced")
_HEADER = b'{"settings": {'  # start of a file of labels
AGREEMENT = "agreement"  # metric of labels without references
INPUTS = ("features", "token", "lookahead", "target_after")
# Settings of a head's configuration that are stored with the labels.
ABOUT_PAIR = (
    "target_hidden_size",
    "draft_hidden_size",
    "vocab_size",
    "base_model_name_or_path",
    "base_model_digest",
    "assistant_model_name_or_path",
    "assistant_model_digest",
)
_DRAFTED = "drafted"


@dataclass(frozen=True)
class LabelSettings:
    """Settings of `make_labels`.

    Args:
        rejections: largest number of rejections per completion that are labelled, chosen at random.
        continuations: number of continuations of each branch; always 1 at temperature 0.
        lookahead: number of later draft tokens whose features are recorded.
        seed: seed of all random numbers.
        agreement: compare branches with the target's greedy completion, see `Task.agreement`, instead of with the
            reference. The temperature must be 0.
    """

    rejections: int = 3
    continuations: int = 4
    lookahead: int = 4
    seed: int = 0
    agreement: bool = False

    def __post_init__(self) -> None:
        for name in ("rejections", "continuations"):
            check_count(name, getattr(self, name))
        check_range("lookahead", self.lookahead, 0, 16)

    def check_temperature(self, temperature: float) -> None:
        """Raise ValueError if the target's answer, with which branches are compared, would be a random one."""
        if self.agreement and temperature > 0:
            raise ValueError(
                f"agreement requires temperature 0, where the target's answer is fixed, got {temperature:g}; pass "
                "--temperature 0."
            )


@dataclass(eq=False)
class Labels:
    """M labelled rejections.

    Attributes:
        settings: settings of the run, in the first line of the file.
        cost: float64 `[M]`, mean score of the replaced branch minus that of the kept branch.
        scores: float64 `[M, 2, K]`, of both branches, in the order of `BRANCHES`.
        prompt: long `[M]`, index of the prompt; labels of one prompt are dependent.
        inputs: inputs of a head by name, float32 `[M, ...]`, see `DiversedHead.forward`.
        provenance: record of the run, in the first line of the file.
    """

    settings: dict[str, Any]
    scores: torch.Tensor
    prompt: torch.Tensor
    inputs: dict[str, torch.Tensor]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> torch.Tensor:
        return self.scores[:, 1].mean(-1) - self.scores[:, 0].mean(-1)

    @property
    def noise(self) -> float:
        """Standard deviation of a label due to sampling of continuations; NaN with one continuation per branch."""
        if self.scores.shape[-1] == 1:
            return math.nan
        return float((self.scores.var(-1).sum(-1) / self.scores.shape[-1]).mean().sqrt())


class LabelVerifier(DiversedVerifier):
    """Lossless verification that records the draft token and the inputs of a head at every decision."""

    keeps_inputs = True

    def weights(self, draft: DraftOutput, target: TargetOutput, row_values: dict[str, torch.Tensor]) -> Weights:
        inputs, tv = self.observe(draft, target)
        weight = torch.ones_like(draft.tokens, dtype=torch.float32)
        return Weights(weight, tv, inputs | {_DRAFTED: draft.tokens}, of_block=True)


def make_labels(
    pair: Pair,
    task: Task,
    prompts: Sequence[Prompt],
    records: Sequence[Record],
    sampling: Sampling,
    settings: LabelSettings,
    path: Path,
    progress: bool | None = None,
    *,
    overwrite: bool = False,
) -> Labels:
    """Label rejections of completions of the prompts, and append them to `path`, one line per batch of prompts.

    An interrupted run continues after the batches in the file. Decoding uses batches of `sampling.batch_size` rows.

    Args:
        path: JSON Lines file. Its first line contains the settings of the run.
        progress: see `with_progress`.
        overwrite: remove an earlier file of labels after the prompts are checked.

    Raises:
        ValueError: if the file contains no labels, or (unless `overwrite`) belongs to a run with other settings or
            prompts, or a prompt has no tokens or does not fit in the learned positions of a model.
    """
    run = LabelRun(pair, task, sampling, settings)
    ids = encode(pair.tokenizer, prompts)
    run.decoder.check_prompts(ids)
    size = sampling.batch_size
    batches = [list(range(start, min(start + size, len(ids)))) for start in range(0, len(ids), size)]
    about = {"num_prompts": len(ids), "data": data_digest([ids, records]), **run.describe()}
    if overwrite and path.exists() and contains_labels(path.read_bytes()):
        path.unlink()
    done = _read_done(path, about)
    if done is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = provenance(settings.seed, pair.target.device)
        append_lines(path, [{"settings": about, "provenance": record}])  # see `_HEADER`
    numbers = [number for number in range(len(batches)) if number not in (done or ())]
    if numbers:
        branches = 1 if sampling.temperature == 0 else 2  # when greedy, the completion is one of them
        continued = branches * run.settings.rejections * run.settings.continuations
        count = sum(len(batches[number]) for number in numbers)
        notify(
            f"{count} completions of the target, then at most {continued} continuations of each, of half the length "
            f"on average: at most the cost of {count * (1 + continued / 2):.0f} completions."
        )
    for number in with_progress(numbers, "labels", "part", progress):
        rows = batches[number]
        append_lines(path, [run.batch(number, rows, [ids[row] for row in rows], [records[row] for row in rows])])
    return load_labels(path)


class LabelRun:
    """Completes prompts, chooses rejections, continues both branches of each, and scores them."""

    def __init__(self, pair: Pair, task: Task, sampling: Sampling, settings: LabelSettings):
        settings.check_temperature(sampling.temperature)
        if sampling.temperature == 0:  # continuations would be identical
            settings = replace(settings, continuations=1)
        self.pair, self.task, self.sampling, self.settings = pair, task, sampling, settings
        self.decoder = Decoder(pair, sampling)
        kind = {"features": "distribution", "token_features": True, "lookahead": settings.lookahead}
        self.config = DiversedHeadConfig.for_pair(pair.target, pair.draft, **kind, target_after=pair.draft is not None)
        self.recorder = Method("labels", LabelVerifier(DiversedHead(self.config)))
        self.target_alone = Method(PLAIN)
        self.estimated = False

    def describe(self) -> dict[str, Any]:
        """Return the settings that a continued run must share."""
        models = {"target": self.pair.target, "draft": self.pair.draft}
        sampling = asdict(self.sampling) | {"stop_strings": list(self.sampling.stop_strings)}
        return {
            "task": self.task.name,
            "metric": AGREEMENT if self.settings.agreement else self.task.metric,
            **asdict(self.settings),
            "sampling": sampling,
            **{name: getattr(self.config, name) for name in ABOUT_PAIR},
            **{name: None if model is None else weights_digest(model) for name, model in models.items()},
        }

    def batch(self, number: int, rows: list[int], prompts: list[list[int]], records: list[Record]) -> dict[str, Any]:
        """Return the line of one batch: the labels of these prompts, with `rows` as their indices."""
        began = time.perf_counter()
        seed = 100_003 * (1_000 * self.settings.seed + number)
        chosen, completions = self.rejections(prompts, seed)
        spent = time.perf_counter() - began
        copies, greedy = self.settings.continuations, self.sampling.temperature == 0
        texts, owners = [], []
        for label in chosen:
            whole = completions[label["row"]]
            for branch, token in zip(BRANCHES, label["tokens"]):
                is_whole = greedy and branch == "replaced"
                texts += [whole if is_whole else [*whole[: label["position"]], token]] * copies
                owners += [label["row"]] * copies
        if not self.estimated:
            self.estimated = True
            per_token = spent / max(1, sum(map(len, completions)))
            remaining = sum(max(0, len(completions[row]) - len(text)) for text, row in zip(texts, owners))
            seconds = duration(spent + per_token * remaining)
            notify(f"About {seconds} per part of {len(rows)} prompts, from the speed of the completions.")
        texts = self._continued(texts, owners, prompts, completions, seed + 1)
        scores = self._scores(texts, owners, completions, records)
        flat = torch.tensor(scores, dtype=torch.float64)
        for label, values in zip(chosen, flat.view(len(chosen), 2, copies).tolist()):
            label["prompt"] = rows[label.pop("row")]
            label |= dict(zip(BRANCHES, values))
        return {"batch": number, "num_prompts": len(rows), "labels": chosen}

    def rejections(self, prompts: list[list[int]], seed: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
        """Return chosen rejections, without scores, and the completions of the prompts."""
        drawn = self.decoder(self.recorder, prompts, seed, output_token_records=True)
        records, generator = drawn.records, torch.Generator().manual_seed(seed)
        assert records is not None
        if records.inputs is None:  # no draft tokens, as prompt lookup found none
            return [], drawn.tokens
        rejected = records.source == SOURCES.index("residual")
        chosen = []
        for row in range(len(prompts)):
            places = rejected[row].nonzero()[:, 0]
            for place in places[torch.randperm(len(places), generator=generator)[: self.settings.rejections]].tolist():
                kept, replaced = int(records.inputs[_DRAFTED][row, place]), int(records.tokens[row, place])
                inputs = {name: _short(records.inputs[name][row, place]) for name in INPUTS if name in records.inputs}
                chosen.append({"row": row, "position": place, "tokens": [kept, replaced], "inputs": inputs})
        return chosen, drawn.tokens

    def _continued(
        self,
        texts: list[list[int]],
        owners: list[int],
        prompts: list[list[int]],
        completions: list[list[int]],
        seed: int,
    ) -> list[list[int]]:
        """Return one continuation of each text, including it; `owners` are the indices of their prompts."""
        longest, size = self.sampling.max_new_tokens, self.sampling.batch_size
        texts = list(texts)
        unfinished = [index for index, ids in enumerate(texts) if not self._ended(ids)]
        shares_cache = not model_facts.recurrent_states(self.pair.target)
        for part in range(0, len(unfinished), size):
            chosen = unfinished[part : part + size]  # branches of few completions, as they are ordered by owner
            starts = [prompts[owners[index]] + texts[index] for index in chosen]
            kwargs: dict[str, Any] = {"max_new_tokens": max(longest - len(texts[index]) for index in chosen)}
            if stop_strings := self.decoder.stop_strings:  # they may begin in the part of the completion
                kwargs["stopping_criteria"] = StoppingCriteriaList([stop_criterion(self.pair.tokenizer, stop_strings)])
            if shares_cache:
                whole = {row: self._key_values(prompts[row] + completions[row]) for row in {owners[i] for i in chosen}}
                kwargs[_compat.CACHE_ARGUMENT] = joined_cache(
                    [whole[owners[i]] for i in chosen], list(map(len, starts))
                )
            drawn = self.decoder(self.target_alone, starts, seed + part, **kwargs)
            for index, ids in zip(chosen, drawn.tokens):
                texts[index] = (texts[index] + ids)[:longest]
        return texts

    @torch.no_grad()
    def _key_values(self, ids: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the target's keys and values of a text, `[1, H, S, D]` per layer."""
        cache, target = DynamicCache(), self.pair.target
        few_logits = {} if model_facts.logits_to_keep(target) == "all" else {"logits_to_keep": 1}
        target(torch.tensor([ids], device=target.device), **{_compat.CACHE_ARGUMENT: cache}, **few_logits)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _scores(
        self, texts: list[list[int]], owners: list[int], completions: list[list[int]], records: list[Record]
    ) -> list[float]:
        answers = [self._text(ids) for ids in texts]
        own_records = [records[owner] for owner in owners]
        if not self.settings.agreement:
            return self.task.score_batch(answers, own_records)
        return self.task.agreement_batch(answers, [self._text(completions[owner]) for owner in owners], own_records)

    def _text(self, ids: list[int]) -> str:
        return cut(self.decoder.text(ids), self.decoder.stop_strings)

    def _ended(self, ids: list[int]) -> bool:
        if ids[-1] in self.decoder.eos_ids or len(ids) >= self.sampling.max_new_tokens:
            return True
        text = self.decoder.text(ids) if self.decoder.stop_strings else ""
        return any(stop in text for stop in self.decoder.stop_strings)


def joined_cache(states: Sequence[list[tuple[torch.Tensor, torch.Tensor]]], lengths: Sequence[int]) -> DynamicCache:
    """Return a left-padded cache of the first `lengths[b] - 1` positions of each row's keys and values.

    The last token of each text is left for the forward pass that continues it.
    """
    cache, width = DynamicCache(), max(lengths) - 1

    def rows(layer: int, part: int) -> torch.Tensor:
        prefixes = [row[layer][part][:, :, : length - 1] for row, length in zip(states, lengths)]
        return torch.cat([F.pad(prefix, (0, 0, width - prefix.shape[2], 0)) for prefix in prefixes])

    for layer in range(len(states[0])):
        cache.update(rows(layer, 0), rows(layer, 1), layer)
    return cache


def cut(text: str, stop_strings: Sequence[str]) -> str:
    """Return a text up to and including its first stop string, where decoding stops."""
    ends = [text.index(stop) + len(stop) for stop in stop_strings if stop in text]
    return text[: min(ends)] if ends else text


def load_labels(path: Path) -> Labels:
    """Read a file that `make_labels` wrote, complete or not. Raises ValueError if it contains no labels, or a
    line that `make_labels` did not write."""
    lines = _read_lines(path) if path.is_file() else []
    by_batch = {line["batch"]: line["labels"] for line in lines[1:]}  # two processes may have made the same batch
    labels = [label for batch in by_batch.values() for label in batch]
    if not labels:
        raise ValueError(f"{path} contains no labels; make them with `hf-diversed label --output {path}`.")
    return Labels(
        settings=lines[0]["settings"],
        scores=torch.tensor([[label[branch] for branch in BRANCHES] for label in labels], dtype=torch.float64),
        prompt=torch.tensor([label["prompt"] for label in labels]),
        inputs={
            name: torch.tensor([label["inputs"][name] for label in labels], dtype=torch.float32)
            for name in labels[0]["inputs"]
        },
        provenance=lines[0].get("provenance", {}),
    )


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a file of labels. Raises ValueError for a line that `make_labels` did not write."""
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if not (_is_batch(line) if number > 1 else "settings" in line):
            raise ValueError(
                f"{path}, line {number} was not written by `hf-diversed label`: {str(line)[:60]}. Pass the --output "
                "of that command, or remove a damaged line."
            )
    return lines


def _is_batch(line: dict[str, Any]) -> bool:
    """Whether a line contains labels, see `LabelRun.batch`."""
    needed, labels = {"prompt", "inputs", *BRANCHES}, line.get("labels")
    return (
        "batch" in line
        and isinstance(labels, list)
        and all(isinstance(label, dict) and needed <= label.keys() for label in labels)
    )


def _read_done(path: Path, about: dict[str, Any]) -> set[int] | None:
    """Return the numbers of the batches in the file; None without a file, or if it is empty.

    Raises:
        ValueError: if the file is not one of labels, or has other settings; it is not changed.
    """
    if not path.exists():
        return None
    if not contains_labels(path.read_bytes()):
        raise ValueError(f"{path} exists and contains no labels; pass another file.")
    lines = _read_lines(path)
    if lines and (changes := differences(lines[0]["settings"], about)):
        raise ValueError(f"{path} was written with other settings ({changes}). Use the same ones, or another file.")
    drop_torn_line(path)
    if not lines:
        return None
    return {line["batch"] for line in lines[1:]}


def contains_labels(content: bytes) -> bool:
    """Return whether a file with this content was written by `make_labels`, even if incomplete or empty."""
    return content.startswith(_HEADER[: len(content)])


def _short(values: torch.Tensor) -> Any:
    """Return float32 values as nested lists with four significant digits, which keeps the file small."""
    if values.ndim:
        return [_short(item) for item in values]
    value = float(values)
    return 0.0 if value == 0.0 or not math.isfinite(value) else float(f"{value:.4g}")
