"""Time methods in turns in one process, and report medians, quartiles and ratios."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from benchmarks.rounds.hardware import copy_bandwidth, weight_bytes
from benchmarks.rounds.runner import Run, Runner, build_timed, runs_at
from benchmarks.rounds.settings import PROMPTS_AS_GIVEN, BenchmarkSettings, Point
from benchmarks.rounds.synthetic import SyntheticVerifier
from benchmarks.rounds.timing import PHASES, Phases
from benchmarks.turns import spread
from hf_diversed import model_facts
from hf_diversed.formatting import COMPILED, LOSSLESS, PLAIN
from hf_diversed.harness.decode import with_progress
from hf_diversed.harness.methods import HeadLike, Method
from hf_diversed.method_names import UPSTREAM, MethodName
from hf_diversed.provenance import provenance


LIMIT = "bandwidth limit"
_STATIC = "static"


@dataclass(frozen=True)
class Record:
    """One row of the results. Fields that do not apply are None; `*` marks a median with quartiles.

    Attributes:
        method: name of the method.
        implementation: "transformers" for target decoding and assisted decoding, "hf_diversed", or "machine" for the
            bandwidth limit: bytes of weights read per round divided by the speed of a large copy.
        batch_size, context_length, num_assistant_tokens: the point; None draft tokens for target decoding.
        engine: as in `SpeculativeStats`.
        ms_per_round*: time between the ends of successive rounds (or tokens of target decoding), median per run;
            without prefill.
        seconds*, tokens_per_second*: of whole calls, with prefill.
        block_efficiency: tokens per row and round.
        acceptance_rate: accepted / drafted; None for upstream, which does not report it.
        ratios: to "plain", "plain_compiled", "lossless" and "upstream" (batch size 1; for a static ensemble with its
            weight) at the same point: `seconds`*, `ms_per_round`* and
            `tokens_per_second`*, paired by turn. With a given acceptance, which upstream does not have, only
            `ms_per_round` is compared with it.
        same_tokens_as_upstream: whether every turn sampled upstream's tokens, so that rounds correspond.
        breakdown: mean ms per eager round by phase (`PHASES`), from separate runs.
        head_percent*: the head's share of a round.
        compile_seconds: time of the first calls of a compiled method beyond a later one; excluded from all other
            fields.
        limit_ms: the bandwidth limit at this draft length.
    """

    method: str
    implementation: str
    batch_size: int
    context_length: int
    num_assistant_tokens: int | None
    engine: str | None = None
    ms_per_round: dict | None = None
    seconds: dict | None = None
    tokens_per_second: dict | None = None
    block_efficiency: float | None = None
    acceptance_rate: float | None = None
    ratios: dict[str, dict] = field(default_factory=dict)
    same_tokens_as_upstream: bool | None = None
    breakdown: dict[str, float] | None = None
    head_percent: dict | None = None
    compile_seconds: float | None = None
    limit_ms: float | None = None


@dataclass
class Case:
    """A method at a point, with the results of its turns.

    Attributes:
        first_seconds: seconds of every call that compiled something.
    """

    method: Method
    point: Point
    runs: list[Run] = field(default_factory=list)
    phases: list[Phases] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)

    @property
    def place(self) -> tuple:
        """Key of the case; for target decoding it does not depend on the draft length."""
        gamma = None if self.method.is_plain else self.point.num_assistant_tokens
        return (self.method.label, self.point.batch_size, self.point.context_length, gamma)

    @property
    def engine(self) -> str | None:
        stats = self.runs[-1].stats
        return None if stats is None else stats.engine

    @property
    def compile_seconds(self) -> float | None:
        if self.method.compile_config is None:
            return None
        usual = statistics.median(run.seconds for run in self.runs)
        return sum(max(seconds - usual, 0.0) for seconds in self.first_seconds)


def benchmark(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    methods: Sequence[str],
    settings: BenchmarkSettings | None = None,
    *,
    head: HeadLike | None = None,
    prompts: list[list[int]] | None = None,
) -> dict:
    """Time methods against each other.

    Args:
        methods: names, see `build_timed`.
        head: the head of "diversed".
        prompts: token ids, from which prompts of other context lengths are cut; None for random ids.

    Returns:
        {"records": [...], "provenance": {...}} for strict JSON, with the fields of `Record`; the last records are
        the bandwidth limits.

    Raises:
        ValueError: before any timing, for unknown methods, context length 0 without prompts, or a context length
            that exceeds the models' limit.

    Example:
        ```python
        target, draft = (random_model(f"embedded-1024-{role}") for role in ("target", "draft"))
        settings = BenchmarkSettings(batch_sizes=(1,), acceptance=(0.8,))
        report = benchmark(target, draft, ["target", "upstream", "lossless", "fresh:both"], settings)
        ```
    """
    settings = settings or BenchmarkSettings()
    _check_contexts(target, draft, settings, prompts)
    cases = _cases(build_timed(methods, target, draft, head, settings.acceptance, settings.backend), settings)
    runner = Runner(target, draft, settings, prompts)
    _take_turns(cases, runner, settings)
    bandwidth = copy_bandwidth(target.device)
    records = [_record(case, cases, _limit_ms(target, draft, case, bandwidth)) for case in cases]
    source = provenance(settings.seed, target.device) | {
        "benchmark": asdict(settings),
        "target": _shape(target),
        "draft": _shape(draft),
        "copy_bytes_per_second": bandwidth,
    }
    return {"records": [asdict(record) for record in [*records, *_limits(records)]], "provenance": source}


def _check_contexts(target, draft, settings: BenchmarkSettings, prompts: list[list[int]] | None) -> None:
    if prompts is None and PROMPTS_AS_GIVEN in settings.context_lengths:
        raise ValueError(
            "`context_lengths` has 0, which means the prompts as given, but no prompts were given; "
            "choose a length >= 2."
        )
    given = max(map(len, prompts)) if prompts else 0
    needed = max(length or given for length in settings.context_lengths) + settings.max_new_tokens
    for role, model in (("target", target), ("draft", draft)):
        most = model_facts.max_positions(model)
        if most is not None and needed > most:
            raise ValueError(
                f"`context_lengths` plus `max_new_tokens` must be <= {most}, the positions of the {role} model, got "
                f"{needed}; choose smaller values."
            )


def _cases(methods: list[Method], settings: BenchmarkSettings) -> list[Case]:
    found: dict[tuple, Case] = {}
    for point in settings.points():
        for method in methods:
            if runs_at(method, point):
                case = Case(method, point)
                found.setdefault(case.place, case)
    if not found:
        raise ValueError(
            "`batch_sizes` must contain 1, the only batch size that upstream's assisted decoding supports, got "
            f"{list(settings.batch_sizes)}; add 1 or another method."
        )
    return list(found.values())


def _take_turns(cases: list[Case], runner: Runner, settings: BenchmarkSettings) -> None:
    """Run all cases in turns, so that temporary slowdowns of the machine affect all of them."""
    first = [partial(_warm_up, case, runner, settings.seed) for case in cases]
    timed = [
        partial(_time, case, runner, settings.seed + repeat, settings.breakdown)
        for repeat in range(1, settings.repeats + 1)
        for case in cases
    ]
    for turn in with_progress([*first, *timed], "benchmark", "run", settings.progress):
        turn()


def _warm_up(case: Case, runner: Runner, seed: int) -> None:
    case.first_seconds.append(runner(case.method, case.point, seed).seconds)


def _time(case: Case, runner: Runner, seed: int, breakdown: bool) -> None:
    run = runner(case.method, case.point, seed)
    while run.stats is not None and run.stats.compile.num_compiled:  # a shape that no earlier turn had
        case.first_seconds.append(run.seconds)
        run = runner(case.method, case.point, seed)
    case.runs.append(run)
    if breakdown and case.method.verifier is not None and case.method.compile_config is None:
        case.phases.append(runner.phases(case.method, case.point, seed))


_FIGURES: dict[str, Callable[[Run], float]] = {
    "seconds": lambda run: run.seconds,
    "ms_per_round": lambda run: statistics.median(run.rounds_ms),
    "tokens_per_second": lambda run: run.num_tokens / run.seconds,
}


def _record(case: Case, cases: list[Case], limit_ms: float) -> Record:
    label, batch_size, context_length, gamma = case.place
    references = {name: other for name, place in _references(case).items() for other in cases if other.place == place}
    upstream = references.get("upstream")
    comparable = case.method.verifier is not None and batch_size == 1
    stats = [run.stats for run in case.runs if run.stats is not None]
    drafted, accepted = (sum(getattr(s, name) for s in stats) for name in ("num_drafted", "num_accepted"))
    row_rounds = sum(s.num_rounds for s in stats) or sum(run.rounds for run in case.runs) * batch_size
    figures: dict[str, Any] = {name: spread([figure(run) for run in case.runs]) for name, figure in _FIGURES.items()}
    return Record(
        method=label,
        implementation="transformers" if case.method.verifier is None else "hf_diversed",
        engine=case.engine,
        batch_size=batch_size,
        context_length=context_length,
        num_assistant_tokens=gamma,
        **figures,
        block_efficiency=None if gamma is None else sum(run.num_tokens for run in case.runs) / row_rounds,
        acceptance_rate=accepted / drafted if drafted else None,
        ratios={name: _ratios(case, other) for name, other in references.items()},
        same_tokens_as_upstream=_same_tokens(case, upstream) if upstream is not None and comparable else None,
        **_parts(case),
        compile_seconds=case.compile_seconds,
        limit_ms=limit_ms,
    )


def _references(case: Case) -> dict[str, tuple]:
    """Return the keys of the cases to compare with, without the case itself."""
    label, batch_size, context_length, gamma = case.place
    name = MethodName.parse(label)
    engine = COMPILED if name.compiled else ""
    weight = name.parameters if name.name == _STATIC else None
    places: dict[str, tuple] = {}
    if not case.method.is_plain:
        places["plain"] = (PLAIN, batch_size, context_length, None)
        places["plain_compiled"] = (COMPILED + PLAIN, batch_size, context_length, None)
    if case.method.verifier is not None:
        places["upstream"] = (UPSTREAM if weight is None else f"{UPSTREAM}:{weight}", 1, context_length, gamma)
        if weight is None:
            places["lossless"] = (engine + LOSSLESS, batch_size, context_length, gamma)
    return {name: place for name, place in places.items() if place != case.place}


def _ratios(case: Case, reference: Case) -> dict[str, dict]:
    # Upstream has its own acceptance; calls with a given one differ from it in the number of rounds.
    rounds_only = reference.method.upstream and isinstance(case.method.verifier, SyntheticVerifier)
    return {
        name: spread([figure(mine) / figure(other) for mine, other in zip(case.runs, reference.runs)])
        for name, figure in _FIGURES.items()
        if name == "ms_per_round" or not rounds_only
    }


def _same_tokens(case: Case, other: Case) -> bool:
    return all(mine.tokens == theirs.tokens for mine, theirs in zip(case.runs, other.runs))


def _parts(case: Case) -> dict[str, Any]:
    if not case.phases:
        return {}
    rounds = sum(phases.rounds for phases in case.phases)
    breakdown = {name: sum(phases.ms[name] for phases in case.phases) / rounds for name in PHASES}
    heads = [100.0 * phases.ms["head"] / sum(phases.ms.values()) for phases in case.phases]
    return {
        "breakdown": breakdown,
        "head_percent": spread(heads) if breakdown["head"] else None,
    }


def _limit_ms(target: PreTrainedModel, draft: PreTrainedModel, case: Case, bandwidth: float) -> float:
    gamma = 0 if case.method.is_plain else case.point.num_assistant_tokens
    return 1e3 * (weight_bytes(target) + gamma * weight_bytes(draft)) / bandwidth


def _limits(records: list[Record]) -> list[Record]:
    """Return the limits as separate rows: one token of target decoding, and a round at each draft length."""
    limits: dict[int | None, Record] = {}
    for record in records:
        gamma, limit = record.num_assistant_tokens, record.limit_ms
        assert limit is not None
        found = Record(LIMIT, "machine", 1, record.context_length, gamma, ms_per_round=spread([limit]), limit_ms=limit)
        limits.setdefault(gamma, found)
    return list(limits.values())


def _shape(model: PreTrainedModel) -> dict[str, Any]:
    config = model_facts.text_config(model)
    return {
        "model_type": config.model_type,
        "name": model_facts.model_name(model) or None,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "vocab_size": config.vocab_size,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weight_bytes_per_forward": weight_bytes(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
    }
