"""Commands without a draft model: prompt lookup, and a model of the package index by its name."""

import json

from hf_diversed.cli import models
from hf_diversed.cli.training import call
from hf_diversed.formatting import PLAIN
from hf_diversed.generation.recording import record_stats
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.methods import Method, build_methods
from hf_diversed.harness.sampling import Sampling
from hf_diversed.head import DiversedHead
from tests.commands import run, succeed


def test_methods_with_prompt_lookup(folder):
    """Catches a method that requires a draft model, and one that decodes plainly under a verifier's name."""
    pair = models.load_pair(str(folder / "target"), "lookup", "cpu")
    assert pair.draft is None
    decoder = Decoder(pair, Sampling(temperature=0.0, num_assistant_tokens=3, max_new_tokens=12, batch_size=2))
    prompts = [[5, 6, 7, 8, 5, 6], [9, 9, 9, 9]]
    plain, lossless, static = build_methods(["target", "lossless", "static:0.0"])
    assert lossless.generate_kwargs(None, None)["prompt_lookup_num_tokens"] == 5
    reference = decoder(plain, prompts, seed=0)
    assert decoder(lossless, prompts, seed=0).tokens == reference.tokens
    upstream = decoder(Method("upstream", upstream=True), prompts[:1], seed=0)
    assert upstream.tokens == decoder(plain, prompts[:1], seed=0).tokens
    with record_stats() as stats:
        copied = decoder(static, prompts, seed=0)
    assert copied.tokens[1][0] == 9  # at weight 0 the copied token is emitted
    assert stats.num_drafted == stats.num_accepted > 0
    assert stats.draft_forwards == 0


def test_evaluation_with_prompt_lookup(folder, tmp_path):
    """Catches a header that requires the name of a draft, and results with a draft model continued without one."""
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"question": "1 and 1 and 1 and", "answer": "#### 3"}) + "\n")
    options = ("evaluate", "--task", "gsm8k", "--methods", "lossless,static:0.3", "--target", str(folder / "target"))
    options += ("--data-file", str(data), "--num-examples", "1", "--max-new-tokens", "6", "--device", "cpu")
    options += ("--output", str(tmp_path / "out.json"))
    succeed(*options, "--draft", "lookup")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["provenance"]["evaluation"]["draft"] == {"name": "prompt lookup"}
    assert [row["method"] for row in report["records"]] == ["lossless", "static:0.3"]
    assert run(*options, "--draft", str(folder / "draft")).exit_code == 2  # the folder has other settings


def test_training_with_prompt_lookup(folder, tmp_path):
    """Catches a head that cannot be trained without a draft model, or does not decode without one afterwards."""
    data = tmp_path / "data.jsonl"
    row = {"question": "1 and 1 and 1 and 1", "answer": "#### 3"}
    data.write_text(
        "".join(json.dumps(row | {"question": f"{number}{row['question']}"}) + "\n" for number in range(8))
    )
    options = {"task": "gsm8k", "target": folder / "target", "draft": "lookup", "data-file": data, "max-steps": 2}
    options |= {"num-iterations": 1, "per-device-train-batch-size": 8, "per-device-eval-batch-size": 4}
    options |= {"num-generations": 2, "max-completion-length": 12, "eval-steps": 1, "save-steps": 1, "use-cpu": "true"}
    options |= {"report-to": "none", "token-features": "false", "output-dir": tmp_path / "head"}
    trainer = call([f"--{name}={value}" for name, value in options.items()])
    assert any("eval_acceptance_rate" in row for row in trainer.state.log_history)
    head = DiversedHead.from_pretrained(tmp_path / "head")
    assert head.config.assistant_model_name_or_path == "prompt lookup"
    pair = models.load_pair(str(folder / "target"), "lookup", "cpu")
    decoder = Decoder(pair, Sampling(temperature=1.0, num_assistant_tokens=3, max_new_tokens=12))
    with record_stats() as stats:
        decoder(build_methods(["diversed"], head)[0], [[9, 9, 9, 9]], seed=0)
    assert stats.num_drafted > 0


def test_demo_of_a_named_model(folder):
    """Catches a row that fails or is missing, a second engine, and a pair without its draft model."""
    target, draft = str(folder / "target"), str(folder / "draft")
    short = ("--num-examples", "1", "--max-new-tokens", "8", "--device", "cpu", "--repeats", "1")
    result = succeed("demo", "--model", target, "--engine", "eager", *short)
    for words in (PLAIN, "upstream", "lossless", "lenience:0.3", "static:0.5", "looked up in the prompt"):
        assert words in " ".join(result.output.split())
    assert "compiled" not in result.output
    result = succeed("demo", "--model", target, "--engine", "compiled", "--backend", "eager", *short)
    assert "compiled:lenience:0.3" in result.output
    result = succeed("demo", "--model", target, "--draft", draft, "--engine", "eager", *short)
    assert f"from {draft}" in result.output.replace("\n", "")
