"""What is timed, ready to be called: plain decoding, upstream's assisted decoding and our loop under any rule."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_diversed.evaluation.benchmark.settings import PROMPTS_AS_GIVEN, BenchmarkSettings, Point
from hf_diversed.evaluation.benchmark.synthetic import SyntheticVerifier
from hf_diversed.evaluation.benchmark.timing import Phases, PhaseTimer, Stopwatch, forward_ends, timed_phases
from hf_diversed.generation.hook import install_hook
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.running.decode import seeded, timed_call
from hf_diversed.running.methods import HeadLike, Method, build_methods
from hf_diversed.running.pair import eos_ids
from hf_diversed.running.prompts import left_padded
from hf_diversed.verifiers import DiversedVerifier, Verifier
from hf_diversed.verifiers.base import check_range


UPSTREAM = "upstream"
FRESH = "fresh"
_TOKEN = "+token"


def runs_at(method: Method, point: Point) -> bool:
    """Upstream's assisted decoding takes one row."""
    return not method.upstream or point.batch_size == 1


def build_timed(
    methods: Sequence[str],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    head: HeadLike | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> list[Method]:
    """Build what a benchmark times from names.

    Args:
        methods: "upstream" (lossless), "upstream:<weight>" (its static ensemble), "fresh:<features>[+token][:mlp]" (an
            untrained head of that kind, as expensive as a trained one; "+token" sees the drafted token, too), or what
            `build_methods` knows: "ar", "sd", "static:0.7", "diversed" (the given head) ...
        acceptance: see `BenchmarkSettings`; acts on our methods.

    Raises:
        ValueError: on unknown names or wrong parameters.
    """
    built = []
    for name in methods:
        kind, _, parameter = name.partition(":")
        if kind == UPSTREAM:
            weight = None if not parameter else check_range(name, _number(name, parameter), 0.0, 1.0)
            built.append(Method(name, upstream=True, ensemble_weight=weight))
            continue
        if kind == FRESH:
            verifier: Verifier | None = DiversedVerifier(_fresh_head(parameter, target, draft))
        else:
            verifier = build_methods([name], head, target.device)[0].verifier
        if verifier is not None and acceptance is not None:
            verifier = SyntheticVerifier(verifier, acceptance)
        built.append(Method(name, verifier))
    labels = [method.label for method in built]
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"`methods` must name different methods, at least one, got {', '.join(labels) or 'none'}.")
    return built


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"method {name!r} must read {UPSTREAM} or {UPSTREAM}:<weight in [0, 1]>.") from None


def _fresh_head(parameters: str, target: PreTrainedModel, draft: PreTrainedModel) -> DiversedHead:
    features, _, head_type = parameters.partition(":")
    kind = {"features": features.removesuffix(_TOKEN), "token_features": features.endswith(_TOKEN)}
    config = DiversedHeadConfig.for_pair(target, draft, **kind, head_type=head_type or "linear")
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
    """Calls methods at points; every call is seeded and depends on nothing that ran before it."""

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        settings: BenchmarkSettings,
        prompts: list[list[int]] | None,
    ):
        install_hook()
        self.settings, self.prompts = settings, prompts
        self.target, self.draft = target, draft
        self.watch = Stopwatch(target.device)

    def __call__(self, method: Method, point: Point, seed: int) -> Run:
        """Decode and take the time: of the call, and of every round."""
        target, draft = self._models(point)
        options = self._options(method, point, draft)
        with forward_ends(target, self.watch) as ends:
            output, rows, seconds = timed_call(target, seed, **options)
        stats = None if method.verifier is None else output.stats
        if stats is None:
            stops = set(eos_ids(target))
            lengths = [next((i for i, token in enumerate(row, 1) if token in stops), len(row)) for row in rows]
        else:
            lengths = [row.num_emitted for row in stats.per_row]
        # Our first forward is the prefill, and what follows the first round's is a whole round. Upstream's first
        # forward is prefill and first round in one, plain decoding's prefill and first token.
        whole = ends[1:] if stats is not None else ends
        rounds = len(ends) - (stats is not None)
        tokens = [row[:length] for row, length in zip(rows, lengths)]
        return Run(seconds, self.watch.milliseconds(whole), rounds, tokens, stats)

    def phases(self, method: Method, point: Point, seed: int) -> Phases:
        """Decode with our loop once more, this time by phase."""
        assert method.verifier is not None
        target, draft = self._models(point)
        timer = PhaseTimer(self.watch)
        with seeded(seed, target.device), timed_phases(target, draft, method.verifier, timer) as verifier:
            target.generate(**self._options(replace(method, verifier=verifier), point, draft))
            return timer.finish()

    def _models(self, point: Point) -> tuple[PreTrainedModel, PreTrainedModel]:
        stops = point.context_length == PROMPTS_AS_GIVEN and self.settings.acceptance is None
        return _twin(self.target, stops), _twin(self.draft, stops)

    def _options(self, method: Method, point: Point, draft: PreTrainedModel) -> dict[str, Any]:
        pad = self.target.generation_config.pad_token_id or 0
        return {
            **left_padded(self._prompt_rows(point), pad, self.target.device),
            **self.settings.sampling(point).generate_kwargs(),
            **method.generate_kwargs(draft, point.num_assistant_tokens),
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
