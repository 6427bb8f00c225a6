"""Who takes part: plain decoding, upstream's assisted decoding and our loop under any rule, ready to be called."""

import copy
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed.evaluation.benchmark.settings import PROMPTS_AS_GIVEN, BenchmarkSettings, Point
from hf_diversed.evaluation.benchmark.synthetic import SyntheticVerifier
from hf_diversed.evaluation.benchmark.timing import Phases, PhaseTimer, Stopwatch, forward_ends, timed_phases
from hf_diversed.evaluation.methods import HeadLike, build_methods
from hf_diversed.evaluation.upstream import constant_draft, generated_lengths
from hf_diversed.generation.decoding import diversed_decoding
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers import DiversedVerifier, Verifier
from hf_diversed.verifiers.base import check_range


UPSTREAM = "upstream"
FRESH = "fresh"


@dataclass(frozen=True)
class Contender:
    """One way to decode.

    Attributes:
        label: names it in the table. `verifier`: the rule, where our loop runs.
        upstream: upstream's assisted decoding; with `ensemble_weight`, its `assistant_ensemble_weight`.
    """

    label: str
    verifier: Verifier | None = None
    upstream: bool = False
    ensemble_weight: float | None = None

    @property
    def is_plain(self) -> bool:
        return self.verifier is None and not self.upstream

    @property
    def implementation(self) -> str:
        return "transformers" if self.verifier is None else "hf_diversed"

    def runs_at(self, point: Point) -> bool:
        """Upstream's assisted decoding takes one row."""
        return not self.upstream or point.batch_size == 1


def build_contenders(
    methods: Sequence[str],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    head: HeadLike | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> list[Contender]:
    """Build contenders from names.

    Args:
        methods: "upstream" (lossless), "upstream:<weight>" (its static ensemble), "fresh:<features>[:mlp]" (an
            untrained head of that kind, as expensive as a trained one), or what `build_methods` knows: "ar", "sd",
            "static:0.7", "diversed" (the given head) ...
        acceptance: see `BenchmarkSettings`; acts on our methods.

    Raises:
        ValueError: on unknown names or wrong parameters.
    """
    contenders = []
    for name in methods:
        kind, _, parameter = name.partition(":")
        if kind == UPSTREAM:
            weight = None if not parameter else check_range(name, _number(name, parameter), 0.0, 1.0)
            contenders.append(Contender(name, upstream=True, ensemble_weight=weight))
            continue
        if kind == FRESH:
            verifier: Verifier | None = DiversedVerifier(_fresh_head(parameter, target, draft))
        else:
            verifier = build_methods([name], head, target.device)[0].verifier
        if verifier is not None and acceptance is not None:
            verifier = SyntheticVerifier(verifier, acceptance)
        contenders.append(Contender(name, verifier))
    labels = [contender.label for contender in contenders]
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"`methods` must name different methods, at least one, got {', '.join(labels) or 'none'}.")
    return contenders


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"method {name!r} must read {UPSTREAM} or {UPSTREAM}:<weight in [0, 1]>.") from None


def _fresh_head(parameters: str, target: PreTrainedModel, draft: PreTrainedModel) -> DiversedHead:
    features, _, head_type = parameters.partition(":")
    config = DiversedHeadConfig.for_pair(target, draft, features=features, head_type=head_type or "linear")
    return DiversedHead(config).to(target.device).eval()


@dataclass(frozen=True)
class Run:
    """One timed call. `rounds_ms`: the whole rounds in it, or tokens of plain decoding; prefill is in none of them."""

    seconds: float
    rounds_ms: list[float]
    rounds: int
    tokens: list[list[int]]
    stats: SpeculativeStats | None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


class Runner:
    """Calls contenders at points; every call is seeded and depends on nothing that ran before it."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        settings: BenchmarkSettings,
        prompts: list[list[int]] | None,
    ):
        self.settings, self.prompts = settings, prompts
        self.target, self.draft = target, draft
        self.watch = Stopwatch(target.device)

    def __call__(self, contender: Contender, point: Point, seed: int) -> Run:
        """Decode and take the time: of the call, and of every round."""
        target, draft = self._models(point)
        inputs, kwargs = self._inputs(point), self._kwargs(contender, point, draft)
        with forward_ends(target, self.watch) as ends:
            torch.manual_seed(seed)
            began = time.perf_counter()
            output = target.generate(**inputs, **kwargs)
            new = output.sequences[:, inputs["input_ids"].shape[1] :]
            rows = new.tolist()  # waits for the device, too
            seconds = time.perf_counter() - began
        stats = None if contender.verifier is None else output.stats
        if stats is None:
            lengths = generated_lengths(new, target.generation_config.eos_token_id).tolist()
        else:
            lengths = [row.num_emitted for row in stats.per_row]
        # Our first forward is the prefill, and what follows the first round's is a whole round. Upstream's first
        # forward is prefill and first round in one, plain decoding's prefill and first token.
        whole = ends[1:] if stats is not None else ends
        rounds = len(ends) - (stats is not None)
        tokens = [row[:length] for row, length in zip(rows, lengths)]
        return Run(seconds, self.watch.milliseconds(whole), rounds, tokens, stats)

    def phases(self, contender: Contender, point: Point, seed: int) -> Phases:
        """Decode with our loop once more, this time by phase."""
        assert contender.verifier is not None
        target, draft = self._models(point)
        inputs = self._inputs(point)
        torch.manual_seed(seed)
        timer = PhaseTimer(self.watch)
        with ExitStack() as stack:
            verifier = stack.enter_context(timed_phases(target, draft, contender.verifier, timer))
            kwargs = self._kwargs(replace(contender, verifier=verifier), point, draft)
            target.generate(**inputs, **kwargs)
            return timer.finish()

    def _models(self, point: Point) -> tuple[PreTrainedModel, PreTrainedModel]:
        stops = point.context_length == PROMPTS_AS_GIVEN and self.settings.acceptance is None
        return _twin(self.target, stops), constant_draft(_twin(self.draft, stops), point.num_assistant_tokens)

    def _kwargs(self, contender: Contender, point: Point, draft: PreTrainedModel) -> dict[str, Any]:
        kwargs = self.settings.generation_kwargs()
        if contender.upstream:
            kwargs["assistant_model"] = draft
            if contender.ensemble_weight is not None:
                kwargs["assistant_ensemble_weight"] = contender.ensemble_weight
        elif contender.verifier is not None:
            kwargs["custom_generate"] = partial(
                diversed_decoding,
                assistant_model=draft,
                verifier=contender.verifier,
                num_assistant_tokens=point.num_assistant_tokens,
            )
        return kwargs

    def _inputs(self, point: Point) -> dict[str, torch.Tensor]:
        rows, device = self._prompt_rows(point), self.target.device
        width, pad = max(map(len, rows)), _pad_id(self.target)
        ids = [[pad] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {
            "input_ids": torch.tensor(ids, device=device),
            "attention_mask": torch.tensor(mask, device=device),
        }

    def _prompt_rows(self, point: Point) -> list[list[int]]:
        """Prompts as they are, or their text in rows of one length; ids at random where there are none."""
        size, length = point.batch_size, point.context_length
        if self.prompts is None:
            generator = torch.Generator().manual_seed(self.settings.seed)
            vocab_size = min(model.get_input_embeddings().weight.shape[0] for model in (self.target, self.draft))
            return torch.randint(vocab_size, (size, length), generator=generator).tolist()
        if length == PROMPTS_AS_GIVEN:
            return [self.prompts[row % len(self.prompts)] for row in range(size)]
        text = [token for prompt in self.prompts for token in prompt]
        return [[text[(row * length + column) % len(text)] for column in range(length)] for row in range(size)]


def _twin(model: PreTrainedModel, stops_at_eos: bool) -> PreTrainedModel:
    """A shallow twin with a generation config of its own: the models are the caller's."""
    twin = copy.copy(model)
    twin.generation_config = copy.deepcopy(model.generation_config)
    if not stops_at_eos:
        twin.generation_config.eos_token_id = None
        # Upstream masks pads among generated tokens in its draft, and would go on from another prefix than ours.
        twin.generation_config.pad_token_id = None
    return twin


def _pad_id(model: PreTrainedModel) -> int:
    return model.generation_config.pad_token_id or 0
