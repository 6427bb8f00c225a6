"""Cards of heads: the metadata that the Hub reads, and figures from records only. Figures here are invented."""

import ast
import copy
import re

import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import hf_diversed
from hf_diversed.head import LOOKED_UP, DiversedHead, DiversedHeadConfig
from hf_diversed.hub import render_card
from hf_diversed.provenance import provenance
from hf_diversed.zoo import load_demo_pair
from tests.tiny import calibration
from tools import render_cards


EMBEDDED = DiversedHeadConfig(256, 96, features="distribution", task="math", num_assistant_tokens=5)
PAIR = {"base_model_name_or_path": "Qwen/Qwen3-8B", "assistant_model_name_or_path": "Qwen/Qwen3-0.6B"}
HUB = DiversedHeadConfig(4096, 1024, task="gsm8k", **PAIR, base_model_revision="0123abc")
REPO = "org/head-gsm8k"
MADE_WITH = provenance()  # runs git, which is slow
SIZES = {"target": 8190735360, "draft": 596049920}


def make_record(method: str, place: int, **given) -> dict:
    """Return a record in which every figure differs from all others of `make_evaluation`."""
    quality, rate = 0.8111 - 0.0301 * place, 0.6222 + 0.0407 * place
    setting = {"task": "gsm8k", "metric": "accuracy", "n": 437, "samples_per_prompt": 3, "max_new_tokens": 96}
    setting |= {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "num_assistant_tokens": 6, "seed": 1234}
    figures = {"quality": quality, "quality_ci": [quality - 0.023, quality + 0.024], "reference": "target"}
    figures |= {"quality_drop": 0.8111 - quality, "quality_drop_ci": [0.7911 - quality, 0.8311 - quality]}
    figures |= {"acceptance_rate": rate, "acceptance_rate_ci": [rate - 0.011, rate + 0.012]}
    figures |= {"verified_acceptance_rate": rate + 0.1, "block_efficiency": 3.517 + 0.21 * place}
    figures |= {"mean_weight": 0.973 - 0.1 * place, "static_gain": None, "static_gain_ci": None}
    return {"method": method} | setting | figures | given


def make_evaluation(task: str = "gsm8k") -> dict:
    target = make_record("target", 0, mean_weight=None)
    speculative = ("reference", "quality_drop", "acc", "ver", "block")
    records = [
        target | dict.fromkeys(name for name in target if name.startswith(speculative)),
        make_record("diversed", 2, static_gain=0.0357, static_gain_ci=[0.0048, 0.0661]),
        *(make_record(name, place) for name, place in (("static:0.3", 4), ("static:0.7", 3), ("lossless", 1))),
    ]
    models = {role: {"name": "", "parameters": count, "dtype": "torch.bfloat16"} for role, count in SIZES.items()}
    made_with = MADE_WITH | {"evaluation": models}
    return {"records": [record | {"task": task} for record in records], "provenance": made_with}


def make_training() -> dict:
    settings = {"max_steps": 160, "num_iterations": 4, "per_device_train_batch_size": 256, "learning_rate": 0.0375}
    settings |= {"dual_window": 1024}
    settings |= {"acceptance_coef": None, "max_quality_drop": 0.0125, "model_init_kwargs": {"cache_dir": "/data/me"}}
    about = {"argv": ["hf-diversed", "train", "--task", "gsm8k"], "seed": 77, "rewards": ["gsm8k"], "step": 160}
    about |= {"acceptance_coef": 0.2346, "num_prompts": 1024, "world_size": 2}
    return MADE_WITH | about | {"training": settings}


def snippet_of(text: str) -> str:
    return re.search("```python\n(.*?)```", text, re.DOTALL)[1]


def test_metadata_is_what_the_hub_reads():
    """Catches lost or invented ids, figures of another method or rounded ones, and YAML that is read differently."""
    evaluation = make_evaluation()
    own = next(record for record in evaluation["records"] if record["method"] == "diversed")
    text = render_card(HUB, evaluation, make_training(), REPO)
    data = ModelCard(text).data
    assert yaml.safe_load(text.split("---\n")[1]) == data.to_dict()
    assert data.base_model == ["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"]
    assert data.datasets == ["openai/gsm8k"]
    assert data.tags == ["diversed", "speculative-decoding", "arxiv:2604.07622", "custom_generate"]
    assert (data.library_name, data.license, data.model_name) == ("transformers", "apache-2.0", "head-gsm8k")
    expected = {"accuracy": own["quality"]} | {name: own[name] for name in ("acceptance_rate", "block_efficiency")}
    assert {result.metric_type: result.metric_value for result in data.eval_results} == expected
    assert {(result.dataset_type, result.dataset_config) for result in data.eval_results} == {("openai/gsm8k", "main")}


@pytest.mark.parametrize("method", ["target", "static:0.7", "diversed"])
def test_every_figure_comes_from_its_record(method):
    """Catches typed figures, and a row from another record: a changed figure changes that row only."""
    rows = lambda evaluation: re.findall(r"(?m)^\|.*$", render_card(HUB, evaluation, {}, REPO))  # noqa: E731
    shown = ("quality", "quality_drop", "acceptance_rate", "verified_acceptance_rate")
    for name in (*shown, "block_efficiency", "mean_weight"):
        changed = make_evaluation()
        record = next(record for record in changed["records"] if record["method"] == method)
        record[name] = 0.4321
        (row,) = [new for old, new in zip(rows(make_evaluation()), rows(changed), strict=True) if old != new]
        assert "43.2%" in row or "0.43" in row
        assert ("**DIVERSED**" if method == "diversed" else f"`{method}`") in row


@pytest.mark.parametrize(
    ("competitors", "words"),
    [
        ({}, r"`static`: .* \+3\.6 points of accuracy \(95% interval \+0\.5 to \+6\.6\)"),
        # At the head's acceptance rate, the line between lossless decoding (0.6629, 0.781) and this is at 0.8055.
        ({"lenience:0.3": (0.7443, 0.83)}, r"`lenience`: .* -1\.9 points of accuracy"),
        ({"lenience:0.3": (0.65, 0.9)}, r"`static`: .* \+3\.6 points"),  # accepts too little
        ({"diversed:org/other": (0.7036, 0.9)}, r"`static`: .* \+3\.6 points"),  # not training-free
    ],
)
def test_claims_compare_with_the_best_training_free_method(competitors, words):
    """Catches a gain over a weak method beside a table that shows a better one."""
    evaluation = make_evaluation()
    next(record for record in evaluation["records"] if record["method"] == "diversed")["quality"] += 0.0357
    for label, (rate, quality) in competitors.items():
        evaluation["records"].append(make_record(label, 3, acceptance_rate=rate, quality=quality))
    text = render_card(HUB, evaluation, {}, REPO)
    assert re.search(words, text)
    assert all(f"| `{label}` |" in text for label in competitors)


def test_missing_figures_are_dashes():
    """Catches "None" in a card, also in that of a converted head, which has no records."""
    assert "None" not in render_card(DiversedHeadConfig(8, 8), {}, {})
    evaluation = make_evaluation()
    for record in evaluation["records"]:
        record |= dict.fromkeys(record.keys() - {"method", "task"})
    text = render_card(HUB, evaluation, {"training": {}, "argv": None, "seed": None}, REPO)
    assert ModelCard(text).data.eval_results is None
    assert "None" not in text
    assert "| **DIVERSED** | - | - | - | - | - | - |" in text


def test_kinds_of_heads_are_explained():
    """Catches the text of a token head in the card of a mixture head."""
    token_head = DiversedHeadConfig(256, 96, features="distribution", task="math", token_features=True)
    evaluation = make_evaluation("math")
    mixture, token = (render_card(config, evaluation, {}) for config in (EMBEDDED, token_head))
    assert "# diversed-math-mixture\n" in mixture
    assert "At every position\nit predicts" in mixture
    assert "# diversed-math\n" in token
    assert "For every draft token\nit predicts" in token


def test_training_is_shown():
    """Catches rollouts of one process only, and a broken constraint shown as kept."""
    training = make_training()
    training["validation"] = {"quality_drop": 0.0075, "acceptance_rate": 0.8125}
    for error, words in ((0.004, "was kept."), (0.006, "was not kept.")):
        training["validation"]["quality_drop_error"] = error
        text = render_card(HUB, {}, training, REPO)
        assert words in text
        assert "20480, from 1024 prompts" in text  # 160 / 4 * 256 * 2
    assert "`dual_window` 1024" in text


def test_training_of_an_earlier_head_with_a_fixed_coefficient():
    """Catches rollouts after the step of the head, and settings of a constraint that was not used."""
    training = make_training() | {"step": 30}
    training["training"] |= {"acceptance_coef": 0.3}
    text = render_card(HUB, {}, training, REPO)
    assert "- Rollouts: 4096, up to step 30 of 160, from 1024 prompts." in text  # 8 * 256 * 2
    assert "`learning_rate`" in text
    assert "dual_window" not in text
    assert "- Rollouts: 20480, from 1024 prompts." in render_card(HUB, {}, training | {"step": None}, REPO)


def test_a_calibrated_head_names_the_strictness_of_its_row():
    """Catches results at strictness 0.5 beside code that uses another default."""
    config = copy.deepcopy(HUB)
    config.strictness = 0.8
    assert "| **DIVERSED**, strictness 0.5 |" in render_card(config, make_evaluation(), {}, REPO)
    assert "| **DIVERSED** |" in render_card(HUB, make_evaluation(), {}, REPO)


EVIL = (
    "x`\n\n<script>alert(1)</script>\n# Title\n[a](javascript:alert(1)) ![i](http://evil/x.png) | b | \\| <img src=x>"
)
CODE = 'm"); import os; os.system("echo pwned")#\n```\n<b>\\'


def hostile(words: str) -> tuple[DiversedHeadConfig, dict, dict]:
    """Return a card's three sources with the same text in every field."""
    names = ("base_model_name_or_path", "assistant_model_name_or_path", "base_model_revision", "task")
    own = make_record("diversed", 2) | dict.fromkeys(
        ("task", "metric", "n", "temperature", "top_k", "top_p", "max_new_tokens", "seed", "reference"), words
    )
    made_with = {"git_commit": words, "device": words, "threads": words, "time": words, "versions": {words: words}}
    measured = {"target": {"dtype": words, "parameters": 5}}
    training = make_training() | made_with | {"argv": ["train", words], "rewards": [words], "seed": words}
    training["training"] = training["training"] | {"top_k": words, "lr_scheduler_type": words}
    config = DiversedHeadConfig(8, 8, **dict.fromkeys(names, words))
    config.strictness, config.calibration = 0.35, calibration(task=words, metric=words)
    return config, {"records": [own], "provenance": made_with | {"evaluation": measured}}, training


@pytest.mark.parametrize("repo_id", [REPO, None])
@pytest.mark.parametrize("words", [EVIL, CODE, "d|e\n---\nlicense: evil\n---\n"])
def test_names_are_neither_markup_nor_code(words, repo_id):
    """Catches a name in a configuration or record that becomes a script, link, table column, metadata or Python."""
    text, plain = render_card(*hostile(words), repo_id), render_card(*hostile("word"), repo_id)
    assert ModelCard(text).data.to_dict() == ModelCard(plain).data.to_dict()
    parse = MarkdownIt("commonmark", {"html": True}).enable("table").parse
    shapes = []
    for card in (text, plain):
        tokens = [token for block in parse(card) for token in (block, *(block.children or []))]
        inline = ("text", "softbreak", "code_inline")
        shapes.append([(token.type, token.attrs.get("href")) for token in tokens if token.type not in inline])
    assert shapes[0] == shapes[1]
    assert not {"html_block", "html_inline", "image"} & {kind for kind, _ in shapes[0]}
    kinds = [[type(node) for node in ast.walk(ast.parse(snippet_of(card)))] for card in (text, plain)]
    assert kinds[0] == kinds[1]


def test_snippet_has_the_draft_and_the_sampling_of_training():
    """Catches a snippet with other sampling settings, or with a draft model for a head trained without one."""
    config = copy.deepcopy(HUB)
    config.assistant_model_name_or_path = LOOKED_UP
    text = render_card(config, {}, {}, REPO)
    assert ModelCard(text).data.base_model == ["Qwen/Qwen3-8B"]
    assert "assistant_model" not in text
    assert "prompt_lookup_num_tokens=5," in snippet_of(text)
    training = make_training()
    training["training"] |= {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "max_completion_length": 77}
    sampled = "do_sample=True,\n    temperature=0.8,\n    top_k=20,\n    top_p=0.95,\n    max_new_tokens="
    assert f"{sampled}96,\n" in snippet_of(render_card(HUB, make_evaluation(), training))
    assert f"{sampled}77,\n" in snippet_of(render_card(HUB, {}, training))
    training["training"]["temperature"] = 0.0
    assert "do_sample=False,\n    max_new_tokens=77,\n" in snippet_of(render_card(HUB, {}, training))


def test_how_to_use_runs(monkeypatch, capsys):
    """Catches a snippet that does not run with the library, and an id of the Hub in a card of the embedded pair."""
    pair = load_demo_pair()
    pair.heads["math"] = DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft))
    monkeypatch.setattr(hf_diversed, "load_demo_pair", lambda **_: pair)
    text = render_card(EMBEDDED, make_evaluation("math"), {})
    exec(compile(snippet_of(text), "card", "exec"), {})
    assert "Question: " in capsys.readouterr().out
    assert not {"base_model", "datasets", "model-index"} & set(yaml.safe_load(text.split("---\n")[1]))


def test_packaged_cards_agree_with_results():
    """Catches typed figures, and cards that were not rendered by `python -m tools.render_cards`."""
    present = {path: path.read_text() for path in (render_cards.ROOT / "model_cards").glob("embedded-*/README.md")}
    assert present == render_cards.cards()
