"""Two processes under `accelerate launch`, on CPU over gloo, against one process with the same rollouts."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_diversed.head import DiversedHead
from hf_diversed.training.objective import Decisions, MixtureAcceptance, diversed_loss


REPOSITORY = Path(__file__).parents[2]
# Not --cpu, which starts one process only; the worker's use_cpu=True keeps it off any GPU.
LAUNCH = ["--multi_gpu", "--num_machines", "1", "--num_processes", "2"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "accelerate.commands.launch", *LAUNCH, "--main_process_port", port]
    command += ["-m", "tests.training.worker", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def ranks(folder) -> list[dict]:
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


def test_both_hold_the_same_head_and_state(ranks, folder):
    """Catches gradients that are not shared, a multiplier that each process moves by its own rollouts, references that
    only one process stores, and an evaluation that fails or blocks in a process without a prompt."""
    one, two = ranks
    assert all(torch.equal(value, two["head"][name]) for name, value in one["head"].items())
    saved = DiversedHead.from_pretrained(folder / "final")
    assert all(torch.equal(value, one["head"][name]) for name, value in saved.state_dict().items())
    assert one["constraint"] == two["constraint"]
    assert len(one["constraint"]["batches"]) == 2
    assert one["missing"] == two["missing"] == []
    assert one["references"] == two["references"]
    assert len(one["references"]) >= 8  # four prompts of each of two batches
    for rank in ranks:
        assert len([line for line in rank["history"] if "eval_reward" in line]) == 2


def test_rollouts_are_divided(ranks):
    """Catches rollouts that every process draws, one seed for all processes, groups that are divided between devices
    or assigned to both, and a number of steps that depends on the number of processes."""
    assert [rank["num_drawn"] for rank in ranks] == [8, 8]
    assert [len(rank["gradients"]) for rank in ranks] == [4, 4]
    one, two = (rank["batches"][0]["batch"]["decisions"] for rank in ranks)
    assert one.target_prob.tolist() != two.target_prob.tolist()
    for number in range(2):
        one, two = (rank["batches"][number]["prompts"] for rank in ranks)
        assert one[::2] == one[1::2]
        assert two[::2] == two[1::2]
        assert not set(one) & set(two)


def test_gradient_is_that_of_the_whole_batch(ranks, folder):
    """Catches a baseline per process, losses with the wrong divisor, and gradients that are summed, not averaged."""
    batches = [rank["batches"][0]["batch"] for rank in ranks]
    advantage = torch.cat([batch["advantage"] for batch in batches])
    assert advantage.mean().abs() < 1e-6
    assert advantage[:4].mean().abs() > 1e-3
    head = DiversedHead.from_pretrained(folder / "final")
    head.load_state_dict(ranks[0]["batches"][0]["head"])
    parts = [batch["decisions"] for batch in batches]
    whole = Decisions(
        sequence=torch.cat([parts[0].sequence, parts[1].sequence + parts[0].num_sequences]),
        num_sequences=8,
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in Decisions.COLUMNS[1:]},
    )
    inputs = {name: torch.cat([batch["inputs"][name] for batch in batches]) for name in batches[0]["inputs"]}
    old_logit = torch.cat([batch["old_logit"] for batch in batches])
    settings = {"acceptance_coef": ranks[0]["batches"][0]["coef"], "clip_range": 0.2}
    diversed_loss(MixtureAcceptance(), head(**inputs), old_logit, whole, advantage, **settings)[0].backward()
    for name, parameter in head.named_parameters():
        for rank in ranks:
            torch.testing.assert_close(rank["gradients"][0][name], parameter.grad, rtol=1e-4, atol=1e-6)
