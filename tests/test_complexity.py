"""Complexity of the package's functions, measured by radon."""

import ast
import inspect
import textwrap
from pathlib import Path

import pytest
from radon.complexity import cc_visit

from hf_diversed.generation import decoding, planning


PACKAGE = Path(decoding.__file__).parents[1]
LIMIT = 15
# Allowed above the limit: each is a flat list of cases, without nested decisions.
EXCEPTIONS = {
    "evaluation/summary.py:__init__": 16,  # one column of the table per line
    "training/arguments.py:__post_init__": 16,  # one check per argument
}


def _blocks(path: Path):
    for block in cc_visit(path.read_text()):
        for part in (block, *getattr(block, "methods", ())):
            yield f"{path.relative_to(PACKAGE)}:{part.name}", part


def test_no_function_is_too_complex():
    """Catches a function that becomes too complex, and an exception that is no longer needed."""
    found = {
        name: part for path in PACKAGE.rglob("*.py") for name, part in _blocks(path) if not hasattr(part, "methods")
    }
    over = {name: part.complexity for name, part in found.items() if part.complexity > LIMIT}
    assert over == {name: min(over.get(name, 0), limit) for name, limit in EXCEPTIONS.items()}


@pytest.mark.parametrize("function", [planning.diversed_decoding, decoding.run_rounds])
def test_the_loop_reads_as_the_algorithm(function):
    """Catches a loop that drafts, verifies, records and streams inline: 50 lines, complexity 10, 20 names."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    tree = ast.parse(source).body[0]
    docstring = ast.get_docstring(tree, clean=False) or ""
    code = [line for line in source.splitlines() if line.strip()]
    assert len(code) - len([line for line in docstring.splitlines() if line.strip()]) <= 50
    assert cc_visit(source)[0].complexity <= 10
    if function is decoding.run_rounds:
        assert len({node.id for node in ast.walk(ast.Module(tree.body, [])) if isinstance(node, ast.Name)}) <= 20
