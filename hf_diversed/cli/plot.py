"""`hf-diversed plot`: draw figures of results."""

from dataclasses import dataclass
from pathlib import Path

from hf_diversed.cli.options import argument, option
from hf_diversed.cli.preparing import check_output
from hf_diversed.cli.terminal import console, notes
from hf_diversed.evaluation.curves import Curve, read_curves


@dataclass(kw_only=True)
class PlotOptions:
    """What to draw."""

    results: list[Path] = argument("JSON files of evaluate and frontier.")
    output: Path = option("Folder for the figures.", Path("figures"))
    format: str = option("png, svg, pdf; several separated by commas.", "png")


def plot(options: PlotOptions) -> None:
    """Draw quality and speed against acceptance, and acceptance by position in the draft block."""
    from hf_diversed.evaluation import plots as drawing  # needs matplotlib

    kinds = options.format.split(",")
    if unknown := [kind for kind in kinds if kind not in drawing.FORMATS]:
        raise ValueError(f"--format must be of {', '.join(drawing.FORMATS)}, got {', '.join(unknown)}.")
    check_output("--output", options.output, folder=True)
    figures, skipped = drawing.draw(_read(options.results))
    for sentence in skipped:
        notes.print(sentence, markup=False)
    if not figures:
        raise ValueError("nothing to draw: no file contains a method that verified draft tokens.")
    options.output.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for kind in kinds:
            path = options.output / f"{name}.{kind}"
            drawing.save(figure, path)
            console.print(str(path), markup=False, soft_wrap=True)


def _read(paths: list[Path]) -> list[Curve]:
    """Return the curves of all files. Files without results, which a pattern may match, are reported and skipped."""
    curves: list[Curve] = []
    stems = [path.stem for path in paths]
    if repeated := sorted({stem for stem in stems if stems.count(stem) > 1}):
        raise ValueError(f"figures are named after their files, which must differ: got {', '.join(repeated)} twice.")
    for path in paths:
        try:
            curves += read_curves(path)
        except ValueError as error:
            notes.print(f"left out: {error}", style="red", markup=False)
    return curves
