"""Calls of the timed methods: the target alone, upstream's assisted decoding, and our loop with any verifier."""

import copy
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from benchmarks.rounds.settings import PROMPTS_AS_GIVEN, BenchmarkSettings, Point
from benchmarks.rounds.synthetic import SyntheticVerifier
from benchmarks.rounds.timing import (
    Marker,
    Phases,
    PhaseTimer,
    Stopwatch,
    forward_ends,
    round_ends,
)
from hf_diversed.formatting import COMPILED, PLAIN
from hf_diversed.generation.patching import install_hook
from hf_diversed.harness.compiled import default_compile_config
from hf_diversed.harness.decode import seeded, timed_call
from hf_diversed.harness.methods import HeadLike, Method, build_methods
from hf_diversed.harness.pair import eos_ids
from hf_diversed.harness.prompts import left_padded
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.method_names import UPSTREAM, MethodName, parse_number
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers import DiversedVerifier


FRESH = "fresh"


def runs_at(method: Method, point: Point) -> bool:
    """Return whether a method runs at a point: upstream's assisted decoding supports only batch size 1."""
    return not method.upstream or point.batch_size == 1


def build_timed(
    methods: Sequence[str],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    head: HeadLike | None = None,
    acceptance: tuple[float, ...] | None = None,
    backend: str = "inductor",
) -> list[Method]:
    """Build the methods of a benchmark from names.

    Args:
        methods: "upstream" (lossless), "upstream:<weight>" (its static ensemble),
            "fresh:<features>[+token][:mlp]" (an untrained head with the cost of a trained one), or a name for
            `build_methods`: "target", "lossless", "static:0.7", "diversed" (the given head) ... The prefix
            "compiled:" selects static shapes and compilation.
        acceptance: see `BenchmarkSettings`; applies to our methods.
        backend: see `default_compile_config`.

    Raises:
        ValueError: for unknown names, invalid parameters, and "compiled:upstream".
    """
    config = default_compile_config(target.device, backend)
    built = []
    for name in methods:
        parsed = MethodName.parse(name)
        method = _build(replace(parsed, compiled=False), target, draft, head)
        if method.verifier is not None and acceptance is not None:
            method = replace(method, verifier=SyntheticVerifier(method.verifier, acceptance))
        if parsed.compiled:
            if method.upstream:
                raise ValueError(
                    f"method {name!r} does not exist: upstream's assisted decoding has no static cache. Compare with "
                    f"{method.label}, or with {COMPILED}{PLAIN}."
                )
            method = replace(method, compile_config=config)
        built.append(replace(method, label=name))
    labels = [method.label for method in built]
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"`methods` must name different methods, at least one, got {', '.join(labels) or 'none'}.")
    return built


def _build(name: MethodName, target: PreTrainedModel, draft: PreTrainedModel, head: HeadLike | None) -> Method:
    if name.name == UPSTREAM:
        weight = None if name.parameters is None else parse_number(name.parameters)
        if name.parameters is not None and (weight is None or not 0.0 < weight < 1.0):
            raise ValueError(f"method {str(name)!r} must read {UPSTREAM} or {UPSTREAM}:<weight in (0, 1)>.")
        return Method(str(name), upstream=True, ensemble_weight=weight)
    if name.name == FRESH:
        return Method(str(name), DiversedVerifier(_fresh_head(name.parameters or "", target, draft)))
    return build_methods([str(name)], head, target.device)[0]


def _fresh_head(parameters: str, target: PreTrainedModel, draft: PreTrainedModel) -> DiversedHead:
    inputs, _, head_type = parameters.partition(":")
    kind = {"features": inputs.removesuffix("+token"), "token_features": inputs.endswith("+token")}
    config = DiversedHeadConfig.for_pair(target, draft, **kind, head_type=head_type or "linear")
    return DiversedHead(config).to(target.device).eval()


@dataclass(frozen=True)
class Run:
    """One timed call; `rounds_ms` contains whole rounds, or tokens of target decoding, without prefill."""

    seconds: float
    rounds_ms: list[float]
    rounds: int
    tokens: list[list[int]]
    stats: SpeculativeStats | None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.tokens))


class Runner:
    """Runs methods at points; every call is seeded and independent of earlier calls."""

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
        self._twins: dict[Hashable, tuple[PreTrainedModel, PreTrainedModel]] = {}

    def __call__(self, method: Method, point: Point, seed: int) -> Run:
        """Decode and time the call and every round."""
        target, draft = self._models(method, point)
        options = self._options(method, point, draft)
        with self._round_ends(method, target, options) as ends:
            output, rows, seconds = timed_call(target, seed, **options)
        stats = None if method.verifier is None else output.stats
        if stats is None:
            stops = set(eos_ids(target))
            lengths = [next((i for i, token in enumerate(row, 1) if token in stops), len(row)) for row in rows]
        else:
            lengths = [row.num_emitted for row in stats.per_row]
        tokens = [row[:length] for row, length in zip(rows, lengths)]
        return Run(seconds, self.watch.milliseconds(ends), len(ends), tokens, stats)

    @contextmanager
    def _round_ends(self, method: Method, target: PreTrainedModel, options: dict[str, Any]) -> Iterator[list]:
        """Collect marks at the ends of rounds or tokens; the first mark follows the prefill and the first round."""
        if method.is_plain:
            options["logits_processor"] = LogitsProcessorList([marker := Marker(self.watch)])
            yield marker.marks
            return
        with forward_ends(target, self.watch) if method.upstream else round_ends(self.watch) as ends:
            yield ends

    def phases(self, method: Method, point: Point, seed: int) -> Phases:
        """Decode with our eager loop and time the phases."""
        assert method.verifier is not None
        target, draft = self._models(method, point)
        timer = PhaseTimer(self.watch)
        modules: dict[str, torch.nn.Module] = {"draft": draft, "target": target}
        heads = [part for part in method.verifier.components() if isinstance(part, torch.nn.Module)]
        if heads:
            modules["head"] = heads[0]
        with seeded(seed, target.device), timer.timed(modules):
            target.generate(**self._options(method, point, draft))
        return timer.finish()

    def _models(self, method: Method, point: Point) -> tuple[PreTrainedModel, PreTrainedModel]:
        """Return copies of the models that keep compiled code across calls of the same kind.

        Upstream also keeps the size of its static cache, so target decoding has separate copies at each point.
        """
        stops = point.context_length == PROMPTS_AS_GIVEN and self.settings.acceptance is None
        kind = (stops, point if method.is_plain else None)
        if kind not in self._twins:
            self._twins[kind] = _twin(self.target, stops), _twin(self.draft, stops)
        return self._twins[kind]

    def _options(self, method: Method, point: Point, draft: PreTrainedModel) -> dict[str, Any]:
        return {
            **self._inputs(point),
            **self.settings.sampling(point).generate_kwargs(),
            **method.generate_kwargs(draft, point.num_assistant_tokens),
        }

    def _inputs(self, point: Point) -> dict[str, torch.Tensor]:
        pad = self.target.generation_config.pad_token_id or 0
        return left_padded(self._prompt_rows(point), pad, self.target.device)

    def _prompt_rows(self, point: Point) -> list[list[int]]:
        """Return the prompts, rows of equal length cut from their text, or random ids without prompts."""
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
    """Return a shallow copy with its own generation config."""
    twin = copy.copy(model)
    twin.generation_config = copy.deepcopy(model.generation_config)
    if not stops_at_eos:
        twin.generation_config.eos_token_id = None
        # Upstream masks pads among generated tokens in its draft, so its prefix would differ from ours.
        twin.generation_config.pad_token_id = None
    return twin
