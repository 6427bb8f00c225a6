"""The chart: measured curves of quality against acceptance as an SVG, with a point at the current setting."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hf_diversed.verifiers.names import family


HERE = Path(__file__).parent
WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 22, 14, 44


@dataclass(frozen=True)
class Point:
    """One measurement: the method's parameter, accepted / drafted, and the task's score."""

    parameter: float
    acceptance: float
    quality: float


@dataclass(frozen=True)
class Front:
    """Measured curves by method, each in the order of its parameter and with lossless decoding at its end.

    Attributes:
        target: quality of the target model alone. metric: name of the quality's metric. num_prompts: sample size.
    """

    curves: dict[str, list[Point]]
    target: float
    metric: str
    num_prompts: int


def load_front(task: str, folders: tuple[Path, ...] = (HERE, HERE.parents[1] / "results")) -> Front | None:
    """Read the results of a task's frontier, or else of its evaluation; None without either."""
    for folder in folders:
        for name in (f"frontier-{task}.json", f"{task}.json"):
            if (folder / name).is_file():
                return build_front(json.loads((folder / name).read_text())["records"])
    return None


def build_front(records: list[dict]) -> Front:
    """Group records by method, at the draft length with the most methods: others have only "static"."""
    lengths = [record["num_assistant_tokens"] for record in records]
    gamma = max(dict.fromkeys(lengths), key=lengths.count)
    records = [record for record in records if record["num_assistant_tokens"] == gamma]
    found: dict[str, list[Point]] = {}
    for record in records:
        name, parameter = family(record["method"])
        if record["acceptance_rate"] is not None:
            point = Point(
                1.0 if name == "lossless" else parameter or 0.0, record["acceptance_rate"], record["quality"]
            )
            found.setdefault(name, []).append(point)
    strict = found.get("lossless", [])  # the end of every curve
    curves = {
        name: sorted([*found.get(name, ()), *strict], key=lambda point: point.parameter)
        for name in ("static", "lenience", "diversed")
        if name in found or name != "lenience"
    }
    names = [record["method"] for record in records]
    plain = records[names.index("target" if "target" in names else "lossless")]
    return Front(curves, plain["quality"], plain["metric"], plain["n"])


def interpolate(points: list[Point], parameter: float) -> Point:
    """Return the point of a curve at a parameter: linear between measurements, constant beyond them."""
    parameter = min(max(parameter, points[0].parameter), points[-1].parameter)
    for low, high in pairwise(points):
        if parameter <= high.parameter:
            share = (parameter - low.parameter) / ((high.parameter - low.parameter) or 1.0)
            return Point(
                parameter,
                low.acceptance + share * (high.acceptance - low.acceptance),
                low.quality + share * (high.quality - low.quality),
            )
    return points[-1]


def front_chart(front: Front | None, family: str | None, parameter: float) -> str:
    """Return the chart as HTML; `family` is None for the target alone, which has no acceptance and no point."""
    if front is None or not any(front.curves.values()):
        return (
            '<section class="panel"><h3>Quality against acceptance</h3><em class="empty">Not measured.</em></section>'
        )
    points = front.curves.get(family or "")
    dot = interpolate(points, parameter) if points else None
    scale = _Scale(front)
    drawn = [scale.axes(front.metric), scale.target(front.target)]
    drawn += [scale.curve(name, points) for name, points in front.curves.items() if points]
    drawn += [scale.dot(dot)] if dot else []
    words = f"{front.target:.1%} {front.metric} without draft tokens"
    if dot:
        words = f"about {dot.quality:.1%} {front.metric} with {dot.acceptance:.1%} of draft tokens accepted"
        if points and parameter < points[0].parameter:
            words += f" (not measured below {points[0].parameter:g})"
    keys = {"diversed": "DIVERSED", "lenience": "lenience", "static": "static mix", "target": "target alone"}
    keys = {name: label for name, label in keys.items() if name == "target" or front.curves.get(name)}
    legend = "".join(f'<span class="key"><i class="line {name}"></i>{label}</span>' for name, label in keys.items())
    return (
        f'<section class="panel chart"><h3>Quality against acceptance</h3><div class="legend">{legend}</div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">{"".join(drawn)}</svg>'
        f'<p class="hint"><b>{words}</b><br>measured on {front.num_prompts} held-out prompts, '
        "interpolated linearly</p></section>"
    )


class _Scale:
    """Maps measurements to coordinates of the picture, with a margin."""

    def __init__(self, front: Front):
        points = [point for curve in front.curves.values() for point in curve]
        self.x = _round_range([point.acceptance for point in points])
        self.y = _round_range([point.quality for point in points] + [front.target])

    def place(self, acceptance: float, quality: float) -> tuple[float, float]:
        (left, right), (low, high) = self.x, self.y
        x = LEFT + (acceptance - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (quality - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    def axes(self, metric: str) -> str:
        parts = []
        for value in _ticks(*self.x):
            x, y = self.place(value, self.y[0])
            parts.append(f'<path class="grid" d="M{x} {TOP}V{y}"/><text x="{x}" y="{y + 16}">{value:.0%}</text>')
        for value in _ticks(*self.y):
            x, y = self.place(self.x[0], value)
            label = f'<text class="end" x="{x - 7}" y="{y + 4}">{value:.0%}</text>'
            parts.append(f'<path class="grid" d="M{x} {y}H{WIDTH - RIGHT}"/>{label}')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 8}">draft tokens accepted</text>')
        height = (TOP + HEIGHT - BOTTOM) / 2
        parts.append(f'<text transform="translate(11 {height}) rotate(-90)">{metric}</text>')
        return "".join(parts)

    def target(self, quality: float) -> str:
        x, y = self.place(self.x[0], quality)
        return f'<path class="target" d="M{x} {y}H{WIDTH - RIGHT}"/>'

    def curve(self, name: str, points: list[Point]) -> str:
        places = [self.place(point.acceptance, point.quality) for point in points]
        line = " ".join(f"{x},{y}" for x, y in places)
        marks = "".join(f'<circle class="{name}" cx="{x}" cy="{y}" r="3"/>' for x, y in places)
        return f'<polyline class="{name}" points="{line}"/>{marks}'

    def dot(self, point: Point) -> str:
        x, y = self.place(point.acceptance, point.quality)
        return f'<circle class="halo" cx="{x}" cy="{y}" r="12"/><circle class="dot" cx="{x}" cy="{y}" r="7"/>'


def _round_range(values: list[float]) -> tuple[float, float]:
    """Return the range of the values with a margin, rounded outwards to multiples of 5%, within [0, 1]."""
    low, high = min(values) - 0.02, max(values) + 0.02
    return max(0.0, (low // 0.05) * 0.05), min(1.0, -((-high) // 0.05) * 0.05)


def _ticks(low: float, high: float) -> list[float]:
    step = 0.1 if high - low <= 0.6 else 0.2
    return [step * number for number in range(11) if low - 1e-9 <= step * number <= high + 1e-9]
