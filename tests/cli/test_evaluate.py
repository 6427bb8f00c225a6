"""`hf-diversed evaluate` on the embedded pair: sweeps, files and tables."""

import io
import json
import sys
from unittest.mock import Mock

import pytest
from rich.console import Console

from hf_diversed.cli.options import TrainOptions
from hf_diversed.cli.rendering import results_table
from hf_diversed.cli.train import load_rows
from hf_diversed.evaluation.intervals import paired_bounds, wilson
from hf_diversed.harness.decode import Decoder
from hf_diversed.harness.prompts import encode
from hf_diversed.tasks import get_task, load_records
from tests.commands import refused, run, succeed
from tests.evaluation.measured import record


CALL = ["evaluate", "--task", "math", "--methods", "target,static:0.5", "--num-examples", "2", "--max-new-tokens", "6"]


def test_sweep_from_the_command_line(tmp_path):
    """Catches a list read as one value, missing combinations, tables of other parts, and missing files."""
    output, markdown = tmp_path / "all.json", tmp_path / "new" / "all.md"
    options = ("--temperature", "0,1.0", "--num-assistant-tokens", "2,3", "--output", str(output))
    result = succeed(*CALL, *options, "--markdown", markdown)
    records = json.loads(output.read_text())["records"]
    settings = [(row["temperature"], row["num_assistant_tokens"]) for row in records]
    assert settings == [(t, gamma) for t in (0, 1) for gamma in (2, 3) for _ in range(2)]
    assert {row["split"] for row in records} == {"test"}
    folders = {path.name for path in (tmp_path / "all.parts").iterdir()}
    assert folders == {f"temperature-{t}_gamma-{gamma}" for t in (0, 1) for gamma in (2, 3)}
    assert markdown.read_text().count("| `static:0.5` |") == 4
    assert result.output.count("\nstatic:0.5") == 4
    assert "Temperature 0, 3 draft tokens per round" in result.output
    for row in records[1::2]:
        assert f"{row['block_efficiency']:.2f}" in result.output


def test_time_per_token_and_speedup():
    """Catches a time that is not that of a token, a ratio of times upside down, and a speedup without the target."""
    rows = [
        record("target", None, 0.8, tokens_per_second=50.0),
        record("static:0.5", 0.7, 0.8, tokens_per_second=100.0),
        record("static:0.3", 0.8, 0.7, tokens_per_second=None),
    ]
    for row in rows:
        row |= {"block_efficiency": None}
    times, speedups = (list(column.cells) for column in results_table(rows).columns[-2:])
    assert times == ["20.00", "10.00", "-"]
    assert speedups == ["1.00x", "2.00x", "-"]
    assert list(results_table(rows[1:]).columns[-1].cells) == ["-", "-"]


@pytest.mark.parametrize("length", [8, 14, 15, 25, 60])
def test_a_narrow_terminal_shows_all_digits(length):
    """Catches figures that a long name of a method shortens."""
    row = record("m" * length, 0.823, 0.517, tokens_per_second=50.0)
    row |= {"cut_off_rate": 0.901, "block_efficiency": 4.55}
    console = Console(width=80, file=io.StringIO())
    console.print(results_table([row, row | {"method": "target"}]))
    text = console.file.getvalue()
    for figure in ("82.3%", "90.1%", "4.55", "51.7%", "20.00", "1.00x"):
        assert text.count(figure) == 2
    assert ("m" * length in text) == (length <= 14)
    assert max(map(len, text.splitlines())) <= 80


def test_plot(tmp_path, monkeypatch):
    """Catches a figure that is not written, and errors about it that follow minutes of decoding."""
    succeed(*CALL, "--plot", tmp_path / "new" / "plot.png")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("hf_diversed.cli.preparing.load_prompts", None)
    refused("figures are written as png, svg, pdf, got 'plot.gif'", *CALL, "--plot", tmp_path / "plot.gif")
    refused("needs a method that verifies draft tokens", *CALL, "--methods", "target", "--plot", "x.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    monkeypatch.delitem(sys.modules, "hf_diversed.evaluation.plots", raising=False)
    monkeypatch.delattr("hf_diversed.evaluation.plots", raising=False)
    refused('matplotlib is not installed: pip install "hf-diversed[plot]"', *CALL, "--plot", "x.png", code=1)


def test_the_table_is_printed_before_files_are_written(tmp_path, monkeypatch):
    """Catches hours of results that are not shown because a file cannot be written."""
    monkeypatch.setattr("hf_diversed.cli.evaluate.markdown_table", Mock(side_effect=OSError("full")))
    result = run(*CALL, "--markdown", tmp_path / "all.md")
    assert result.exit_code == 1
    assert "static:0.5" in result.stdout


def test_overwrite_starts_anew(tmp_path, monkeypatch):
    """Catches results of other settings that cannot be replaced, and finished batches that are kept."""
    output = ("--output", str(tmp_path / "all.json"))
    succeed(*CALL, *output)
    refused("holds results of other settings", *CALL, *output, "--seed", "1")
    succeed(*CALL, *output, "--seed", "1", "--overwrite")
    assert {row["seed"] for row in json.loads((tmp_path / "all.json").read_text())["records"]} == {1}
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("--overwrite needs a single process", *CALL, *output, "--overwrite")


def pair_options(folder) -> list[str]:
    return ["--target", str(folder / "target"), "--draft", str(folder / "draft"), "--device", "cpu"]


@pytest.mark.parametrize(
    ("from_file", "chat", "shots"), [(False, False, 0), (False, True, 2), (True, False, 2), (True, True, 0)]
)
def test_prompts_are_those_of_training(from_file, chat, shots, folder, tmp_path, monkeypatch):
    """Catches a head that is evaluated on other prompts than it was trained on: shots, chat, BOS, stop strings."""
    calls = []
    monkeypatch.setattr("hf_diversed.cli.evaluate.sweep", lambda *args, **_: calls.append(args) or [])
    data = None
    options = ["--task", "math", "--num-examples", "4", "--seed", "7", "--shots", str(shots)]
    options += [] if from_file else ["--split", "train"]
    if from_file:
        data = str(tmp_path / "data.jsonl")
        with open(data, "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in load_records(get_task("math"), "train", 4))
        options += ["--data-file", data, *(["--shots-file", data] if shots else [])]
    options += ["--chat"] if chat else []
    succeed("evaluate", "--methods", "target", *options, *pair_options(folder))
    ((pair, task, examples, [(_, settings, _)]),) = calls
    prompts = [task.prompt(example) for example in examples]
    found = encode(pair.tokenizer, prompts, settings.add_special_tokens)

    arguments = TrainOptions(task="math", data_file=data, num_examples=4, shots=shots, chat=chat)
    rows, _ = load_rows(arguments, get_task("math"), 7, held_out=False)
    assert found == encode(pair.tokenizer, [row["prompt"] for row in rows])
    assert task.stop_strings == (() if chat else get_task("math").stop_strings)


def test_formats_of_prompts_never_mix(folder, tmp_path):
    """Catches results of two formats in one folder, a format that is not recorded, and another plain header."""
    output = tmp_path / "chat.json"
    call = [*CALL, "--max-new-tokens", "3", *pair_options(folder), "--output"]
    succeed(*call, str(output), "--chat", "--shots", "1")
    header = json.loads(output.read_text())["provenance"]["evaluation"]
    assert (header["chat"], header["shots"], header["stop_strings"]) == (True, 1, [])
    for other, words in (["--chat"], "shots: 1 there, 0 here"), ([], "chat: True there, None here"):
        refused(words, *call, output, *other)
    plain = tmp_path / "plain.json"
    succeed(*call, str(plain))
    assert not {"chat", "shots"} & json.loads(plain.read_text())["provenance"]["evaluation"].keys()


def test_no_right_answer_has_an_interval(tmp_path):
    """Catches 0.0% (0.0% to 0.0%) for two prompts in table and file, where the bootstrap is degenerate."""
    output = tmp_path / "all.json"
    short = ("--temperature", "0", "--num-examples", "8", "--max-new-tokens", "2")
    result = succeed(*CALL, "--output", output, *short)
    plain, static = json.loads(output.read_text())["records"]
    high = wilson(0, 8)[1]
    for row in (plain, static):
        assert row["quality"] == 0.0
        assert row["quality_ci"] == pytest.approx([0.0, high])
    assert static["quality_drop_ci"] == pytest.approx(paired_bounds(0, 0, 8))
    assert result.stdout.count("32.4%)") == 2
    assert "27.7%)" in result.stdout


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ([], "again to continue"),
        (["--overwrite"], "without --overwrite to continue, or with it if this run has finished no call"),
    ],
)
def test_interrupts_name_the_way_to_continue(tmp_path, monkeypatch, options, how):
    """Catches Ctrl-C that prints "Aborted!" without stating how to continue, or a command that removes the results."""
    monkeypatch.setattr(Decoder, "__call__", Mock(side_effect=KeyboardInterrupt))
    result = run(*CALL, "--output", str(tmp_path / "all.json"), *options)
    assert result.exit_code == 130
    kept = f"Finished calls are kept in {tmp_path / 'all.parts'}: run the same command {how}."
    assert kept in " ".join(result.stderr.split())
