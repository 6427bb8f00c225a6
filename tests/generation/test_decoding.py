"""The loop against plain `generate`, upstream's assisted decoding, and the exact distributions."""

import copy
import gc
import itertools
from collections import Counter, defaultdict
from functools import cache

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList

from hf_diversed import DiversedVerifier, LosslessVerifier, StaticEnsembleVerifier
from hf_diversed import cache as ragged_cache
from hf_diversed.generation import loop, rows
from hf_diversed.generation.drafting import draft_scores
from hf_diversed.verifiers import EXAMPLES, build_verifier
from tests.engines.modes import STATIC
from tests.tiny import EOS, Listener, ragged_batch, tiny_head, tiny_model


GAMMA = 4


def relaxed(pair, verifier, inputs, **kwargs):
    target, draft = pair
    settings = {"max_new_tokens": 20, "num_assistant_tokens": GAMMA, "do_sample": False}
    settings["return_dict_in_generate"] = True
    return target.generate(**inputs, assistant_model=draft, verifier=verifier, **{**settings, **kwargs})


def upstream_assisted(pair, inputs, gamma=GAMMA, eos=EOS, threshold=0.0, **kwargs):
    """Upstream's assisted decoding with a constant schedule; without a pad id, which corrupts its draft's mask."""
    target, draft = pair
    saved = draft.generation_config, target.generation_config
    common = {"pad_token_id": None, "eos_token_id": eos}
    fixed = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": threshold}
    draft.generation_config = GenerationConfig(**common, **fixed, num_assistant_tokens=gamma)
    target.generation_config = GenerationConfig(**common)
    try:
        return target.generate(**inputs, assistant_model=draft, **kwargs)
    finally:
        draft.generation_config, target.generation_config = saved


SAMPLED = [{"do_sample": True, "top_k": 0}, {"do_sample": True, "top_k": 8}]


@pytest.mark.parametrize("mode", [{}, STATIC])
def test_memory_that_grows_with_the_text(pair, monkeypatch, rows_left, mode):
    """Catches ids, positions and masks that are lost where they are enlarged, also after rows have left."""
    monkeypatch.setattr(rows, "SMALLEST_WIDTH", 1)
    monkeypatch.setattr(ragged_cache, "_ALIGNMENT", 1)
    inputs, call = ragged_batch(8), {"max_new_tokens": 50, "do_sample": False}
    text = pair[0].generate(**inputs, **call)[:, inputs["input_ids"].shape[1] :]
    call["eos_token_id"] = text[[0, 2, 5], [3, 12, 30]].tolist()
    ours = relaxed(pair, LosslessVerifier(), inputs, **call, **mode)
    assert torch.equal(ours.sequences, pair[0].generate(**inputs, **call))
    assert rows_left or mode  # without compiled rounds of fewer rows, all rows stay


class Weighing(LogitsProcessor):
    """Forces EOS after three tokens, and then records the size of all tensors."""

    size = 0

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] < 12:
            return scores
        if not self.size:
            tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
            self.size = sum({each.data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())
        return scores.index_fill(1, torch.tensor([EOS]), 1e4)


def test_memory_does_not_grow_with_the_limit(pair):
    """Catches ids, positions or masks for the longest text of a call, which most texts do not reach."""
    found = []
    for limit in ({"max_new_tokens": 1000}, {"max_new_tokens": 1_000_000}, {"max_length": 10**30}):
        call = {**ragged_batch(), "do_sample": False, **limit, "logits_processor": LogitsProcessorList([Weighing()])}
        gc.collect()
        ours = pair[0].generate(**call, assistant_model=pair[1], verifier="lossless")
        assert ours.shape[1] == 13
        found.append(call["logits_processor"][0].size)
    assert min(found) > 0
    assert max(found) - min(found) < 10_000


@pytest.mark.parametrize(
    ("weight", "sampling"),
    [*itertools.product([None, 0.3, 0.7], SAMPLED), (0.3, {"do_sample": False}), (0.6, {"do_sample": False})],
)
def test_matches_upstream_token_for_token(pair, weight, sampling):
    """Invariant 6 at batch size 1. Catches draws in another order or shape, a shifted bonus token and an outdated q.
    Temperature 1 only: upstream applies the temperature twice to the draft model (still lossless, but with another q
    than requested)."""
    verifier = LosslessVerifier() if weight is None else StaticEnsembleVerifier(weight)
    for seed in range(4):
        prompt = {"input_ids": ragged_batch(seed=seed)["input_ids"][:1]}
        kwargs = {"max_new_tokens": 24, **sampling}
        torch.manual_seed(seed)
        theirs = upstream_assisted(pair, prompt, assistant_ensemble_weight=weight, **kwargs)
        torch.manual_seed(seed)
        ours = relaxed(pair, verifier, prompt, **kwargs).sequences
        assert torch.equal(ours, theirs), (seed, weight)


def _tiny_vocabulary_model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=3, **sizes, pad_token_id=None, eos_token_id=None, bos_token_id=None)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20.0 if parameter.ndim == 2 else 1.0)
    return model.eval()


def _process_probs(target, draft, weight: float, gammas: tuple[int, ...], remaining: int, prefix: tuple[int, ...]):
    """Exact distribution of the decoding process: {tokens: probability}, by enumerating draft tokens, decisions and
    replacements.

    `gammas` are the rounds' draft lengths.
    """
    horizon = min(gammas[0], remaining - 1)
    total: dict[tuple[int, ...], float] = defaultdict(float)

    def emit(emitted, token, probability):
        done = (*emitted, token)
        if len(done) == remaining:
            total[done] += probability
            return
        rest = _process_probs(target, draft, weight, gammas[1:], remaining - len(done), prefix + done)
        for tail, share in rest.items():
            total[done + tail] += probability * share

    def walk(emitted, probability):
        p, q = (_probs(model, prefix + emitted) for model in (target, draft))
        if len(emitted) == horizon:
            for token in range(3):
                emit(emitted, token, probability * float(p[token]))
            return
        kept = torch.minimum(q, weight * p + (1 - weight) * q)
        left = (p - q).clamp_min(0)
        for token in range(3):
            emit(emitted, token, probability * float((1 - kept.sum()) * left[token] / left.sum()))
            walk((*emitted, token), probability * float(kept[token]))

    walk((), 1.0)
    return total


@cache
def _probs(model, prefix: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return torch.softmax(model(torch.tensor([prefix])).logits[0, -1].double(), -1)


@pytest.mark.parametrize("gammas", [(2, 2, 2), (1, 2, 1)])
def test_end_to_end_distribution(gammas, monkeypatch):
    """Invariant 5 over the whole loop: three tokens follow the process's exact distribution, bonus positions
    (distribution p) included. 20,000 rows; that any of 27 frequencies deviates by more than 5 standard errors has
    probability below 27 * 6e-7 = 2e-5 under the right distribution. Catches a bonus token sampled from v, a wrong
    effective draft length, and rows that share uniforms."""
    lengths, run = iter(gammas), loop.EagerEngine.round
    monkeypatch.setattr(loop.EagerEngine, "round", lambda engine, _: run(engine, next(lengths)))
    torch.manual_seed(0)
    target, draft, weight, count = _tiny_vocabulary_model(1), _tiny_vocabulary_model(2), 0.4, 20_000
    prompts = torch.zeros(count, 1, dtype=torch.long)
    inputs = {"input_ids": prompts, "attention_mask": torch.ones_like(prompts)}
    settings = {"num_assistant_tokens": max(gammas), "max_new_tokens": 3, "do_sample": True, "top_k": 0}
    out = relaxed((target, draft), StaticEnsembleVerifier(weight), inputs, **settings)
    assert 0.1 < out.stats.acceptance_rate < 0.95
    exact = _process_probs(target, draft, weight, gammas, remaining=3, prefix=(0,))
    assert sum(exact.values()) == pytest.approx(1.0, abs=1e-9)
    seen = Counter(map(tuple, out.sequences[:, 1:].tolist()))
    for tokens, probability in exact.items():
        error = (probability * (1 - probability) / count) ** 0.5
        assert abs(seen[tokens] / count - probability) < 5 * error, tokens


@pytest.mark.parametrize("step", [1, 3, 4, 5, 6])  # draft tokens, the bonus token, and the block after it
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("mode", [{}, {"cache_implementation": "static"}], ids=["eager", "static"])
def test_eos_in_the_middle_of_a_block(step, do_sample, mode):
    """Catches tokens after an accepted EOS in the sequence, the stream, the scores or the statistics, as transformers
    emitted them (transformers#47912). All draft tokens are accepted, and static rounds also draft after an EOS."""
    target = tiny_model("llama", seed=23)
    pair, inputs = (target, copy.deepcopy(target)), {"input_ids": ragged_batch()["input_ids"][:1]}
    kwargs = {"max_new_tokens": 10, "do_sample": do_sample, "top_k": 0, "output_scores": True}
    kwargs["return_dict_in_generate"] = True
    torch.manual_seed(step)
    whole = relaxed(pair, "lossless", inputs, eos_token_id=None, **kwargs).sequences[0, 9:].tolist()
    eos, stream = whole[step - 1], Listener()
    end = whole.index(eos) + 1
    torch.manual_seed(step)
    theirs = upstream_assisted(pair, inputs, eos=eos, **kwargs)
    torch.manual_seed(step)
    ours = relaxed(pair, "lossless", inputs, eos_token_id=eos, streamer=stream, **kwargs, **mode)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    assert ours.sequences[0, 9:].tolist() == stream.tokens[9:] == whole[:end]
    assert len(ours.scores) == len(theirs.scores) == end
    assert ours.stats.num_emitted == end
    assert ours.stats.num_drafted == ours.stats.num_accepted


WIDE, NARROW = 500, 372  # padded vocabularies of one tokenizer, with the difference of Qwen2.5's 7B and 0.5B models


@pytest.mark.parametrize(("target_size", "draft_size"), [(WIDE, NARROW), (NARROW, WIDE)])
@pytest.mark.parametrize("do_sample", [False, True])
def test_padded_vocabularies(target_size, draft_size, do_sample):
    """Catches a check that refuses this difference, an id that the target emits and the draft model cannot embed, and
    draft probability on ids that the target lacks: both models often predict the last ids that they have."""
    models = []
    for size in (target_size, draft_size):
        model = tiny_model("llama")
        model.resize_token_embeddings(size, mean_resizing=False)
        with torch.no_grad():
            inputs, outputs = (get().weight for get in (model.get_input_embeddings, model.get_output_embeddings))
            inputs[64:], outputs[64:] = inputs[:1], 0.0
            outputs[NARROW - 1] = 2.0 * outputs[8]
            outputs[NARROW:][-1:] = 2.0 * outputs[18]  # the last id of the wider model only
        models.append(model)
    call = {**ragged_batch(16), "do_sample": do_sample, "top_k": 40, "max_new_tokens": 16, "eos_token_id": None}
    plain = models[0].generate(**call)
    out = models[0].generate(
        **call,
        assistant_model=models[1],
        verifier="lossless",
        return_dict_in_generate=True,
        output_token_records=True,
    )
    if not do_sample:
        assert torch.equal(out.sequences, plain)
    records = out.token_records
    assert set(records.tokens.unique().tolist()) >= {NARROW - 1, target_size - 1}
    assert records.tokens.max() < target_size
    drafted = records.source == 0
    assert drafted.sum() > 50
    assert records.tokens[drafted].max() < min(target_size, draft_size)
    # The distributions agree on shared ids, so the draft model's are normalised over the target's ids.
    if draft_size > target_size:
        assert torch.allclose(records.p[drafted], records.q[drafted], atol=1e-4)


@pytest.mark.parametrize("spec", EXAMPLES)
def test_a_smaller_vocabulary_under_every_verifier(spec):
    """Catches NaN from raw draft scores of -inf."""
    verifier = build_verifier(spec)
    target = tiny_model("llama")
    draft = copy.deepcopy(target)
    draft.resize_token_embeddings(59, mean_resizing=False)
    settings = {"do_sample": True, "top_k": 0, "eos_token_id": None}
    out = relaxed((target, draft), verifier, ragged_batch(), **settings)
    assert out.stats.num_accepted > 0


def test_ids_that_the_draft_model_lacks_have_no_probability():
    """Catches scores that a verifier reads as a large difference of the models, as contrastive decoding does."""
    for scores in draft_scores(torch.randn(2, 1, 60), 64, lambda scores: scores / 2):
        assert (scores[..., 60:] == -torch.inf).all()
        assert scores[..., :60].isfinite().all()


@pytest.mark.parametrize("do_sample", [False, True])
def test_a_processor_that_allows_only_ids_that_the_draft_model_lacks(do_sample):
    """Catches an error about the draft model's scores, which are then all excluded."""

    class Last(LogitsProcessor):
        def __call__(self, input_ids, scores):
            assert set(input_ids[:, 9:].unique().tolist()) <= {63}
            return scores.masked_fill(torch.arange(64) < 63, -torch.inf)

    target = tiny_model("llama")
    draft = copy.deepcopy(target)
    draft.resize_token_embeddings(60, mean_resizing=False)
    call = {"logits_processor": LogitsProcessorList([Last()]), "do_sample": do_sample, "max_new_tokens": 6}
    out = relaxed((target, draft), "lossless", ragged_batch(1), **call)
    assert out.sequences[0, 9:].tolist() == [63] * 6
    assert out.stats.num_accepted == out.stats.num_drafted > 0


def test_smaller_vocabulary_of_the_draft_model(pair):
    """Catches the last id that the draft model knows replaced by another one."""
    target, draft = pair[0], copy.deepcopy(pair[0])
    draft.resize_token_embeddings(60, mean_resizing=False)
    ids = ragged_batch(16)["input_ids"].clamp_max(59)
    ids[:, -1] = 59
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    stats = relaxed((target, draft), "lossless", inputs, num_assistant_tokens=1, max_new_tokens=2).stats
    first = target(**inputs).logits[:, -1].argmax(-1)
    assert [row.num_accepted for row in stats.per_row] == (first < 60).long().tolist()
    assert stats.num_accepted > 8


def test_half_precision(pair):
    """bf16 target and draft model with a float32 head: catches dtypes that are mixed."""
    target, draft = (copy.deepcopy(model).to(torch.bfloat16) for model in pair)
    head = tiny_head(features="both")
    plain = target.generate(**ragged_batch(), max_new_tokens=12, do_sample=False)
    given = {"diversed_head": head, "diversed_strictness": 1.0, "max_new_tokens": 12}
    out = relaxed((target, draft), None, ragged_batch(), **given)
    assert torch.equal(out.sequences, plain)
    assert out.stats.num_drafted > 0


def test_probabilities_of_half_precision_models(pair):
    """Catches probabilities that are computed in bfloat16."""
    models = tuple(copy.deepcopy(model).to(torch.bfloat16) for model in pair)
    torch.manual_seed(0)
    returned = {"output_logits": True, "output_token_records": True}
    out = relaxed(models, "lossless", ragged_batch(), do_sample=True, top_k=0, **returned)
    assert out.logits[0].dtype == torch.float32
    records, probs = out.token_records, torch.stack(out.logits, dim=1).double().softmax(dim=-1)
    expected = probs.gather(-1, records.tokens[..., None])[..., 0]
    for source in range(3):
        chosen = records.source == source
        assert chosen.any()
        torch.testing.assert_close(records.p[chosen].double(), expected[chosen], rtol=1e-4, atol=0.0)


def test_dropping_finished_rows_changes_nothing(pair, monkeypatch, rows_left):
    """Catches a row that gets the cache, mask or state of another one after finished rows were removed."""
    verifier, inputs = StaticEnsembleVerifier(0.3), ragged_batch(8)
    first = relaxed(pair, verifier, inputs).sequences[:, inputs["input_ids"].shape[1] :]
    eos = first[[0, 2, 5], [3, 7, 12]].tolist()  # rows now end in different rounds
    whole, shrunk = [], []
    for share, outputs in ((0.0, whole), (1.0, shrunk)):
        monkeypatch.setattr(loop, "COMPACT_AT", share)
        rows_left.clear()
        outputs.append(relaxed(pair, verifier, inputs, eos_token_id=eos, output_token_records=True))
        assert (len(rows_left) >= 3) == (share == 1.0)
    assert len({row.num_emitted for row in whole[0].stats.per_row}) >= 3
    assert torch.equal(whole[0].sequences, shrunk[0].sequences)
    for alone, mine in zip(whole[0].stats.per_row, shrunk[0].stats.per_row):
        for name in ("num_rounds", "num_drafted", "num_accepted", "num_rejected", "accepted_per_position", "tv_count"):
            assert getattr(alone, name) == getattr(mine, name)
        assert mine.tv_sum == pytest.approx(alone.tv_sum, rel=1e-4)
    for name in ("tokens", "source", "relaxed"):
        assert torch.equal(getattr(whole[0].token_records, name), getattr(shrunk[0].token_records, name))
    for name in ("p", "q", "tv"):
        both = [getattr(out[0].token_records, name) for out in (whole, shrunk)]
        torch.testing.assert_close(*both, equal_nan=True)


@pytest.mark.parametrize("features", ["hidden", "distribution"])
def test_heads_decode_under_autocast(pair, features):
    """Catches weights in autocast's dtype, which cannot be mixed with probabilities in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        out = relaxed(pair, None, ragged_batch(2), diversed_head=tiny_head(features=features))
    assert out.stats.num_emitted > 0
    assert 0 < out.stats.mean_weight < 1


def test_an_eos_outside_of_the_vocabulary(pair):
    """Catches -1, with which no row ends early, in the ids that processors read, and copied after short matches."""
    call = {**ragged_batch(), "eos_token_id": -1, "pad_token_id": None, "max_new_tokens": 12, "do_sample": False}
    target = copy.deepcopy(pair[0])
    target.generation_config.pad_token_id = None
    for source in ({"assistant_model": pair[1]}, {"prompt_lookup_num_tokens": 3}):
        ours = target.generate(**call, **source, verifier="lossless", repetition_penalty=1.3)
        assert torch.equal(ours, target.generate(**call, repetition_penalty=1.3))


def test_settings_stay_with_their_rows(pair, monkeypatch, rows_left):
    """Catches a strictness that moves to another row when finished rows are removed."""
    monkeypatch.setattr(loop, "COMPACT_AT", 1.0)
    inputs, strictnesses = ragged_batch(4), [0.0, 0.3, 0.8, 1.0]
    eos = relaxed(pair, LosslessVerifier(), inputs).sequences[[3, 1], [-17, -12]].tolist()
    rows_left.clear()
    together = relaxed(pair, DiversedVerifier(tiny_head(), strictnesses), inputs, eos_token_id=eos)
    assert rows_left
    for row, strictness in enumerate(strictnesses):
        alone = {name: values[row : row + 1] for name, values in inputs.items()}
        verifier = DiversedVerifier(tiny_head(), strictness)
        expected = relaxed(pair, verifier, alone, eos_token_id=eos)
        assert torch.equal(together.sequences[row, : expected.sequences.shape[1]], expected.sequences[0])
        assert together.stats.per_row[row].bias_sum == pytest.approx(expected.stats.bias_sum, abs=1e-5)
