"""The provenance stored with every result, and what it must not contain."""

import json
import re
import shlex
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import SchedulerType

from hf_diversed.provenance import model_digest, provenance, publishable, recorded, recorded_settings
from tests.tiny import tiny_model


ROOT = Path(__file__).parent.parent
SECRET = "hf_" + "aB3" * 10
RESULT_COMMANDS = [
    command
    for page in sorted((ROOT / "docs").glob("*.md"))
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for line in block.replace("\\\n", " ").splitlines()
    if re.match(r"hf-diversed (evaluate|train|label|calibrate) ", command := line.partition(" #")[0].strip())
]


COMMANDS_WITH_SECRETS = [
    (["--hub_token", SECRET, "--task", "math"], ["--hub_token", "--task", "math"]),
    (["--hub_token", "a password", "--seed", "1"], ["--hub_token", "--seed", "1"]),
    ([f"--hub_token={SECRET}"], ["--hub_token"]),
    (["--token", "a", "b"], ["--token"]),
    (["--token", "--seed", "1"], ["--token", "--seed", "1"]),
    (["--model_args", f"pretrained=org/target,token={SECRET}"], ["--model_args"]),
    (["--model_args=token=mysecret,pretrained=x"], ["--model_args"]),
    (["--model_init_kwargs", '{"token": "mysecret"}'], ["--model_init_kwargs"]),
    (["-t", "mysecret"], ["-t"]),
    (["--launch", "run --token mysecret --seed 1"], ["--launch"]),
    (["--target", SECRET], ["--target", "***"]),
    (["--target", f"hf_oauth_{SECRET[3:]}"], ["--target", "***"]),
    (["--target", f"hf_jwt_{SECRET[3:]}.a-b_c"], ["--target", "***"]),
    (["--draft", "org/hf_diversed-drafts-of-many-sizes"], None),
    (["--adam-beta1", "0.9", "--use_cpu", "true", "--low", "-0.5"], None),
    (["--num-assistant-tokens", "3,5", "--chat", "--methods", "target,diversed:org/head@main@0.5"], None),
    (["--objective", "counterfactual", "--labels", "labels.jsonl"], None),
    (["--choices", '{"max_steps":8}', "--draft", "../models/draft", "--token-features"], None),
]


@pytest.mark.parametrize(("given", "expected"), COMMANDS_WITH_SECRETS)
def test_text_of_unknown_options_is_not_recorded(given, expected):
    """Catches a token that is pushed to the Hub with the command that it was passed to, and lost settings."""
    assert recorded(["train", *given]) == ["train", *(given if expected is None else expected)]


@pytest.mark.parametrize("command", RESULT_COMMANDS)
def test_documented_commands_are_recorded_whole(command):
    """Catches an option of a documented command whose value no record would contain."""
    words = shlex.split(command)
    assert recorded(words) == words


def test_an_installed_package_has_no_commit(tmp_path, monkeypatch):
    """Catches the commit of a user's project, in whose folder the environment lies."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    installed = tmp_path / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    (tmp_path / ".gitignore").write_text(".venv\n")
    git("init", "--quiet")
    git("add", ".gitignore")
    git("commit", "--quiet", "--message", "one")
    monkeypatch.setattr("hf_diversed.provenance.__file__", str(installed))
    assert provenance()["git_commit"] is None
    git("add", "--force", str(installed))
    assert provenance()["git_commit"].endswith("-dirty")


def test_a_report_of_a_gpu_run_without_a_gpu(monkeypatch):
    """Catches a query of a GPU that this machine lacks."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert provenance(0, "cuda")["device"].startswith("cuda")


def test_nested_settings_are_recorded_by_name():
    """Catches a token in `model_init_kwargs`, and a data type that is lost."""
    settings = {
        "mode": "distill",
        "model_init_kwargs": {"token": "short", "dtype": "bfloat16", "proxies": {"a": "b"}, "headers": ["short"]},
    }
    assert recorded_settings(settings) == {"mode": "distill", "model_init_kwargs": {"dtype": "bfloat16"}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--data_file", "../../home/mysecret/x.jsonl"], ["--data_file", "x.jsonl"]),
        (["--data_file", "./../../root/mysecret/x.jsonl"], ["--data_file", "x.jsonl"]),
        (["--data_file=~/mysecret/x"], ["--data_file=x"]),
        (["file:///home/mysecret/x"], ["x"]),
        (["/root/mysecret/run.yaml", "--config=/home/mysecret/my run.yaml"], ["run.yaml", "--config=my run.yaml"]),
        (["lossless,diversed:/home/mysecret/head@0.7"], ["lossless,diversed:head@0.7"]),
        (["C:\\Users\\mysecret\\x.txt"], ["x.txt"]),
        ([f"x{SECRET}"], ["x***"]),
        ({"diversed:/home/mysecret/head": [1]}, {"diversed:head": [1]}),
    ],
)
def test_paths_of_this_machine_are_shortened(given, expected):
    """Catches a user's folder that is pushed to the Hub."""
    assert publishable(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        ["target,lossless,static:0.5,spec_cascade:token_v3:0.5,diversed@0.7", "diversed:org/head@main@0.5"],
        ["../models/draft", "./runs/x", "home/model", "https://host/home/x", "s3://bucket/a/b", "git@host:org/x"],
        ["</s>", "+/-", "accepted / drafted", "1/2/3", "Fliesen und/oder Tokens: 5", "key"],
        {"num_assistant_tokens": 5, "token": None, "seed": 1, "eos_token": "</s>", "pad_token_id": 0, "skip": True},
        {"seconds_per_token": [0.1, 0.2], "tokens_per_second": 3.5, "rules": {"spec_cascade:token_v3:0.5": ["x"]}},
    ],
)
def test_everything_else_stays(given):
    """Catches the removal of options that resemble secrets, of ids, addresses, and folders outside home folders."""
    assert publishable(given) == given


def test_committed_records_are_publishable():
    """Catches a pattern that would remove or shorten entries of our own records."""
    files = [
        *(ROOT / "results").glob("*.json"),
        *(ROOT / "hf_diversed" / "zoo" / "weights").glob("**/provenance.json"),
    ]
    assert len(files) > 3
    for path in files:
        text = path.read_text()
        assert json.dumps(publishable(json.loads(text))) == json.dumps(json.loads(text)), path


def test_device_is_that_of_the_models():
    """Catches a GPU that is recorded because it is available, not because it was used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: f"Accelerator {device}")
        assert provenance(0, "cpu")["device"].startswith("cpu (")
        assert provenance(0)["device"].startswith("cpu (")
        assert provenance(0, "cuda:1")["device"] == "Accelerator cuda:1"


def test_packages_that_are_not_installed_have_no_version(monkeypatch):
    """Catches a record that cannot be made without peft, which is optional."""

    def version(name: str) -> str:
        if name == "peft":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("hf_diversed.provenance.version", version)
    versions = provenance()["versions"]
    assert "peft" not in versions
    assert versions["torch"] == "1.0"


def test_choices_are_recorded_by_their_values():
    """Catches "SchedulerType.LINEAR" in a record, which training does not accept."""
    assert publishable({"lr_scheduler_type": SchedulerType.LINEAR}) == {"lr_scheduler_type": "linear"}
    assert type(publishable(SchedulerType.LINEAR)) is str


def test_model_digest_covers_every_tensor():
    """Catches a digest of the output embedding alone, which is equal for models with different layers."""
    model = tiny_model()
    found = {model_digest(model)}
    for count, parameter in enumerate(model.parameters(), start=2):
        with torch.no_grad():
            parameter.mul_(1.25)
        found.add(model_digest(model))
        assert len(found) == count


def test_model_digest_survives_copies_and_names(tmp_path):
    """Catches a digest that depends on the source path of a model, and one that changes when the model is saved."""
    model = tiny_model()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    loaded.config.pad_token_id = 5
    loaded.set_attn_implementation("eager")
    assert model_digest(loaded) == model_digest(model)
    assert model_digest(loaded.to(torch.bfloat16)) != model_digest(model)
    model.config.rms_norm_eps = 0.5
    assert model_digest(type(model)(model.config)) != model_digest(tiny_model())


def test_model_digest_covers_active_adapters():
    """Catches a digest that ignores a disabled adapter, which changes no weight."""
    model = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    active = model_digest(model)
    with model.disable_adapter():
        assert model_digest(model) != active
    assert model_digest(model) == active


def test_model_digest_is_cached(monkeypatch):
    """Catches weights that are read again at every call."""
    model = tiny_model()
    digest = model_digest(model)
    monkeypatch.setattr("hf_diversed.provenance.digest_of", None)
    assert model_digest(model) == digest
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    with pytest.raises(TypeError):
        model_digest(model)


def test_the_cpu_has_its_name(monkeypatch):
    """Catches results whose machine cannot be identified."""
    read_text, cpus = Path.read_text, {Path("/proc/cpuinfo"): "processor : 0\nmodel name : A CPU\n"}
    monkeypatch.setattr(
        Path, "read_text", lambda path, *args, **kwargs: cpus.get(path) or read_text(path, *args, **kwargs)
    )
    assert provenance(0, "cpu")["device"] == "cpu (A CPU)"
