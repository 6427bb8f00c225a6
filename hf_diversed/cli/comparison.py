"""Decode the same prompts with several methods in turn, and measure each. Prints progress only."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import Progress
from transformers import CompileConfig

from hf_diversed.formatting import PLAIN
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method
from hf_diversed.harness.pair import Pair
from hf_diversed.harness.prompts import Prompt, encode
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers import DiversedVerifier, build_verifier


Case = tuple[Method, Sampling]  # a row of the comparison: `batch_size` prompts per call
_WARM_UP_TOKENS = 8


@dataclass
class Row:
    """Result of one method.

    Attributes:
        texts, num_tokens, stats: of the first repeat; each repeat draws the same tokens. `stats` is None if the
            method reports none.
        seconds: one value per repeat, over all prompts, without compilation.
        compile_seconds: time of compilation; for decoding by transformers, of the whole first call.
    """

    label: str
    texts: list[str] = field(default_factory=list)
    num_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    stats: SpeculativeStats | None = None
    compile_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> list[float]:
        """One value per repeat."""
        return [self.num_tokens / seconds for seconds in self.seconds]


def demo_cases(head: DiversedHead, sampling: Sampling) -> list[Case]:
    """Return the demo's rows, from the target alone to a batch of eight."""
    single, diversed = replace(sampling, batch_size=1), DiversedVerifier(head)
    methods = [
        Method(PLAIN),
        Method("upstream:0.7", upstream=True, ensemble_weight=0.7),
        *(Method(spec, build_verifier(spec)) for spec in ("lossless", "static:0.7", "static:0.3", "lenience:0.05")),
        Method("diversed", diversed),
    ]
    batched = Method("diversed, batch 8", diversed), replace(sampling, batch_size=8)
    return [*((method, single) for method in methods), batched]


def compiled_cases(
    verifier_spec: str, head: DiversedHead | None, sampling: Sampling, config: CompileConfig
) -> list[Case]:
    """Return the target alone and one verifier, eager and compiled, in the order that `compiled_line` requires."""
    single = replace(sampling, batch_size=1)
    verifier = build_verifier(verifier_spec) if head is None else DiversedVerifier(head)
    eager = [Method(PLAIN), Method(verifier_spec, verifier)]
    compiled = [replace(method, label=f"compiled:{method.label}", compile_config=config) for method in eager]
    return [(method, single) for method in (*eager, *compiled)]


def compare(
    pair: Pair, cases: list[Case], prompts: Sequence[Prompt], seed: int, repeats: int, console: Console
) -> list[Row]:
    """Decode each prompt with each method in turn, `repeats` times, after a warm-up that compiles.

    Methods alternate prompt by prompt, so a change in machine load affects all of them equally. A call's seed depends
    only on the index of its prompt, so every repeat draws the same tokens.
    """
    encoded = encode(pair.tokenizer, prompts)
    rows, decoders = [Row(method.label) for method, _ in cases], [Decoder(pair, sampling) for _, sampling in cases]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("decoding", total=(1 + repeats * len(encoded)) * len(cases))
        for row, decoder, case in zip(rows, decoders, cases):
            row.compile_seconds = _warm_up(decoder, case[0], max(encoded, key=len), seed)
            progress.advance(task)
        for repeat in range(repeats):
            for row in rows:
                row.seconds.append(0.0)
            for start in range(len(encoded)):
                for row, decoder, (method, sampling) in zip(rows, decoders, cases):
                    if start % sampling.batch_size == 0:
                        batch = encoded[start : start + sampling.batch_size]
                        _measure(row, decoder, method, batch, seed + start, first=repeat == 0)
                    progress.advance(task)
    return rows


def _warm_up(decoder: Decoder, method: Method, prompt: list[int], seed: int) -> float:
    """Decode the longest prompt, for a few tokens unless the method is compiled. Return the seconds of compilation.

    The static cache of transformers does not shrink, so nothing is compiled for shorter prompts later.
    """
    if method.compile_config is None:
        decoder(method, [prompt], seed, max_new_tokens=_WARM_UP_TOKENS)
        return 0.0
    decoded = decoder(method, [prompt], seed)
    return decoded.seconds if decoded.stats is None else decoded.stats.compile.seconds


def _measure(row: Row, decoder: Decoder, method: Method, batch: list[list[int]], seed: int, first: bool) -> None:
    decoded = decoder(method, batch, seed)
    compiling = 0.0 if decoded.stats is None else decoded.stats.compile.seconds
    row.seconds[-1] += decoded.seconds - compiling
    row.compile_seconds += compiling
    if not first:
        return
    row.num_tokens += sum(map(len, decoded.tokens))
    row.texts += [decoder.text(ids) for ids in decoded.tokens]
    if decoded.stats is not None:
        row.stats = row.stats or SpeculativeStats()
        row.stats.add(decoded.stats)
