"""Print the table of model types at the end of a full run, also with several processes.

FAMILIES_JSON names a file to write it to. A run over some of the types (`-k`) replaces only their entries, if the file
is from the same version of transformers.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import transformers

from tests.families.test_families import CASES, SAMPLE


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = dict(
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())  # absent from warnings
        if name == "family"
    )
    output = os.environ.get("FAMILIES_JSON")
    if output:
        found = _earlier(Path(output), found) | found
    elif len(found) <= len(SAMPLE):
        return
    names = defaultdict(list)
    for model_type, kind in found.items():
        names[kind].append(model_type)
    terminalreporter.section(f"{len(found)} model types: alone, in a batch, left-padded")
    for kind in sorted(names, key=lambda kind: -len(names[kind])):
        terminalreporter.write_line(f"{len(names[kind]):4d} {kind}: {' '.join(sorted(names[kind]))}")
    if output:
        table = {
            "transformers": transformers.__version__,
            "model_types": {kind: sorted(names[kind]) for kind in names},
        }
        Path(output).write_text(json.dumps(table, indent=1) + "\n")


def _earlier(path: Path, found: dict[str, str]) -> dict[str, str]:
    """Return the entries of a previous run; none after a full run, or from another version of transformers."""
    if len(found) == len(CASES) or not path.exists():
        return {}
    table = json.loads(path.read_text())
    if table["transformers"] != transformers.__version__:
        return {}
    return {name: kind for kind, names in table["model_types"].items() for name in names}
