"""Rollouts: completions drawn with `generate` and a recording verifier, converted to decisions and head inputs; and
the order of the prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tqdm import tqdm

from hf_diversed.blocks import Verdict
from hf_diversed.evaluation.decoder import Decoded, Decoder, Method, Sampling, encode, plan_batches
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import SOURCES, SpeculativeStats, TokenRecords
from hf_diversed.tasks.prompted import Prompt
from hf_diversed.training.objective import Decisions
from hf_diversed.verifiers import DiversedVerifier, LosslessVerifier
from hf_diversed.verifiers.base import AS_TRAINED
from hf_diversed.verifiers.names import LOSSLESS
from hf_diversed.zoo.loader import Pair


@dataclass(eq=False)
class Rollouts:
    """B completions and their M decisions.

    Attributes:
        completion_ids: token ids, including EOS.
        finished: whether each completion reached EOS or a stop string.
        stats: the counters of each completion.
        inputs: the head's inputs at each decision by name, `[M, ...]`; empty without decisions or recorded inputs.
    """

    completions: list[str]
    completion_ids: list[list[int]]
    finished: list[bool]
    stats: list[SpeculativeStats]
    decisions: Decisions
    inputs: dict[str, torch.Tensor]


class RecordingVerifier(DiversedVerifier):
    """The DIVERSED verifier at strictness 0.5 (as trained), with the head's inputs recorded."""

    def __call__(self, *args: Any, **kwargs: Any) -> Verdict:
        verdict = super().__call__(*args, **kwargs)
        verdict.trace = replace(verdict.trace, emitted_probs=None)  # training does not use it, and it is costly
        return verdict


class Sampler:
    """Draws completions with a pair in batches, each with its own seed.

    Args:
        settings: `top_k` and `top_p` should keep the whole vocabulary: with truncation, draft tokens that the target
            excludes are accepted with probability 1 - w.
        progress: whether several batches are shown by a progress bar on standard error.
    """

    def __init__(self, pair: Pair, settings: Sampling, progress: bool = False):
        self.pair, self.settings, self.progress = pair, settings, progress
        self.decoder = Decoder(pair, settings)

    def relaxed(
        self,
        prompts: Sequence[Prompt],
        head: DiversedHead,
        seed: int,
        batch_size: int | None = None,
        keep_inputs: bool = True,
    ) -> Rollouts:
        """Draw one completion per prompt with the verifier of `head`.

        Args:
            prompts: at least one.
            seed: seed of the first batch, increased by 1 per batch.
            batch_size: rows per batch; None for `settings.batch_size`.
            keep_inputs: whether to record the head's inputs, for updates.
        """
        verifier = RecordingVerifier(head, strictness=AS_TRAINED)
        verifier.keeps_inputs = keep_inputs
        ids: list[list[int]] = [[] for _ in prompts]
        stats = [SpeculativeStats() for _ in prompts]
        parts: list[tuple[Decisions, dict[str, torch.Tensor]]] = []
        batches = self._decoded(Method("relaxed", verifier), prompts, seed, batch_size, output_token_records=True)
        for order, drawn in batches:
            assert drawn.records is not None
            assert drawn.stats is not None
            for place, row, counters in zip(order, drawn.tokens, drawn.stats.per_row):
                ids[place], stats[place] = row, counters
            decisions, inputs = read_decisions(drawn.records)
            places = torch.tensor(order)[decisions.sequence]
            parts.append((replace(decisions, sequence=places, num_sequences=len(prompts)), inputs))
        columns = {name: torch.cat([getattr(part, name) for part, _ in parts]) for name in Decisions.COLUMNS}
        recorded = [inputs for _, inputs in parts if inputs]  # none in batches without draft tokens
        inputs = {name: torch.cat([part[name] for part in recorded]) for name in (recorded[0] if recorded else ())}
        completions = [self.decoder.text(row) for row in ids]
        finished = [not self.decoder.is_cut_off(row, text) for row, text in zip(ids, completions)]
        decisions = Decisions(num_sequences=len(prompts), **columns)
        return Rollouts(completions, ids, finished, stats, decisions, inputs)

    def lossless(self, prompts: Sequence[Prompt], seed: int) -> tuple[list[str], list[list[int]]]:
        """Draw one completion per prompt, text and token ids, from the target distribution by lossless speculative
        decoding."""
        ids: list[list[int]] = [[] for _ in prompts]
        for order, drawn in self._decoded(Method(LOSSLESS, LosslessVerifier()), prompts, seed):
            for place, row in zip(order, drawn.tokens):
                ids[place] = row
        return [self.decoder.text(row) for row in ids], ids

    def _decoded(
        self, method: Method, prompts: Sequence[Prompt], seed: int, batch_size: int | None = None, **kwargs
    ) -> Iterator[tuple[list[int], Decoded]]:
        """Yield (indices into `prompts`, their completions) per batch; each batch has its own seed."""
        rows = encode(self.pair.tokenizer, prompts)
        batches = plan_batches([len(row) for row in rows], batch_size or self.settings.batch_size)
        hidden = not self.progress or len(batches) < 2
        bar = tqdm(batches, f"{method.label} completions", unit="batch", leave=False, disable=hidden)
        for number, order in enumerate(bar):
            yield order, self.decoder(method, [rows[index] for index in order], seed + number, **kwargs)


def read_decisions(records: TokenRecords) -> tuple[Decisions, dict[str, torch.Tensor]]:
    """Return the decisions of one batch and the head's inputs at each, from its token records."""
    verified = (records.source >= 0) & (records.source != SOURCES.index("bonus"))
    rows, columns = verified.nonzero(as_tuple=True)
    decisions = Decisions(
        sequence=rows,
        target_prob=records.p[rows, columns],
        draft_prob=records.q[rows, columns],
        tv=records.tv[rows, columns],
        strict_prob=records.strict_prob[rows, columns],
        accepted=records.source[rows, columns] == SOURCES.index("draft"),
        num_sequences=len(records.tokens),
    )
    return decisions, {name: values[rows, columns] for name, values in (records.inputs or {}).items()}


@dataclass(eq=False)
class RolloutOrder(torch.utils.data.Sampler[int]):
    """Yields the prompt indices of a whole run; each group of `batch_size` indices is one update on all devices.

    A group contains `batch_size / num_generations` prompts, each repeated `num_generations` times in a row. Each group
    is repeated `num_iterations` times, once per update that uses its rollouts. Prompts are reshuffled after each pass.
    The order depends on the seed only, so a resumed run continues in the same order.
    """

    num_prompts: int
    batch_size: int
    num_generations: int
    num_iterations: int
    num_updates: int
    seed: int

    def __len__(self) -> int:
        return self.batch_size * self.num_updates

    def __iter__(self) -> Iterator[int]:
        prompts = self._shuffled()
        for _ in range(self.num_updates // self.num_iterations):
            chosen = [next(prompts) for _ in range(self.batch_size // self.num_generations)]
            group = [prompt for prompt in chosen for _ in range(self.num_generations)]
            for _ in range(self.num_iterations):
                yield from group

    def _shuffled(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield from torch.randperm(self.num_prompts, generator=generator).tolist()
