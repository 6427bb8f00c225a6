"""The documentation matches the code: its snippets run, its commands exist, its figures come from the results."""

import dataclasses
import inspect
import re
import shlex
from pathlib import Path

import pytest

import hf_diversed
from hf_diversed.training import DiversedConfig
from hf_diversed.verifiers.names import base_name
from tests.commands import run
from tools import render_docs
from tools.absolute_links import LINK


ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
VERIFIERS = ROOT / "docs" / "verifiers.md"


def blocks(page: Path, language: str) -> str:
    """Return all blocks of a page in one language, joined."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_snippets_run(page, tmp_path, monkeypatch, embedded_for_hub):
    """Catches a snippet for an older API, undefined names, and a warning that readers would see."""
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page, "python"), str(page), "exec"), {"__name__": "__main__"})


def options_of(name: str) -> set[str]:
    """Every option of a command."""
    found = set(re.findall(r"--[a-z][a-z0-9-]*", run(name, "--help").stdout))
    if name == "train":
        found |= {f"--{item.name.replace('_', '-')}" for item in dataclasses.fields(DiversedConfig)}
    return found


COMMANDS = {
    command: page.stem
    for page in PAGES
    for line in blocks(page, "bash").replace("\\\n", " ").splitlines()
    if (command := line.partition(" #")[0].strip()).startswith("hf-diversed ")
}


# Options that `serve` passes to vLLM.
PASSED_ON = {"--port", "--max-model-len", "--dtype", "--enforce-eager", "--tensor-parallel-size"}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_exist(line):
    """Catches a command or an option that was renamed."""
    _, name, *words = shlex.split(line)
    given = {word for word in words if word.startswith("--")} - (PASSED_ON if name == "serve" else set())
    assert given <= options_of(name), f"{COMMANDS[line]}: {given - options_of(name)}"


@pytest.mark.parametrize("page", render_docs.PAGES, ids=lambda page: page.stem)
def test_figures_are_rendered_from_results(page):
    """Catches manually typed figures, results without `make results`, and a marker without its section."""
    text = page.read_text()
    assert render_docs.render(text) == text, f"{page.name} is not up to date: run `make results`"
    assert text.count("<!-- begin:") == text.count("<!-- end:") == len(re.findall(render_docs.MARK, text))


# A rate, points, a factor, or the two bounds in parentheses.
IN_PROSE = re.compile(r"(-?\d[\d,]*\.?\d*)(?:%| points| times)|\((-?[\d.]+) to (-?[\d.]+)\)")


@pytest.mark.parametrize("page", render_docs.PAGES, ids=lambda page: page.stem)
def test_figures_in_prose_are_in_a_table(page):
    """Catches a figure in the text that no table of the same page shows."""
    text = page.read_text()
    tables = "".join(mark[0] for mark in render_docs.MARK.finditer(text))
    shown = [abs(float(number.replace(",", ""))) for number in re.findall(r"\d[\d,]*\.?\d*", tables)]
    prose = re.sub(
        r"```.*?```|`[^`]*`|\]\([^)]*\)|^\|.*?$", "", render_docs.MARK.sub("", text), flags=re.DOTALL | re.M
    )
    missing = []
    for number in (number for groups in IN_PROSE.findall(prose) for number in groups if number):
        value, half = abs(float(number.replace(",", ""))), 0.5001 * 10 ** -len(number.partition(".")[2])
        if not any(abs(other - value) <= half for other in shown):
            missing.append(number)
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs name them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


LINKING = [
    *render_docs.PAGES,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "examples/space/README.md")),
]


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    """Catches links to a renamed page or heading."""
    for _, address in LINK.findall(page.read_text()):
        if "://" in address:
            continue
        name, _, anchor = address.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), address
        assert not anchor or anchor in anchors(target), address


def test_twelve_pages_of_at_most_200_lines():
    """Catches pages that grow, and a page without a place in the navigation."""
    navigation = re.findall(r"^ +- .*: (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(navigation) == [page.name for page in PAGES]
    assert len(PAGES) == 12
    assert {page.name for page in PAGES if len(page.read_text().splitlines()) > 200} == set()


ROW = re.compile(r"^\| `([^`]+)` \| (.*?) \| .* \| (?:measured|experimental) \|$", re.MULTILINE)
NAMES = ROW.findall(VERIFIERS.read_text())
PARAMETER = re.compile(r"(\w+): (.+?)(?: \(([^()]*)\))?$")


def test_every_method_is_in_the_table():
    """Catches a verifier whose name is not in the table."""
    found = {base_name(form) for form, _ in NAMES}
    assert found == {*hf_diversed.VERIFIERS, "target", "upstream"} - {"phase"}


@pytest.mark.parametrize(("form", "cell"), [(f, c) for f, c in NAMES if ":" in f and not f.startswith("upstream")])
def test_parameters_of_methods_are_those_of_the_code(form, cell):
    """Catches a parameter or default in the table that differs from the code's."""
    name, *names = form.split(":")
    parameters = inspect.signature(hf_diversed.VERIFIERS[name]).parameters
    defaults = {key: item.default for key, item in list(parameters.items())[: len(names)]}
    rows = [PARAMETER.fullmatch(part).groups() for part in cell.split("; ")]
    assert [row[0] for row in rows] == names == list(defaults)
    for parameter, _, default in rows:
        expected = defaults[parameter]
        assert (default is None) == (expected is inspect.Parameter.empty)
        if isinstance(expected, (int, float, str)):
            assert default == (expected if isinstance(expected, str) else f"{expected:g}")
