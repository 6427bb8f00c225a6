"""Write the figures of README and documentation from the JSON in `results/`; also a hook of mkdocs.

python -m tools.render_docs

A figure is written between the lines `<!-- begin:name -->` and `<!-- end:name -->`, for a name in `SECTIONS`. mkdocs
replaces a line `<!-- file: NAME.md -->` with that file of the repository.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_diversed.formatting import percent, with_bounds
from hf_diversed.training import DiversedConfig
from hf_diversed.training.arguments import own_fields
from tools import (
    render_counterfactual,
    render_learning,
    render_pair,
    render_readme,
    render_real,
    render_results,
    render_serving,
    render_studies,
    render_tables,
)
from tools.markdown import prompts, table
from tools.render_results import RESULTS


ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_MARK = re.compile(r"(<!-- begin:([\w-]+) -->\n).*?(<!-- end:\2 -->)", re.DOTALL)
_FILE = re.compile(r"^.*<!-- file: ([\w.]+) -->$", re.MULTILINE)
# Files of the repository that are separate pages.
FILES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
Record = Mapping[str, Any]


def _command(found: Record) -> str:
    script, *arguments = found["provenance"]["argv"]
    return f"Measured by `{' '.join(['python -m', f'benchmarks.{script}'.removesuffix('.py'), *arguments])}`."


def truncation() -> str:
    """Return a table of relaxed verifiers and truncated targets, with overshoot."""
    records = json.loads((RESULTS / "truncation.json").read_text())["records"]
    rows = (
        [
            f"`{record['method']}`",
            *(with_bounds(record, name) for name in ("acceptance_rate", "quality")),
            "-" if record["mean_overshoot"] is None else f"{record['mean_overshoot']:.3f}",
            "-" if record["max_ratio"] is None else f"{record['max_ratio']:.2g}",
        ]
        for record in records
    )
    header = ("method", "accepted / drafted", "quality", "mean overshoot", "largest v/p")
    return f"{table(header, rows)}\n\nEmbedded pair, math, temperature 1, {prompts(records)}."


def random_draft() -> str:
    """Return a table of the adaptive schedule with a random draft model, relative to the target alone."""
    found = json.loads((RESULTS / "random-draft.json").read_text())
    rows = (
        [
            f"{row['engine']}, {row['batch_size']}",
            "{:.2f} ({:.2f} to {:.2f})".format(*row["over_target"]),
            f"{row['first_call']:.2f}",
            f"{row['draft_forwards']:.3f}",
        ]
        for row in found["records"]
    )
    header = (
        "engine, batch size",
        "CPU time over the target alone",
        "first call",
        "draft forwards per target forward",
    )
    words = "Embedded target, 96 new tokens per row, median (quartiles) of alternating calls."
    return f"{table(header, rows)}\n\n{words} {_command(found)}"


def head_costs() -> str:
    """Return a table of the time per round of a head on token costs, relative to lossless verification."""
    found = json.loads((RESULTS / "head-costs.json").read_text())
    rows = []
    for row in found["records"]:
        extra = "{:.1%} ({:.1%} to {:.1%})".format(*row["extra"])
        rows.append([row["engine"], f"{row['lossless_ms']:.1f}", extra, str(row["turns"])])
    header = ("engine", "lossless, ms per round", "more with the head", "turns")
    words = (
        "Hidden size 1024, 4 target layers, random weights, 5 draft tokens per round, one thread; median (quartiles)."
    )
    return f"{table(header, rows)}\n\n{words} {_command(found)}"


def importance() -> str:
    """Return a table of mean rewards of relaxed rollouts with importance weights."""
    found = json.loads((RESULTS / "importance.json").read_text())
    records = found["records"]

    def with_error(record: Record, name: str) -> str:
        return f"{record[name]['mean']:.3f} ± {record[name]['error']:.3f}"

    rows = (
        [
            f"`{record['method']}`",
            *(with_error(record, name) for name in ("reward", "weighted_reward", "mean_weight")),
            percent(record["effective_share"]),
        ]
        for record in records
    )
    words = (
        f"Embedded pair, math, temperature 1, {records[0]['num_prompts']} prompts x "
        f"{records[0]['samples_per_prompt']}; ± one standard error over prompts. {_command(found)}"
    )
    header = ("rollouts", "mean reward", "weighted", "mean weight", "effective sample size")
    return f"{table(header, rows)}\n\n{words}"


def families() -> str:
    """Return a table of model types by how they are supported, from a run of `make families`."""
    found = json.loads((RESULTS / "families.json").read_text())
    names: dict[str, list[str]] = {words: [] for words in _SERVED.values()}
    for kind, types in found["model_types"].items():
        names[_SERVED.get(kind, "not tested")] += types
    rows = ([words, str(len(types)), ", ".join(f"`{name}`" for name in types)] for words, types in names.items())
    return f"{table(('supported', 'number', 'model types'), rows)}\n\ntransformers {found['transformers']}."


def replay() -> str:
    """Return a table of the cost of rejections in a model with recurrent states, from `benchmarks.replay`."""
    found = json.loads((RESULTS / "replay.json").read_text())
    rows = []
    for batch_size, batch in found["batches"].items():
        median, (low, high) = batch["ratio"]["median"], batch["ratio"]["quartiles"]
        rows.append((batch_size, f"{median:.2f} ({low:.2f} to {high:.2f})", f"{batch['forwards_per_round']:.2f}"))
    return (
        f"{table(('batch size', 'time', 'forward passes per round'), rows)}\n\n"
        f"Time of the target's part of a round that rejects half of {found['gamma']} draft tokens per row (in batches "
        "from none to all of them), relative to a round that accepts all. Qwen3.5 architecture with "
        f"{found['parameters'] / 1e6:.0f} million random parameters, one CPU thread, process time, median (quartiles) "
        f"of means over 20 rounds, {found['rounds']} alternating rounds each. Measured by "
        "`python -m benchmarks.replay`."
    )


def settings() -> str:
    """Return a table of the fields that `DiversedConfig` adds to `TrainingArguments`, or whose default it changes."""
    rows = (
        [f"`{field.name}`", f"`{field.default!r}`", field.metadata["help"].replace("|", "or")]
        for field in own_fields(DiversedConfig)
    )
    return table(("field", "default", "meaning"), rows)


_SERVED = {
    "equal": "yes",
    "equal, refused, refused": "at batch size 1 only",
    "refused": "no: an error is raised",
    "not testable": "not tested",
}


def _headed(parts: Mapping[str, str]) -> str:
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts.items() if text)


SECTIONS = {
    "first": render_readme.first,
    "brief": render_readme.brief,
    "pair": render_tables.pair,
    "heads": render_tables.heads,
    "compiled": render_tables.compiled,
    "adaptive": render_tables.adaptive,
    "speed": render_tables.speed,
    "head-costs": head_costs,
    "importance": importance,
    "truncation": truncation,
    "random-draft": random_draft,
    "tasks": lambda: _headed(render_results.tasks(RESULTS)),
    "counterfactual": lambda: _headed(render_counterfactual.studies(RESULTS)),
    "learning": lambda: _headed(render_learning.studies(RESULTS)),
    "mixture-heads": lambda: _headed(render_studies.studies(RESULTS)),
    "smollm2": lambda: _headed(dict(render_real.real(RESULTS / "real"))),
    "families": families,
    "replay": replay,
    "qwen-coder": render_pair.pair,
    "sampling-check": render_pair.sampling_check,
    "differences": render_pair.differences,
    "published": render_pair.brief,
    "eagle3": render_serving.eagle3,
    **render_serving.SECTIONS,
}


def render(text: str) -> str:
    """Return a page with the current figures.

    Raises:
        KeyError: for a name that is not in `SECTIONS`.
    """
    return _MARK.sub(lambda mark: f"{mark[1]}\n{SECTIONS[mark[2]]()}\n\n{mark[3]}", text)


def _file(name: str) -> str:
    """Return a file of the repository, with links to the pages of other files."""
    text = (ROOT / name).read_text().replace("](docs/", "](")
    for other, page in FILES.items():
        text = text.replace(f"]({other}", f"]({page}")
    return text


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Render a page; mkdocs calls this for every page."""
    return _FILE.sub(lambda mark: _file(mark.group(1)), markdown).replace("<!-- settings -->", settings())


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
