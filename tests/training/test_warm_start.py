"""The regression that a head starts from, on rollouts whose law is known."""

import threading

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator

from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.training import warm_start
from hf_diversed.training.objective import Decisions
from tests.training import runs


WIDTH = 4
ALONE = Accelerator(cpu=True)


def new_head() -> DiversedHead:
    return DiversedHead(DiversedHeadConfig(1, WIDTH - 1, features="hidden", normalize=False))


def simulated(slope: torch.Tensor, num_rollouts: int = 3000, tokens: int = 4, seed: int = 0) -> warm_start.Evidence:
    """Rollouts that fail by softplus(slope . x - 2) at every token, and one in twenty for no reason."""
    draw = torch.Generator().manual_seed(seed)
    sequence = torch.arange(num_rollouts).repeat_interleave(tokens)
    x = torch.randn(len(sequence), WIDTH, generator=draw)
    share = torch.rand(len(sequence), generator=draw)
    lost = torch.zeros(num_rollouts).index_add(0, sequence, share * F.softplus(x @ slope - 2.0))
    reward = (torch.rand(num_rollouts, generator=draw) < 0.95 * torch.exp(-lost)).float()
    inputs = {"target_hidden": x[:, :1], "draft_hidden": x[:, 1:]}
    return warm_start.Evidence(
        sequence, share, inputs, reward, torch.arange(num_rollouts) % 4 == 0, num_decisions=10 * num_rollouts
    )


def part(evidence: warm_start.Evidence, first: int, last: int) -> warm_start.Evidence:
    """The rollouts of a range."""
    chosen = (evidence.sequence >= first) & (evidence.sequence < last)
    return warm_start.Evidence(
        evidence.sequence[chosen] - first,
        evidence.share[chosen],
        {name: values[chosen] for name, values in evidence.inputs.items()},
        evidence.reward[first:last],
        evidence.held_out[first:last],
        evidence.num_decisions * (last - first) // len(evidence.reward),
    )


SLOPE = torch.tensor([1.0, -0.5, 0.0, 0.0])


def fitted(evidence: warm_start.Evidence, coef: float = 0.2, accelerator=ALONE) -> DiversedHead:
    head = new_head()
    warm_start.fit(head, evidence, coef, accelerator)
    return head


def test_relaxed_share_is_that_of_one_coin():
    """Catches a share by another coin: what passes under v and would not under p, over what passes under v."""
    draw = torch.Generator().manual_seed(0)
    p, q = (torch.softmax(2 * torch.randn(50, 3, generator=draw), -1).double() for _ in range(2))
    weight = torch.rand(50, generator=draw).double()
    for y in range(3):
        coins = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
        v = weight * p[:, y] + (1 - weight) * q[:, y]
        relaxed, lossless = coins < (v / q[:, y])[:, None], coins < (p[:, y] / q[:, y])[:, None]
        expected = ((relaxed & ~lossless).sum(-1) / relaxed.sum(-1)).double()
        decisions = Decisions(torch.arange(50), p[:, y], q[:, y], p[:, y], torch.ones(50, dtype=torch.bool), 50)
        assert torch.allclose(warm_start.relaxed_share(weight, decisions), expected, atol=1e-4)


def test_rejections_are_not_to_blame():
    """Catches residual tokens, which lossless decoding draws from the same law, among the suspects."""
    half = torch.full((1,), 0.5)
    rejected = Decisions(torch.zeros(1, dtype=torch.long), 0 * half, half, half, torch.tensor([False]), 1)
    assert warm_start.relaxed_share(half, rejected).tolist() == [0.0]


def test_finds_the_harm_and_where_relaxing_stops_to_pay():
    """Catches a fit of something else than the harm, and a threshold in other units than the objective's."""
    head = fitted(simulated(SLOPE), coef=0.2)
    weight = head.out.weight[0].detach() / warm_start.SHARPNESS
    assert torch.allclose(weight, SLOPE, atol=0.2)
    # 10 decisions per rollout: acceptance is worth 0.02 a decision, of a reward that is 0.95 without relaxed tokens.
    step = torch.linspace(-4, 4, 801)[:, None] * SLOPE / SLOPE.norm()
    logit = head(target_hidden=step[:, :1], draft_hidden=step[:, 1:])
    harm = 0.95 * F.softplus(step @ SLOPE - 2.0)
    crossing = harm[logit.abs().argmin()].item()
    assert crossing == pytest.approx(0.02, rel=0.4)
    assert (logit[harm > 0.05] > 0).all()
    assert (logit[harm < 0.008] < 0).all()


def test_noise_is_not_explained():
    """Catches a fit without held-out prompts: inputs that say nothing must leave the head constant."""
    few = simulated(torch.zeros(WIDTH), num_rollouts=400)
    head = fitted(few)
    assert head.out.weight.abs().max() / warm_start.SHARPNESS < 0.2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_start, "PENALTIES", (0.0,))
        assert fitted(few).out.weight.norm() > head.out.weight.norm()


def test_scale_of_the_reward_is_that_of_the_coefficient():
    """Catches rewards that are taken for probabilities: any scale must do."""
    evidence = simulated(SLOPE, num_rollouts=800)
    scaled = part(evidence, 0, 800)
    scaled.reward.mul_(10.0).sub_(3.0)
    expected = fitted(simulated(SLOPE, num_rollouts=800), coef=0.2).state_dict()
    for name, value in fitted(scaled, coef=2.0).state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-2), name


def test_rollouts_without_reward_count_for_nothing():
    """Catches a missing reward that is read as 0, or that turns the fit into nan."""
    evidence = simulated(SLOPE, num_rollouts=400)
    with_gaps = simulated(SLOPE, num_rollouts=400)
    with_gaps.reward[200:] = float("nan")
    assert torch.allclose(fitted(with_gaps).out.weight, fitted(part(evidence, 0, 200)).out.weight, atol=1e-3)
    with_gaps.reward[:] = float("nan")
    with pytest.raises(ValueError, match="every reward of the warm-up is None"):
        fitted(with_gaps)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_change_nothing(reward):
    """Catches a head at infinity where nothing or everything succeeds."""
    evidence = simulated(SLOPE, num_rollouts=40)
    evidence.reward[:] = reward
    assert fitted(evidence).out.weight.abs().max() == fitted(evidence).out.bias.abs() == 0
    evidence.reward[1] = 0.5  # and next to nothing is no reason for it either
    assert all(value.isfinite().all() for value in fitted(evidence).parameters())


def test_batches_are_joined_in_order():
    """Catches tokens that are blamed on a rollout of another batch."""
    whole = simulated(SLOPE, num_rollouts=300)
    joined = warm_start.join([part(whole, 0, 100), part(whole, 100, 130), part(whole, 130, 300)])
    assert torch.equal(joined.sequence, whole.sequence)
    assert joined.num_decisions == whole.num_decisions
    assert torch.equal(fitted(joined).out.weight, fitted(whole).out.weight)


class _Rank:
    """One of two processes, as far as a fit can tell: threads that meet at every reduction."""

    def __init__(self, index: int, slots: list, barrier: threading.Barrier):
        self.index, self.slots, self.barrier = index, slots, barrier

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._exchanged(tensor))

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchanged(tensor)).sum(0)

    def _exchanged(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self.slots[self.index] = tensor.detach().clone()
        self.barrier.wait(timeout=30)
        found = list(self.slots)
        self.barrier.wait(timeout=30)
        return found


def test_processes_fit_one_head():
    """Catches shares of the evidence that are weighed by process, and steps that differ between processes."""
    whole = simulated(SLOPE, num_rollouts=600)
    heads, slots, barrier = [None, None], [None, None], threading.Barrier(2)

    def run(index: int, evidence: warm_start.Evidence) -> None:
        heads[index] = fitted(evidence, accelerator=_Rank(index, slots, barrier)).state_dict()

    jobs = [
        threading.Thread(target=run, args=(i, e)) for i, e in enumerate((part(whole, 0, 500), part(whole, 500, 600)))
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    expected = fitted(whole).state_dict()
    for name, value in expected.items():
        assert torch.equal(heads[0][name], heads[1][name]), name
        assert torch.allclose(heads[0][name], value, atol=2e-2), name


# In the trainer


def test_trainer_warms_new_heads_up(tmp_path):
    """Catches a warm-up that is skipped, and one that overwrites a head that was given."""
    trainer = runs.trainer(tmp_path / "new", warmup_rollouts=32, learning_rate=0.0)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "warmup_loss" in line]
    assert len(logged) == trainer.args.warmup_rounds
    assert trainer.model.out.weight.abs().max() > 0
    assert trainer.model.input_std.ne(1.0).any()
    assert trainer.seconds["warmup"] > 0
    given = DiversedHead.from_pretrained(tmp_path / "new" / "checkpoint-4")
    before = warm_start.state(given)
    again = runs.trainer(tmp_path / "given", head=given, warmup_rollouts=32, learning_rate=0.0)
    again.train()
    assert all(torch.equal(value, before[name]) for name, value in again.model.state_dict().items())


def test_warm_up_is_a_function_of_the_seed(tmp_path):
    """Catches draws that a resumed or repeated run would not repeat."""
    found = []
    for name in ("one", "two"):
        torch.manual_seed(len(found))
        trainer = runs.trainer(tmp_path / name, warmup_rollouts=16, learning_rate=0.0)
        trainer.train()
        found.append(trainer.model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
