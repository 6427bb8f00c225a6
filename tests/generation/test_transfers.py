"""Transfers between host and device in a round: one to the host, and none to the device."""

import itertools
from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from hf_diversed import DiversedVerifier, PhaseVerifier, StaticEnsembleVerifier, diversed_decoding
from hf_diversed.generation import loop, runner, static
from hf_diversed.generation.runner import RaggedModel
from hf_diversed.verifiers import build_verifier
from tests.generation.modes import STATIC, shallow
from tests.tiny import ragged_batch, tiny_head


class Transfers(TorchDispatchMode):
    """Counts operations that would wait for the device or send data to it, outside of the models' forwards. On a CPU
    nothing is moved, but the same calls are made: numbers read from tensors, tensors made of numbers, and indices by
    bool, whose count the host needs. `tolist` does not reach the dispatcher and is counted separately."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")

    def __init__(self):
        super().__init__()
        self.seen, self.paused = Counter(), False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[-1]
        by_bool = name in ("index", "index_put_") and any(
            torch.is_tensor(index) and index.dtype == torch.bool for index in args[1]
        )
        if not self.paused and (name in self.READS or by_bool):
            self.seen["reads"] += 1
        elif not self.paused and name == "lift_fresh":
            self.seen["uploads"] += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch, rounds: list[Counter]):
    """Collect the transfers of each round; the loop's own work between two blocks is one round."""
    transfers, tolist = Transfers(), torch.Tensor.tolist
    room = loop.run_rounds.__globals__["commit"]

    def counting_tolist(tensor):
        transfers.seen["reads"] += 1
        return tolist(tensor)

    def pausing(forward):
        def run(*args, **kwargs):
            transfers.paused = True
            try:
                return forward(*args, **kwargs)
            finally:
                transfers.paused = False

        return run

    def committing(*args):
        tally = room(*args)
        rounds.append(Counter(transfers.seen))
        return tally

    monkeypatch.setattr(torch.Tensor, "tolist", counting_tolist)
    monkeypatch.setattr(RaggedModel, "forward", pausing(RaggedModel.forward))
    monkeypatch.setattr(static, "run_model", pausing(static.run_model))
    monkeypatch.setattr(static.StaticModel, "is_worth_compacting", lambda *_: False)
    monkeypatch.setattr(loop, "commit", committing)
    monkeypatch.setattr(runner, "COMPACT_AT", 0.0)  # compacting adds a transfer
    with transfers:
        yield


def test_transfers_are_counted():
    """Catches a counter that misses transfers, so that the other tests could not fail."""
    with Transfers() as transfers:
        values = torch.tensor([1.0, 2.0])
        assert transfers.seen == Counter(uploads=1)
        values.sum().item()
        values[values > 1.0]
        values[values > 1.0] = values[:1]
        values.nonzero()
        values.masked_select(values > 1.0)
        torch.equal(values, values)
        torch.unique(values)
    assert transfers.seen == Counter(uploads=1, reads=7)


MAKERS = {
    "lossless": lambda: build_verifier("lossless"),
    "static": lambda: build_verifier("static:0.5"),
    "hidden head": lambda: DiversedVerifier(tiny_head(), strictness=[0.2, 0.5, 0.7, 1.0], max_bias=0.3),
    "token head": lambda: DiversedVerifier(
        tiny_head(token_features=True), strictness=[0.2, 0.5, 0.7, 1.0], max_ratio=10.0
    ),
    "distribution head": lambda: DiversedVerifier(tiny_head(features="distribution")),
    "phase": lambda: PhaseVerifier(StaticEnsembleVerifier(0.2), begin=30, end=17),
    "block": lambda: build_verifier("block:static:0.5"),
    "fly": lambda: build_verifier("fly"),
}
GREEDY = ("static", "token head", "fly")


@pytest.mark.parametrize("mode", [{}, STATIC], ids=["eager", "static"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_round_has_one_transfer(pair, name, mode, monkeypatch):
    """Catches lengths, draft lengths or flags that are read or sent more than once per round."""
    target, draft = shallow(pair)
    do_sample = name not in GREEDY
    rounds: list[Counter] = []
    loop = partial(diversed_decoding, assistant_model=draft, verifier=MAKERS[name]())
    with counted(monkeypatch, rounds):
        call = {**ragged_batch(), "max_new_tokens": 32, "do_sample": do_sample, "top_k": 0, **mode}
        target.generate(**call, custom_generate=loop)
    assert len(rounds) > 4
    per_round = [after - before for before, after in itertools.pairwise(rounds)]
    assert per_round == [Counter(reads=1)] * len(per_round)


def test_processors_of_the_prefix_send_nothing_either(pair, monkeypatch):
    """Catches columns and counts that are sent for every processor that reads the prefix."""
    target, draft = pair
    rounds: list[Counter] = []
    chain = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(0.9)])
    loop = partial(diversed_decoding, assistant_model=draft, verifier=build_verifier("lossless"))
    with counted(monkeypatch, rounds):
        target.generate(
            **ragged_batch(), custom_generate=loop, logits_processor=chain, max_new_tokens=24, do_sample=True, top_k=0
        )
    per_round = [after - before for before, after in itertools.pairwise(rounds)]
    assert per_round == [Counter(reads=1)] * len(per_round)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_round_waits_once_on_a_device(pair):
    """The same on a device, whose runtime raises at every other synchronisation."""
    target, draft = (model.cuda() for model in pair)
    commit = loop.commit

    def committing(*args):
        torch.cuda.set_sync_debug_mode("default")
        try:
            return commit(*args)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    loop.commit = committing
    try:
        inputs = {name: values.cuda() for name, values in ragged_batch().items()}
        target.generate(**inputs, assistant_model=draft, verifier="static:0.5", max_new_tokens=24)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        loop.commit = commit
        target.cpu(), draft.cpu()
