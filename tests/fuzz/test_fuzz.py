"""The loop against the naive reference: any verifier, batch, processors, end and draft source, with equal noise.

150 cases run with the other tests; FUZZ_CASES=2000 runs more, in parts of 150 with a seed each (`make fuzz`).
"""

import os
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from hf_diversed import FLyVerifier, SpeculativeStats, diversed_decoding
from hf_diversed.generation.call import Call
from hf_diversed.generation.rows import RaggedRows
from hf_diversed.support import WARPERS
from tests.fuzz.strategies import Case, cases, pair
from tests.generation.modes import STATIC
from tests.reference import Lookup, Recorder, naive_decoding
from tests.tiny import PAD


PER_PIECE = 150
PIECES = -(-int(os.environ.get("FUZZ_CASES", PER_PIECE)) // PER_PIECE)
COUNTERS = ("num_rounds", "num_drafted", "num_accepted", "num_rejected", "num_emitted", "weight_count", "tv_count")
SUMS = ("weight_sum", "tv_sum", "bias_sum")


class LoopRecorder(Recorder):
    """Records the loop's random numbers in order, the rows it keeps, and its processors."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.processors: list = []
        keep, prepare = RaggedRows.keep, Call.__post_init__

        def listening_keep(rows, kept):
            self.events.append(("kept", kept))
            return keep(rows, kept)

        def listening_call(call):
            self.processors = list(call.logits_processor)
            prepare(call)

        monkeypatch.setattr(RaggedRows, "keep", listening_keep)
        monkeypatch.setattr(Call, "__post_init__", listening_call)


@pytest.mark.parametrize("piece", range(PIECES))
def test_loop_equals_naive_reference(piece: int):
    """Catches errors of unusual combinations: two settings that are correct separately and wrong together."""
    options = settings(max_examples=PER_PIECE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    seed(piece)(options(given(cases(), st.sampled_from(({}, STATIC)))(check)))()


def test_fly_counts_its_window_in_each_row():
    """Catches a window that follows the longest draft block of the batch instead of the row's own."""
    rule, prompts = FLyVerifier(0.0, None, 1), ((0,), (0,), (1,))
    sampled = {"do_sample": True, "temperature": 0.8, "top_k": 0, "top_p": 1.0}
    for mode in ({}, STATIC):
        check(Case(rule, (rule,) * 3, 5, 0.05, prompts, 3, 8, (), 1, sampled, seed=0), mode)


def check(case: Case, mode: dict) -> None:
    target, draft = pair(case.vocab_size, case.noise)
    width = max(map(len, case.prompts))
    pads = [width - len(prompt) for prompt in case.prompts]
    source, named = {"assistant_model": draft, "num_assistant_tokens": case.gamma}, {}
    if case.lookup_ngram is not None:
        named = {"prompt_lookup_num_tokens": case.gamma, "max_matching_ngram_size": case.lookup_ngram}
        source = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        recorder = LoopRecorder(monkeypatch)
        torch.manual_seed(case.seed)
        fast = target.generate(
            input_ids=torch.tensor([[PAD] * pad + [*prompt] for pad, prompt in zip(pads, case.prompts)]),
            attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads]),
            custom_generate=partial(diversed_decoding, verifier=case.rule, random_source=recorder, **source),
            max_new_tokens=case.max_new_tokens,
            eos_token_id=list(case.eos_ids) or None,
            return_dict_in_generate=True,
            **named,
            **case.settings,
            **mode,
        )
    for row, pad in enumerate(pads):
        tokens, stats = _naive(case, row, pad, recorder)
        assert fast.sequences[row, width:].tolist() == tokens + [PAD] * (fast.sequences.shape[1] - width - len(tokens))
        _compare_stats(fast.stats.per_row[row], stats)


def _naive(case: Case, row: int, pad: int, recorder: LoopRecorder) -> tuple[list[int], SpeculativeStats]:
    """Return new tokens and counters of one row alone. Processors read the padded prompt, as in plain `generate`."""

    def process(ids: torch.Tensor, scores: torch.Tensor, processors=recorder.processors) -> torch.Tensor:
        # Repeated to the batch size, because some processors of upstream store the prompts' lengths by row.
        shown = torch.cat([torch.full((1, pad), PAD), ids], dim=1).repeat(len(case.prompts), 1)
        scores = scores.repeat(len(case.prompts), 1)
        for processor in processors:
            scores = processor(shown, scores)
        return scores[row : row + 1]

    def bans(ids: torch.Tensor) -> torch.Tensor:
        hard = [processor for processor in recorder.processors if type(processor) not in WARPERS]
        return process(ids, torch.zeros(1, case.vocab_size), hard)[0] <= torch.finfo(torch.float32).min

    target, draft = pair(case.vocab_size, case.noise)
    if case.lookup_ngram is not None:
        draft = Lookup(case.vocab_size, case.gamma, case.lookup_ngram, bans)
    prompt, stats = torch.tensor([case.prompts[row]]), SpeculativeStats()
    ids = naive_decoding(
        target,
        draft,
        case.alone[row],
        prompt,
        case.max_new_tokens,
        case.gamma,
        case.eos_ids,
        process,
        recorder.of_row(row) if case.settings["do_sample"] else None,
        stats,
    )
    return ids[0, prompt.shape[1] :].tolist(), stats


def _compare_stats(fast: SpeculativeStats, naive: SpeculativeStats) -> None:
    assert [getattr(fast, name) for name in COUNTERS] == [getattr(naive, name) for name in COUNTERS]
    accepted = fast.accepted_per_position
    assert accepted[: len(naive.accepted_per_position)] == naive.accepted_per_position
    assert not any(accepted[len(naive.accepted_per_position) :])
    for name in SUMS:
        assert getattr(fast, name) == pytest.approx(getattr(naive, name), abs=1e-4), name
