"""Every verifier and its round are one graph for `torch.compile`, as the compiled engine requires."""

from dataclasses import fields

import pytest
import torch

from hf_diversed.blocks import DraftOutput, TargetOutput
from hf_diversed.generation.loop import verify
from hf_diversed.sampling import RoundNoise
from hf_diversed.verifiers import DiversedVerifier
from tests.verifier_cases import VERIFIER_CASES, make_block, random_head


OUTCOME = ("num_drafted", "num_accepted", "next_token", "num_emitted", "ended", "faults")


def _one_per_verifier():
    first = {case.rule: case.make for case in reversed(VERIFIER_CASES)}
    yield from first.items()
    settings = {"strictness": [0.2, 0.5, 0.7, 1.0], "max_bias": 0.3}
    yield "settings", lambda: DiversedVerifier(random_head(), **settings)
    yield "token", lambda: DiversedVerifier(random_head(token_features=True))
    by_token = random_head("mlp", "both", token_features=True)
    yield "token settings", lambda: DiversedVerifier(by_token, **settings, max_ratio=5.0)
    yield "distribution", lambda: DiversedVerifier(random_head(features="distribution"))


MAKERS = dict(_one_per_verifier())


def test_only_phases_use_the_ids():
    """Catches a verifier that compiled rounds exclude without a reason."""
    assert {name for name, make in MAKERS.items() if make().needs_input_ids} == {"phase"}


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "greedy"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_round_is_one_graph(name, sampled):
    """Catches caches that take locks, branches on values, and Python state that cannot be traced."""
    verifier = MAKERS[name]()
    draft, target = make_block("random", "ties", sampled=sampled)
    batch, ids = len(draft.tokens), torch.arange(5).expand(len(draft.tokens), -1)
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(draft.tokens.shape, generator=generator)
    round_noise = RoundNoise(uniforms, torch.rand(batch, 1, generator=generator)) if sampled else RoundNoise()
    row_values = verifier.row_values(batch, ids.device)
    eos = torch.tensor([1])

    def run(ids, draft_tensors, target_tensors, row_values, round_noise):
        q, p = DraftOutput(**draft_tensors, sampled=sampled), TargetOutput(**target_tensors)
        round = verify(verifier, ids, q, p, row_values, eos, RoundNoise(*round_noise), checks=False)
        return {name: getattr(round, name) for name in OUTCOME}

    arguments = ids, _tensors(draft), _tensors(target), row_values, (round_noise.uniforms, round_noise.noise)
    torch.compiler.reset()
    traced = torch.compile(run, backend="eager", fullgraph=True)
    with torch.no_grad():
        expected, found = run(*arguments), traced(*arguments)
    for key, values in expected.items():
        assert torch.equal(found[key], values), key


def _tensors(block) -> dict[str, torch.Tensor]:
    values = {item.name: getattr(block, item.name) for item in fields(block) if item.init}
    return {key: value for key, value in values.items() if torch.is_tensor(value)}
