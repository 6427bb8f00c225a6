"""Time decoding methods in turns in one process, and compare them with each other.

    python -m benchmarks.speed --methods target,upstream:0.7,static:0.7,compiled:static:0.7

Methods are "target", "upstream" (transformers' assisted generation, lossless; batch size 1 only), "upstream:<weight>"
(its static ensemble) and names of verifiers. The prefix "compiled:" selects static shapes and compilation. A call of
each method that compiles and warms up is not timed. Figures are medians and quartiles over the turns; ratios are
paired by turn. A round is a call's seconds, with the prefill, over its number of rounds (of tokens, for the target).
The shares of forward passes are those of one more call, for eager methods on a CPU.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, CompileConfig, PreTrainedModel
from transformers.utils import logging

from hf_diversed.blocks import DraftOutput, TargetOutput, Verdict
from hf_diversed.evaluation.decoder import (
    Call,
    Decoded,
    Decoder,
    Method,
    Sampling,
    build_methods,
    decode_calls,
    encode,
)
from hf_diversed.evaluation.table import number, percent
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import get_task, load_records
from hf_diversed.verifiers import Verifier
from hf_diversed.verifiers.base import CompositeVerifier, check_range
from hf_diversed.verifiers.names import PLAIN
from hf_diversed.zoo import best_device, load_demo_pair, load_pair
from hf_diversed.zoo.loader import Pair


METHODS = "target,upstream,upstream:0.7,lossless,static:0.7"
COMPILED, UPSTREAM = "compiled:", "upstream"
_SHAPES = Path(__file__).parent / "configs"


@dataclass
class Case:
    """A method at a batch size, and its timed calls."""

    method: Method
    decoder: Decoder
    batch_size: int
    runs: list[Decoded] = field(default_factory=list)


FIGURES: dict[str, Callable[[Decoded], float]] = {
    "seconds": lambda run: run.seconds,
    "ms_per_round": lambda run: 1e3 * run.seconds / run.num_rounds,
    "tokens_per_second": lambda run: sum(map(len, run.tokens)) / run.seconds,
}


def main(argv: list[str] | None = None) -> None:
    parser = arguments_parser()
    options = parser.parse_args(argv)
    logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        report = benchmark(options)
    except ValueError as error:
        parser.error(str(error))
    if options.output is not None:
        write_json(options.output, report)
    Console().print(table(report["records"]))


def benchmark(options: argparse.Namespace) -> dict[str, Any]:
    """Time the methods on the embedded pair, a named pair, or models with random weights."""
    random_weights = options.target_config is not None
    if random_weights != (options.draft_config is not None) or (random_weights and (options.target or options.draft)):
        raise ValueError("--target-config and --draft-config go together, without --target and --draft.")
    if options.acceptance is not None and options.temperature == 0:
        raise ValueError("--acceptance needs a temperature above 0: greedy decoding draws no random numbers.")
    head = options.head
    if random_weights:
        device = options.device or best_device()
        dtype = getattr(torch, options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))
        target, draft = (
            random_model(config, dtype, device, seed=options.seed + role)
            for role, config in enumerate((options.target_config, options.draft_config))
        )
        pair = Pair(target, draft, load_demo_pair().tokenizer)  # only the padding token is used
        ids = min(model.get_input_embeddings().weight.shape[0] for model in (target, draft))
        generator = torch.Generator().manual_seed(options.seed)
        prompts = torch.randint(ids, (max(options.batch_sizes), options.context_length), generator=generator).tolist()
    else:
        pair = load_pair(options.target, options.draft, options.device, options.dtype)
        head = head or pair.heads.get("math")
        records = load_records(get_task("math"), "test", max(options.batch_sizes), options.seed)
        prompts = encode(pair.tokenizer, [record["prompt"] for record in records])
    methods = [build(name, head, pair.target.device, options) for name in options.methods.split(",")]
    sampling = Sampling(
        options.temperature, num_assistant_tokens=options.draft_length, max_new_tokens=options.max_new_tokens
    )
    stops = not random_weights and options.acceptance is None
    cases = [
        Case(method, Decoder(_copy(pair, stops), sampling), size)
        for size in options.batch_sizes
        for method in methods
        if size == 1 or not method.upstream
    ]
    calls = [
        Call(case.decoder, case.method, prompts[: case.batch_size], turn, case)
        for turn in range(options.repeats + 1)
        for case in cases
    ]
    for call, decoded in decode_calls(calls, "benchmark"):
        case, turn = call.key, call.seed
        while turn and decoded.stats is not None and decoded.stats.compile.num_compiled:  # a shape of no earlier turn
            decoded = call.decoder(call.method, call.prompts, call.seed)
        if turn:
            case.runs.append(decoded)
    shares = [forward_shares(call) for call in calls[: len(cases)]]
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    source = provenance(options.seed, pair.target.device) | {"benchmark": settings}
    found = [record(case, cases, options) | {"shares": share} for case, share in zip(cases, shares)]
    return {"records": found, "provenance": source}


def build(name: str, head: Any, device: torch.device, options: argparse.Namespace) -> Method:
    """Return a method from its name. Raises ValueError for unknown names, and for "compiled:upstream"."""
    compiled, plain_name = name.startswith(COMPILED), name.removeprefix(COMPILED)
    kind, _, weight = plain_name.partition(":")
    if kind == UPSTREAM:
        if compiled:
            raise ValueError(f"method {name!r} does not exist: upstream's assisted decoding has no static cache.")
        return Method(name, upstream=True, ensemble_weight=float(weight) if weight else None)
    (method,) = build_methods([plain_name], head, device)
    if method.verifier is not None and options.acceptance is not None:
        method = replace(method, verifier=SyntheticVerifier(method.verifier, options.acceptance))
    if not compiled:
        return replace(method, label=name)
    graphs = device.type == "cuda" and options.backend == "inductor"
    config = CompileConfig(backend=options.backend, mode="reduce-overhead" if graphs else "default", dynamic=False)
    return replace(method, label=name, compile_config=config)


def forward_shares(call: Call) -> dict[str, float] | None:
    """Return the shares of target forwards, of draft forwards and of all else in the time of one more eager call.

    None for compiled methods, and on devices that run asynchronously.
    """
    pair = call.decoder.pair
    if call.method.compile_config is not None or pair.target.device.type != "cpu":
        return None
    seconds, began, handles = {"target": 0.0, "draft": 0.0}, [0.0], []

    def start(*_: Any) -> None:
        began[0] = time.perf_counter()

    def stop(role: str, *_: Any) -> None:
        seconds[role] += time.perf_counter() - began[0]

    for role, model in (("target", pair.target), ("draft", pair.draft)):
        handles += [model.register_forward_pre_hook(start), model.register_forward_hook(partial(stop, role))]
    whole = call.decoder(call.method, call.prompts, call.seed).seconds
    for handle in handles:
        handle.remove()
    shares = {role: spent / whole for role, spent in seconds.items()}
    return shares | {"rest": 1.0 - sum(shares.values())}


def record(case: Case, cases: Sequence[Case], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a case, and their ratios to the target alone and to upstream."""
    label, others = case.method.label, {(other.method.label, other.batch_size): other for other in cases}
    weight = label.removeprefix(COMPILED).partition("static:")[2]
    references = {
        "target": (PLAIN, case.batch_size),
        "compiled:target": (COMPILED + PLAIN, case.batch_size),
        "upstream": (f"{UPSTREAM}:{weight}" if weight else UPSTREAM, 1),
    }
    stats = [found.stats for found in case.runs if found.stats is not None]
    tokens = sum(len(row) for found in case.runs for row in found.tokens)
    drafted, accepted, rounds = (
        sum(getattr(each, name) for each in stats) for name in ("num_drafted", "num_accepted", "num_rounds")
    )
    has_draft = case.method.verifier is not None or case.method.upstream
    return {
        "method": label,
        "batch_size": case.batch_size,
        "num_assistant_tokens": options.draft_length if has_draft else None,
        "engine": stats[-1].engine if stats else None,
        **{name: spread([figure(found) for found in case.runs]) for name, figure in FIGURES.items()},
        "block_efficiency": tokens / rounds if rounds else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "ratios": {
            name: {
                figure: spread([value(own) / value(other) for own, other in zip(case.runs, others[place].runs)])
                for figure, value in FIGURES.items()
            }
            for name, place in references.items()
            if place in others and place != (label, case.batch_size)
        },
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median and quartiles of at least one value: `{"median": float, "quartiles": [low, high]}`."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "quartiles": [low, high]}


def _copy(pair: Pair, stops_at_eos: bool) -> Pair:
    """Return shallow copies of the models, since the target alone keeps the size of its static cache."""
    models = []
    for model in (pair.target, pair.draft):
        models.append(copy.copy(model))
        models[-1].generation_config = copy.deepcopy(model.generation_config)
        if not stops_at_eos:
            models[-1].generation_config.eos_token_id = None
    return Pair(models[0], models[1], pair.tokenizer)


def table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of medians, one line per method and batch size."""
    found = Table(header_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    found.add_column("method", no_wrap=True)
    headers = ("batch", "accepted", "tokens per\nround", "tokens/s", "ms per\nround")
    for header in (*headers, "tokens/s\nx target", "round\nx upstream", "target, draft,\nrest, %"):
        found.add_column(header, justify="right")
    for row in records:
        ratios = row["ratios"]
        cells = [str(row["batch_size"]), percent(row["acceptance_rate"]), number(row["block_efficiency"])]
        cells += [number(row[name]["median"]) for name in ("tokens_per_second", "ms_per_round")]
        for name, figure in (("target", "tokens_per_second"), ("upstream", "ms_per_round")):
            cells.append(number(ratios[name][figure]["median"]) if name in ratios else "-")
        shares = row["shares"]
        cells.append("-" if shares is None else " ".join(f"{100 * share:.0f}" for share in shares.values()))
        found.add_row(row["method"], *cells)
    return found


def shape_names() -> list[str]:
    """Return the names of the configurations in `configs/`."""
    return sorted(path.stem for path in _SHAPES.glob("*.json"))


def random_model(shape: str | Path, dtype: torch.dtype, device: torch.device | str, seed: int) -> PreTrainedModel:
    """Build a causal LM with random weights.

    Args:
        shape: a name from `shape_names()`, or the path of a file like the Hub's `config.json`.
    """
    path = _SHAPES / f"{shape}.json" if str(shape) in shape_names() else Path(shape)
    fields = json.loads(path.read_text())
    for name in ("architectures", "dtype"):
        fields.pop(name, None)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


class SyntheticVerifier(CompositeVerifier):
    """Run a verifier, then accept at a given rate instead, to measure speed without a trained pair.

    Args:
        inner: the verifier that is executed; residual tokens follow its distribution.
        acceptance: in [0, 1], P(a draft token is accepted | all earlier ones of its block are).

    Raises:
        ValueError: for a rate out of range.
    """

    needs_input_ids = False  # an instance needs them if `inner` does

    def __init__(self, inner: Verifier, acceptance: float):
        super().__init__(inner)
        self.needs_check = inner.needs_check  # a given rate needs no check
        self.inner = inner
        self.acceptance = check_range("acceptance", acceptance, 0.0, 1.0)

    def components(self) -> list[object]:
        # Excludes this class: one from outside the library would have the guards of compiled rounds checked each time.
        return self.inner.components()

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        verdict = self.verify_parts(input_ids, [draft], target, row_values)[0]
        return replace(verdict, accept_prob=torch.full_like(verdict.accept_prob, self.acceptance))


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--methods", default=METHODS)
    add("--target", help="Hub id or folder; the embedded pair by default")
    add("--draft", help="Hub id or folder")
    add("--head", help='head of "diversed"; by default the embedded math head')
    add("--target-config", help=f"random weights: a config.json or one of {', '.join(shape_names())}")
    add("--draft-config", help="the same for the draft model")
    add("--acceptance", type=float, help="given acceptance of our methods")
    add("--batch-sizes", type=lambda text: [int(size) for size in text.split(",")], default=[1, 8])
    add("--context-length", type=int, default=128, help="prompt tokens, with random weights")
    add("--draft-length", type=int, default=5, help="draft tokens per round")
    add("--max-new-tokens", type=int, default=64, help="tokens per row")
    add("--repeats", type=int, default=7, help="timed turns, after one that compiles and warms up")
    add("--temperature", type=float, default=1.0, help="0 decodes greedily")
    add("--seed", type=int, default=0, help="seed of weights and prompts")
    add("--backend", default="inductor", help="of torch.compile; eager only traces, for trials")
    add("--threads", type=int, help="CPU threads")
    add("--device")
    add("--dtype", choices=("float32", "bfloat16", "float16"))
    add("--output", type=Path, help="JSON file")
    return parser


if __name__ == "__main__":
    main()
