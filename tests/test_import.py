"""`import hf_diversed` is fast, and `generate` accepts our arguments regardless of import order.

Tests that depend on the import order run in separate processes.
"""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hf_diversed


KNOWS = """
import inspect
from transformers import GenerationMixin
known = "diversed_head" in inspect.signature(GenerationMixin.generate).parameters
"""
# A model of a few kilobytes, to test that the hook works and is not only installed.
DECODES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
ids = torch.tensor([[1, 2, 3]])
plain = model.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None)
ours = model.generate(ids, assistant_model=model, verifier="lossless", max_new_tokens=4, eos_token_id=None,
                      do_sample=False, return_dict_in_generate=True)
assert torch.equal(plain, ours.sequences)
assert ours.stats.acceptance_rate == 1.0
"""


def run(code: str, **environment: str) -> None:
    """Run code in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code],
        env={**os.environ, "HF_DIVERSED_NO_HOOK": "", "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_import_alone_loads_neither_torch_nor_transformers():
    """Catches an import that makes `--help` or the version take seconds."""
    run(
        "import sys, hf_diversed; hf_diversed.__version__; dir(hf_diversed)\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )


def test_verifiers_load_torch_only():
    """Catches an import of transformers, which is slow and adds version constraints to a serving engine."""
    names = ("sampling", "blocks", "features", "verifiers", "serving.vllm.logits")
    heavy = {"transformers", "peft", "accelerate", "huggingface_hub", "tokenizers", "safetensors", "datasets"}
    modules = ", ".join(f"hf_diversed.{name}" for name in names)
    run(f"import sys, {modules}\nassert not {heavy} & set(sys.modules)", HF_DIVERSED_NO_HOOK="1")


@pytest.mark.parametrize(
    "first",
    [
        "import hf_diversed\nfrom transformers import AutoModelForCausalLM",
        "from transformers import AutoModelForCausalLM\nimport hf_diversed",
    ],
)
def test_generate_knows_the_arguments_whatever_comes_first(first):
    """Catches a hook that depends on the order of imports, and one that interrupts an import."""
    run(f"{first}\n{KNOWS}\nassert known\n{DECODES}")


def test_the_hook_is_optional(tmp_path):
    """Catches an import that patches despite HF_DIVERSED_NO_HOOK=1, a hook that cannot be removed and installed again,
    and `AutoModel.from_pretrained` that loads a head only after one of our classes was accessed."""
    hf_diversed.DiversedHead(hf_diversed.DiversedHeadConfig(4, 4)).save_pretrained(tmp_path)
    run(
        f"import hf_diversed\n{KNOWS}\nassert not known\nfrom transformers import AutoModel\n"
        f"assert type(AutoModel.from_pretrained({str(tmp_path)!r})).__name__ == 'DiversedHead'\n"
        f"hf_diversed.install_hook()\n{KNOWS}\nassert known\n{DECODES}\n"
        f"hf_diversed.uninstall_hook()\n{KNOWS}\nassert not known",
        HF_DIVERSED_NO_HOOK="1",
    )


def test_lazy_names_are_the_public_ones():
    """Catches a name that is visible only to type checkers, and one that is not."""
    tree = ast.parse(Path(hf_diversed.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    eager = {"__version__", "attach", "diversed_decoding", "install_hook", "uninstall_hook"}
    assert set(seen) | eager == set(hf_diversed.__all__)
    assert set(hf_diversed.__all__) <= set(dir(hf_diversed))
    for name, home in seen.items():
        assert getattr(hf_diversed, name) is getattr(importlib.import_module(home), name)
    for name in ("generation", "head", "outputs", "sampling", "verifiers", "zoo"):
        assert name in dir(hf_diversed)
        assert isinstance(getattr(hf_diversed, name), ModuleType)
    with pytest.raises(AttributeError, match="no attribute 'DiversedHeads'"):
        hf_diversed.DiversedHeads  # noqa: B018
