"""Print the table of model types at the end of a full run, also with several processes.

FAMILIES_JSON names a file to write it to.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import transformers

from tests.families.test_families import SAMPLE


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = dict(
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())  # absent from warnings
        if name == "family"
    )
    if len(found) <= len(SAMPLE):
        return
    names = defaultdict(list)
    for model_type, kind in found.items():
        names[kind].append(model_type)
    terminalreporter.section(f"{len(found)} model types: alone, in a batch, left-padded")
    for kind in sorted(names, key=lambda kind: -len(names[kind])):
        terminalreporter.write_line(f"{len(names[kind]):4d} {kind}: {' '.join(sorted(names[kind]))}")
    if output := os.environ.get("FAMILIES_JSON"):
        found = {
            "transformers": transformers.__version__,
            "model_types": {kind: sorted(names[kind]) for kind in names},
        }
        Path(output).write_text(json.dumps(found, indent=1) + "\n")
