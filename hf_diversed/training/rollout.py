"""Rollouts: the decoding loop with recording on, turned into the decisions and head inputs that updates need.

There is no second loop here: sampling is `generate` with a verifier, and what it recorded is only rearranged.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.options import sampling_kwargs
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import SOURCES, GenerateDiversedOutput, SpeculativeStats, TokenRecords
from hf_diversed.verifiers import DiversedVerifier, LosslessVerifier, Verifier
from hf_diversed.verifiers.learned import Decisions


Prompt = str | list[dict[str, str]]


@dataclass(frozen=True)
class SamplingSettings:
    """How rollouts are drawn. The whole vocabulary by default: truncation makes w useless where p and q differ."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_assistant_tokens: int = 5
    max_new_tokens: int = 128
    batch_size: int = 128
    stop_strings: tuple[str, ...] = ()


@dataclass(eq=False)
class Rollouts:
    """B completions and the M decisions behind them.

    Attributes:
        completions: text. completion_ids: token ids, EOS included. finished: whether EOS or a stop string was reached.
        decisions: see `objective.Decisions`. inputs: what the head saw at each decision, by name, `[M, ...]`.
    """

    completions: list[str]
    completion_ids: list[list[int]]
    finished: list[bool]
    decisions: Decisions
    inputs: dict[str, torch.Tensor]
    stats: SpeculativeStats = field(repr=False)


class RecordingVerifier(DiversedVerifier):
    """DIVERSED as trained, with the head's inputs kept for training."""

    keeps_inputs = True


class Sampler:
    """Draws completions from a pair, in batches, each under a seed of its own.

    Attributes:
        verifier_class: makes the rule of a rollout from the head.

    Args:
        target, draft: frozen models. tokenizer: pads on the left.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: SamplingSettings,
    ):
        self.verifier_class: type[RecordingVerifier] = RecordingVerifier
        self.target, self.draft, self.tokenizer, self.settings = target, draft, tokenizer, settings
        eos = target.generation_config.eos_token_id
        self._eos = set(eos) if isinstance(eos, list) else {eos}
        install_hook()

    def relaxed(
        self, prompts: Sequence[Prompt], head: DiversedHead, seed: int, batch_size: int | None = None
    ) -> Rollouts:
        """Draw one completion per prompt by the decoding process under `head`; at least one prompt.

        Args:
            batch_size: rows decoded together; None for that of the settings.
        """
        parts: list[tuple[list[int], Rollouts]] = []
        for order, inputs in self._batches(prompts, batch_size):
            output = self._generate(inputs, seed + len(parts), self.verifier_class(head), output_token_records=True)
            assert output.token_records is not None
            assert output.stats is not None
            parts.append((order, self._read(output.token_records, output.stats)))
        return _join(parts)

    def lossless(self, prompts: Sequence[Prompt], seed: int) -> tuple[list[str], list[list[int]]]:
        """Draw one completion per prompt, text and token ids, from the target's own law: with the draft's help that
        costs less than alone."""
        ids: list[list[int]] = [[] for _ in prompts]
        for number, (order, inputs) in enumerate(self._batches(prompts)):
            output = self._generate(inputs, seed + number, LosslessVerifier())
            assert output.stats is not None
            new = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
            for index, row, counters in zip(order, new, output.stats.per_row):
                ids[index] = row[: counters.num_emitted]
        # Of no rows `batch_decode` makes one empty text.
        return self.tokenizer.batch_decode(ids, skip_special_tokens=True) if ids else [], ids

    def lengths(self, prompts: Sequence[Prompt]) -> list[int]:
        """Tokens of each prompt."""
        if not prompts:
            return []
        texts, special = self._render(prompts)
        return [len(ids) for ids in self.tokenizer(texts, add_special_tokens=special).input_ids]

    def _generate(self, inputs: BatchEncoding, seed: int, verifier: Verifier, **kwargs) -> GenerateDiversedOutput:
        with _seeded(seed):
            return self.target.generate(
                **inputs,
                **self._options(),
                assistant_model=self.draft,
                verifier=verifier,
                num_assistant_tokens=self.settings.num_assistant_tokens,
                return_dict_in_generate=True,
                **kwargs,
            )

    def _options(self) -> dict:
        settings = self.settings
        options = sampling_kwargs(settings.temperature, settings.top_k, settings.top_p)
        options["max_new_tokens"] = settings.max_new_tokens
        if settings.stop_strings:
            options |= {"stop_strings": list(settings.stop_strings), "tokenizer": self.tokenizer}
        return options

    def _batches(
        self, prompts: Sequence[Prompt], batch_size: int | None = None
    ) -> Iterator[tuple[list[int], BatchEncoding]]:
        """Yield (indices into `prompts`, model inputs), prompts of like length together, so that little is padding."""
        if not prompts:
            return
        texts, special = self._render(prompts)
        order = sorted(range(len(texts)), key=self.lengths(prompts).__getitem__)
        size = batch_size or self.settings.batch_size
        for start in range(0, len(order), size):
            part = order[start : start + size]
            inputs = self.tokenizer(
                [texts[index] for index in part], return_tensors="pt", padding=True, add_special_tokens=special
            )
            inputs.pop("token_type_ids", None)
            yield part, inputs.to(self.target.device)

    def _render(self, prompts: Sequence[Prompt]) -> tuple[list[str], bool]:
        """The prompts as text, and whether the tokenizer still has to add its special tokens."""
        if isinstance(prompts[0], str):
            return [str(prompt) for prompt in prompts], True
        rendered = [
            self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            for prompt in prompts
        ]
        return [str(text) for text in rendered], False

    def _read(self, records: TokenRecords, stats: SpeculativeStats) -> Rollouts:
        """Completions and decisions of one batch, from its token records."""
        emitted = records.source >= 0
        rows, columns = (emitted & (records.source != SOURCES.index("bonus"))).nonzero(as_tuple=True)
        decisions = Decisions(
            sequence=rows,
            target_prob=records.p[rows, columns],
            draft_prob=records.q[rows, columns],
            tv=records.tv[rows, columns],
            accepted=records.source[rows, columns] == SOURCES.index("draft"),
            num_sequences=len(records.tokens),
        )
        ids = [tokens[kept].tolist() for tokens, kept in zip(records.tokens, emitted)]
        return Rollouts(
            completions=self.tokenizer.batch_decode(ids, skip_special_tokens=True),
            completion_ids=ids,
            finished=[len(row) < self.settings.max_new_tokens or row[-1] in self._eos for row in ids],
            decisions=decisions,
            inputs={name: values[rows, columns] for name, values in (records.inputs or {}).items()},
            stats=stats,
        )


def _join(parts: list[tuple[list[int], Rollouts]]) -> Rollouts:
    """One `Rollouts` in the order of the prompts out of batches in another."""
    size = sum(len(order) for order, _ in parts)
    rows: list[tuple[str, list[int], bool]] = [("", [], False)] * size
    stats, sequences = SpeculativeStats(), []
    for order, part in parts:
        for place, row in zip(order, zip(part.completions, part.completion_ids, part.finished)):
            rows[place] = row
        stats.add(part.stats)
        sequences.append(torch.tensor(order)[part.decisions.sequence])
    places = [place for order, _ in parts for place in order]
    stats.per_row = [row for _, row in sorted(zip(places, stats.per_row), key=lambda pair: pair[0])]
    columns = {
        name: torch.cat([getattr(part.decisions, name) for _, part in parts])
        for name in ("target_prob", "draft_prob", "tv", "accepted")
    }
    inputs = {name: torch.cat([part.inputs[name] for _, part in parts]) for name in parts[0][1].inputs}
    decisions = Decisions(sequence=torch.cat(sequences), num_sequences=size, **columns)
    completions, ids, finished = (list(column) for column in zip(*rows))
    return Rollouts(completions, ids, finished, decisions, inputs, stats)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw under `seed` and leave the caller's random state alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
