"""Calibration: what is measured, when it ends, and how an interrupted one continues."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hf_diversed.evaluation import EvaluationSettings, evaluate, read_results
from hf_diversed.evaluation.calibration import STRICTNESSES, calibrate, rewards
from hf_diversed.provenance import model_digest, module_digest
from tests.evaluation.fakes import Interrupted, LetterTask, examples, tiny_pair
from tests.tiny import certificate, ragged_batch, tiny_head


SETTINGS = EvaluationSettings(batch_size=10, samples_per_prompt=2, num_assistant_tokens=3)
DROPS, STRICT_TO_PERMISSIVE = (0.001, 0.7), (0.9, 0.5, 0.1)  # twenty prompts tell a point from none never, 70 always


def run(pair, folder: Path, task=None, drops=DROPS, strictnesses=STRICT_TO_PERMISSIVE, head=None, **options):
    task, head = task or LetterTask(), head or tiny_head()
    return calibrate(pair, task, examples(20), head, SETTINGS, drops, folder, strictnesses=strictnesses, **options)


def test_an_interrupted_calibration_continues(pair, tmp_path):
    """Catches calls that are lost or repeated, and a table that differs from that of an uninterrupted run."""
    whole = LetterTask()
    expected = run(pair, tmp_path / "whole", whole)
    with pytest.raises(Interrupted):
        run(pair, tmp_path / "parts", LetterTask(calls_left=7))
    rest = LetterTask()
    assert run(pair, tmp_path / "parts", rest) == expected
    assert rest.num_calls == whole.num_calls - 7 == 2 * 2 * 4 - 7


def test_records_what_was_measured(pair, tmp_path):
    """Catches figures of another strictness, an entry for a failed drop, and a table that its head refuses."""
    head = tiny_head()
    (entry,), tested = run(pair, tmp_path, head=head)
    methods = ["target", *(f"diversed@{value}" for value in STRICT_TO_PERMISSIVE)]
    records = evaluate(pair, LetterTask(), examples(20), methods, SETTINGS, head=head)
    assert [item.strictness for item in tested] == list(STRICT_TO_PERMISSIVE)
    for item, record in zip(tested, records[1:]):
        assert item.drop == pytest.approx(record["quality_drop"])
        assert item.acceptance_rate == record["acceptance_rate"]
    assert [list(item.p_values) for item in tested] == [list(DROPS), [0.7], [0.7]]
    about = {"task": "letters", "metric": "share of lower case", "num_prompts": 20, "num_assistant_tokens": 3}
    about |= {"target": model_digest(pair.target), "draft": model_digest(pair.draft), "head": module_digest(head)}
    about |= {"max_new_tokens": 6, "drop": tested[-1].drop, "acceptance_rate": tested[-1].acceptance_rate}
    assert entry == certificate(max_drop=0.7, strictness=0.1, **about)
    assert head.config.certified_drops == [entry]
    call = {"do_sample": True, "top_k": 0, "max_new_tokens": 6, "return_dict_in_generate": True}
    call |= {"assistant_model": pair.draft, "diversed_head": head}
    out = pair.target.generate(**ragged_batch(), **call, diversed_max_drop=0.7)
    assert out.stats.strictness == 0.1


def test_ends_with_the_last_open_drop(pair, tmp_path):
    """Catches strictness values that are decoded although no result depends on them."""
    task = LetterTask()
    certified, tested = run(pair, tmp_path, task, drops=[0.001])
    assert certified == []
    assert len(tested) == 1
    assert task.num_calls == 2 * 2 * 2


def test_rewards_are_sorted_by_prompt_and_sample(pair, tmp_path):
    """Catches rewards in the order of batches, which are sorted by length: they would be paired with other prompts."""
    (record,) = evaluate(pair, LetterTask(), examples(20), ["target"], SETTINGS, output=tmp_path)
    results = read_results(tmp_path)
    found = rewards(results, "target")
    assert found.shape == (20, 2)
    assert found.mean() == pytest.approx(record["quality"])
    for (_, _, sample), entry in results.entries.items():
        np.testing.assert_array_equal(found[entry["rows"]["prompt"], sample], entry["rows"]["score"])
    assert np.isnan(rewards(results, "diversed")).all()


def test_a_new_calibration_replaces_earlier_ones(pair, tmp_path):
    """Catches two certificates for one call, and certificates of other weights or earlier versions that are kept."""
    head = tiny_head()
    (entry,), _ = run(pair, tmp_path, head=head)
    colder, other, old = {**entry, "temperature": 0.5}, {**entry, "head": "DiversedHead:0"}, dict(entry)
    del old["processors"]
    head.config.certified_drops = [{**entry, "strictness": 0.9}, colder, other, old]
    assert run(pair, tmp_path, head=head)[0] == [entry]
    assert head.config.certified_drops == [colder, entry]
    assert run(pair, tmp_path, head=head, drops=[0.001])[0] == []
    assert head.config.certified_drops == [colder]


def test_a_calibration_of_other_weights_is_refused(tmp_path):
    """Catches a certificate from the results of another draft model with the same name and size."""
    run(tiny_pair(), tmp_path, head=tiny_head())
    other = tiny_pair()
    with torch.no_grad():
        other.draft.get_output_embeddings().weight.mul_(0.5)
    with pytest.raises(ValueError, match=r"holds results of other settings.*weights"):
        run(other, tmp_path, head=tiny_head())


def test_processors_of_the_target_are_certified(tmp_path):
    """Catches a certificate without the processors that the target's own generation config adds."""
    pair, head = tiny_pair(), tiny_head()
    pair.target.generation_config.suppress_tokens = [7, 8]
    (entry,), _ = run(pair, tmp_path, head=head, drops=[0.7])
    (processor,) = entry["processors"]
    assert processor.startswith("SuppressTokensLogitsProcessor(")
    call = {**ragged_batch(), "do_sample": True, "top_k": 0, "max_new_tokens": 6, "assistant_model": pair.draft}
    pair.target.generate(**call, diversed_head=head, diversed_max_drop=0.7)
    with pytest.raises(ValueError, match="processors"):
        pair.target.generate(**call, diversed_head=head, diversed_max_drop=0.7, suppress_tokens=[7, 8, 9])


def test_refusals(pair, tmp_path):
    with pytest.raises(ValueError, match="`strictnesses` must fall from strict to permissive"):
        run(pair, tmp_path, strictnesses=(0.1, 0.9))
    with pytest.raises(ValueError, match="`max_drop` must lie between 0 and 1, got 0"):
        run(pair, tmp_path, drops=(0.0,))
    settings = EvaluationSettings(num_assistant_tokens=None)
    with pytest.raises(ValueError, match="settings with `num_assistant_tokens`"):
        calibrate(pair, LetterTask(), examples(2), tiny_head(), settings, DROPS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_default_strictness_values_are_exact():
    """Catches 0.1 + 0.05 + ... in labels, which would not be found again."""
    assert STRICTNESSES[0] == 0.95
    assert STRICTNESSES[-1] == 0.05
    assert [f"{strictness:g}" for strictness in STRICTNESSES] == [str(strictness) for strictness in STRICTNESSES]
