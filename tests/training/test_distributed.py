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
from tests.training import runs


REPOSITORY = Path(__file__).parents[2]
# Not --cpu, which starts one process only; the worker's use_cpu=True keeps it off any GPU.
LAUNCH = ["--multi_gpu", "--num_machines", "1", "--num_processes", "2"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]
COLUMNS = ("target_prob", "draft_prob", "tv", "accepted")


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


def test_both_hold_the_same_head(ranks, folder):
    """Catches gradients that are not shared, and a multiplier that each process moves by its own rollouts."""
    one, two = ranks
    assert all(torch.equal(value, two["head"][name]) for name, value in one["head"].items())
    assert one["constraint"] == two["constraint"]
    assert one["constraint"]["attributes"]["batches"] != []
    saved = DiversedHead.from_pretrained(folder / "final")
    assert all(torch.equal(value, one["head"][name]) for name, value in saved.state_dict().items())


def test_processes_draw_different_rollouts(ranks):
    """Catches one seed for all processes, with which they would draw the same completions of a prompt."""
    one, two = (rank["batches"][0]["batch"].decisions for rank in ranks)
    assert one.target_prob.tolist() != two.target_prob.tolist()


def test_as_many_rollouts_as_one_process_draws(ranks, tmp_path):
    """Catches rollouts that every process draws again, and a step count that depends on the number of processes."""
    single = runs.trainer(tmp_path, runs.letters)
    prompts, inner = [], single.sampler.relaxed
    single.sampler.relaxed = lambda given, *rest: prompts.extend(given) or inner(given, *rest)
    single.train()
    assert sum(rank["num_drawn"] for rank in ranks) == len(prompts) == 16
    assert [len(rank["gradients"]) for rank in ranks] == [4, 4]


def test_processes_share_the_prompts_of_a_batch(ranks):
    """Catches groups that are divided between devices, or assigned to both."""
    for number in range(2):
        one, two = (rank["batches"][number]["prompts"] for rank in ranks)
        assert one[::2] == one[1::2]
        assert two[::2] == two[1::2]
        assert not set(one) & set(two)


def test_advantages_are_centred_over_both(ranks):
    """Catches a baseline per process."""
    for number in range(2):
        one, two = (rank["batches"][number]["batch"].advantage for rank in ranks)
        assert one.shape == two.shape == (4,)
        assert torch.cat([one, two]).mean().abs() < 1e-6
        assert one.mean().abs() > 1e-3


def test_gradient_is_that_of_the_whole_batch(ranks, folder):
    """Catches losses with the wrong divisor, or gradients that are summed instead of averaged."""
    batches = [rank["batches"][0]["batch"] for rank in ranks]
    head = DiversedHead.from_pretrained(folder / "final")
    head.load_state_dict(ranks[0]["batches"][0]["head"])
    parts = [batch.decisions for batch in batches]
    whole = Decisions(
        sequence=torch.cat([parts[0].sequence, parts[1].sequence + parts[0].num_sequences]),
        num_sequences=8,
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in Decisions.COLUMNS[1:]},
    )
    inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    old_logit = torch.cat([batch.old_logit for batch in batches])
    advantage = torch.cat([batch.advantage for batch in batches])
    settings = {"acceptance_coef": ranks[0]["batches"][0]["coef"], "clip_range": 0.2}
    diversed_loss(MixtureAcceptance(), head(**inputs), old_logit, whole, advantage, **settings)[0].backward()
    for name, parameter in head.named_parameters():
        for rank in ranks:
            torch.testing.assert_close(rank["gradients"][0][name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_both_have_the_references_of_all_rollouts(ranks):
    """Catches references that only the process which measured them stores."""
    one, two = ranks
    assert one["missing"] == two["missing"] == []
    assert one["references"] == two["references"]
    assert len(one["references"]) >= 8  # four prompts of each of two batches


def test_evaluation_with_fewer_prompts_than_processes(ranks):
    """Catches a process without a prompt that fails, or blocks the others."""
    for rank in ranks:
        assert len([line for line in rank["history"] if "eval_reward" in line]) == 2
