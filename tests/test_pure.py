"""The maths and the verifiers import torch only, so that engines other than transformers can use them."""

import os
import subprocess
import sys


HEAVY = ("transformers", "peft", "accelerate", "huggingface_hub", "tokenizers", "safetensors", "datasets")
NAMES = ("sampling", "blocks", "features", "verifiers", "serving.vllm.logits")


def test_pure_modules_load_torch_only():
    """Catches an import of transformers, which is slow and adds version constraints to a serving engine."""
    modules = ", ".join(f"hf_diversed.{name}" for name in NAMES)
    code = f"import sys, {modules}; print([name for name in {HEAVY} if name in sys.modules], 'torch' in sys.modules)"
    environment = {**os.environ, "HF_DIVERSED_NO_HOOK": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[0] == "[] True"
