"""Draw the documentation's pictures of results: coloured tokens of answers, and quality against acceptance.

python -m tools.draw_figures
"""

import json
from collections.abc import Iterable
from html import escape
from pathlib import Path

from hf_diversed.verifiers.names import family
from tools.figures import RESULTS


ASSETS = Path(__file__).parent.parent / "docs" / "assets"
INK, PAPER = "#222222", "#FFFFFF"
INK_AT_NIGHT, PAPER_AT_NIGHT = "#E6E6E6", "#1E2129"
LINE, CELL, TOP = 26, 8.4, 12
# Colours from Okabe and Ito's palette, safe for colour blindness, and meanings of the origins of a token.
ORIGINS = {
    "draft": ("#009E73", "accepted draft token"),
    "relaxed": ("#E69F00", "relaxed: lossless verification would have rejected it"),
    "residual": ("#CC79A7", "residual token: replaces a rejected draft token"),
    "bonus": ("#56B4E9", "bonus token: follows a fully accepted block"),
}
TOKENS_WIDTH = 560  # narrow enough for phones
ANSWERS = {
    "lossless": "Lossless, the distribution of the target",
    "static:0.2": "Fixed weight on the target (static), 0.2",
    "diversed": "DIVERSED, a trained head",
}
# Curves of the plot of quality against acceptance: colour, label, and the height of the label.
CURVES = {
    "diversed": ("#D55E00", "DIVERSED, a trained head", 58),
    "lenience": ("#009E73", "lenience, no training", 116),
    "static": ("#3A8FD6", "fixed mixture (static)", 250),
}
PLOT_WIDTH, PLOT_HEIGHT = 640, 340
PLOT_LEFT, PLOT_RIGHT, PLOT_TOP, PLOT_BOTTOM = 62, 606, 36, 286
ACCEPTED, SCORES = (0.6, 1.0), (0.65, 1.04)  # ranges of the axes


def answers_picture() -> str:
    """Draw the recorded summaries of one abstract, with tokens as boxes in lines, and a legend."""
    answers = json.loads((RESULTS / "real" / "answers-scitldr.json").read_text())["answers"]
    y, parts = TOP, []
    for name, pieces in answers.items():
        forwards = 1 + sum(origin in ("residual", "bonus") for _, origin in pieces)  # one more forward ends the text
        parts.append(_words(10, y + 14, f"{ANSWERS[name]} ({forwards} target forwards)", "font-weight:bold"))
        x, y = 10.0, y + LINE
        for text, origin in pieces:
            text = text.replace("\n", "⏎")
            width = len(text) * CELL + 4
            if x + width > TOKENS_WIDTH - 10:
                x, y = 10.0, y + LINE
            parts.append(_box(x, y, width, 20, origin, text))
            x += width + 1
        y += LINE + LINE // 2
    for origin, (_, meaning) in ORIGINS.items():
        parts.append(_box(10, y, 16, 16, origin, ""))
        parts.append(_words(34, y + 13, meaning))
        y += 22
    return _svg(TOKENS_WIDTH, y + 8, parts, "Summaries of one abstract; each token is coloured by its origin")


def frontier_picture() -> str:
    """Draw right answers against accepted draft tokens of the embedded pair's word problems, from `results/`."""
    records = json.loads((RESULTS / "frontier-math.json").read_text())["records"]
    gamma = records[1]["num_assistant_tokens"]
    records = [row for row in records if row["num_assistant_tokens"] == gamma]
    target = next(row for row in records if row["method"] == "target")
    exact = next(row for row in records if row["method"] == "lossless")
    parts = [
        _words(PLOT_LEFT, 24, "Right answers, by share of accepted draft tokens", "font-weight:bold"),
        *(_axis_mark((share, SCORES[0]), 0, 20, "middle") for share in (0.6, 0.7, 0.8, 0.9, 1.0)),
        *(_axis_mark((ACCEPTED[0], share), -8, 5, "end") for share in (0.7, 0.8, 0.9, 1.0)),
        _line([(ACCEPTED[0], target["quality"]), (ACCEPTED[1], target["quality"])], "#808080", "stroke-dasharray:6 4"),
        _words(
            *_shift((ACCEPTED[1], target["quality"]), 0, 18),
            f"target alone, {target['quality']:.0%}",
            "text-anchor:end",
        ),
    ]
    for name, (colour, label, height) in CURVES.items():
        points = sorted(_point(row) for row in [exact, *records] if family(row["method"])[0] in (name, "lossless"))
        parts.append(_line(points, colour))
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in (_place(*each) for each in points)
        ]
        parts.append(_words(300, height, label, f"fill:{colour};font-weight:bold"))
    x, y = _place(*_point(exact))
    parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="{INK}" stroke-width="2"/>')
    parts.append(_words(x - 24, y - 14, "lossless"))
    setting = f"temperature {target['temperature']:g}, {gamma} draft tokens per round"
    parts.append(_words(PLOT_LEFT, PLOT_HEIGHT - 10, f"{target['n']} word problems, embedded pair, {setting}"))
    return _svg(PLOT_WIDTH, PLOT_HEIGHT, parts, "Right answers by share of accepted draft tokens")


def _point(row: dict) -> tuple[float, float]:
    return row["acceptance_rate"], row["quality"]


def _place(accepted: float, score: float) -> tuple[float, float]:
    """Return the pixels of a point of the plot."""
    across, up = ((value - low) / (high - low) for value, (low, high) in ((accepted, ACCEPTED), (score, SCORES)))
    return PLOT_LEFT + across * (PLOT_RIGHT - PLOT_LEFT), PLOT_BOTTOM - up * (PLOT_BOTTOM - PLOT_TOP)


def _shift(point: tuple[float, float], right: float, down: float) -> tuple[float, float]:
    x, y = _place(*point)
    return x + right, y + down


def _axis_mark(point: tuple[float, float], right: float, down: float, anchor: str) -> str:
    """Draw a grid line through a point on an axis, and its label."""
    is_across = point[1] == SCORES[0]
    end = (point[0], SCORES[1]) if is_across else (ACCEPTED[1], point[1])
    label = f"{point[0] if is_across else point[1]:.0%}"
    return _line([point, end], "#808080", "opacity:.25;stroke-width:1") + _words(
        *_shift(point, right, down), label, f"text-anchor:{anchor}"
    )


def _line(points: Iterable[tuple[float, float]], colour: str, style: str = "stroke-width:3") -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_place(*point) for point in points))
    return f'<polyline points="{places}" fill="none" stroke="{colour}" style="{style}"/>'


def _words(x: float, y: float, words: str, style: str = "") -> str:
    colour = "" if "fill:" in style else ' class="words"'
    style = f"font-family:system-ui,sans-serif;{style}"
    return f'<text{colour} x="{x:.1f}" y="{y:.1f}" style="{style}">{escape(words)}</text>'


def _box(x: float, y: float, width: float, height: float, origin: str, text: str) -> str:
    words = f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 5:.1f}" text-anchor="middle">{escape(text)}</text>'
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="4" fill="{ORIGINS[origin][0]}"/>'
    return box + (words if text else "")


def _svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """Return an SVG whose text and background both follow the reader's colour scheme."""
    night = f".paper {{fill: {PAPER_AT_NIGHT}}} .words {{fill: {INK_AT_NIGHT}}} .ring {{stroke: {INK_AT_NIGHT}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" role="img" fill="{INK}" '
        f'font-family="ui-monospace, monospace" font-size="14" xml:space="preserve"><title>{title}</title>'
        f"<style>@media (prefers-color-scheme: dark) {{{night}}}</style>\n"
        f'<rect class="paper" width="{width}" height="{height:.0f}" rx="6" fill="{PAPER}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / "summaries.svg").write_text(answers_picture())
    (ASSETS / "frontier.svg").write_text(frontier_picture())


if __name__ == "__main__":
    main()
