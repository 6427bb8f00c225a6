"""vLLM's releases are recognised by the parameters of their functions; differences are named."""

import re
from pathlib import Path

import pytest

from hf_diversed.serving.vllm.signatures import KNOWN, USES, differences


def write_package(folder: Path, release: int = 0, **changes: str) -> Path:
    """Write a package that has the functions of one supported release, without their content.

    Args:
        release: index of the supported parameter list. changes: source that replaces the start of a function, by name.
    """
    bodies = {place: [] for place in (*KNOWN, *USES)}
    for place, used in USES.items():
        bodies[place] += used
    files: dict[str, dict[str, list[str]]] = {}
    for (file, name), used in bodies.items():
        known = KNOWN.get((file, name), ("self",))
        parameters = ", ".join(known[min(release, len(known) - 1)].split())
        owner, _, method = name.rpartition(".")
        start = changes.get(method, f"def {method}({parameters}):")
        files.setdefault(file, {}).setdefault(owner, []).append(f"{start} return ({', '.join(['None', *used])})")
    for file, owners in files.items():
        lines = []
        for owner, functions in owners.items():
            lines += [f"class {owner}:", *(f"    {line}" for line in functions)] if owner else functions
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize("release", [0, 1])
def test_known_releases_have_no_differences(tmp_path, release):
    assert differences(write_package(tmp_path, release)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"_sample": "def _sample(self, logits):"}, "GPUModelRunner._sample of v1/worker/gpu_model_runner.py takes"),
        ({"_sample": "def sample(self, logits):"}, "GPUModelRunner._sample of .* does not exist"),
        (
            {"rejection_sample": "def rejection_sample(draft_logits, *rest, **named):"},
            r"rejection_sample of v1/sample/rejection_sampler.py takes \(draft_logits, rest, named\), not \(draft_tok",
        ),
        ({"forward": "def forward(self): pass\n    def old(self):"}, "forward of .* does not use rejection_sample"),
    ],
)
def test_differences_are_named(tmp_path, changes, words):
    """Catches a release that moved an argument: the plugin would pass its logits as another argument."""
    found = differences(write_package(tmp_path, **changes))
    assert any(re.search(words, line) for line in found), found


def test_a_missing_file_is_named(tmp_path):
    write_package(tmp_path)
    (tmp_path / "v1/sample/rejection_sampler.py").unlink()
    assert differences(tmp_path) == ("v1/sample/rejection_sampler.py does not exist",)
