"""Candidate generators of transformers and of the caller in this library, and its own in transformers' decoding.

`tests/fuzz/test_candidates.py` compares the text with plain generation.
"""

import random
from collections import Counter

import pytest
import torch
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.modeling_layers import MtpModel

import hf_diversed
from hf_diversed import StaticEnsembleVerifier, draft_source, support
from hf_diversed.generation.candidates import CandidateDrafter
from tests.generation import sources
from tests.generation.test_parity import upstream_assisted
from tests.tiny import EOS, VOCAB_SIZE, ragged_batch, tiny_model


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
    mixes, calls, accepted = name != "gemma4", record_candidates(monkeypatch, target), 0
    weight = {"assistant_ensemble_weight": 0.3} if mixes else {}
    for seed in range(2) if mixes else range(6, 10):
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


def record_candidates(monkeypatch, target) -> list:
    """Record ids and candidates of the calls that return any."""
    calls, build = [], target._get_candidate_generator

    def recording(*args, **kwargs):
        generator = build(*args, **kwargs)
        inner = generator.get_candidates

        def get_candidates(input_ids, **kwargs):
            candidates, logits = inner(input_ids, **kwargs)
            if candidates.shape[1] > input_ids.shape[1]:
                calls.append((input_ids[0].tolist(), candidates[0, input_ids.shape[1] :].tolist()))
            return candidates, logits

        generator.get_candidates = get_candidates
        return generator

    monkeypatch.setattr(target, "_get_candidate_generator", recording, raising=False)
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


class Uniform(sources.Copies):
    """Draws two tokens from the uniform distribution, with its logits."""

    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, torch.randint(VOCAB_SIZE, (1, 2))], dim=1), torch.zeros(1, 2, VOCAB_SIZE)


def test_a_batch_has_one_generator_per_row():
    """Catches padding in the text of a row, scores and counts of other rows, and generators of rows that have left the
    batch."""
    target, batch = tiny_model("llama"), ragged_batch(6)
    settings = {"do_sample": False, "max_new_tokens": 40}
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
        refusal("own", "LlamaForCausalLM lacks", candidate_generator=None, use_mtp=True),
        refusal("mtp:mellum", "batch size must be 1, got 2", inputs=prompt().repeat(2, 1)),
        refusal("own_from_states", "remove the padding", attention_mask=torch.tensor([[0] + [1] * 8])),
        refusal("own", "are two sources of draft tokens", use_mtp=True),
        refusal("own", r"must return \[1, 9 \+ G\], .* got \[1, 2\]", candidate_generator=WithoutText([5, 6])),
        refusal("own", "its logits or a logits processor", candidate_generator=Wrong([5], only(6))),
        refusal("own", "must return ids of the target, 0 to 63", candidate_generator=Wrong([70])),
        refusal("own", "must return logits .* for 2", candidate_generator=Wrong([5, 6], torch.zeros(1, 1, 64))),
        refusal("own", "needs probabilities of the draft tokens", verifier="contrastive"),
        refusal("gemma4", "needs probabilities of a draft model", verifier="contrastive"),
        refusal("mtp:mellum", "logits before any processor", verifier="spec_cascade:token_v3:0.3", **SAMPLED),
    ],
)
def test_refusals(source, call, match):
    """Catches a call that is decoded wrongly or fails inside a generator."""
    target, selects = sources.SOURCES[source]()
    settings = {"inputs": prompt(), "max_new_tokens": 8, "do_sample": False, "verifier": "lossless"}
    with pytest.raises(ValueError, match=match):
        target.generate(**settings | selects | call)


@pytest.mark.parametrize(
    ("source", "name", "value", "match"),
    [
        ("mtp:mellum", "RELEASE", (5, 22), r"needs transformers 5\.23 or newer"),
        ("own_from_states", "recurrent_states", lambda model: [1], "not supported for targets with recurrent states"),
    ],
)
def test_releases_and_targets_that_are_refused(source, name, value, match, monkeypatch):
    """Catches a release whose logits are not those that it sampled from, and states of rejected tokens."""
    monkeypatch.setattr(support, name, value)
    with pytest.raises(ValueError, match=match):
        decode(sources.SOURCES[source]())


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


# Sources of this library in the assisted decoding of transformers.


COPIES = {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 1}
# Whether a source has a draft model, and the keywords that select it.
OWN_SOURCES = {"draft model": (True, {}), "prompt lookup": (False, COPIES), "copies and a draft model": (True, COPIES)}


def assisted(monkeypatch, pair, source: str, ids: torch.Tensor, **call) -> tuple[torch.Tensor, Counter]:
    """Run transformers' assisted decoding with a source of this library.

    Returns:
        the sequences, and the number of candidates by kind, plus `matches`.
    """
    (target, draft), (has_draft_model, settings) = pair, OWN_SOURCES[source]
    seen: Counter = Counter()

    def build(generation_config, input_ids, logits_processor, assistant_model, model_kwargs, **_):
        found = draft_source(
            target, input_ids, generation_config, logits_processor, assistant_model, model_kwargs.get("attention_mask")
        )
        assert isinstance(found, CandidateGenerator)
        get, update = found.get_candidates, found.update_candidate_strategy

        def get_candidates(text):
            candidates, logits = get(text)
            count = candidates.shape[1] - text.shape[1]
            seen["copied" if logits is None else "drafted"] += count
            assert logits is None or logits.shape == (1, count, target.config.vocab_size)
            return candidates, logits

        def update_candidate_strategy(text, scores, num_matches):
            seen["matches"] += num_matches
            update(text, scores, num_matches)

        found.get_candidates, found.update_candidate_strategy = get_candidates, update_candidate_strategy
        return found

    monkeypatch.setattr(target, "_get_candidate_generator", build, raising=False)
    if has_draft_model:
        call["assistant_model"] = draft
    return target.generate(ids, **settings | call), seen


@pytest.mark.parametrize("source", OWN_SOURCES)
def test_greedy_text_is_that_of_plain_generation(source, pair, monkeypatch):
    """Catches a text, cache or length that differs from transformers' after a round: 6 random calls."""
    rng, total = random.Random(0), Counter()
    for seed in range(6):
        ids = repetitive_prompt(rng)
        mask = torch.ones_like(ids)
        if seed % 4 == 0:
            ids[0, :2], mask[0, :2] = 0, 0
        call = {"attention_mask": mask, "do_sample": False, "max_new_tokens": rng.randint(1, 16)}
        call |= {"num_assistant_tokens": rng.randint(1, 6), "repetition_penalty": rng.choice([1.0, 1.3])}
        if source == "prompt lookup":
            call["num_assistant_tokens"] = COPIES["prompt_lookup_num_tokens"]
        elif seed % 3 == 0:
            call["num_assistant_tokens_schedule"] = "confidence"
        expected = pair[0].generate(ids, **{name: call[name] for name in call if "assistant" not in name})
        found, seen = assisted(monkeypatch, pair, source, ids, **call)
        monkeypatch.undo()
        assert found.tolist() == expected.tolist(), seed
        total += seen
    assert total["matches"] > 5
    assert (total["drafted"] > 0) == (source != "prompt lookup")
    assert (total["copied"] > 0) == (source != "draft model")


def test_draft_model_agrees_with_itself(pair, monkeypatch):
    """Catches a draft model's cache that is wrong after a round, which lossless verification would hide."""
    call = {"do_sample": False, "max_new_tokens": 40, "eos_token_id": None, "num_assistant_tokens": 4}
    _, seen = assisted(monkeypatch, (pair[0], pair[0]), "draft model", torch.arange(4, 10)[None], **call)
    assert seen["matches"] == seen["drafted"] > 20


def test_sampled_text_is_that_of_transformers(pair, monkeypatch):
    """Catches logits that the candidates were not drawn from, and random numbers drawn in another order."""
    call, matches = {"do_sample": True, "top_k": 0, "max_new_tokens": 24}, 0
    for seed in range(3):
        torch.manual_seed(seed)
        expected = upstream_assisted(pair, {"input_ids": prompt(seed)}, gamma=4, **call)
        torch.manual_seed(seed)
        found, seen = assisted(monkeypatch, pair, "draft model", prompt(seed), **call, num_assistant_tokens=4)
        monkeypatch.undo()
        assert torch.equal(found, expected)
        matches += seen["matches"]
    assert matches > 5


def repetitive_prompt(rng: random.Random) -> torch.Tensor:
    """Return a prompt of 3 to 15 ids from 6 different ones, long `[1, S]`."""
    ids = rng.sample(range(4, VOCAB_SIZE), 6)
    return torch.tensor([rng.choices(ids, k=rng.randint(3, 15))])
