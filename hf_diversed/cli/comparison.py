"""Run the same prompts through several decoding methods and measure each. Prints nothing but progress."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import track
from transformers import CompileConfig, PreTrainedModel

from hf_diversed.head import DiversedHead
from hf_diversed.outputs import SpeculativeStats, TokenRecords
from hf_diversed.running.decode import Decoded, Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.prompts import Prompt, encode
from hf_diversed.running.sampling import Sampling
from hf_diversed.verifiers import (
    DiversedVerifier,
    LenientVerifier,
    LosslessVerifier,
    PhaseVerifier,
    StaticEnsembleVerifier,
    build_verifier,
)


Case = tuple[Method, Sampling]  # a row of the comparison: `batch_size` prompts per call
_WARM_UP_TOKENS = 8


@dataclass
class Row:
    """What one method did.

    `row_forwards` counts a target forward once per row, `stats` is None where unreported. `compile_seconds` is what
    compiling took, of upstream's decoding its whole first call; no part of `seconds`.
    """

    label: str
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0
    row_forwards: int = 0
    stats: SpeculativeStats | None = None
    records: TokenRecords | None = None
    compile_seconds: float = 0.0


def demo_cases(head: DiversedHead, head_label: str, sampling: Sampling) -> list[Case]:
    """The demo's rows, from plain decoding to a batch of eight."""
    single, diversed = replace(sampling, batch_size=1), DiversedVerifier(head)
    methods = [
        Method("plain decoding"),
        Method("upstream assisted, w = 0.7", upstream=True, ensemble_weight=0.7),
        Method("lossless", LosslessVerifier()),
        Method("static, w = 0.7", StaticEnsembleVerifier(0.7)),
        Method("static, w = 0.3", StaticEnsembleVerifier(0.3)),
        Method("lenience, l = 0.05", LenientVerifier(0.05)),
        Method(head_label, diversed),
    ]
    batched = (Method(f"{head_label}, batch 8", diversed), replace(sampling, batch_size=8))
    return [*((method, single) for method in methods), batched]


def compiled_cases(head: DiversedHead, head_label: str, sampling: Sampling, config: CompileConfig) -> list[Case]:
    """The head's row over static shapes, compiled, and what it is to be held against."""
    single, diversed = replace(sampling, batch_size=1), DiversedVerifier(head)
    plain = Method("plain decoding, compiled", compile_config=config)
    return [(plain, single), (Method(f"{head_label}, compiled", diversed, compile_config=config), single)]


ALL_RULES = (
    *("static:0.7", "static:0.3", "lenience:0.5", "lossy:0.5", "spec_cascade:token_v3:0.5", "fuzzy:0.2:js"),
    *("contrastive:0.5:0.1", "cactus:0.25", "typical", "top_k_relaxed:10:0.6", "fly:0.3:2", "block"),
    *("block:static:0.7", "regret_budget:2"),
)


def all_cases(head: DiversedHead, head_label: str, begin: int, end: int, sampling: Sampling) -> list[Case]:
    """Every rule in a usual setting; between two tokens, and lossless outside of them, the static one."""
    single = replace(sampling, batch_size=1)
    greedy = replace(single, temperature=0.0)
    named = [(spec, build_verifier(spec)) for spec in ALL_RULES]
    rules = {
        "lossless": LosslessVerifier(),
        **{spec + (" (greedy)" if rule.greedy_only else ""): rule for spec, rule in named},
        "static:0.3, first sentence": PhaseVerifier(StaticEnsembleVerifier(0.3), begin=begin, end=end),
        head_label: DiversedVerifier(head),
        "DIVERSED, bias_budget 1": DiversedVerifier(head, bias_budget=1.0),
    }
    cases = [(Method(label, rule), greedy if rule.greedy_only else single) for label, rule in rules.items()]
    return [(Method("plain decoding"), single), *cases]


def compare(pair: Pair, cases: list[Case], prompts: Sequence[Prompt], seed: int, console: Console) -> list[Row]:
    """Measure every method on every prompt, each after a short warm-up, under the same seeds."""
    rows = []
    longest = max(prompts, key=lambda prompt: len(encode(pair.tokenizer, [prompt])[0]))
    for method, sampling in track(cases, description="decoding", console=console, transient=True):
        if method.compile_config is None:
            measure(pair, (method, replace(sampling, max_new_tokens=_WARM_UP_TOKENS)), prompts[:1], seed)
            rows.append(measure(pair, (method, sampling), prompts, seed))
            continue
        # Upstream's static cache never shrinks again: after the longest text no other one is compiled for.
        first = measure(pair, (method, sampling), [longest], seed)
        rows.append(measure(pair, (method, sampling), prompts, seed))
        rows[-1].compile_seconds += first.compile_seconds if first.stats else first.seconds
    return rows


def measure(pair: Pair, case: Case, prompts: Sequence[Prompt], seed: int, records: bool = False) -> Row:
    """Run one method over all prompts. Every call is seeded by its place, so one prompt does not move the next."""
    method, sampling = case
    row, decoder = Row(method.label), Decoder(pair, sampling)
    encoded = encode(pair.tokenizer, prompts)
    options = {"output_token_records": True} if records and method.verifier is not None else {}
    for start in range(0, len(encoded), sampling.batch_size):
        batch = encoded[start : start + sampling.batch_size]
        with _counted_forwards(pair.target, hooked=method.compile_config is None) as count:
            decoded = decoder(method, batch, seed + start, **options)
        compiling = 0.0 if decoded.stats is None else decoded.stats.compile.seconds
        row.seconds += decoded.seconds - compiling
        row.compile_seconds += compiling
        row.row_forwards += (count[0] or _told_forwards(decoded)) * len(batch)
        row.num_tokens += sum(map(len, decoded.tokens))
        row.texts += [decoder.text(ids) for ids in decoded.tokens]
        if decoded.stats is not None:
            row.stats = row.stats or SpeculativeStats()
            row.stats.add(decoded.stats)
        row.records = decoded.records
    return row


def _told_forwards(decoded: Decoded) -> int:
    """The target's forwards, by the loop's own account or, of plain decoding, by its tokens."""
    return max(map(len, decoded.tokens)) if decoded.stats is None else decoded.stats.target_forwards


@contextmanager
def _counted_forwards(model: PreTrainedModel, hooked: bool) -> Iterator[list[int]]:
    """Count by a hook, which is no part of what is compiled only where nothing is."""
    count = [0]
    if not hooked:
        yield count
        return

    def hook(module, args, kwargs):
        count[0] += 1

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
