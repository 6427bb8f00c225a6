"""`diversed_max_drop`: the strictness that it selects, and calls without a certificate."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper

import hf_diversed
from hf_diversed.provenance import model_digest, module_digest
from hf_diversed.verifiers import CertifiedVerifier, DiversedVerifier, PhaseVerifier
from tests.tiny import PAD, SAMPLED, certificate, generate, ragged_batch, tiny_head, tiny_model
from tests.verifiers.test_diversed import CONTEXT


HERE = replace(CONTEXT, temperature=1.0, num_assistant_tokens=5, max_new_tokens=12)


def certified(head, *certificates: tuple[float, float], pair=None, **settings):
    """Return the head with (drop, strictness) pairs, certified for a pair and calls under `SAMPLED`."""
    target, draft = ("", "") if pair is None else map(model_digest, pair)
    about = {"target": target, "draft": draft, "head": module_digest(head), **settings}
    entries = [certificate(max_drop=drop, strictness=strictness, **about) for drop, strictness in certificates]
    head.config.certified_drops = [*(head.config.certified_drops or []), *entries]
    return head


def test_takes_the_most_permissive_strictness_within_the_drop():
    """Catches the strictest or the nearest strictness, and one that is certified for a larger drop."""
    head = certified(tiny_head(), (0.01, 0.6), (0.02, 0.3), (0.05, 0.3))
    certified(head, (0.01, 0.1), temperature=0.5)
    for drop, strictness in ((0.01, 0.6), (0.015, 0.6), (0.02, 0.3), (1.0, 0.3)):
        verifier = CertifiedVerifier(head, drop).for_call(HERE)
        assert type(verifier) is DiversedVerifier
        assert verifier.strictness == [strictness]
    rows = replace(HERE, batch_size=4, num_prompts=2)
    assert CertifiedVerifier(head, [0.01, 0.02]).for_call(rows).strictness == [0.6, 0.3]
    assert CertifiedVerifier(head, 0.01).for_call(replace(HERE, temperature=0.5)).strictness == [0.1]


@pytest.mark.parametrize(
    ("settings", "drop", "words"),
    [
        ({}, 0.005, r"at least one of the certified drops \(0.01, 0.02\), got 0.005"),
        ({"draft_hidden_size": None}, 0.01, "this call uses prompt lookup or greedy draft tokens"),
        ({"batch_size": 3, "num_prompts": 3}, [0.01, 0.02], r"must be one value or one per prompt \(3\)"),
    ],
)
def test_refuses_what_was_not_certified(settings, drop, words):
    """Catches settings and drops without a certificate that are accepted."""
    head = certified(tiny_head(), (0.02, 0.3), (0.01, 0.6))
    with pytest.raises(ValueError, match=words):
        CertifiedVerifier(head, drop).for_call(replace(HERE, **settings))


def test_refuses_other_weights():
    """Catches certificates of a head that was trained or cast afterwards, also after the verifier was built."""
    head = certified(tiny_head(), (0.01, 0.6))
    built = CertifiedVerifier(head, 0.01)
    with torch.no_grad():
        head.out.bias += 1.0
    for refused in (lambda: CertifiedVerifier(head, 0.01), lambda: built.for_call(HERE)):
        with pytest.raises(ValueError, match="certificates are for a head with digest DiversedHead:"):
            refused()
    with pytest.raises(ValueError, match="this head has no certificate"):
        CertifiedVerifier(tiny_head(), 0.01)
    with pytest.raises(ValueError, match=r"`max_drop` must lie in \[0, 1\], got 2"):
        CertifiedVerifier(certified(tiny_head(), (0.01, 0.6)), 2.0)


def test_cannot_be_part_of_another_verifier():
    """Catches a combination that builds, but fails in the first round because no certificate is selected."""
    with pytest.raises(ValueError, match="PhaseVerifier does not support CertifiedVerifier"):
        PhaseVerifier(CertifiedVerifier(certified(tiny_head(), (0.01, 0.6)), 0.01), begin=1, end=2)


def test_refuses_certificates_of_earlier_versions(tmp_path):
    """Catches an old head that cannot be loaded, and a certificate that is accepted without its conditions."""
    head = certified(tiny_head(), (0.01, 0.6))
    for name in ("processors", "target", "draft", "dtype", "max_new_tokens"):
        del head.config.certified_drops[0][name]
    head.save_pretrained(tmp_path)
    loaded = hf_diversed.DiversedHead.from_pretrained(tmp_path)
    words = "lack max_new_tokens, processors, dtype, target, draft: .* run `hf-diversed calibrate` again"
    with pytest.raises(ValueError, match=words):
        CertifiedVerifier(loaded, 0.01)


def test_survives_a_file(tmp_path):
    """Catches certificates that are lost or rounded on disk, and a digest that differs after loading."""
    certified(tiny_head(), (0.01, 0.6)).save_pretrained(tmp_path)
    loaded = hf_diversed.DiversedHead.from_pretrained(tmp_path)
    assert CertifiedVerifier(loaded, 0.01).for_call(HERE).strictness == [0.6]


@pytest.mark.parametrize("way", ["keyword", "generation config", "attachment"])
def test_every_way_to_pass_a_drop(pair, way):
    """Catches a drop without effect, other tokens than at the same strictness, and statistics without it."""
    head = certified(tiny_head(), (0.01, 0.6), (0.02, 0.1), pair=pair)
    torch.manual_seed(0)
    expected = generate(pair, diversed_head=head, diversed_strictness=0.1)
    torch.manual_seed(0)
    if way == "keyword":
        out = generate(pair, diversed_head=head, diversed_max_drop=0.02)
    elif way == "generation config":
        config = GenerationConfig(pad_token_id=PAD, diversed_max_drop=0.02, **SAMPLED)
        out = generate(pair, diversed_head=head, generation_config=config)
    else:
        with hf_diversed.attach(*pair, head, diversed_max_drop=0.02):
            out = generate(pair, assistant_model=None)
    assert torch.equal(out.sequences, expected.sequences)
    assert out.stats.strictness == expected.stats.strictness == 0.1


def test_strictness_is_reported_per_row(pair):
    """Catches a strictness that is applied to other rows, and a streamed or summed call that counts one per round."""
    head = certified(tiny_head(), (0.01, 0.75), (0.02, 0.25), pair=pair)
    call = {**ragged_batch(3), "num_return_sequences": 2, "diversed_max_drop": [0.01, 0.02, 0.02]}
    with hf_diversed.record_stats() as stats:
        out = generate(pair, **call, diversed_head=head)
    assert [row.strictness for row in out.stats.per_row] == [0.75, 0.75, 0.25, 0.25, 0.25, 0.25]
    assert stats.strictness == out.stats.strictness == pytest.approx(2.5 / 6)
    assert math.isnan(generate(pair, verifier="lossless").stats.strictness)  # this verifier has none


def test_the_call_overrides_the_attachment(pair):
    """Catches a drop of the call that conflicts with the server's strictness, and the reverse."""
    head = certified(tiny_head(), (0.01, 0.75), pair=pair)
    attached, strict, drop = {"assistant_model": None}, {"diversed_strictness": 0.3}, {"diversed_max_drop": 0.01}
    with hf_diversed.attach(*pair, head, **strict):
        assert generate(pair, **attached, **drop).stats.strictness == 0.75
        assert generate(pair, **attached).stats.strictness == 0.3
    with hf_diversed.attach(*pair, head, **drop):
        assert generate(pair, **attached, **strict).stats.strictness == 0.3
        assert generate(pair, **attached).stats.strictness == 0.75


@pytest.mark.parametrize(
    ("name", "value"), [("strictness", 0.5), ("max_bias", 0.5), ("bias_budget", 0.5), ("max_ratio", 2.0)]
)
def test_other_settings_are_refused_with_a_drop(pair, name, value):
    """Catches a certified strictness that another setting changes."""
    given = {
        "diversed_head": certified(tiny_head(), (0.01, 0.75)),
        "diversed_max_drop": 0.01,
        f"diversed_{name}": value,
    }
    for call in (partial(generate, pair), partial(hf_diversed.attach, *pair)):
        with pytest.raises(ValueError, match=f"cannot be combined with diversed_{name}"):
            call(**given)


class ScaledScores(LogitsProcessor):
    """A caller's processor, whose state is unknown."""

    def __call__(self, input_ids, scores):
        return scores * 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.5}, r"temperature \(certified 1.0, got 0.5\); processors"),
        ({"do_sample": False}, r"temperature \(certified 1.0, got 0.0\)"),
        ({"num_assistant_tokens": 3}, r"num_assistant_tokens \(certified 5, got 3\)"),
        ({"num_assistant_tokens_schedule": "adaptive"}, r"num_assistant_tokens \(certified 5, got None\)"),
        ({"diversed_temperature": [1.0] * 4}, r"temperature \(certified 1.0, got None\)"),
        ({"top_k": 20}, r"top_k \(certified 0, got 20\)"),
        ({"top_p": 0.5}, r"top_p \(certified 1.0, got 0.5\)"),
        ({"max_new_tokens": 13}, r"max_new_tokens \(certified 12, got 13\)"),
        ({"min_p": 0.3}, r"processors \(certified \[\], got \['MinPLogitsWarper\(.*min_p=0.3"),
        ({"typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"epsilon_cutoff": 0.05}, "EpsilonLogitsWarper"),
        ({"eta_cutoff": 0.05}, "EtaLogitsWarper"),
        ({"repetition_penalty": 2.0}, r"RepetitionPenaltyLogitsProcessor\(.*penalty=2.0"),
        ({"no_repeat_ngram_size": 2}, r"NoRepeatNGramLogitsProcessor\(.*ngram_size=2"),
        ({"bad_words_ids": [[5]]}, "NoBadWordsLogitsProcessor"),
        ({"suppress_tokens": [5, 6]}, r"SuppressTokensLogitsProcessor\(.*\[5, 6\]"),
        ({"renormalize_logits": True}, "LogitNormalization"),
        ({"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.1)])}, r"TemperatureLogitsWarper\(.*0.1"),
        ({"logits_processor": LogitsProcessorList([ScaledScores()])}, r"ScaledScores \(not a class of transformers"),
        ({"assistant_early_exit": 1, "assistant_model": None}, r"draft \(certified 'LlamaForCausalLM:"),
        ({"verifier": "lossless", "diversed_head": None}, "diversed_max_drop can only be used with a head"),
    ],
)
def test_calls_that_differ_are_refused(pair, settings, words):
    """Catches settings, processors and draft models that differ from the calibration and are accepted."""
    head = certified(tiny_head(), (0.01, 0.75), pair=pair)
    with pytest.raises(ValueError, match=words):
        generate(pair, **{"diversed_head": head, **settings}, diversed_max_drop=0.01)


@pytest.mark.parametrize("changed", ["target", "draft"])
@pytest.mark.parametrize("change", ["other weights", "other dtype", "changed in place"])
def test_other_models_are_refused(pair, changed, change):
    """Catches a certificate that is accepted for a model other than that of the calibration, also in a second call."""
    models = dict(zip(("target", "draft"), pair))
    call = {"diversed_head": certified(tiny_head(), (0.01, 0.75), pair=pair), "diversed_max_drop": 0.01}
    models[changed] = copy.deepcopy(models[changed])
    generate((models["target"], models["draft"]), **call)  # a copy has the same digest
    if change == "other dtype":
        models[changed].double()
    elif change == "other weights":
        models[changed] = tiny_model(seed=7)
    else:
        with torch.no_grad():
            models[changed].model.layers[0].mlp.up_proj.weight.mul_(1.5)
    with pytest.raises(ValueError, match=f"{'dtype' if change == 'other dtype' else changed} \\(certified"):
        generate((models["target"], models["draft"]), **call)


def test_autocast_is_another_dtype(pair):
    """Catches a certificate of float32 that is accepted where autocast computes in bfloat16."""
    call = {"diversed_head": certified(tiny_head(), (0.01, 0.75), pair=pair), "diversed_max_drop": 0.01}
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="float32 under autocast to bfloat16"):
        generate(pair, **call)


def test_the_certified_draft_length_is_the_default(pair):
    """Catches an error for a call that does not set the draft length."""
    head = tiny_head(num_assistant_tokens=2)
    certified(head, (0.01, 0.0), pair=pair, num_assistant_tokens=4, max_new_tokens=20)
    out = generate(pair, max_new_tokens=20, diversed_head=head, diversed_max_drop=0.01)
    assert len(out.stats.accepted_per_position) == 4
