"""`custom_generate="org/head"`: the script in a head's repository, run by transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_diversed import DiversedHead, DiversedHeadConfig, load_demo_pair, uninstall_hook
from tests.hub.test_card import snippet_of


REPO = "org/head.v1-math"  # not a Python identifier
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pair():
    return load_demo_pair()


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Provide the installed distribution that transformers checks for, and a run from a checkout may lack."""
    info = tmp_path / "installed" / "hf_diversed-99.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hf-diversed\nVersion: 99.0\n")
    monkeypatch.syspath_prepend(str(info.parent))
    return info.parent


def make_head(pair, bias: float = 0.0) -> DiversedHead:
    head = DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft, task="math")).eval()
    torch.nn.init.constant_(head.out.bias, bias)
    return head


def decode(pair, **kwargs) -> list[int]:
    inputs = pair.tokenizer("Question: Mia has 12 apples. Leo has 3 times as many.", return_tensors="pt")
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 24, "num_assistant_tokens": 3}
    return pair.target.generate(**inputs, assistant_model=pair.draft, **options, **kwargs)[0].tolist()


def by_script(pair, name=REPO, **kwargs) -> list[int]:
    return decode(pair, custom_generate=str(name), trust_remote_code=True, **kwargs)


def test_decodes_with_the_published_head(hub, installed, pair):
    """Catches another head or verifier, and arguments that the script drops."""
    first, second = make_head(pair, -30.0), make_head(pair, 30.0)
    first.push_to_hub(REPO)
    second.push_to_hub(REPO)
    expected = decode(pair, diversed_head=second)
    assert by_script(pair) == expected
    permissive = by_script(pair, diversed_strictness=0.0)
    assert permissive == decode(pair, diversed_head=second, diversed_strictness=0.0) != expected
    commit = hub.repositories[REPO].commits[1].sha
    assert by_script(pair, revision=commit) == decode(pair, diversed_head=first) != expected
    with pytest.raises(ValueError, match="trust_remote_code"):
        decode(pair, custom_generate=REPO)


def test_another_process_without_the_import(hub, installed, pair, tmp_path):
    """Catches a script or a card that depends on this test suite's setup: here only transformers is imported."""
    for name in ("target", "draft"):
        getattr(pair, name).save_pretrained(tmp_path / name)
        pair.tokenizer.save_pretrained(tmp_path / name)
        hub.add(f"org/{name}", tmp_path / name)
    head = make_head(pair, 2.0)
    head.config.task = "gsm8k"
    head.config.base_model_name_or_path, head.config.assistant_model_name_or_path = "org/target", "org/draft"
    head.push_to_hub(REPO)
    snippet = snippet_of(hub.files(REPO)["README.md"].decode())
    program = f"""
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
target, draft = (AutoModelForCausalLM.from_pretrained(name) for name in ("org/target", "org/draft"))
inputs = AutoTokenizer.from_pretrained("org/target")("Question: 2 plus 3?", return_tensors="pt")
torch.manual_seed(0)
options = dict(do_sample=True, max_new_tokens=8)
one = target.generate(**inputs, assistant_model=draft, custom_generate="{REPO}", trust_remote_code=True, **options)
torch.manual_seed(0)
two = target.generate(**inputs, assistant_model=draft, diversed_head="{REPO}", **options)
print("same", one.tolist() == two.tolist())
{snippet}
print("end of the card")
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{installed}"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "same True" in done.stdout
    assert "end of the card" in done.stdout


def test_only_another_head_is_refused_without_the_hook(hub, installed, pair):
    """Catches a head of the call that is ignored, and a hook that the script does not install again."""
    make_head(pair).push_to_hub(REPO)
    uninstall_hook()
    with pytest.raises(ValueError, match="uses its own head; remove diversed_head="):
        by_script(pair, diversed_head=make_head(pair))
    assert by_script(pair, diversed_head=None) == by_script(pair)
