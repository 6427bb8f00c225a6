"""Regression of the cost of a token: planted costs, the price, folds by prompt, and decoding with the head."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from hf_diversed import DiversedHead, DiversedVerifier, load_demo_pair
from hf_diversed.cli.training import call
from hf_diversed.provenance import weights_digest
from hf_diversed.tasks import get_task, load_records
from hf_diversed.training.counterfactual import FitSettings, fit_head
from hf_diversed.training.labels import ABOUT_PAIR, Labels, load_labels
from tests.commands import succeed
from tests.tiny import ragged_batch, tiny_draft, tiny_model


WIDTH, LOOKAHEAD, PROMPTS, PER_PROMPT = 32, 2, 60, 5


@torch.no_grad()
def planted(cost=lambda inputs: inputs["token"][:, 0], noise: float = 0.0) -> Labels:
    """Random inputs, with a cost that is a function of them."""
    generator, count = torch.Generator().manual_seed(1), PROMPTS * PER_PROMPT
    shapes = {"features": (8,), "token": (5,), "lookahead": (LOOKAHEAD, 4), "target_after": (WIDTH,)}
    inputs = {name: torch.randn(count, *shape, generator=generator) for name, shape in shapes.items()}
    values = cost(inputs).double() + noise * torch.randn(count, generator=generator).double()
    scores = torch.stack([torch.zeros_like(values), values], dim=1)[..., None].repeat(1, 1, 2)
    sampling = {"num_assistant_tokens": 3, "temperature": 1.0}
    sizes = {"target_hidden_size": WIDTH, "draft_hidden_size": WIDTH, "vocab_size": 64}
    about = {"task": "math", **dict.fromkeys(ABOUT_PAIR), **sizes}
    prompt = torch.arange(PROMPTS).repeat_interleave(PER_PROMPT)
    return Labels({**about, "sampling": sampling}, scores, prompt, inputs)


@pytest.mark.parametrize("head_type", ["linear", "mlp"])
def test_price_separates_cheap_tokens_from_expensive_ones(head_type: str):
    """Catches a sign, a price in other units than the cost, and a strictness that does not move the price."""
    labels = planted()
    settings = FitSettings(head_type, lookahead=0, target_after=False, kept_share=0.3)
    head, report = fit_head(labels, settings)
    predicted = report["price"] + head(**labels.inputs).double() * report["spread"] / settings.sharpness
    error = (predicted - labels.cost).square().mean() / labels.cost.var()
    assert error < (0.01 if head_type == "linear" else 0.2)
    assert (labels.cost < report["price"]).double().mean() == pytest.approx(0.3, abs=0.03)
    stricter = report["price"] - report["spread"] * torch.logit(torch.tensor(0.8))
    shifted = head(**labels.inputs) + head.ratio_slope() * torch.logit(torch.tensor(0.8))
    assert torch.equal(shifted < 0.0, predicted.float() < stricter)


def test_ridge_regression_is_the_exact_one():
    """Catches a penalty on the intercept, and values that were centred in one place only."""
    labels = planted(lambda inputs: 3.0 + inputs["features"][:, 2], noise=1.0)
    settings = FitSettings(lookahead=0, target_after=False, sharpness=1.0)
    head, report = fit_head(labels, settings)
    values = torch.cat([labels.inputs["features"], labels.inputs["token"]], dim=-1).double()
    values = (values - values.mean(0)) / values.std(0, correction=0)
    gram = values.T @ values + report["penalty"] * torch.eye(values.shape[1]).double()
    expected = torch.linalg.solve(gram, values.T @ (labels.cost - labels.cost.mean()))
    torch.testing.assert_close(head.out.weight[0].detach().double() * report["spread"], expected, rtol=1e-4, atol=1e-6)
    mean = head.out.bias.item() * report["spread"] + report["price"]
    assert mean == pytest.approx(float(labels.cost.mean()), rel=1e-5)


def test_folds_keep_prompts_together():
    """Catches folds of labels: what is peculiar to a prompt would then count as explained."""
    generator = torch.Generator().manual_seed(2)
    labels = planted(lambda inputs: torch.randn(PROMPTS, generator=generator).repeat_interleave(PER_PROMPT))
    own = torch.randn(PROMPTS, WIDTH, generator=generator)
    labels.inputs["target_after"] = own.repeat_interleave(PER_PROMPT, dim=0)
    assert fit_head(labels, FitSettings())[1]["r2"] < 0.05


def test_a_head_decodes_as_the_saved_one(tmp_path):
    """Catches inputs, or the scale of the strictness, that are not stored with the head."""
    head, _ = fit_head(planted(noise=1.0), FitSettings())
    head.save_pretrained(tmp_path)
    loaded = DiversedHead.from_pretrained(tmp_path)
    target = tiny_model("llama")
    call = {"assistant_model": tiny_draft(target), "do_sample": True, "max_new_tokens": 12, "num_assistant_tokens": 3}
    texts = []
    for each in (head, loaded):
        torch.manual_seed(0)
        texts.append(target.generate(**ragged_batch(), diversed_head=each, diversed_strictness=0.4, **call))
    assert torch.equal(*texts)
    verifier = DiversedVerifier(loaded)
    assert verifier.needs_hidden_states
    assert verifier.num_assistant_tokens == 3


def test_refusals():
    for wrong in ({"kept_share": 1.0}, {"sharpness": 0.0}, {"folds": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must"):
            FitSettings(**wrong)
    labels = planted()
    with pytest.raises(ValueError, match="need labels with these inputs"):
        fit_head(labels, FitSettings(lookahead=LOOKAHEAD + 1))
    with pytest.raises(ValueError, match="at least 61 prompts are needed"):
        fit_head(labels, FitSettings(folds=PROMPTS + 1))
    with pytest.raises(ValueError, match="all 300 labels have the same cost, 0; collect"):
        fit_head(planted(lambda inputs: torch.zeros(len(inputs["token"]))), FitSettings())
    without = dataclasses.replace(labels, inputs={name: labels.inputs[name] for name in ("features", "token")})
    assert not fit_head(without, FitSettings())[0].needs_hidden_states
    with pytest.raises(ValueError, match="target_after=True need labels"):
        fit_head(without, FitSettings(target_after=True))


def test_commands_label_and_train(tmp_path):
    """Catches options that do not reach the labels, and a head of other labels than those of the file."""
    labels, folder = str(tmp_path / "labels.jsonl"), tmp_path / "head"
    options = ["--num-examples", "6", "--batch-size", "6", "--rejections", "2", "--continuations", "1"]
    options += ["--max-new-tokens", "12", "--temperature", "1", "--lookahead", "2", "--device", "cpu"]
    succeed("label", "--task", "summary", "--output", labels, *options)
    assert load_labels(Path(labels)).settings["rejections"] == 2
    prompts = tmp_path / "prompts.jsonl"
    records = load_records(get_task("summary"), "train", 3)
    prompts.write_text("".join(json.dumps({"prompt": record["prompt"]}) + "\n" for record in records))
    alone = str(tmp_path / "alone.jsonl")
    without_references = [
        "--agreement",
        "--data-file",
        str(prompts),
        "--output",
        alone,
        *options,
        "--temperature",
        "0",
    ]
    succeed("label", "--task", "summary", *without_references)
    assert load_labels(Path(alone)).settings["metric"] == "agreement"
    command = ["--task", "summary", "--objective", "counterfactual", "--output-dir", str(folder)]
    call([*command, "--labels", labels, "--kept-share", "0.6"])
    head = DiversedHead.from_pretrained(folder)
    assert (head.lookahead, head.target_after, head.config.task) == (2, True, "summary")
    assert head.config.base_model_digest == weights_digest(load_demo_pair().target)
    record = json.loads((folder / "provenance.json").read_text())
    assert record["options"]["labels"] == "labels.jsonl"  # without folders
    assert record["counterfactual"]["fit"]["kept_share"] == 0.6
    assert record["counterfactual"]["labels_provenance"]["seed"] == 0
    regression = record["counterfactual"]["regression"]
    assert regression["num_labels"] > 5
    for wrong, message in (
        (["--objective", "counterfactual"], "belong together"),
        (["--labels", labels], "belong together"),
        (["--objective", "other"], "must be rollouts or counterfactual"),
        (
            [*command[2:4], "--labels", labels, "--draft", "a", "--chat", "--max-steps", "8", "--weight-decay", "0.1"],
            "counterfactual: --draft, --chat, --max-steps, --weight-decay",
        ),
        (["--kept-share", "0.7"], "not used with --objective rollouts: --kept-share"),
    ):
        with pytest.raises(ValueError, match=message):
            call(["--task", "summary", "--output-dir", str(tmp_path / "new"), *wrong])
