"""A stated drop in place of a dial: which dial it comes to, and what was not certified."""

from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

import hf_diversed
from hf_diversed.provenance import module_digest
from hf_diversed.verifiers import CertifiedVerifier, DiversedVerifier
from tests.tiny import PAD, SAMPLED, ragged_batch, tiny_head
from tests.verifiers.test_diversed import CONTEXT


HERE = replace(CONTEXT, temperature=1.0, num_assistant_tokens=5)


def certified(head, *dials: tuple[float, float], **settings):
    """The head with (drop, dial) pairs in its configuration."""
    entry = {
        "confidence": 0.95,
        "drop": 0.0,
        "acceptance_rate": 0.9,
        "task": "math",
        "metric": "accuracy",
        "num_prompts": 500,
        "samples_per_prompt": 2,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "num_assistant_tokens": 5,
        "head": module_digest(head),
        **settings,
    }
    known = head.config.certified_drops or []
    head.config.certified_drops = [*known, *({"max_drop": drop, "quality": dial, **entry} for drop, dial in dials)]
    return head


def test_takes_the_most_permissive_dial_within_the_drop():
    """Catches the strictest one, the nearest one, and one of a larger drop."""
    head = certified(tiny_head(), (0.01, 0.6), (0.02, 0.3), (0.05, 0.3))
    certified(head, (0.01, 0.1), temperature=0.5)
    for drop, dial in ((0.01, 0.6), (0.015, 0.6), (0.02, 0.3), (1.0, 0.3)):
        rule = CertifiedVerifier(head, drop).for_call(HERE)
        assert type(rule) is DiversedVerifier
        assert rule.quality == [dial]
    rows = replace(HERE, batch_size=4, num_prompts=2)
    assert CertifiedVerifier(head, [0.01, 0.02]).for_call(rows).quality == [0.6, 0.3]
    assert CertifiedVerifier(head, 0.01).for_call(replace(HERE, temperature=0.5)).quality == [0.1]


REFUSED = [
    ({}, 0.005, r"at least a drop that was certified \(0.01, 0.02\), got 0.005"),
    ({"temperature": 0.7}, 0.01, "certified at temperature 1, top_k 0, top_p 1 and 5 .* got temperature 0.7, top_k 0"),
    ({"temperature": None}, 0.01, "got temperature of each row"),
    ({"num_assistant_tokens": 4}, 0.01, "got temperature 1, top_k 0, top_p 1 and 4 drafts per round"),
    ({"num_assistant_tokens": None}, 0.01, "and adaptive drafts per round"),
    ({"top_k": 50}, 0.01, "top_k 50"),
    ({"top_p": 0.9}, 0.01, "top_p 0.9"),
    ({"draft_hidden_size": None}, 0.01, "not for looked-up drafts"),
    (
        {"batch_size": 3, "num_prompts": 3},
        [0.01, 0.02],
        r"diversed_max_drop must be one value or one per prompt \(3\)",
    ),
]


@pytest.mark.parametrize(("settings", "drop", "words"), REFUSED)
def test_refuses_what_was_not_certified(settings, drop, words):
    """Catches a promise that nothing stands behind."""
    head = certified(tiny_head(), (0.02, 0.3), (0.01, 0.6))
    with pytest.raises(ValueError, match=words):
        CertifiedVerifier(head, drop).for_call(replace(HERE, **settings))


def test_refuses_other_weights():
    """Catches a table that training on, or casting, has left behind."""
    head = certified(tiny_head(), (0.01, 0.6))
    with torch.no_grad():
        head.out.bias += 1.0
    with pytest.raises(
        ValueError, match=r"the certified drops are those of DiversedHead:.*, this head is DiversedHead:"
    ):
        CertifiedVerifier(head, 0.01)
    with pytest.raises(ValueError, match="nothing was certified for this head"):
        CertifiedVerifier(tiny_head(), 0.01)
    with pytest.raises(ValueError, match=r"`max_drop` must lie in \[0, 1\], got 2"):
        CertifiedVerifier(certified(tiny_head(), (0.01, 0.6)), 2.0)


def test_survives_a_file(tmp_path):
    """Catches a table that is lost or rounded on disk, and a digest that is another one there."""
    certified(tiny_head(), (0.01, 0.6)).save_pretrained(tmp_path)
    loaded = hf_diversed.DiversedHead.from_pretrained(tmp_path)
    assert CertifiedVerifier(loaded, 0.01).for_call(HERE).quality == [0.6]


@pytest.mark.parametrize("door", ["keyword", "generation config", "attachment"])
def test_every_door(pair, door):
    """Catches a drop that is taken and does nothing, other tokens than the dial's own, and statistics without it."""
    target, draft = pair
    head = certified(tiny_head(), (0.01, 0.6), (0.02, 0.1))
    call = {**ragged_batch(), **SAMPLED, "return_dict_in_generate": True}
    torch.manual_seed(0)
    expected = target.generate(**call, assistant_model=draft, diversed_head=head, diversed_quality=0.1)
    torch.manual_seed(0)
    if door == "keyword":
        out = target.generate(**call, assistant_model=draft, diversed_head=head, diversed_max_drop=0.02)
    elif door == "generation config":
        config = GenerationConfig(pad_token_id=PAD, diversed_max_drop=0.02, **SAMPLED)
        out = target.generate(**call, assistant_model=draft, diversed_head=head, generation_config=config)
    else:
        with hf_diversed.attach(target, draft, head, diversed_max_drop=0.02):
            out = target.generate(**call)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.quality == expected.stats.quality == 0.1


def test_rows_say_their_own_dial(pair):
    """Catches dials that reach other rows, and a streamed or summed call that counts one per round."""
    target, draft = pair
    head = certified(tiny_head(), (0.01, 0.75), (0.02, 0.25))
    call = {**ragged_batch(3), **SAMPLED, "return_dict_in_generate": True, "num_return_sequences": 2}
    with hf_diversed.record_stats() as stats:
        out = target.generate(**call, assistant_model=draft, diversed_head=head, diversed_max_drop=[0.01, 0.02, 0.02])
    assert [row.quality for row in out.stats.per_row] == [0.75, 0.75, 0.25, 0.25, 0.25, 0.25]
    assert stats.quality == out.stats.quality == pytest.approx(2.5 / 6)
    out = target.generate(
        **ragged_batch(1), **SAMPLED, assistant_model=draft, verifier="lossless", return_dict_in_generate=True
    )
    assert out.stats.quality != out.stats.quality  # a rule without a dial has none


def test_whoever_is_asked_first_sets_the_dial(pair):
    """Catches a server's dial that makes a stated drop an error, and the reverse."""
    target, draft = pair
    head = certified(tiny_head(), (0.01, 0.75))
    call = {**ragged_batch(), **SAMPLED, "return_dict_in_generate": True}
    with hf_diversed.attach(target, draft, head, diversed_quality=0.3):
        assert target.generate(**call, diversed_max_drop=0.01).stats.quality == 0.75
        assert target.generate(**call).stats.quality == 0.3
    with hf_diversed.attach(target, draft, head, diversed_max_drop=0.01):
        assert target.generate(**call, diversed_quality=0.3).stats.quality == 0.3
        assert target.generate(**call).stats.quality == 0.75


@pytest.mark.parametrize(
    "other", ["diversed_quality", "diversed_max_bias", "diversed_bias_budget", "diversed_max_ratio"]
)
def test_refused_beside_other_dials(pair, other):
    """Catches a certified dial that something else moves."""
    target, draft = pair
    given = {"diversed_head": certified(tiny_head(), (0.01, 0.75)), "diversed_max_drop": 0.01, other: 0.5}
    with pytest.raises(ValueError, match=f"which {other} would change"):
        target.generate(**ragged_batch(), **SAMPLED, assistant_model=draft, **given)
    with pytest.raises(ValueError, match=f"which {other} would change"):
        hf_diversed.attach(target, draft, **given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.5}, "got temperature 0.5"),
        ({"do_sample": False}, "got temperature 0,"),
        ({"num_assistant_tokens": 3}, "and 3 drafts per round"),
        ({"num_assistant_tokens_schedule": "adaptive"}, "and adaptive drafts per round"),
        ({"top_k": 20}, "top_k 20"),
        ({"top_p": 0.5}, "top_p 0.5"),
        ({"verifier": "lossless", "diversed_head": None}, "diversed_max_drop can only act on a head"),
    ],
)
def test_calls_that_differ_are_refused(pair, settings, words):
    """Catches a setting that the loop knows by another name than calibration does."""
    target, draft = pair
    call = {**ragged_batch(), **SAMPLED, "diversed_head": certified(tiny_head(), (0.01, 0.75)), **settings}
    with pytest.raises(ValueError, match=words):
        target.generate(**call, assistant_model=draft, diversed_max_drop=0.01)


def test_the_certified_draft_length_is_the_default(pair):
    """Catches a call that names nothing and is refused for it."""
    target, draft = pair
    head = certified(tiny_head(num_assistant_tokens=2), (0.01, 0.0), num_assistant_tokens=4)
    call = {**ragged_batch(), **SAMPLED, "max_new_tokens": 20, "return_dict_in_generate": True}
    out = target.generate(**call, assistant_model=draft, diversed_head=head, diversed_max_drop=0.01)
    assert len(out.stats.accepted_per_position) == 4
