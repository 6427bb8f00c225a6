"""Models with recurrent or convolution states, which cannot be cropped: rollback, text, distributions and limits."""

import copy
import functools
import itertools

import pytest
import torch

from hf_diversed import LosslessVerifier, StaticEnsembleVerifier, _compat, diversed_decoding
from hf_diversed.engines.static import StaticEngine
from hf_diversed.generation import decoding, ragged_model
from hf_diversed.generation.ragged_model import RaggedModel
from hf_diversed.generation.rows import RaggedRows
from tests import versions
from tests.families.compare import prepare
from tests.families.shrink import small_model
from tests.reference import Recorder, naive_decoding
from tests.tiny import EOS, PAD, VOCAB_SIZE, tiny_draft, tiny_model


pytestmark = [
    pytest.mark.skipif(versions.is_before("5.23"), reason="models with recurrent states are refused"),
    pytest.mark.filterwarnings("ignore:.*falling back.*"),
]
NEW = 20


@functools.cache
def hybrid(model_type: str):
    model = small_model(model_type)
    prepare(model)
    return model


@pytest.fixture(params=["qwen3_5_text", "lfm2", "falcon_h1"])
def target(request):
    return hybrid(request.param)


def prompt(length: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randint(4, VOCAB_SIZE, (1, length), generator=torch.Generator().manual_seed(seed))


def decode(target, draft, ids=None, **kwargs):
    settings = {"max_new_tokens": NEW, "do_sample": False, "verifier": "lossless", "num_assistant_tokens": 4}
    ids = prompt() if ids is None else ids
    settings |= {"attention_mask": torch.ones_like(ids), "return_dict_in_generate": True} | kwargs
    return target.generate(ids, assistant_model=draft, **settings)


def plain(target, ids, **kwargs):
    return target.generate(ids, **{"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, **kwargs})


@torch.no_grad()
def test_logits_after_rollback_are_fresh_logits(target, monkeypatch):
    """Catches states that contain rejected tokens, or lack accepted ones that were read before the kept copy."""
    ids = prompt(40, seed=3)
    positions = torch.arange(40)[None]
    rows = RaggedRows(ids[:, :8], 40, 8, [], PAD)
    model = RaggedModel(target, None, positions[:, :8], 48, 47, keep_hidden=False)
    model.prefill(ids[:, :7], chunk_size=3)
    fresh, length = target(ids, use_cache=False).logits, 8
    monkeypatch.setattr(ragged_model, "_LONGEST_REPLAY", 6)  # so that both ways of reading tokens again are run
    for accepted in (0, 4, 1, 2, 3, 1, 4, 4, 0, 2):
        block = torch.cat([ids[:, length - 1 : length + accepted], prompt(4 - accepted, seed=length)], dim=1)
        logits, _ = model(block, rows.lengths + (-1), keep=5)
        last = length + accepted
        torch.testing.assert_close(logits[:, : accepted + 1], fresh[:, length - 1 : last], atol=5e-4, rtol=1e-3)
        rows.lengths += accepted + 1
        length += accepted + 1
        model.rewind(rows, behind=1)
    assert model.num_forwards > 3 + 10  # some replays had a forward of their own


@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize("length", [1, 7])
def test_lossless_greedy_is_plain_generate(target, gamma, length):
    """Catches states that are not restored, of target or draft model, also to those before any token was read."""
    ids = prompt(length)
    out = decode(target, tiny_draft(target, noise=0.15), ids, num_assistant_tokens=gamma)
    assert torch.equal(out.sequences, plain(target, ids))
    assert out.stats.num_accepted > 0
    assert out.stats.num_rejected > 0


def test_left_padding_of_a_single_row(target):
    """Catches a prompt whose padding is added to the states."""
    ids, mask = prompt(9), torch.ones(1, 9, dtype=torch.long)
    ids[:, :4], mask[:, :4] = PAD, 0
    out = decode(target, tiny_draft(target), ids, attention_mask=mask)
    assert torch.equal(out.sequences, plain(target, ids, attention_mask=mask))


@pytest.mark.parametrize("is_draft_hybrid", [True, False])
def test_one_of_the_models_is_hybrid(is_draft_hybrid):
    """Catches a rollback that depends on the other model."""
    models = tiny_model("llama"), hybrid("qwen3_5_text")
    target, draft = models if is_draft_hybrid else reversed(models)
    assert torch.equal(decode(target, draft).sequences, plain(target, prompt()))


def test_rounds_without_draft_tokens(target, monkeypatch):
    """Catches states that miss the token of a round without draft tokens, after which nothing is removed."""
    lengths = itertools.cycle([0, 3, 0, 0, 2])
    run = decoding.EagerEngine.round
    monkeypatch.setattr(decoding.EagerEngine, "round", lambda engine, _, memory: run(engine, next(lengths), memory))
    assert torch.equal(decode(target, tiny_draft(target)).sequences, plain(target, prompt()))


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "falcon_h1"])
@pytest.mark.parametrize("verifier", [StaticEnsembleVerifier(0.4), LosslessVerifier()], ids=str)
def test_sampled_text_is_that_of_full_forwards(model_type, verifier):
    """Catches distributions from states with other tokens, which greedy text may hide."""
    target = hybrid(model_type)
    draft = tiny_draft(target, noise=0.15)
    for seed in range(2):
        torch.manual_seed(seed)
        recorder = Recorder()
        options = {"assistant_model": draft, "verifier": verifier, "num_assistant_tokens": 4}
        loop = functools.partial(diversed_decoding, **options, random_source=recorder)
        config = {"generation_config": None, "suppress_tokens": None, "eos_token_id": EOS, "pad_token_id": PAD}
        ids = prompt(seed=seed)
        fast = plain(target, ids, custom_generate=loop, do_sample=True, top_k=0, **config)
        options = {"max_new_tokens": NEW, "gamma": 4, "eos_id": EOS, "randomness": recorder.of_row(0)}
        assert torch.equal(fast, naive_decoding(target, draft, verifier, ids, **options))


def test_static_engine_falls_back(target):
    """Catches buffers without the states."""
    out = decode(target, tiny_draft(target), cache_implementation="static")
    assert out.stats.engine == "eager"
    assert "recurrent states" in out.stats.engine_reason
    assert StaticEngine.cannot_serve(tiny_model("llama"), target, RaggedRows(prompt(), 9, 0, [], PAD)) is not None


def test_refusals(target):
    """Catches ragged rows, and a view of the first layers whose layers are others."""
    with pytest.raises(ValueError, match=r"recurrent states.* batch size must be 1, got 2"):
        decode(target, tiny_draft(target), prompt().repeat(2, 1))
    for mode in ("assistant_early_exit", "prompt_lookup_num_tokens"):
        with pytest.raises(ValueError, match=rf"{mode} is not supported for \w+ForCausalLM"):
            target.generate(prompt(), verifier="lossless", **{mode: 1})


def test_a_rotary_limit_within_the_call_is_refused():
    """Catches a prompt token that is read into the states twice, where upstream recomputes the cache."""
    model = copy.deepcopy(hybrid("qwen3_5_text"))
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic", "factor": 2.0}
    model.config.max_position_embeddings = 16
    with pytest.raises(ValueError, match="recurrent states and changes its rotary frequencies at 16 ids"):
        decode(model, tiny_draft(model))


def test_other_models_keep_no_states():
    """Catches copies in models without states, which would cost time in every round."""
    llama = tiny_model("llama")
    model = RaggedModel(llama, None, torch.arange(4)[None], 8, 7, keep_hidden=False)
    assert model._replay is None
    assert _compat.recurrent_states(llama) == []
