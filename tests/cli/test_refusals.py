"""Requests that no command can carry out end in a message, before a model is loaded or a file is written."""

import shlex
from pathlib import Path

import pytest

from hf_diversed.zoo.loader import HEADS, WEIGHTS
from tests.commands import refused


HEAD = WEIGHTS / HEADS / "math"
EVALUATE = "evaluate --task math --methods target,static:0.5 --num-examples 2"
TRAIN = "train --task math --output-dir out"
SERVE = "serve org/target --draft org/draft"
CALIBRATE = f"calibrate {HEAD} --task math --num-examples 8"

REFUSED = [
    ("evalate", "No such command 'evalate'"),
    ("push", "Missing argument 'FOLDER'"),
    ("demo --num-examples 0", "--num-examples must be >= 1, got 0."),
    ("demo --engine fast", "--engine must be one of eager, compiled, both"),
    ("demo --model org/chat --num-examples 9", "--num-examples must be at most 8 with --model, got 9."),
    ("push no-such-folder org/head", "FOLDER: the folder no-such-folder does not exist."),
    (f"push {HEAD}", "REPO is missing: name a repository, as in org/name, or pass --card-only or --info."),
    (f"push {HEAD} org/head --info --tags a", "not used with --info: REPO, --tags. Leave them out."),
    (f"push {HEAD} --card-only --create-pr", "not used with --card-only: --create-pr. Leave them out."),
    (f"push {HEAD} org/head --output card.md", "not used without --card-only: --output. Leave them out."),
    (f"push {HEAD} --card-only --info", "--card-only and --info are mutually exclusive; pass only one"),
    ("calibrate no-such-folder --task math", "HEAD: the folder no-such-folder does not exist."),
    (f"{CALIBRATE} --temperature 0 --samples-per-prompt 2", "--samples-per-prompt must be 1 at temperature 0, got 2"),
    (f"{CALIBRATE} --target x --draft lookup", "--draft must be a model for this command, got lookup"),
    (
        "serve org/target --verifier static:0.5 --draft lookup",
        "--draft must be a model, got lookup; for prompt lookup leave it out and",
    ),
    (f"{EVALUATE} --num-examples 100000", "--num-examples must be at most"),
    (f"{EVALUATE} --temperature hot", "--temperature must be a number"),
    (f"{EVALUATE} --temperature 0.1,0.1", "--temperature must not contain a value twice"),
    (f"{EVALUATE} --num-assistant-tokens 3,0", "--num-assistant-tokens must be >= 1"),
    (f"{EVALUATE} --num-assistant-tokens 2.5", "--num-assistant-tokens must be an integer"),
    (f"{EVALUATE} --shots-file data.jsonl", "--shots-file requires --shots"),
    (f"{EVALUATE} --methods static:abc", "--methods static:abc: `weight` must lie in [0, 1], got 'abc'"),
    (f"{EVALUATE} --methods target,target", "different labels"),
    (f"{EVALUATE} --methods target:top_p=0.9 --temperature 1,0", "top_p=0.9: greedy decoding has no truncation"),
    (f"{EVALUATE} --head org/head", "--head org/head is not used by --methods target,static:0.5; add diversed"),
    (f"{EVALUATE} --task code", "allow-code-execution"),
    (f"{EVALUATE} --task gsm8k --methods diversed@0.5", "--methods diversed@0.5 needs a head: pass --head"),
    (f"{EVALUATE} --split train --data-file x", "--split train has no effect with --data-file; leave it out."),
    (f"{EVALUATE} --split training", "--split of task 'math' must be one of"),
    (f"{EVALUATE} --data-file nothing.jsonl", "--data-file 'nothing.jsonl' does not exist"),
    (f"{EVALUATE} --shots 1 --shots-file no.jsonl", "--shots-file 'no.jsonl' does not exist"),
    (f"{EVALUATE} --output .", "--output must be a file, got"),
    (f"{EVALUATE} --output /dev/null/x/y.json", "--output /dev/null/x/y.json cannot be written"),
    (f"{EVALUATE} --markdown /dev/null/x.md", "--markdown /dev/null/x.md cannot be written"),
    (f"{EVALUATE} --target x", "--target and --draft go together"),
    ("evaluate --task math", "Missing option '--methods'"),
    (f"{CALIBRATE} --max-quality-drop 0", "--max-quality-drop must lie between 0 and 1, got 0.0"),
    (f"{CALIBRATE} --max-quality-drop much", "Invalid value for '--max-quality-drop'"),
    (f"{CALIBRATE} --confidence 1", "--confidence must lie between 0 and 1, got 1.0"),
    (f"{TRAIN} --target x", "--target and --draft go together"),
    (f"{TRAIN} --task code", "allow-code-execution"),
    (f"{TRAIN} --reward-funcs task:code", "allow-code-execution"),
    (f"{TRAIN} --eval-split train", "--num-examples + --num-eval-examples must be at most"),
    (f"{TRAIN} --eval-split dev", "--eval-split of task 'math' must be one of"),
    (f"{TRAIN} --temperature 0", "temperature must be above 0"),
    (f"{TRAIN} --head org/head --head-type mlp", "--head-type can only be set for a new head, but --head was given"),
    (f"{CALIBRATE} --num-assistant-tokens 65", "--num-assistant-tokens must lie in [1, 64]"),
    (f"{CALIBRATE} --output {HEAD}", "--output must differ from HEAD, whose evaluation.json"),
    (f"{TRAIN} --reward-funcs no.such.module", "no.such"),
    (f"{TRAIN} --config no-such-file.yaml", "--config: the file no-such-file.yaml does not exist."),
    (f"{TRAIN} --num-exmples 5", "no such option: --num-exmples; --help-all lists all."),
    (f"{TRAIN} --resume-from-checkpoint no", "--resume continues from the newest complete checkpoint"),
    (f"serve --port 8000 org/target --draft org/draft --head {HEAD}", "TARGET must come first, got '--port'"),
    ("serve org/target --verifier lenience:0.3 --dry-run", "pass --draft, or vLLM's --speculative-config"),
    (SERVE, "pass --head, or --verifier, for example"),
    (f"{SERVE} --verifier static:0.5 --speculative-config {{}}", "cannot be combined with --speculative-config"),
    (
        f"{SERVE} --verifier static:0.5 --additional-config {{}}",
        "--additional-config cannot be combined",
    ),
    ("demo --draft org/draft", "--draft org/draft has no effect without --model"),
    (f"{SERVE} --head {HEAD} --strictness 7", "`--strictness` must lie in [0, 1], got 7.0."),
    (f"{SERVE} --verifier static:0.5 --head {HEAD}", "`--head` belongs to the verifier 'diversed'"),
    (f"{SERVE} --verifier static:0.5 --strictness 0.5", "'static:0.5' has no --strictness; its settings: --max-b"),
    (f"{SERVE} --verifier static:0.5:0.1", "set `--max-bias` or `--max-ratio` beside the verifier"),
    (f"{SERVE} --verifier block", "verifier 'block' is not served by vLLM"),
]
# Requests that are valid, but cannot be carried out.
FAILING = [
    ("push /no/such/head --info", "is neither a folder"),
    (f"calibrate {WEIGHTS} --task math", "is not a head"),
]


@pytest.fixture(autouse=True)
def nothing_to_load(monkeypatch, tmp_path):
    """Let every attempt to load a model fail, and every relative path be in a new folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("models.load_demo_pair", "models.load_model"):
        monkeypatch.setattr(f"hf_diversed.cli.{name}", None)


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_wrong_usage(command, words, tmp_path):
    """Catches a traceback, another exit code, an error that does not name the flag, and minutes of loading before."""
    refused(words, *shlex.split(command))
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(
    ("content", "reason"), [(b"task: [math\n", "while parsing a flow"), (b"task: m\xe4th\n", "can't decode byte 0xe4")]
)
def test_a_damaged_config(content, reason, tmp_path):
    """Catches a traceback of the YAML parser, and an error that does not name the file."""
    (tmp_path / "run.yaml").write_bytes(content)
    words = f"--config: run.yaml cannot be read as YAML in UTF-8 ({reason}"
    for command in (EVALUATE, TRAIN):
        refused(
            words[: words.index("(")] if "decode" in reason else words, *shlex.split(command), "--config", "run.yaml"
        )


@pytest.mark.parametrize(("command", "words"), FAILING)
def test_failures(command, words):
    """Catches a failure that looks like wrong usage to a script, and models that are loaded before their head."""
    refused(words, *shlex.split(command), code=1)


def test_several_processes_need_an_output():
    """Catches processes that each measure their part, print nothing and do not save it."""
    refused("--output is required with several processes", *shlex.split(EVALUATE), WORLD_SIZE="2", RANK="1")


def test_calibrate_needs_a_single_process():
    """Catches processes that write the same file at the same time."""
    refused("runs in a single process, got 2 (WORLD_SIZE)", *shlex.split(CALIBRATE), WORLD_SIZE="2", RANK="1")
