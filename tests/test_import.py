"""`import hf_diversed` is fast, and `generate` accepts our arguments regardless of import order.

Tests that depend on the import order run in separate processes.
"""

import ast
import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

import hf_diversed
from hf_diversed import _after_import


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


@pytest.mark.parametrize(
    "first",
    [
        "import hf_diversed\nfrom transformers import AutoModelForCausalLM",
        "from transformers import AutoModelForCausalLM\nimport hf_diversed",
        "import transformers, hf_diversed, importlib\nimportlib.reload(hf_diversed)\nimport transformers.trainer",
        "import hf_diversed.head.modeling_diversed",
    ],
)
def test_generate_knows_the_arguments_whatever_comes_first(first):
    """Catches a hook that depends on the order of imports, and one that interrupts an import."""
    run(f"{first}\n{KNOWS}\nassert known\n{DECODES}")


def test_without_the_hook():
    """Catches an import that patches later despite HF_DIVERSED_NO_HOOK=1."""
    code = f"import hf_diversed\n{KNOWS}\nassert not known\nhf_diversed.install_hook()\n{KNOWS}\nassert known"
    run(code, HF_DIVERSED_NO_HOOK="1")


def test_uninstalled_before_and_after_transformers():
    """Catches a hook that returns with the import of transformers, and one that cannot be reinstalled."""
    run(
        f"import hf_diversed; hf_diversed.uninstall_hook()\n{KNOWS}\nassert not known\n"
        f"hf_diversed.install_hook()\n{KNOWS}\nassert known\n{DECODES}\n"
        f"hf_diversed.uninstall_hook()\n{KNOWS}\nassert not known"
    )


def test_reloaded_upstream_is_hooked_again():
    """Catches a hook that a reload removes, or that wraps twice and then cannot be removed."""
    run(
        "import importlib, hf_diversed\nimport transformers.generation.utils as upstream\n"
        "importlib.reload(upstream); importlib.reload(hf_diversed)\n"
        "hook = upstream.GenerationMixin.generate\n"
        "assert hook._hf_diversed_hook is hook and not hasattr(hook.__wrapped__, '_hf_diversed_hook')\n"
        "hf_diversed.uninstall_hook()\n"
        "assert upstream.GenerationMixin.generate is hook.__wrapped__\n"
        "importlib.reload(upstream)\n"
        "assert not hasattr(upstream.GenerationMixin.generate, '_hf_diversed_hook')\n"
    )


def test_heads_are_known_to_auto_classes(tmp_path):
    """Catches `AutoModel.from_pretrained` that loads a head only after one of our classes was accessed."""
    hf_diversed.DiversedHead(hf_diversed.DiversedHeadConfig(4, 4)).save_pretrained(tmp_path)
    run(
        "import hf_diversed\nfrom transformers import AutoModel\n"
        f"assert type(AutoModel.from_pretrained({str(tmp_path)!r})).__name__ == 'DiversedHead'",
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


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Yield the name of a module to import, and a list of callbacks."""
    name = "hf_diversed_watched_module"
    (tmp_path / f"{name}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_after_import, "CALLBACKS", {})
    calls: list = []
    yield name, calls
    sys.modules.pop(name, None)
    if _after_import.WATCHER not in sys.meta_path:
        sys.meta_path.insert(0, _after_import.WATCHER)


def test_watching_a_module(watched):
    """Catches a callback before the module is complete, a second watcher, and one that stays when it is not needed."""
    name, calls = watched
    for _ in range(2):
        _after_import.watch(name, lambda module: calls.append(module.value))
    assert sys.meta_path.count(_after_import.WATCHER) == 1
    assert calls == []
    module = importlib.import_module(name)
    assert calls == [1]
    assert module.__spec__.loader.get_source(name) == "value = 1\n"
    importlib.reload(module)
    assert calls == [1, 1]
    _after_import.watch(name, lambda module: calls.append("at once"))
    assert calls == [1, 1, "at once"]
    _after_import.unwatch(name)
    _after_import.unwatch(name)
    assert _after_import.WATCHER not in sys.meta_path
    importlib.reload(module)
    assert len(calls) == 3


def test_threads_that_import_a_watched_module(watched, tmp_path):
    """Catches a callback for every thread that waits for the import, and one on an incomplete module."""
    name, calls = watched
    (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(0.2)\nvalue = 1\n")
    importlib.invalidate_caches()
    _after_import.watch(name, lambda module: calls.append(module.value))
    threads = [threading.Thread(target=importlib.import_module, args=(name,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    while name not in sys.modules:
        time.sleep(0.01)
    _after_import.watch(name, lambda module: calls.append(module.value))  # the module is being imported
    for thread in threads:
        thread.join()
    assert set(calls) == {1}
    assert len(calls) <= 2


def test_unwatched_between_finding_and_execution(watched):
    """Catches a callback after `unwatch`."""
    name, calls = watched
    _after_import.watch(name, calls.append)
    spec = importlib.util.find_spec(name)
    _after_import.unwatch(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.value == 1
    assert calls == []


def test_one_wrapper_from_many_threads(monkeypatch):
    """Catches nested wrappers: the inner one would treat an attachment as a second call."""
    from hf_diversed.generation import hook

    class GenerationMixin:
        def generate(self, inputs=None, **kwargs):
            return inputs

    stock, upstream = GenerationMixin.generate, ModuleType("upstream")
    upstream.GenerationMixin = GenerationMixin
    threads = [threading.Thread(target=hook.wrap, args=(upstream,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert GenerationMixin.generate.__wrapped__ is stock
