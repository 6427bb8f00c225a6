"""Strategies for the fuzz test: a verifier with its parameters, a batch of prompts, and decoding settings."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers as tf
from hypothesis import strategies as st

from hf_diversed import (
    BlockVerifier,
    ContrastiveVerifier,
    DiversedHead,
    DiversedHeadConfig,
    DiversedVerifier,
    FLyVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    LossyVerifier,
    MarsVerifier,
    PhaseVerifier,
    SpecCascadeVerifier,
    StaticEnsembleVerifier,
    TopKRelaxedVerifier,
    TypicalAcceptanceVerifier,
    Verifier,
)
from tests.tiny import PAD, sharpen, tiny_draft


WIDTH, LONGEST_PROMPT, MOST_TOKENS, MOST_ROWS = 16, 10, 12, 4


@dataclass(frozen=True)
class Case:
    """One call; `alone` has the verifiers that are equivalent to the call's for each row alone."""

    rule: Verifier
    alone: tuple[Verifier, ...]
    vocab_size: int
    noise: float
    prompts: tuple[tuple[int, ...], ...]
    gamma: int
    max_new_tokens: int
    eos_ids: tuple[int, ...]
    lookup_ngram: int | None
    settings: dict[str, Any]
    seed: int


@cache
def pair(vocab_size: int, noise: float):
    """Return a target and its draft in double precision, so that rounding rarely changes an acceptance decision."""
    torch.manual_seed(vocab_size)
    config = tf.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=None,
        bos_token_id=None,
    )
    target = tf.LlamaForCausalLM(config).eval().double()
    sharpen(target, gain=2.0)
    target.generation_config = tf.GenerationConfig(pad_token_id=PAD)
    return target, tiny_draft(target, noise)


@cache
def head(head_type: str, features: str, token_features: bool) -> DiversedHead:
    torch.manual_seed(3)
    kind = {"head_type": head_type, "features": features, "token_features": token_features}
    config = DiversedHeadConfig(WIDTH, WIDTH, **kind, intermediate_size=5)
    head = DiversedHead(config).eval()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return head


_unit = st.sampled_from((0.0, 0.5, 1.0)) | st.floats(0.0, 1.0, width=32)
_ratio = st.sampled_from((1.0, 2.0, float("inf"))) | st.floats(1.0, 100.0)
_head = st.builds(
    head,
    st.sampled_from(("linear", "mlp")),
    st.sampled_from(("hidden", "distribution", "both")),
    token_features=st.booleans(),
)


@st.composite
def _lossy(draw) -> LossyVerifier:
    alpha = draw(st.floats(0.0, 0.95))
    factor = draw(st.none() | st.floats(1.0, 20.0))
    return LossyVerifier(alpha, None if factor is None else (1.0 - alpha) * factor)


@st.composite
def _cascade(draw) -> SpecCascadeVerifier:
    rule = draw(st.sampled_from(("chow", "diff", "opt", "token_v1", "token_v2", "token_v3")))
    return SpecCascadeVerifier(rule, draw(st.floats(0.0 if rule in ("chow", "token_v3") else -1.0, 1.0)))


_WITH_EMITTED_PROBS = st.one_of(
    st.builds(LosslessVerifier),
    st.builds(StaticEnsembleVerifier, _unit, st.none() | _unit, st.none() | _ratio),
    st.builds(DiversedVerifier, _head, _unit, st.none() | _unit, st.none() | _ratio),
    _cascade(),
    st.builds(
        FuzzyVerifier, st.floats(0.0, 1.0), st.sampled_from(("kl", "reverse_kl", "js", "tv")), st.floats(0.0, 1.0)
    ),
    st.builds(ContrastiveVerifier, st.floats(0.0, 1.0), _unit),
)
_TOKENWISE = _WITH_EMITTED_PROBS | st.one_of(
    st.builds(LenientVerifier, st.floats(0.01, 1.0)),
    _lossy(),
    st.builds(TypicalAcceptanceVerifier, _unit, st.floats(0.0, 2.0)),
    st.builds(TopKRelaxedVerifier, st.integers(1, 6), _unit),
    st.builds(MarsVerifier, _unit),
    st.builds(FLyVerifier, st.floats(0.0, 1.5), st.none() | st.integers(1, 4), st.integers(1, 5)),
)
_blocks = st.builds(BlockVerifier, _WITH_EMITTED_PROBS)
_phases = st.builds(PhaseVerifier, _TOKENWISE, _TOKENWISE | _blocks, begin=st.just(2), end=st.just(3))


@st.composite
def verifiers(draw, rows: int) -> tuple[Verifier, tuple[Verifier, ...]]:
    """Draw a verifier for the whole batch and one for each row alone; some settings are per row."""
    kind = draw(st.sampled_from((_TOKENWISE, _blocks, _phases, None)))
    if kind is not None:
        rule = draw(kind)
        return rule, (rule,) * rows
    head_of_case = draw(_head)
    settings_per_row = {
        name: draw(st.lists(values, min_size=rows, max_size=rows))
        for name, values in (
            ("strictness", _unit),
            ("max_bias", _unit),
            ("max_ratio", _ratio),
        )
        if draw(st.booleans())
    }
    alone = tuple(
        DiversedVerifier(head_of_case, **{name: values[row] for name, values in settings_per_row.items()})
        for row in range(rows)
    )
    return DiversedVerifier(head_of_case, **settings_per_row), alone


@st.composite
def cases(draw) -> Case:
    rows, vocab_size = draw(st.integers(1, MOST_ROWS)), draw(st.sampled_from((5, 8, 13, 30)))
    token = st.integers(0, vocab_size - 1)
    length = draw(st.integers(1, LONGEST_PROMPT))
    prompts = st.lists(st.integers(0, 4) | token, min_size=1, max_size=length).map(tuple)
    rule, alone = draw(verifiers(rows))
    max_new_tokens = draw(st.integers(1, 4) | st.integers(5, MOST_TOKENS))
    can_look_up = not (rule.needs_hidden_states or rule.needs_draft_confidence)
    return Case(
        rule,
        alone,
        vocab_size,
        noise=draw(st.sampled_from((0.05, 0.2, 0.6))),
        prompts=tuple(draw(st.lists(prompts, min_size=rows, max_size=rows))),
        gamma=draw(st.integers(1, 6)),
        max_new_tokens=max_new_tokens,
        eos_ids=tuple(draw(st.just([]) | st.lists(token, max_size=2, unique=True))),
        lookup_ngram=draw(st.none() | st.integers(1, 3)) if can_look_up else None,
        settings=draw(_settings(max_new_tokens)),
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def _settings(draw, max_new_tokens: int) -> dict[str, Any]:
    """Draw keyword arguments of `generate`: sampling, and processors that read the prefix."""
    settings: dict[str, Any] = {"do_sample": draw(st.integers(0, 3)) > 0}
    if settings["do_sample"]:
        settings["temperature"] = draw(st.sampled_from((0.3, 0.8, 1.0, 1.7)))
        settings["top_k"] = draw(st.sampled_from((0, 0, 1, 3)))
        settings["top_p"] = draw(st.sampled_from((1.0, 1.0, 0.7)))
    if draw(st.booleans()):
        return settings
    choices = {
        "repetition_penalty": st.sampled_from((0.7, 1.4)),
        "no_repeat_ngram_size": st.integers(2, 3),
        "min_new_tokens": st.integers(1, min(5, max_new_tokens)),
        "suppress_tokens": st.just([1]),
        "bad_words_ids": st.just([[4], [2, 3]]),
        "min_p": st.just(0.1),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(choices)), unique=True, max_size=2))
    return settings | {name: draw(choices[name]) for name in chosen if name != "min_p" or settings["do_sample"]}
