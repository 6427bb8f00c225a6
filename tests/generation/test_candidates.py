"""Candidate generators of transformers: draft tokens as upstream, and the right q.

`tests/fuzz/test_candidates.py` compares the text with plain generation.
"""

from functools import partial

import pytest
import torch
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.modeling_layers import MtpModel

import hf_diversed
from hf_diversed import DiversedVerifier, LosslessVerifier, StaticEnsembleVerifier, support
from hf_diversed.generation.candidates import CandidateDrafter
from hf_diversed.sampling import RandomSource
from tests.generation import sources
from tests.tiny import EOS, VOCAB_SIZE, Listener, ragged_batch, tiny_head, tiny_model


UPSTREAM = [name for name in sources.SOURCES if not name.startswith("own")]
SAMPLED = {"do_sample": True, "top_k": 8, "top_p": 1.0, "temperature": 0.9}


@pytest.fixture(autouse=True)
def mtp_weights(monkeypatch):
    monkeypatch.setattr(MtpModel, "from_pretrained", sources.random_mtp_model)


def prompt(seed: int = 0, length: int = 9) -> torch.Tensor:
    return ragged_batch(1, length, seed)["input_ids"]


def decode(source, verifier="lossless", seed=0, **call):
    target, selects = source
    settings = {"max_new_tokens": 20, "do_sample": False, "return_dict_in_generate": True}
    return target.generate(prompt(seed), verifier=verifier, **settings | selects | call)


@pytest.mark.parametrize("name", sources.parameters(UPSTREAM))
def test_draft_tokens_are_those_of_upstream(name, monkeypatch):
    """Catches states of the wrong positions, which change the draft tokens but not the text.

    Both sides use a mixture of p and q, which accepts draft tokens of random models. The q of Gemma's assistants
    differs, so they are compared without it, over more prompts.
    """
    target, selects = sources.SOURCES[name]()
    mixes, calls, accepted = name != "gemma4", record_candidates(monkeypatch), 0
    weight = {"assistant_ensemble_weight": 0.3} if mixes else {}
    for seed in range(2) if mixes else range(6, 12):
        ours = decode((target, selects), "static:0.3" if mixes else "lossless", seed)
        found = before_the_end(calls)
        calls.clear()
        target.generate(prompt(seed), max_new_tokens=20, do_sample=False, **with_length(selects), **weight)
        assert found == before_the_end(calls)
        assert found
        calls.clear()
        accepted += ours.stats.num_accepted
    assert accepted


def before_the_end(calls: list) -> list:
    """Return the calls with room for all their candidates; upstream verifies more than there is room for."""
    return [(ids, tokens) for ids, tokens in calls if len(ids) < prompt().shape[1] + 15]


def with_length(selects: dict) -> dict:
    """Return upstream's arguments for a constant number of draft tokens, which it reads from the draft model."""
    draft = selects.get("assistant_model")
    if draft is not None and "speculation_type" not in selects:
        draft.generation_config.update(
            num_assistant_tokens=draft.generation_config.num_assistant_tokens or 5,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
    return selects


def generators() -> list[type]:
    """Return all candidate generators of transformers that have `get_candidates`."""
    found, queue = [], [CandidateGenerator]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if kind.__module__.startswith("transformers.") and "get_candidates" in vars(kind):
            found.append(kind)
    return found


def record_candidates(monkeypatch) -> list:
    """Record ids and candidates of the calls that return any."""
    calls = []

    def record(kind):
        inner = kind.get_candidates

        def get_candidates(self, input_ids, **kwargs):
            candidates, logits = inner(self, input_ids, **kwargs)
            if candidates.shape[1] > input_ids.shape[1]:
                calls.append((input_ids[0].tolist(), candidates[0, input_ids.shape[1] :].tolist()))
            return candidates, logits

        monkeypatch.setattr(kind, "get_candidates", get_candidates)

    for kind in generators():
        record(kind)
    return calls


def recorded_blocks(monkeypatch, source, verifier="lossless", **call) -> list:
    """Return the draft blocks of a call."""
    blocks, inner = [], CandidateDrafter.propose

    def propose(self, counts):
        draft, own = inner(self, counts)
        if draft is not None:
            blocks.append(draft)
        return draft, own

    monkeypatch.setattr(CandidateDrafter, "propose", propose)
    torch.manual_seed(0)
    decode(source, verifier, **call)
    return blocks


@pytest.mark.parametrize("name", sources.parameters(["mtp:deepseek_v3", "dflash", "own_from_states"]))
def test_q_is_the_distribution_that_the_tokens_were_drawn_from(name, monkeypatch):
    """Catches logits before the processors, and logits at other ids than those of the draft tokens.

    Releases of transformers before 5.23 have the first fault (transformers#47932), and their generator for another
    tokenizer, with pruned embeddings, has the second.
    """
    drawn, multinomial = [], torch.multinomial
    monkeypatch.setattr(
        torch, "multinomial", lambda probs, *a, **k: drawn.append(probs) or multinomial(probs, *a, **k)
    )
    source = sources.SOURCES[name]()
    blocks = recorded_blocks(monkeypatch, source, **SAMPLED)
    expected = torch.cat([probs.sort(descending=True).values for probs in drawn])
    used = [block.scores[0].softmax(dim=-1) for block in blocks]
    chosen = torch.cat([block.prob(block.tokens)[0] for block in blocks])
    assert len(blocks) > 3
    # Every draft token is in the support, and each q is one of the distributions that were drawn from.
    assert (chosen > 0).all()
    for probs in torch.cat(used):
        distance = (expected[:, : SAMPLED["top_k"]] - probs.sort(descending=True).values[: SAMPLED["top_k"]]).abs()
        assert distance.sum(dim=-1).min() < 1e-5


@pytest.mark.parametrize("name", sources.parameters(["gemma4", "own"]))
def test_q_is_a_point_mass_where_the_tokens_depend_on_the_text_only(name, monkeypatch):
    """Catches the logits of greedy draft tokens as q, which accepts too much (transformers#47932)."""
    blocks = recorded_blocks(monkeypatch, sources.SOURCES[name](), **SAMPLED)
    assert blocks
    assert all((block.prob(block.tokens) == 1.0).all() for block in blocks)


VERIFIERS = {"dflash": "block:static:0.5", "gemma4": "lenience:0.3", "mtp:mellum": "static:0.5"}


@pytest.mark.parametrize("name", sources.parameters(VERIFIERS))
def test_relaxed_verifiers_and_records(name):
    """Catches records, streams and statistics that differ from the text."""
    listener = Listener()
    torch.manual_seed(0)
    call = {"output_token_records": True, "output_scores": True, "streamer": listener, **SAMPLED}
    out = decode(sources.SOURCES[name](), VERIFIERS[name], **call)
    new = out.sequences[0, prompt().shape[1] :]
    assert listener.tokens == [*prompt()[0].tolist(), *new.tolist()]
    assert out.token_records.tokens[0].tolist() == new.tolist()
    assert len(out.scores) == len(new) == out.stats.num_emitted
    assert 0 < out.stats.draft_forwards <= out.stats.num_rounds
    assert out.stats.target_forwards - out.stats.num_rounds in (0, 1)  # with or without a prefill of its own


def test_a_head_on_distributions_runs_and_one_on_hidden_states_is_refused():
    """Catches hidden states that are missing, and an error for heads that do not need them."""
    source = sources.own_from_states()
    head = DiversedVerifier(tiny_head(features="distribution"))
    assert decode(source, head, **SAMPLED).stats.num_rounds
    with pytest.raises(ValueError, match=r'needs hidden states .* features="distribution"'):
        decode(source, DiversedVerifier(tiny_head()))


class Uniform(sources.Copies):
    """Draws two tokens from the uniform distribution, with its logits."""

    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, torch.randint(VOCAB_SIZE, (1, 2))], dim=1), torch.zeros(1, 2, VOCAB_SIZE)


@pytest.mark.parametrize("may_end", [True, False])
def test_a_batch_has_one_generator_per_row(may_end):
    """Catches padding in the text of a row, scores and counts of other rows, and generators of rows that have left the
    batch."""
    target, batch = tiny_model("llama"), ragged_batch(6)
    settings = {"do_sample": False, "max_new_tokens": 40} | ({} if may_end else {"eos_token_id": None})
    generators = [Uniform() if row % 3 == 1 else sources.Copies() for row in range(6)]
    out = target.generate(
        **batch, **settings, verifier="lossless", candidate_generator=generators, return_dict_in_generate=True
    )
    assert torch.equal(out.sequences, target.generate(**batch, **settings))
    width = batch["input_ids"].shape[1]
    for row, (generator, stats) in enumerate(zip(generators, out.stats.per_row)):
        start = int((batch["attention_mask"][row] == 0).sum())
        text = out.sequences[row, start : width + stats.num_emitted].tolist()
        assert generator.received
        assert all(ids == text[: len(ids)] for ids, *_ in generator.received)
        assert all(shape[::2] == (1, VOCAB_SIZE) for _, shape, _ in generator.received)
        assert sum(matches for *_, matches in generator.received) == stats.num_accepted
    assert sum(row.num_accepted for row in out.stats.per_row) > 6


def test_bans_end_a_copied_block():
    """Catches a forbidden draft token that a relaxed verifier accepts, as p = 0 does not stop it."""
    ids = prompt()
    banned = int(ids[0, -2])
    settings = {"bad_words_ids": [[banned]], "do_sample": True, "max_new_tokens": 16}
    for seed in range(5):
        torch.manual_seed(seed)
        new = decode(sources.own(), StaticEnsembleVerifier(0.0), **settings).sequences[0, ids.shape[1] :]
        assert banned not in new.tolist()


@pytest.mark.parametrize("name", sources.parameters(["mtp:glm4_moe", "dflash", "gemma4", "own"]))
def test_num_assistant_tokens_limits_every_generator(name):
    """Catches a generator that drafts as many tokens as its own settings allow."""
    stats = decode(sources.SOURCES[name](), num_assistant_tokens=1).stats
    assert 0 < stats.num_drafted <= stats.num_rounds


def test_an_attached_draft_model_is_not_used():
    """Catches a draft model of `attach` beside another source that the call names."""
    target, selects = sources.own()
    with hf_diversed.attach(target, tiny_model("llama", seed=1), verifier="lossless"):
        out = target.generate(prompt(), max_new_tokens=8, do_sample=False, return_dict_in_generate=True, **selects)
    assert out.stats.draft_forwards < out.stats.num_rounds


@pytest.mark.parametrize("name", sources.parameters(["mtp:mellum", "dflash"]))
def test_releases_that_return_other_logits_are_refused(name, monkeypatch):
    """Catches a release whose logits are not those that it sampled from."""
    monkeypatch.setattr(support, "RELEASE", (5, 22))
    with pytest.raises(ValueError, match=r"needs transformers 5\.23 or newer"):
        decode(sources.SOURCES[name]())


def test_targets_with_recurrent_states_are_refused(monkeypatch):
    """Catches states of rejected tokens, which a generator would read."""
    source = sources.own_from_states()
    monkeypatch.setattr(support, "recurrent_states", lambda model: {0})
    with pytest.raises(ValueError, match="not supported for targets with recurrent states"):
        decode(source)


def test_a_source_of_random_numbers_is_refused():
    """Catches random numbers of the caller that a generator does not use."""
    loop = partial(
        hf_diversed.diversed_decoding,
        verifier=LosslessVerifier(),
        candidate_generator=sources.Copies(),
        random_source=RandomSource(),
    )
    with pytest.raises(ValueError, match="random_source is not supported"):
        tiny_model("llama").generate(prompt(), custom_generate=loop, do_sample=True, max_new_tokens=4)


class Wrong(CandidateGenerator):
    def __init__(self, ids, logits=None):
        self.ids, self.logits = torch.tensor([ids]), logits

    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, self.ids], dim=1), self.logits

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        pass


class WithoutText(Wrong):
    def get_candidates(self, input_ids, **kwargs):
        return self.ids, None


def only(token: int) -> torch.Tensor:
    """Return logits of a distribution with one token, float32 `[1, 1, V]`."""
    return torch.full((1, 1, VOCAB_SIZE), -torch.inf).index_fill(-1, torch.tensor([token]), 0.0)


def refusal(source, match, **call):
    (parameter,) = sources.parameters([source])
    return pytest.param(source, call, match, id=match[:40], marks=parameter.marks)


@pytest.mark.parametrize(
    ("source", "call", "match"),
    [
        refusal("own", "one generator per row: pass a list of 2, got 1", inputs=prompt().repeat(2, 1)),
        refusal("own", "one generator per row: pass a list of 1, got 0", candidate_generator=[]),
        refusal("own", "LlamaForCausalLM lacks", candidate_generator=None, use_mtp=True),
        refusal("mtp:mellum", "batch size must be 1, got 2", inputs=prompt().repeat(2, 1)),
        refusal("own_from_states", "remove the padding", attention_mask=torch.tensor([[0] + [1] * 8])),
        refusal("own", "'confidence' is not supported with candidate", num_assistant_tokens_schedule="confidence"),
        refusal("own", "threshold=0.4 is not supported with", assistant_confidence_threshold=0.4),
        refusal("own", "are two sources of draft tokens", use_mtp=True),
        refusal("mtp:mellum", "are two sources of draft tokens", speculation_type="dflash"),
        refusal("own", r"must return \[1, 9 \+ G\], .* got \[1, 2\]", candidate_generator=WithoutText([5, 6])),
        refusal("own", "its logits or a logits processor", candidate_generator=Wrong([5], only(6))),
        refusal("own", "its logits or a logits", candidate_generator=Wrong([5], only(5)), bad_words_ids=[[5]]),
        refusal("own", "must return ids of the target, 0 to 63", candidate_generator=Wrong([70])),
        refusal("own", "must return logits .* for 2", candidate_generator=Wrong([5, 6], torch.zeros(1, 1, 64))),
        refusal("own", "needs probabilities of the draft tokens", verifier="contrastive"),
        refusal("gemma4", "needs probabilities of a draft model", verifier="contrastive"),
        refusal("own_from_states", "prefill_chunk_size is not supported", prefill_chunk_size=4),
        refusal("dflash", "needs a DFlash draft model .* got NoneType", assistant_model=None),
        refusal("dflash", 'speculation_type must be "dflash"', speculation_type="eagle"),
        refusal("mtp:glm4_moe", "prompts of at least 3 tokens.* got 2", inputs=prompt()[:, :2]),
        refusal("mtp:mellum", "logits before any processor", verifier="spec_cascade:token_v3:0.3", **SAMPLED),
    ],
)
def test_refusals(source, call, match):
    """Catches a call that is decoded wrongly or fails inside a generator."""
    target, selects = sources.SOURCES[source]()
    settings = {"inputs": prompt(), "max_new_tokens": 8, "do_sample": False, "verifier": "lossless"}
    with pytest.raises(ValueError, match=match):
        target.generate(**settings | selects | call)


def test_tokens_after_a_drafted_eos_are_not_checked():
    """Catches an error for a token that is never emitted."""
    generator = Wrong([EOS, 5], torch.cat([only(EOS), only(5)], dim=1))
    out = decode((tiny_model("llama"), {"candidate_generator": generator}), bad_words_ids=[[5]])
    assert out.stats.num_drafted == out.stats.draft_forwards  # one token per block


def test_static_caches_fall_back_to_the_eager_engine():
    """Catches static shapes under a generator, which calls the target itself."""
    out = decode(sources.own(), cache_implementation="static")
    assert out.stats.engine == "eager"
    assert out.stats.engine_reason == "candidate generators run in eager mode"
