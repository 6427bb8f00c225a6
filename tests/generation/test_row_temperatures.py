"""A temperature per row: greedy and sampled rows share a batch, and each equals a single call."""

from functools import partial

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    WatermarkingConfig,
)

from hf_diversed import DiversedVerifier, StaticEnsembleVerifier, diversed_decoding
from hf_diversed.generation import decoding
from hf_diversed.verifiers import build_verifier
from tests.engines.modes import STATIC
from tests.generation.test_verifiers import assert_naive
from tests.reference import Recorder
from tests.tiny import ragged_batch, tiny_head


TEMPERATURES = [0.7, 0.0, 1.0, 1.4]
MAKERS = {
    **{spec: partial(build_verifier, spec) for spec in ("lossless", "static:0.4", "lenience:0.3", "block:static:0.5")},
    "budget": lambda: StaticEnsembleVerifier(0.2, bias_budget=1.0),
    "token": lambda: DiversedVerifier(tiny_head(token_features=True), strictness=0.3, bias_budget=1.0),
    "head": lambda: DiversedVerifier(tiny_head(), strictness=0.6),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_row_is_the_naive_one(pair, name, monkeypatch):
    """Catches a greedy row that is sampled, a temperature that moves to another row, and state of the wrong branch."""
    monkeypatch.setattr(decoding, "COMPACT_AT", 0.0)  # rows stay where their random numbers are
    verifier, recorder, batch = MAKERS[name](), Recorder(), ragged_batch()
    settings = {"assistant_model": pair[1], "verifier": verifier, "num_assistant_tokens": 3}
    loop = partial(diversed_decoding, **settings, temperatures=TEMPERATURES, random_source=recorder)
    torch.manual_seed(2)
    out = pair[0].generate(**batch, custom_generate=loop, do_sample=True, top_k=20, max_new_tokens=12)
    for row, temperature in enumerate(TEMPERATURES):
        warpers = [TemperatureLogitsWarper(temperature), TopKLogitsWarper(20)] if temperature else []
        randomness = recorder.of_row(row) if temperature else None
        assert_naive(pair, verifier, batch, out, row, 3, 12, LogitsProcessorList(warpers), randomness)


def test_temperatures_are_compacted_with_the_rows(pair, monkeypatch, rows_left):
    """Catches temperatures that are not compacted with the rows, and records of greedy rows that count as sampled."""
    monkeypatch.setattr(decoding, "COMPACT_AT", 1.0)
    target, draft = pair
    call = {**ragged_batch(8), "assistant_model": draft, "verifier": "static:0.5", "max_new_tokens": 20}
    greedy = target.generate(**call, do_sample=False)
    call["eos_token_id"] = greedy[[0, 2, 5], [12, 16, 21]].tolist()  # rows now end in different rounds
    greedy = target.generate(**call, do_sample=False)
    returned = {"return_dict_in_generate": True, "output_token_records": True}
    rows_left.clear()
    mixed = target.generate(**call, **returned, do_sample=True, top_k=0, diversed_temperature=[0.0, 1.0] * 4)
    assert rows_left
    for row in range(0, 8, 2):
        text = greedy[row].tolist()
        assert mixed.sequences[row].tolist()[: len(text)] == text[: mixed.sequences.shape[1]]
    alone = target.generate(**call, **returned, do_sample=False).token_records.relaxed[::2]
    mixed = mixed.token_records.relaxed[::2]
    shared = min(alone.shape[1], mixed.shape[1])
    assert torch.equal(alone[:, :shared], mixed[:, :shared])


LATE = {
    "top_h": {"top_h": 0.4},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=2.0)},
    "renormalize": {"renormalize_logits": True},
}


@pytest.mark.parametrize("name", LATE)
def test_equal_temperatures_are_one_temperature(pair, name):
    """Catches a temperature that comes after what upstream runs after it."""
    call = {**ragged_batch(3), "assistant_model": pair[1], "verifier": "static:0.5", "max_new_tokens": 8, **LATE[name]}
    call |= {"do_sample": True, "top_k": 0, "output_scores": True, "return_dict_in_generate": True}
    outputs = []
    for temperature in ({"temperature": 0.3}, {"diversed_temperature": [0.3] * 3}):
        torch.manual_seed(0)
        outputs.append(pair[0].generate(**call, **temperature))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    torch.testing.assert_close(outputs[0].scores[0], outputs[1].scores[0])


def test_greedy_rows_are_their_greedy_call(pair):
    """Catches warpers of sampled rows (and upstream's default top_k=50) in the distributions that greedy rows mix."""
    target, draft = pair
    call = {**ragged_batch(8), "assistant_model": draft, "verifier": "static:0.5", "max_new_tokens": 16}
    mixed = target.generate(**call, do_sample=True, top_k=2, diversed_temperature=[0.0] * 7 + [1.0])
    greedy = target.generate(**call, do_sample=False)
    width = min(mixed.shape[1], greedy.shape[1])
    assert torch.equal(mixed[:7, :width], greedy[:7, :width])


@pytest.mark.parametrize(("mode", "engine"), [({}, "eager"), (STATIC, "static")])
def test_sequences_of_a_prompt_share_its_settings(pair, mode, engine):
    """Catches the strictness or temperature of another prompt in calls with several sequences per prompt."""
    batch, settings = ragged_batch(), {"diversed_strictness": [0.2, 0.5, 0.7, 1.0]}
    settings["diversed_temperature"] = [0.0, 0.7, 1.0, 1.3]
    repeated = {name: values.repeat_interleave(3, dim=0) for name, values in batch.items()}
    repeated |= {name: [value for value in values for _ in range(3)] for name, values in settings.items()}
    call = {"assistant_model": pair[1], "diversed_head": tiny_head(), "do_sample": True, "top_k": 0, **mode}
    call |= {"max_new_tokens": 12, "return_dict_in_generate": True}
    outputs = []
    for given in (batch | settings | {"num_return_sequences": 3}, repeated):
        torch.manual_seed(0)
        out = pair[0].generate(**call, **given)
        assert out.stats.engine == engine
        outputs.append(out.sequences)
    assert torch.equal(*outputs)
    assert [len(set(map(tuple, rows))) for rows in outputs[0].view(4, 3, -1).tolist()] == [1, 3, 3, 3]


def test_forbidden_tokens_stay_forbidden_when_tempered(pair):
    """Catches a ban by the lowest finite number, which the row's temperature makes too weak."""
    target, _ = pair
    ids = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 8, 5, 6]])

    class Ban(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, 7] = torch.finfo(scores.dtype).min
            return scores

    call = {"prompt_lookup_num_tokens": 3, "verifier": "static:0.0", "do_sample": True, "max_new_tokens": 12}
    out = target.generate(ids, **call, logits_processor=LogitsProcessorList([Ban()]), diversed_temperature=[2.0])
    assert 7 not in out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("given", [[0.5], [0.5, -1.0], [0.5, float("inf")], [0.1, 0.2, 0.3]])
def test_refusals(pair, given):
    """Catches one temperature for several rows, and invalid numbers."""
    target, draft = pair
    call = {**ragged_batch(2), "assistant_model": draft, "verifier": "lossless", "max_new_tokens": 4}
    with pytest.raises(ValueError, match=r"finite numbers >= 0 .* one per prompt \(2\)"):
        target.generate(**call, do_sample=True, diversed_temperature=given)
    for other in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7}):
        with pytest.raises(ValueError, match="needs do_sample=True and temperature"):
            target.generate(**call, **other, diversed_temperature=[0.5, 0.0])
