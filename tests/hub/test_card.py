"""Cards of heads: the metadata that the Hub reads, and figures from records only. Figures here are invented."""

import ast
import copy
import re
import sys

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
    settings |= {"acceptance_coef": None, "max_quality_drop": 0.0125, "model_init_kwargs": {"cache_dir": "/data/me"}}
    about = {"argv": ["hf-diversed", "train", "--task", "gsm8k"], "seed": 77, "rewards": ["gsm8k"], "step": 160}
    about |= {"acceptance_coef": 0.2346, "num_prompts": 1024, "world_size": 2}
    return MADE_WITH | about | {"training": settings}


def own_record(evaluation: dict) -> dict:
    return next(record for record in evaluation["records"] if record["method"] == "diversed")


def snippet_of(text: str) -> str:
    return re.search("```python\n(.*?)```", text, re.DOTALL)[1]


def test_front_matter_is_what_the_hub_reads():
    """Catches lost or invented ids, and YAML that the Hub's parser reads differently."""
    text = render_card(HUB, make_evaluation(), make_training(), REPO)
    card = ModelCard(text)
    assert str(card) == text
    assert card.data.base_model == ["Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"]
    assert card.data.datasets == ["openai/gsm8k"]
    assert card.data.tags == ["diversed", "speculative-decoding", "arxiv:2604.07622", "custom_generate"]
    assert card.data.metrics == ["accuracy"]
    assert (card.data.library_name, card.data.license) == ("transformers", "apache-2.0")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front == card.data.to_dict() == ModelCard(str(card)).data.to_dict()


def test_model_index_contains_the_results():
    """Catches figures of another method, and rounded figures, in the metadata of leaderboards."""
    evaluation = make_evaluation()
    own = own_record(evaluation)
    data = ModelCard(render_card(HUB, evaluation, {}, REPO)).data
    assert data.model_name == "head-gsm8k"
    expected = {"accuracy": own["quality"]} | {name: own[name] for name in ("acceptance_rate", "block_efficiency")}
    assert {result.metric_type: result.metric_value for result in data.eval_results} == expected
    for result in data.eval_results:
        assert (result.dataset_type, result.dataset_config) == ("openai/gsm8k", "main")
        assert (result.dataset_split, result.verified, result.source_url) == (None, None, None)


def test_embedded_pair_names_nothing_on_the_hub():
    """Catches a base model, dataset or leaderboard entry for models that exist in the package only."""
    text = render_card(EMBEDDED, make_evaluation("math"), make_training())
    front = yaml.safe_load(text.split("---\n")[1])
    assert not {"base_model", "base_model_relation", "datasets", "metrics", "model-index"} & set(front)
    assert "custom_generate" not in text
    assert "huggingface.co" not in text


@pytest.mark.parametrize("name", [None, "", "draft", "/home/me/models/draft", "../models/draft", "tests/hub"])
def test_folders_are_not_base_models(name, monkeypatch):
    """Catches a local folder shown as a Hub id, or with its path."""
    monkeypatch.chdir(render_cards.ROOT)
    config = DiversedHeadConfig(8, 8, task="gsm8k", **PAIR | {"assistant_model_name_or_path": name})
    text = render_card(config, {}, {}, REPO)
    assert "base_model" not in yaml.safe_load(text.split("---\n")[1])
    assert "me/models" not in text
    assert "tests/hub" not in text


def test_prompt_lookup_needs_no_draft_model():
    """Catches a snippet that loads a draft model for a head that was trained without one."""
    config = copy.deepcopy(HUB)
    config.assistant_model_name_or_path = LOOKED_UP
    text = render_card(config, {}, {}, REPO)
    assert yaml.safe_load(text.split("---\n")[1])["base_model"] == ["Qwen/Qwen3-8B"]
    assert "assistant_model" not in text
    assert f"prompt_lookup_num_tokens={HUB.num_assistant_tokens or 5}," in snippet_of(text)
    compile(snippet_of(text), "card", "exec")


@pytest.mark.parametrize("method", ["target", "lossless", "static:0.7", "static:0.3", "diversed"])
def test_every_figure_comes_from_its_record(method):
    """Catches typed figures, and a row from another record: a changed figure changes that row only."""
    shown = ["quality", "quality_drop", "acceptance_rate", "verified_acceptance_rate"]
    shown += ["block_efficiency", "mean_weight"]
    evaluation = make_evaluation()
    before = re.findall(r"(?m)^\|.*$", render_card(HUB, evaluation, {}, REPO))
    for name in shown:
        changed = copy.deepcopy(evaluation)
        record = next(record for record in changed["records"] if record["method"] == method)
        record[name] = 0.4321
        after = re.findall(r"(?m)^\|.*$", render_card(HUB, changed, {}, REPO))
        differing = [new for old, new in zip(before, after, strict=True) if old != new]
        assert len(differing) == 1
        assert "43.2%" in differing[0] or "0.43" in differing[0]
        label = "**DIVERSED**" if method == "diversed" else f"`{method}`"
        assert label in differing[0]


def test_every_method_is_shown():
    """Catches a competitor that was measured and is hidden, and a strictness in two tables."""
    evaluation = make_evaluation()
    others = [
        "lenience:0.3",
        "spec_cascade:token_v3:0.5",
        "target:top_p=0.9",
        "diversed:org/other",
        "compiled:lossless",
    ]
    evaluation["records"] += [make_record(label, 4) for label in (*others, "diversed@0.3", "diversed:/home/me/head")]
    rows = re.findall(r"(?m)^\| (\S*) \|", render_card(HUB, evaluation, {}, REPO).split("## Results")[1])
    assert [row for row in rows if row in [f"`{label}`" for label in others]] == [f"`{label}`" for label in others]
    assert "`diversed:head`" in rows
    assert "`diversed@0.3`" not in rows


@pytest.mark.parametrize(
    ("competitors", "words"),
    [
        ({}, "is `static`: DIVERSED differs from it by +3.6 points of accuracy (95% interval +0.5 to +6.6). Tr"),
        # At the head's acceptance rate, the line between lossless decoding (0.6629, 0.781) and this is at 0.8055.
        ({"lenience:0.3": (0.7443, 0.83)}, "is `lenience`: DIVERSED differs from it by -1.9 points of accuracy. Tr"),
        ({"lenience:0.3": (0.65, 0.9)}, "is `static`: DIVERSED differs from it by +3.6 points"),  # accepts too little
        ({"diversed:org/other": (0.7036, 0.9)}, "is `static`: DIVERSED differs from it by +3.6 points"),
        ({"compiled:lenience:0.3": (0.7036, 0.9)}, "is `static`: DIVERSED differs from it by +3.6 points"),
    ],
)
def test_claims_compare_with_the_best_training_free_method(competitors, words):
    """Catches a gain over a weak method beside a table that shows a better one."""
    evaluation = make_evaluation()
    own_record(evaluation)["quality"] += 0.0357
    for label, (rate, quality) in competitors.items():
        evaluation["records"].append(make_record(label, 3, acceptance_rate=rate, quality=quality))
    text = render_card(HUB, evaluation, {}, REPO)
    assert f"The best training-free method at the same acceptance rate {words}" in text


def test_missing_figures_are_dashes():
    """Catches "None" in a card, also in that of a converted head, which has no records."""
    assert "None" not in render_card(DiversedHeadConfig(8, 8), {}, {})
    evaluation = make_evaluation()
    evaluation["records"] = [
        {name: record[name] if name in ("method", "task") else None for name in record}
        for record in evaluation["records"]
    ]
    text = render_card(HUB, evaluation, {"training": {}, "argv": None, "seed": None}, REPO)
    assert ModelCard(text).data.eval_results is None
    assert "None" not in text
    bare = {"records": [{name: record[name] for name in ("method", "task")} for record in evaluation["records"]]}
    assert "| **DIVERSED** | - | - | - | - | - | - |" in render_card(HUB, bare, {}, REPO)


def test_training_is_shown():
    """Catches rollouts of one process only, and a broken constraint shown as kept."""
    training = make_training()
    text = render_card(HUB, {}, training, REPO)
    assert "- Rollouts: 20480, from 1024 prompts." in text  # 160 / 4 * 256 * 2
    training["validation"] = {"quality_drop": 0.0075, "quality_drop_error": 0.004, "acceptance_rate": 0.8125}
    for error, words in ((0.004, "was kept."), (0.006, "was not kept.")):
        training["validation"]["quality_drop_error"] = error
        text = render_card(HUB, {}, training, REPO)
        assert words in text


def test_no_path_of_this_machine(monkeypatch, tmp_path):
    """Catches paths from the command line, the settings or the configuration."""
    given = ["/opt/bin/hf-diversed", "train", "--output_dir", str(tmp_path), f"--data_file={tmp_path}/x.jsonl"]
    monkeypatch.setattr(sys, "argv", given)
    config = DiversedHeadConfig(
        8, 8, base_model_name_or_path=str(tmp_path / "t"), assistant_model_name_or_path=str(tmp_path / "d")
    )
    text = render_card(config, make_evaluation(), make_training() | {"argv": provenance()["argv"]})
    assert "hf-diversed train --output_dir" in text
    assert "x.jsonl" in text
    for path in (str(tmp_path), "/opt/bin", "/data/me", "/tmp/", "/home/", str(render_cards.ROOT)):
        assert path not in text


EVIL = (
    "x`\n\n<script>alert(1)</script>\n# Title\n[a](javascript:alert(1)) ![i](http://evil/x.png) | b | \\| <img src=x>"
)
CODE = 'm"); import os; os.system("echo pwned")#\n```\n<b>'


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
    return config, {"records": [own], "provenance": made_with | {"evaluation": measured}}, training


@pytest.mark.parametrize("repo_id", [REPO, None])
@pytest.mark.parametrize("words", [EVIL, CODE, "d|e\n---\nlicense: evil\n---\n", "it's", "\\"])
def test_names_are_neither_markup_nor_code(words, repo_id):
    """Catches a name in a configuration or record that becomes a script, link, table column, metadata or Python."""
    config, evaluation, training = hostile(words)
    text, plain = render_card(config, evaluation, training, repo_id), render_card(*hostile("word"), repo_id)
    assert ModelCard(text).data.to_dict() == ModelCard(plain).data.to_dict()
    shapes = [_shape(MarkdownIt("commonmark", {"html": True}).enable("table").parse(card)) for card in (text, plain)]
    assert shapes[0] == shapes[1]
    assert not {"html_block", "html_inline", "image"} & {kind for kind, _ in shapes[0]}
    trees = [ast.parse(snippet_of(card)) for card in (text, plain)]
    kinds = [[type(node) for node in ast.walk(tree)] for tree in trees]
    assert kinds[0] == kinds[1]
    if words == CODE:
        assert any(isinstance(node, ast.Constant) and node.value == words for node in ast.walk(trees[0]))


def _shape(tokens) -> list[tuple[str, str]]:
    """Return blocks, links, images and HTML of a parsed card."""
    found = []
    for token in tokens:
        if token.type not in ("text", "softbreak", "code_inline"):
            found.append((token.type, str(token.attrs.get("href", ""))))
        found += _shape(token.children or [])
    return found


def test_sampling_is_that_of_training():
    """Catches a snippet with other sampling settings than those of training."""
    training, evaluation = make_training(), make_evaluation()
    training["training"] |= {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "max_completion_length": 77}
    snippet = snippet_of(render_card(HUB, evaluation, training))
    assert "do_sample=True,\n    temperature=0.8,\n    top_k=20,\n    top_p=0.95,\n    max_new_tokens=96,\n" in snippet
    assert "top_p=0.95,\n    max_new_tokens=77,\n" in snippet_of(render_card(HUB, {}, training))
    config = DiversedHeadConfig(8, 8, training_temperature=0.0)
    assert "do_sample=False,\n    max_new_tokens=128,\n" in snippet_of(render_card(config, {}, {}))
    assert "do_sample=False,\n    max_new_tokens=96,\n" in snippet_of(render_card(config, evaluation, {}))
    training["training"]["temperature"] = 0.0
    assert "do_sample=False,\n    max_new_tokens=77,\n" in snippet_of(render_card(HUB, {}, training))


def test_how_to_use_runs(monkeypatch, capsys):
    """Catches a snippet that does not run with the library; an untrained head replaces the packaged one."""
    pair = load_demo_pair()
    pair.heads["math"] = DiversedHead(DiversedHeadConfig.for_pair(pair.target, pair.draft))
    monkeypatch.setattr(hf_diversed, "load_demo_pair", lambda **_: pair)
    exec(compile(snippet_of(render_card(EMBEDDED, make_evaluation("math"), {})), "card", "exec"), {})
    assert "Question: " in capsys.readouterr().out


def test_packaged_cards_agree_with_results():
    """Catches typed figures, and cards that were not rendered by `python -m tools.render_cards`."""
    assert render_cards.differing() == []


def test_the_calibration_is_shown():
    """Catches a calibration without its settings, and values that become markup."""
    found = calibration(max_quality_drop=0.0125, confidence=0.97, drop=0.0042, acceptance_rate=0.8765)
    found |= {"task": "gsm8k", "metric": "<b>|accuracy", "num_prompts": 1319, "samples_per_prompt": 4}
    found |= {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "num_assistant_tokens": 7}
    config = copy.deepcopy(HUB)
    config.strictness, config.calibration = 0.35, found
    how_to_use, results = render_card(config, {}, {}, REPO).split("## Results")
    assert "0.35" in how_to_use
    text = results.split("### Calibration")[1].split("## Training")[0]
    for shown in ("Strictness 0.35", "97%", r"&lt;b&gt;\|accuracy", "at most 0.0125", "`gsm8k`", "1319 prompts x 4"):
        assert shown in text
    for shown in ("temperature 0.6", "top_k 20", "top_p 0.95", "7 draft tokens", "drop is 0.4%", "87.6%"):
        assert shown in text
    assert "Calibration" not in render_card(HUB, {}, {}, REPO)
