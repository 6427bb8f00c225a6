"""Every verifier in the loop at every temperature, against the naive reference with the same random numbers."""

import itertools
from functools import cache, partial

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hf_diversed import DiversedVerifier, diversed_decoding
from hf_diversed.engines.static import StaticEngine
from hf_diversed.generation import loop
from hf_diversed.verifiers import BlockVerifier, PhaseVerifier, StaticEnsembleVerifier, build_verifier
from tests.engines.modes import STATIC, TRACED
from tests.reference import Recorder, naive_decoding
from tests.tiny import (
    EOS,
    PAD,
    first_layers,
    generate,
    ragged_batch,
    tiny_draft,
    tiny_head,
    tiny_model,
)
from tests.verifier_cases import VERIFIER_CASES


NEW_TOKENS = 8


@cache
def pair(num_layers: int = 2):
    target = first_layers(tiny_model("llama"), num_layers)
    return target, tiny_draft(target, noise=0.15)


MAKERS = {
    "diversed": lambda: DiversedVerifier(tiny_head(), strictness=0.4, max_bias=0.2),
    "token": lambda: DiversedVerifier(tiny_head(features="both", token_features=True), strictness=0.3),
    "token-bounds": lambda: DiversedVerifier(
        tiny_head(features="distribution", token_features=True), strictness=0.2, max_ratio=10.0
    ),
    "phase-token": lambda: PhaseVerifier(
        DiversedVerifier(tiny_head(token_features=True), max_bias=0.2), begin=21, end=34
    ),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(0.1, max_bias=0.2), begin=21, end=34),
    "block-bound": lambda: BlockVerifier(StaticEnsembleVerifier(0.1, max_bias=0.2)),
}
SPECS = [
    *("lossless", "static:0.3", "lenience:0.2", "lossy:0.5", "spec_cascade:token_v3:0.6", "fuzzy:0.3:kl"),
    *("contrastive", "typical", "top_k_relaxed:5:0.5", "mars:0.7", "fly:0.2:1", "block"),
]
# A verifier without a line above is run as the first row of `verifier_cases.py` has it.
CASES = {case.rule: case.make for case in reversed(VERIFIER_CASES)}
NAMES = [*MAKERS, *SPECS, *sorted(CASES.keys() - {name.split(":")[0] for name in [*MAKERS, *SPECS]})]
SETTINGS = [(0.0, False), (0.7, True), (1.0, False)]  # temperature, and whether top-k and top-p apply


def make(name: str):
    if name in MAKERS:
        return MAKERS[name]()
    return build_verifier(name) if name in SPECS else CASES[name]()


@cache
@torch.no_grad()
def _forward(model, ids: tuple[int, ...]):
    """Raw logits and last hidden states of one row; verifiers and settings share many prefixes."""
    out = model(torch.tensor([ids]), output_hidden_states=True)
    return out.logits.float(), out.hidden_states[-1]


# By engine: its arguments, gamma, batch sizes (of three rows a fourth is idle) and settings.
ENGINES = {
    "eager": ({}, 3, (1, 4), SETTINGS),
    "static": (STATIC, 3, (3,), SETTINGS),
    "traced": (TRACED, 2, (3,), [(0.7, False)]),
}
# Tracing takes seconds; `tests/verifiers/test_tracing.py` traces rounds of the others, and greedy ones.
TRACED_NAMES = ("token-bounds", "block-bound", "spec_cascade:token_v3:0.6")


@pytest.mark.parametrize(
    ("name", "engine"),
    [*itertools.product(NAMES, ("eager", "static")), *itertools.product(TRACED_NAMES, ("traced",))],
)
def test_loop_equals_naive_reference(name: str, engine: str, monkeypatch):
    """Invariant 12. Catches state of another row, other draft lengths, raw distributions, and caches or masks."""
    monkeypatch.setattr(loop, "COMPACT_AT", 0.0)  # rows stay where their random numbers are
    monkeypatch.setattr(StaticEngine, "should_compact", lambda self, running: False)
    mode, gamma, batch_sizes, settings = ENGINES[engine]
    for rows in batch_sizes:
        batch = ragged_batch(batch_size=rows)
        for temperature, warped in settings:
            verifier = make(name)
            _compare(verifier, batch, temperature, warped, Recorder(), gamma, mode)


def _compare(verifier, batch, temperature: float, warped: bool, recorder: Recorder, gamma: int, mode: dict) -> None:
    target, draft = pair(1 if mode is TRACED else 2)  # tracing takes half the time
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 12 if warped else 0}
    sampling["top_p"] = 0.9 if warped else 1.0
    warpers = LogitsProcessorList()
    if temperature:
        warpers += [TemperatureLogitsWarper(temperature)] if temperature != 1.0 else []
        warpers += [TopKLogitsWarper(12), TopPLogitsWarper(0.9)] if warped else []
    torch.manual_seed(5)
    settings = {"assistant_model": draft, "verifier": verifier, "num_assistant_tokens": gamma}
    loop = partial(diversed_decoding, **settings, random_source=recorder)
    call = {**batch, "custom_generate": loop, "max_new_tokens": NEW_TOKENS, **mode}
    fast = target.generate(**call, **(sampling if temperature else {"do_sample": False}))
    for row in range(0, len(fast), 2):  # of four rows two that stand at different lengths
        randomness = recorder.of_row(row) if temperature else None
        assert_naive((target, draft), verifier, batch, fast, row, gamma, NEW_TOKENS, warpers, randomness)


def assert_naive(models, verifier, batch, fast, row, gamma, max_new_tokens, warpers=None, randomness=None) -> None:
    """Compare a row of a batch with naive decoding of its prompt; `models` are the target and the draft model."""
    prompt = batch["input_ids"][row, batch["attention_mask"][row].bool()][None]
    forwards = [partial(_forward_row, model) for model in models]
    settings = {"max_new_tokens": max_new_tokens, "gamma": gamma, "eos_id": EOS, "randomness": randomness}
    settings["process"] = LogitsProcessorList() if warpers is None else warpers
    naive = naive_decoding(*forwards, verifier, prompt, **settings)
    width, new = batch["input_ids"].shape[1], naive[0, prompt.shape[1] :]
    assert torch.equal(fast[row, width : width + len(new)], new), (verifier, row)
    assert (fast[row, width + len(new) :] == PAD).all()


def _forward_row(model, ids, **kwargs):
    return _forward(model, tuple(ids[0].tolist()))


def test_lossless_blocks_relax_nothing():
    """Catches draft tokens that count as relaxed because their acceptance probabilities differ from min(1, p / q)."""
    relaxed = []
    for verifier in (BlockVerifier(), BlockVerifier(StaticEnsembleVerifier(0.3))):
        torch.manual_seed(0)
        out = generate(pair(), verifier=verifier, max_new_tokens=24, output_token_records=True)
        relaxed.append(out.token_records.relaxed)
    assert not relaxed[0].any()
    assert 0 < relaxed[1].sum() < relaxed[1].numel() / 2


@pytest.mark.parametrize("output_token_records", [False, True])
def test_statistics_count_only_what_a_phase_defines(output_token_records):
    """Catches NaN in a sum where a verifier without weights decided, an invented weight, and statistics that depend on
    the records."""
    inputs = ragged_batch()
    inputs["input_ids"][:2, -1] = 21
    inside = StaticEnsembleVerifier(0.1, max_bias=1.0, max_ratio=1e9)
    call = {"verifier": PhaseVerifier(inside, begin=21, end=34), "max_new_tokens": 24, "do_sample": True}
    torch.manual_seed(0)
    stats = generate(pair(), **inputs, **call, output_token_records=output_token_records).stats
    assert stats.mean_weight == pytest.approx(0.1)
    assert 0 < stats.weight_count < stats.num_accepted + stats.num_rejected == stats.tv_count
    assert stats.bias_count == stats.weight_count
