"""The page of the Qwen2.5-Coder pair, rendered from invented results."""

import json

import pytest

from benchmarks import real_pair
from hf_diversed.evaluation import read_results
from hf_diversed.evaluation.curves import read_records
from tests.evaluation.measured import record
from tools import render_pair


FIGURES = ("n", "acceptance_rate", "block_efficiency", "quality", "quality_ci", "quality_drop", "quality_drop_ci")
FIGURES += ("static_gain", "static_gain_ci")


def measured(method: str, acceptance: float | None, quality: float, **changes) -> dict:
    shares = None if acceptance is None else [acceptance, acceptance / 2]
    figures = {"max_new_tokens": 320, "mean_tokens": 49.0, "block_efficiency": acceptance and 4.5}
    figures |= {"quality_drop": None, "static_gain": None, "static_gain_ci": None, "accepted_per_position": shares}
    return record(method, acceptance, quality) | {"task": "mbpp", "metric": "pass@1"} | figures | changes


@pytest.fixture
def folder(tmp_path):
    """Results of MBPP, Spec-Bench and speed."""
    gain = {"static_gain": 0.04, "static_gain_ci": [0.01, 0.07]}
    mbpp = [
        measured("target", None, 0.44),
        measured("lossless", 0.7, 0.42),
        measured("lenience:0.3", 0.8, 0.4, **gain),
    ]
    spec = [
        measured("lossless", 0.6, 0.0, category="math-turn-2") | {"quality": None},
        measured("lossless", 0.8, 0.5, category="rag-turn-1"),
        measured("lenience:0.3", 0.9, 0.5, category="rag-turn-1"),
    ]
    turns = {"target": [(10, 2.0), (10, 1.0)], "lossless": [(10, 1.0), (10, 1.0)], "lossless, compiled": [(10, 1.0)]}
    turns["target, compiled"] = [(10, 4.0)]
    timed = {
        name: {
            "tokens_per_second": 5.0,
            "turns": [{"tokens": tokens, "seconds": seconds} for tokens, seconds in found],
        }
        for name, found in turns.items()
    }
    speed = [{"task": "mbpp", "num_assistant_tokens": 3, "seconds": [{"batch_size": 1, "methods": timed}]}]
    for name, records in (("mbpp", mbpp), ("specbench", spec), ("speed", speed)):
        argv = ["real_pair.py", "--seconds", "--gammas", "3,5", "--repeats", "2", "--eager-only"]
        content = {"records": records, "provenance": {"device": "some CPU", "threads": 2, "argv": argv}}
        (tmp_path / f"qwen-coder-{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_tables(folder):
    """Catches figures in the wrong column, a lost bound, and a category without its turn."""
    text = render_pair.pair(folder)
    assert "### MBPP, temperature 1" in text
    assert "| `target` | - | - | 44.0% (39.0% to 47.0%) | - | - |" in text
    lenience = "| `lenience:0.3` | 80.0% (78.0% to 81.0%) | 4.50 | 40.0% (35.0% to 43.0%) | - | 4.0% (1.0% to 7.0%) |"
    assert lenience in text
    assert "(assets/plots/positions-qwen-coder-mbpp.png)" in text
    assert (
        "specbench=specbench_480.jsonl --methods lossless,lenience:0.3 --num-examples 100 --max-new-tokens 320`"
        in text
    )
    assert "| math, turn 2 | 100 | 60.0% (58.0% to 61.0%), 4.50 | - |" in text
    assert "| rag | `lossless` | 50.0% (45.0% to 53.0%) |" in text
    assert "| math | `lossless` |" not in text
    assert "(assets/plots/frontier-qwen-coder-mbpp.png)" in text


@pytest.mark.parametrize(
    ("n", "batch_size", "options"),
    [
        (16, 8, " --batch-size 8 --methods target,lossless,lenience:0.3 --num-examples 16`."),
        (50, 25, " --methods target,lossless,lenience:0.3`."),
        (100, 50, " --batch-size 50 --methods target,lossless,lenience:0.3 --parts 2`."),
    ],
)
def test_command_has_the_prompts_and_their_batches(folder, n, batch_size, options):
    """Catches a command that measures other prompts than the table's, or other batches of them."""
    path = folder / "qwen-coder-mbpp.json"
    content = json.loads(path.read_text())
    rows = [record | {"n": n, "batch_size": batch_size} for record in content["records"]]
    path.write_text(json.dumps({**content, "records": rows}))
    assert f"--data mbpp=mbpp_974.jsonl{options}" in render_pair.pair(folder)


def test_rows_of_fewer_prompts_are_marked(folder):
    """Catches a row that looks as if it were measured on the prompts of the others."""
    path = folder / "qwen-coder-mbpp.json"
    content = json.loads(path.read_text())
    for row, n in zip(content["records"], (100, 100, 50)):
        row |= {"n": n, "batch_size": 25}
    differences = {"acceptance_rate": 0.05, "acceptance_rate_ci": None, "quality": 0.01, "quality_ci": None}
    content["comparisons"] = [
        differences | {"method": "diversed:b", "minus": minus, "n": 50} for minus in ("lossless", "static:0.3")
    ]
    path.write_text(json.dumps(content))
    text = render_pair.pair(folder)
    assert "| method | prompts | accepted / drafted |" in text
    assert "| `lenience:0.3` | 50 | 80.0%" in text
    assert "| `diversed:b` minus `lossless` | 50 | 5.0% | 1.0% |" in text
    assert "`diversed:b` minus `static:0.3`" not in text
    assert [row["method"] for row in render_pair.same_prompts(path)] == ["target", "lossless"]
    brief = render_pair.brief(folder, ("target", "lossless", "lenience:0.3"))
    assert "| `lossless` | 70.0% (68.0% to 71.0%) |" in brief
    assert "| `lenience:0.3` | 80.0% (78.0% to 81.0%), 50 prompts |" in brief
    assert "--methods target,lossless --parts 2`, and `" in text
    assert "--methods lenience:0.3` (50 prompts)." in text


@pytest.mark.parametrize(
    ("task", "name", "num_parts"),
    [
        ("mbpp", "qwen-coder-mbpp", 2),
        ("gsm8k", "qwen-coder-gsm8k", 2),
        ("gsm8k-t0", "qwen-coder-gsm8k-t0", 1),
        ("gsm8k", "lossless-gsm8k", 3),
    ],
)
def test_published_figures_follow_from_the_batches(task, name, num_parts):
    """Catches figures that were not computed from the published scores and counters of the prompts."""
    published = json.loads((render_pair.FOLDER / f"{name}.json").read_text())["records"]
    folder = render_pair.FOLDER / "batches" / task
    computed = real_pair.summarize_parts([read_results(folder / f"part-{part}") for part in range(num_parts)])
    assert [row["method"] for row in computed][: len(published)] == [row["method"] for row in published]
    for row, expected in zip(computed, published):
        assert {name: row[name] for name in FIGURES} == {name: pytest.approx(expected[name]) for name in FIGURES}


def test_heads_measured_on_all_tasks_have_rows(folder):
    """Catches a head that hides a task on which it was not measured."""
    path = folder / "qwen-coder-mbpp.json"
    content = json.loads(path.read_text())
    content["records"].append(measured("diversed:results/real/token-head-mbpp", 0.75, 0.43))
    (folder / "qwen-coder-gsm8k.json").write_text(json.dumps(content))
    content["records"].append(measured("diversed:results/real/head-mbpp", 0.75, 0.43))
    compared = {
        "method": "diversed:results/real/token-head-mbpp",
        "minus": "lossless",
        "quality": 0.01,
        "quality_ci": None,
    }
    content["comparisons"] = [compared | {"acceptance_rate": 0.05, "acceptance_rate_ci": [0.02, 0.08]}]
    path.write_text(json.dumps(content))
    text = render_pair.brief(folder, ("target", "lossless"))
    assert "| `diversed`, token head trained on MBPP | 75.0%" in text
    assert "mixture head" not in text
    assert "minus `lossless` | 5.0% (2.0% to 8.0%) | 1.0% |" in render_pair.pair(folder)


def test_gains_are_over_the_target_of_the_same_turn_and_engine(folder):
    """Catches compiled speed divided by eager speed, and medians of ratios of different turns."""
    text = render_pair.pair(folder)
    assert "| MBPP | 1 | 3 | `lossless` | 5.0 | 1.50x (1.00 to 2.00) |" in text
    assert "| MBPP | 1 | 3 | `lossless, compiled` | 5.0 | 4.00x (4.00 to 4.00) |" in text
    assert "--seconds --gammas 3 --repeats 2 --eager-only`" in text  # the length that was measured


def test_every_measurement_of_speed_has_its_table_and_command(folder):
    """Catches a second file of speeds that is ignored, or shown with the setting of the first."""
    found = json.loads((folder / "qwen-coder-speed.json").read_text())
    found["records"][0]["seconds"][0]["batch_size"] = 8
    found["provenance"] |= {"threads": 1}
    (folder / "qwen-coder-speed-batch-8.json").write_text(json.dumps(found))
    text = render_pair.pair(folder)
    assert text.count("### Speed") == 1
    first, second = text.partition("### Speed")[2].split("Measured by")[:2]
    assert "2 thread(s)" in first
    assert "| MBPP | 1 | 3 | `lossless` | 5.0 | 1.50x" in first
    assert "1 thread(s)" in second
    assert "| MBPP | 8 | 3 | `lossless` | 5.0 | 1.50x" in second


def test_what_is_missing_comes_with_its_command(folder, tmp_path):
    """Catches a page that hides missing results."""
    assert "Not measured yet: humaneval, gsm8k." in render_pair.pair(folder)
    assert "--data mbpp=mbpp_974.jsonl,humaneval=" in render_pair.pair(tmp_path / "nothing")


def test_one_point_has_no_plot(folder):
    """Catches a link to a plot that does not exist."""
    path = folder / "qwen-coder-mbpp.json"
    records = [row for row in read_records(path) if row["method"] == "target"]
    path.write_text(json.dumps({"records": records, "provenance": {"device": "some CPU"}}))
    assert "png" not in render_pair.pair(folder)


def test_brief_table(folder):
    """Catches a task of which a method is missing, and figures under another task."""
    rows = [measured("target", None, 0.3), measured("lossless", 0.6, 0.2)]
    (folder / "qwen-coder-gsm8k.json").write_text(json.dumps({"records": rows}))
    text = render_pair.brief(folder, ["target", "lossless", "lenience:0.3"])
    assert "GSM8K" not in text
    assert "| `target` | - | 1.00 | 44.0% (39.0% to 47.0%) |" in text
    text = render_pair.brief(folder, ["target", "lossless"])
    lossless = "| `lossless` | 70.0% (68.0% to 71.0%) | 4.50 | 42.0% (37.0% to 45.0%) | 60.0%"
    assert lossless in text
    assert "100 prompts of MBPP, 100 prompts of GSM8K; temperature 1, 5 draft tokens per round" in text
