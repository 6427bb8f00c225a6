"""Write the tables of README and documentation, declared in `tools/tables/`; also a hook of mkdocs.

python -m tools.render_docs

A table is written between the lines `<!-- begin:name -->` and `<!-- end:name -->`, for a name in `SECTIONS`.
"""

import json
import re
from pathlib import Path
from typing import Any

from hf_diversed.training import DiversedConfig
from tools.figures import RESULTS
from tools.tables import TABLES, brief, quality
from tools.tables.parts import markdown


ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MARK = re.compile(r"(<!-- begin:([\w-]+) -->\n).*?(<!-- end:\2 -->)", re.DOTALL)


def families() -> str:
    """Return a table of model types by how they are supported, from a run of `make families`."""
    found = json.loads((RESULTS / "families.json").read_text())
    names: dict[str, list[str]] = {words: [] for words in _SERVED.values()}
    for kind, types in found["model_types"].items():
        names[_SERVED.get(kind, "not tested")] += types
    rows = ([words, str(len(types)), ", ".join(f"`{name}`" for name in types)] for words, types in names.items())
    return f"{markdown(('supported', 'number', 'model types'), rows)}\n\ntransformers {found['transformers']}."


def settings() -> str:
    """Return a table of the fields that `DiversedConfig` adds to `TrainingArguments`, or whose default it changes."""
    rows = (
        [f"`{field.name}`", f"`{field.default!r}`", field.metadata["help"].replace("|", "or")]
        for field in DiversedConfig.own_fields()
    )
    return markdown(("field", "default", "meaning"), rows)


_SERVED = {
    "equal": "yes",
    "equal, refused, refused": "at batch size 1 only",
    "refused": "no: an error is raised",
    "not testable": "not tested",
}


SECTIONS = {name: table.render for name, table in TABLES.items()} | {
    "brief": brief.render,
    "families": families,
    "settings": settings,
    "summaries": quality.summaries,
}


def render(text: str) -> str:
    """Return a page with the current figures.

    Raises:
        KeyError: for a name that is not in `SECTIONS`.
    """
    return MARK.sub(lambda mark: f"{mark[1]}\n{SECTIONS[mark[2]]()}\n\n{mark[3]}", text)


def on_page_content(html: str, **_: Any) -> str:
    """Label the cells of tables, which narrow screens show below each other; mkdocs calls this for every page."""
    return re.sub(r"<table>.*?</table>", lambda match: _label_cells(match.group()), html, flags=re.DOTALL)


def _label_cells(html: str) -> str:
    labels = [re.sub("<.*?>", "", label).strip() for label in re.findall(r"<th\b[^>]*>(.*?)</th>", html, re.DOTALL)]
    rows = re.split(r"(?=<tr\b)", html)
    for index, row in enumerate(rows):
        columns = iter(labels)
        rows[index] = re.sub(r"<td\b", lambda _: f'<td data-label="{next(columns, "")}"', row)  # noqa: B023
    return "".join(rows)


def main() -> None:
    for page in PAGES:
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
