"""What vLLM's kernels emit with the plugin's logits: 20,000 draws for each of some verifiers, at V = 8.

Seeds are fixed. Each test fails for a correct distribution with a probability of at most `FALSE_ALARM`.
"""

from types import SimpleNamespace

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler

from hf_diversed.head import DiversedHead
from hf_diversed.serving.vllm import runner_v1
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.logits import RequestSettings, served_logits
from hf_diversed.verifiers import DiversedVerifier, Verifier, build_verifier
from hf_diversed.zoo.loader import HEADS, MIXTURE, WEIGHTS
from tests.serving.kernels import emitted, verify
from tests.vllm.statistics import FALSE_ALARM, VOCAB, distributions, p_value


DRAWS = 20_000
# The kernels see logits only, so one verifier of each kind suffices; `tests/serving/test_logits.py` has all of them.
SPELLED = ["lossless", "static:0.0", "static:0.5", "lenience:0.3", "typical:0.3:0.6"]


def head(kind: str) -> DiversedVerifier:
    return DiversedVerifier(DiversedHead.from_pretrained(WEIGHTS / kind / "math").eval().requires_grad_(False))


CASES = [(name, build_verifier, name, RequestSettings(1)) for name in SPELLED]
for kind in (HEADS, MIXTURE):
    CASES += [
        (f"{kind}", head, kind, RequestSettings(1)),
        (f"{kind}-strictness", head, kind, RequestSettings(1, strictness=0.3)),
        (f"{kind}-bounds", head, kind, RequestSettings(1, strictness=0.2, max_bias=0.1, max_ratio=2.5)),
    ]
every_case = pytest.mark.parametrize(
    ("make", "argument", "settings"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """Set up the kernels as a worker does."""
    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    runner_v1.wrap_verification(rejection_sampler)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def draw(
    verifier: Verifier, settings: RequestSettings, logits: torch.Tensor, q: torch.Tensor | None, drafts: torch.Tensor
):
    """Return the first emitted tokens, long `[N]`, and which draft tokens were accepted, bool `[N]`."""
    count = len(drafts)
    deployment = Deployment(("verifier",), (verifier,), {}, None, one_hot=q is None)
    metadata = SimpleNamespace(
        all_greedy=False, all_random=True, temperature=torch.ones(count), generators={}, top_k=None, top_p=None
    )
    with runner_v1.verifying(runner_v1.Batch(deployment, [settings] * count)):
        out = rejection_sampler.rejection_sample(
            drafts.int(),
            [1] * count,
            1,
            torch.arange(1, count + 1, dtype=torch.int32),
            None if q is None else q.expand(count, -1).contiguous(),
            logits.expand(count, -1).contiguous(),
            torch.zeros(count, 1, dtype=torch.int32),
            metadata,
        )
    return out[:, 0].long(), out[:, 1] >= 0


@every_case
def test_kernels_emit_the_distribution(make, argument, settings):
    """Catches a kernel that differs from the reference in `tests/serving/kernels.py`, on which the enumerations rely:
    the emitted distribution, and the acceptance rate."""
    verifier = make(argument)
    logits, q = distributions()
    drafts = torch.multinomial(q, DRAWS, replacement=True)
    tokens, accepted = draw(verifier, settings, logits, q, drafts)
    table = torch.tensor([settings.row()] * VOCAB)  # one row for each draft token
    rows = (logits.expand(VOCAB, -1), q.expand(VOCAB, -1), torch.arange(VOCAB))
    ours = served_logits([verifier], {settings}, table, *rows)[None]
    kept, replacement = verify(ours, q.expand_as(ours))
    expected = emitted(kept, replacement, q.double()[None])[0]
    assert p_value(torch.bincount(tokens, minlength=VOCAB).double(), expected) > FALSE_ALARM
    rate = (q.double() * kept[0]).sum()
    both = torch.tensor([accepted.sum(), DRAWS - accepted.sum()]).double()
    assert p_value(both, torch.stack([rate, 1.0 - rate])) > FALSE_ALARM


@pytest.mark.parametrize(("name", "accept"), [("lossless", 1.0), ("lenience:0.3", 1.0 / 0.3), ("static:0.6", None)])
def test_draft_tokens_without_distributions(name, accept):
    """Catches greedy and looked-up draft tokens that are verified as if they had been sampled. `accept` is the factor
    of p(x) in the acceptance probability; the static mixture accepts with probability w p(x) + 1 - w."""
    logits, _ = distributions()
    p = logits.double().softmax(-1)
    for draft in (int(logits.argmax()), int(logits.argsort()[3])):
        tokens, accepted = draw(build_verifier(name), RequestSettings(1), logits, None, torch.full((DRAWS,), draft))
        kept = 0.6 * p[draft] + 0.4 if accept is None else (accept * p[draft]).clamp_max(1.0)
        expected = (1.0 - kept) * p / (1.0 - p[draft])
        expected[draft] = kept
        assert p_value(torch.bincount(tokens, minlength=VOCAB).double(), expected) > FALSE_ALARM
        assert torch.equal(accepted, tokens == draft)


def test_the_expansion_is_mended():
    """Catches uninitialised temperatures (vllm-project/vllm#55005), whether or not vLLM has fixed them."""
    runner_v1.fix_expand_batch_to_tokens(rejection_sampler)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = rejection_sampler.expand_batch_to_tokens(torch.tensor([0.7, 0.2, 0.0]), ends, 5, 0, 1)
    assert found.tolist() == pytest.approx([0.7, 0.7, 1.0, 1.0, 1.0])
