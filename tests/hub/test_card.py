"""Cards of heads, compared with the files in `cards/`. Figures in the records here are invented.

After a change of the template, write the files with `python -m tests.hub.test_card` and read the difference.
"""

import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard

import hf_diversed
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.hub import render_card
from hf_diversed.zoo import load_demo_pair
from tests.tiny import calibration
from tools import render_cards


FOLDER = Path(__file__).parent / "cards"
PAIR = {"base_model_name_or_path": "Qwen/Qwen3-8B", "assistant_model_name_or_path": "Qwen/Qwen3-0.6B"}
HUB = DiversedHeadConfig(4096, 1024, task="gsm8k", **PAIR, base_model_revision="0123abc")
EMBEDDED = DiversedHeadConfig(256, 96, features="distribution", task="math", token_features=True)
BARE = DiversedHeadConfig(
    8,
    base_model_name_or_path="org/target",
    training_temperature=0.0,
    strictness=0.35,
    calibration=calibration(temperature=0.0),
)
REPO = "org/head-gsm8k"


def make_record(method: str, place: int, **given) -> dict:
    """Return a record in which every figure differs from all others of `make_evaluation`."""
    quality, rate = 0.8111 - 0.0301 * place, 0.6222 + 0.0407 * place
    setting = {"task": "gsm8k", "metric": "accuracy", "n": 437, "samples_per_prompt": 3, "max_new_tokens": 96}
    setting |= {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "num_assistant_tokens": 6, "seed": 1234}
    figures = {"quality": quality, "quality_ci": [quality - 0.023, quality + 0.024]}
    figures |= {"quality_drop": 0.8111 - quality, "quality_drop_ci": [0.7911 - quality, 0.8311 - quality]}
    figures |= {"acceptance_rate": rate, "acceptance_rate_ci": [rate - 0.011, rate + 0.012]}
    return {"method": method} | setting | figures | {"block_efficiency": 3.517 + 0.21 * place} | given


def make_evaluation(task: str = "gsm8k") -> dict:
    target = make_record("target", 0)
    target |= dict.fromkeys(name for name in target if name.startswith(("quality_drop", "acc", "block")))
    names = ("lossless", "diversed", "static:0.7", "static:0.3")
    records = [target, *(make_record(name, place) for place, name in enumerate(names, start=1))]
    models = {"target": {"parameters": 8190735360}, "draft": {"parameters": 596049920}}
    return {"records": [record | {"task": task} for record in records], "provenance": {"evaluation": models}}


def make_training() -> dict:
    settings = {"learning_rate": 0.0375, "max_steps": 160, "max_quality_drop": 0.0125, "acceptance_coef": None}
    return {"seed": 77, "step": 120, "training": settings, "options": {"chat": True}}


def cards() -> dict[str, str]:
    """Return one card of each kind: pushed and measured, of the embedded pair, and with little known of it."""
    two_methods = [make_record(name, place, task="math") for place, name in ((2, "lossless"), (3, "diversed"))]
    return {
        "pushed.md": render_card(HUB, make_evaluation(), make_training(), REPO, tags=["one"]),
        "embedded.md": render_card(EMBEDDED, {"records": two_methods}, {}),
        "bare.md": render_card(BARE, {}, {}, source="runs/head"),
    }


def snippet_of(text: str) -> str:
    return re.search("```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.mark.parametrize("name", ["pushed.md", "embedded.md", "bare.md"])
def test_cards(name):
    """Catches every unintended change of a card: figures, metadata, snippet, sentences."""
    text = (FOLDER / name).read_text()
    assert cards()[name] == text
    assert yaml.safe_load(text.split("---\n")[1]) == ModelCard(text).data.to_dict()
    compile(snippet_of(text), name, "exec")


@pytest.mark.parametrize(
    ("methods", "place"),
    [
        (("diversed@0.9", "diversed@0.5", "diversed@0.35"), 2),
        (("diversed@0.35", "diversed"), 1),
        (("diversed@0.9", "diversed@0.5"), 1),
    ],
)
def test_metadata_of_a_calibrated_head(methods, place):
    """Catches results of a calibrated head that are missing, or of another strictness than its default."""
    records = [make_record(method, number) for number, method in enumerate(methods)]
    data = ModelCard(render_card(BARE, {"records": records}, {}, REPO)).data
    assert records[place]["quality"] in [result.metric_value for result in data.eval_results]


def test_the_snippet_runs(monkeypatch, capsys):
    """Catches a snippet that does not run with the library."""
    pair = load_demo_pair()
    pair.heads["math"] = DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft))
    monkeypatch.setattr(hf_diversed, "load_demo_pair", lambda **_: pair)
    exec(compile(snippet_of((FOLDER / "embedded.md").read_text()), "card", "exec"), {})
    assert "Question: " in capsys.readouterr().out


def test_packaged_cards_agree_with_results():
    """Catches typed figures, and cards that were not rendered by `python -m tools.render_cards`."""
    present = {path: path.read_text() for path in (render_cards.ROOT / "model_cards").glob("*/README.md")}
    assert present == render_cards.cards()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in cards().items():
        (FOLDER / name).write_text(text)
