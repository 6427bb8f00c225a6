"""The README fits on a page, and its snippets run. `test_docs.py` checks its table and links."""

import re
from pathlib import Path

import hf_diversed


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHORT, HUB = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_method_of_the_library_is_on_the_first_screen():
    """Catches a README that grows, and one whose first lines show other methods than DIVERSED."""
    lines = README.splitlines()
    assert len(lines) <= 110
    assert "DiversedHead.from_pretrained" in "".join(lines[:25])
    assert "diversed_head=head" in "".join(lines[:25])


def test_short_snippet_runs(monkeypatch):
    """Catches arguments that `generate` rejects, in the first lines that readers see."""
    pair = hf_diversed.load_demo_pair()
    monkeypatch.setattr(hf_diversed.DiversedHead, "from_pretrained", {"org/head": pair.heads["math"]}.__getitem__)
    pair.target.generation_config.max_new_tokens = 16
    inputs = pair.tokenizer("Question:", return_tensors="pt")
    exec(compile(SHORT, "README.md", "exec"), {"target": pair.target, "draft": pair.draft, "inputs": inputs})


def test_hub_snippet_runs(embedded_for_hub, capsys):
    """Catches arguments that `generate` rejects; the embedded pair replaces models of the Hub."""
    exec(compile(HUB, "README.md", "exec"), {"__name__": "__main__"})
    assert "Speculative decoding is" in capsys.readouterr().out
