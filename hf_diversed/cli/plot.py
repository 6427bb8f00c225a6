"""`hf-diversed plot`: draw figures of results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_diversed.cli.terminal import console, notes


if TYPE_CHECKING:
    from hf_diversed.evaluation.curves import Curve


def plot(
    results: Annotated[list[Path], typer.Argument(help="JSON files of evaluate and frontier.")],
    output: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("figures"),
    formats: Annotated[str, typer.Option("--format", help="png, svg, pdf; several separated by commas.")] = "png",
) -> None:
    """Draw quality against acceptance and time, speed against acceptance, and acceptance against static weights."""
    from hf_diversed.cli.preparing import check_output
    from hf_diversed.evaluation import plots as drawing

    kinds = formats.split(",")
    if unknown := [kind for kind in kinds if kind not in drawing.FORMATS]:
        raise ValueError(f"--format must be of {', '.join(drawing.FORMATS)}, got {', '.join(unknown)}.")
    check_output("--output", output, folder=True)
    figures, skipped = drawing.draw(_read(results))
    for sentence in skipped:
        notes.print(sentence, markup=False)
    if not figures:
        raise ValueError("nothing to draw: no file holds a method that verified draft tokens.")
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for kind in kinds:
            path = output / f"{name}.{kind}"
            drawing.save(figure, path)
            console.print(str(path), markup=False, soft_wrap=True)


def _read(paths: list[Path]) -> "list[Curve]":
    """Return the curves of all files; one without results, as `results/*.json` may match, is reported and skipped."""
    from hf_diversed.evaluation.curves import read_curves

    curves: list[Curve] = []
    stems = [path.stem for path in paths]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise ValueError(f"figures are named after their files, which must differ: got {', '.join(twice)} twice.")
    for path in paths:
        try:
            curves += read_curves(path)
        except ValueError as error:
            notes.print(f"left out: {error}", style="red", markup=False)
    return curves
