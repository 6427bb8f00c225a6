"""What the documentation takes from elsewhere, as a hook of mkdocs: figures from `results/`, refusals from the code.

A line of a page says where: `<!-- generated: name -->` for one of `SECTIONS`, `<!-- file: NAME.md -->` for a file of
the root. What else it says is for readers of the page's source.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_diversed.formatting import with_bounds
from tools import render_pair, render_readme, render_real, render_serving, render_tables
from tools.markdown import prompts, table
from tools.render_results import RESULTS, TASKS, read_asked, results


ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hf_diversed"
REFUSING = {
    "Models, modes and inputs": "generation/checks.py",
    "Rule and draft": "generation/planning.py",
    "Arguments": "generation/hook.py",
    "Rules by name": "verifiers/__init__.py",
    "Rules and bounds": "verifiers/mixture.py",
    "Certified dials": "verifiers/certified.py",
    "Heads and their configuration": "head/configuration_diversed.py",
    "Heads by name": "head/loading.py",
    "Heads from the Hub": "head/pulling.py",
}
REFUSALS = {"ValueError", "TypeError"}
_MARK = re.compile(r"^.*<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_FILE = re.compile(r"^.*<!-- file: ([\w.]+) -->$", re.MULTILINE)
# Files of the repository that have a page.
FILES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_EXPRESSION = "…"
Record = Mapping[str, Any]


def guide() -> str:
    """Lossless decoding, lenience, fixed weights and the packaged head, task by task."""
    parts = []
    for task in TASKS:
        records = read_asked(RESULTS / f"{task}.json")
        first = records[0]
        words = f"**{task}** ({first['metric']}, {prompts(records)}, temperature {first['temperature']:g}):"
        parts.append(f"{words}\n\n{_quality_and_acceptance(records)}")
    return "\n\n".join(parts)


def _quality_and_acceptance(records: Sequence[Record]) -> str:
    rows = [
        [f"`{record['method']}`", with_bounds(record, "acceptance_rate"), with_bounds(record, "quality")]
        for record in records
    ]
    return table(("method", "accepted / drafted", "quality"), rows)


def refusals() -> str:
    """Every message with which a call is refused, by the room that refuses; `…` stands for what was given."""
    parts = []
    for title, name in REFUSING.items():
        said = sorted(set(_messages(ast.parse((PACKAGE / name).read_text()))))
        parts.append(f"### {title}\n\n" + "\n".join(f"- {_quoted(message)}" for message in said))
    return "\n\n".join(parts)


def _messages(tree: ast.AST) -> Iterator[str]:
    """What a module raises in its own words."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            told = _text(node.exc.args[0])
            if told is not None and ast.unparse(node.exc.func) in REFUSALS:
                yield told


def _text(node: ast.expr) -> str | None:
    """A literal or an f-string, with `…` for its expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else _EXPRESSION for part in node.values)
        return re.sub(f"{_EXPRESSION}+", _EXPRESSION, "".join(str(part) for part in parts))
    return None


def _quoted(message: str) -> str:
    """As code, whatever it holds."""
    return f"`` {message} ``"


def drafts() -> str:
    """What tuning a draft comes to, losslessly and with a head."""
    found = json.loads((RESULTS / "drafts-math.json").read_text())
    records = [record for record in found["records"] if record["method"] != "target"]
    rows = (
        [
            record["draft"],
            f"`{record['method']}`",
            *(with_bounds(record, name) for name in ("acceptance_rate", "quality")),
        ]
        for record in records
    )
    return table(("draft", "method", "accepted / drafted", "quality"), rows)


def real() -> str:
    """Looked-up drafts on a real model."""
    return render_real.study(RESULTS / "real" / "lookup-scitldr.json")


def made() -> str:
    """Drafts of its own layers, on the same model."""
    return render_real.study(RESULTS / "real" / "draft-scitldr.json")


SECTIONS = {
    "first": render_readme.first,
    "pair": render_tables.pair,
    "heads": render_tables.heads,
    "compiled": render_tables.compiled,
    "adaptive": render_tables.adaptive,
    "speed": render_tables.speed,
    "results": results,
    "guide": guide,
    "drafts": drafts,
    "real": real,
    "qwen-coder": render_pair.pair,
    "made": made,
    "refusals": refusals,
    **render_serving.SECTIONS,
}


def render(text: str) -> str:
    """A page with its marks replaced.

    Raises:
        KeyError: for a mark that is no section.
    """
    text = _FILE.sub(lambda mark: _file(mark.group(1)), text)
    return _MARK.sub(lambda mark: SECTIONS[mark.group(1)](), text)


def _file(name: str) -> str:
    """A file of the repository, with its links among those that have a page."""
    text = (ROOT / name).read_text()
    for other, page in FILES.items():
        text = text.replace(f"]({other}", f"]({page}")
    return text


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return render(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for every page: label the cells of tables, which narrow screens show one below the other."""
    return re.sub(r"<table>.*?</table>", lambda match: _label_cells(match.group()), html, flags=re.DOTALL)


def _label_cells(html: str) -> str:
    labels = [re.sub("<.*?>", "", label).strip() for label in re.findall(r"<th\b[^>]*>(.*?)</th>", html, re.DOTALL)]
    rows = re.split(r"(?=<tr\b)", html)
    for number, row in enumerate(rows):
        columns = iter(labels)
        rows[number] = re.sub(r"<td\b", lambda _: f'<td data-label="{next(columns, "")}"', row)  # noqa: B023
    return "".join(rows)


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs: the pictures of the results become files of the site."""
    from mkdocs.structure.files import File  # only where mkdocs calls

    for picture in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    for name, content in render_pair.draw():
        files.append(File.generated(config, f"results/{name}", content=content))
    return files
