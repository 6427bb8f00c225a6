"""Tokens and figures as HTML. The colours of the token origins are those of `hf_diversed.token_view`."""

import math
from html import escape

from backend import COMPILING, OCCUPIED, REPEATS, Comparison, Run
from choice import COMPILED, DIVERSED, LENIENT, LOSSLESS, PLAIN, STATIC

from hf_diversed.timing import TOO_NOISY, Spread, paired_ratio
from hf_diversed.token_view import ORIGINS, RELAXED, TARGET, Piece


METHOD_HINTS = {
    PLAIN: "The target model decodes alone: one token per forward pass.",
    LOSSLESS: "The output follows the target model's distribution exactly.",
    LENIENT: "A draft token x is accepted with probability min(1, p(x) / (lenience q(x))): a smaller lenience accepts "
    "more tokens.",
    STATIC: "Every draft token is verified against w p + (1 - w) q, with one weight w for all positions.",
    DIVERSED: "Every draft token is verified against w p + (1 - w) q, with a weight w that a learned head predicts "
    "for each position.",
}
COLOR_HINTS = {
    "draft": "Accepted draft token: lossless decoding would accept it, too.",
    RELAXED: "Relaxed draft token: accepted here, but lossless decoding would reject it.",
    "residual": "Residual token: replaces a draft token that was rejected.",
    "bonus": "Bonus token: the target model adds it when all draft tokens of a round are accepted.",
    TARGET: "Decoded by the target model alone.",
}


def source_panel(run: Run | None, method: str) -> str:
    """Return tokens coloured by their origin, and the number of tokens of each origin."""
    pieces = [] if run is None else run.pieces
    counts = {name: sum(piece.origin == name for piece in pieces) for name in ORIGINS}
    shown = [TARGET] if method == PLAIN else [name for name in ORIGINS if name != TARGET]
    legend = "".join(
        f'<span class="key" data-origin="{name}"><i style="--c:{ORIGINS[name].color}"></i>'
        f"<span>{COLOR_HINTS[name]}</span> <b>{counts[name]}</b></span>"
        for name in shown
    )
    text = "".join(_token(piece, f"--c:{ORIGINS[piece.origin].color}", f"tok {piece.origin}") for piece in pieces)
    return _panel("Origin of each token", legend, text)


def weight_panel(run: Run | None, method: str) -> str:
    """Return tokens coloured by the weight on the target; empty for methods without a weight."""
    if method not in (STATIC, DIVERSED):
        return ""
    legend = (
        '<span class="scale">w = 0: the draft distribution<i></i>w = 1: the target distribution</span>'
        '<span class="key">Tokens without a colour have no weight: no draft token was verified there.</span>'
    )
    text = "".join(
        _token(piece, "", "tok") if piece.weight is None else _token(piece, f"--w:{piece.weight:.3f}", "tok w")
        for piece in ([] if run is None else run.pieces)
    )
    return _panel("Weight w on the target model", legend, text)


def plain_panel(run: Run | None) -> str:
    """Return the text that the target model decodes alone with the same seed."""
    text = "" if run is None else escape("".join(piece.text for piece in run.pieces))
    return _panel("The target model alone, for comparison", "", text)


def tiles(both: Comparison, method: str) -> str:
    """Return the statistics of a comparison; speeds are shown after all runs."""
    stats = None if both.run is None else both.run.stats
    relaxed = 0 if both.run is None else sum(piece.origin == RELAXED for piece in both.run.pieces)
    drafted = (
        f"{stats.num_accepted} of {stats.num_drafted}" if stats and stats.num_drafted else "accepted / drafted tokens"
    )
    cells = [
        *_speed_cells(both, method),
        ("accepted", "draft tokens accepted", _number(stats and 100 * stats.acceptance_rate, ".0f", "%"), drafted),
        ("forward", "tokens per target forward", _number(stats and stats.block_efficiency, ".2f"), "plain: 1.00"),
        ("relaxed", "relaxed tokens", str(relaxed) if stats else "-", "lossless decoding would reject them"),
    ]
    body = "".join(
        f'<div class="tile" data-tile="{name}"><span>{label}</span><strong>{value}</strong><small>{note}</small></div>'
        for name, label, value, note in cells
    )
    return f'<div class="tiles" data-method="{escape(method)}">{body}</div>'


def _speed_cells(both: Comparison, method: str) -> list[tuple[str, str, str, str]]:
    """Return the median and range of the speeds, and of their ratios by run unless the range is too wide."""
    speed, ratio, note, against = "-", "-", f"median of {REPEATS} runs", "same prompt and seed"
    if both.done:
        speeds, plain = Spread.of(both.speeds), Spread.of(both.plain_speeds)
        speed, note = f"{speeds.median:.0f}", f"{speeds.low:.0f} to {speeds.high:.0f}; plain {plain.median:.0f}"
        if method != PLAIN:
            ratios = paired_ratio(both.speeds, both.plain_speeds)
            against = f"{ratios.low:.2f} to {ratios.high:.2f} in {ratios.count} runs"
            ratio = TOO_NOISY if ratios.is_noisy else f"{ratios.median:.2f}x"
    return [("speed", "tokens per second", speed, note), ("ratio", "speed against plain decoding", ratio, against)]


def notice(message: str) -> str:
    """Return an error message as HTML."""
    return f'<div class="notice" role="alert" data-state="refused">{escape(message)}</div>'


def status(both: Comparison, method: str, gamma: int) -> str:
    """Return the state of a comparison in one sentence."""
    if both.waits_for == OCCUPIED:
        return remark("Waiting until a stopped run has finished compiling, which takes a minute or two.", "waiting")
    if both.waits_for == COMPILING:
        is_plain = method == PLAIN or both.plain is not None
        what = "plain decoding" if is_plain else f"{method} with {gamma} draft tokens per round"
        words = f"Waiting: compiling {what}. This takes a minute or two, only once, and is not timed."
        return remark(words, "waiting")
    if both.done:
        return remark(f"Finished. Speeds are medians of {REPEATS} alternating runs.", "finished")
    if both.repeat == 0:
        return remark("Decoding.", "running")
    return remark(f"Timing run {both.repeat} of {REPEATS}.", "running")


def engine_hint(engine: str) -> str:
    """Return a hint about the compiled engine."""
    words = (
        "The first run with a method and number of draft tokens compiles it, and plain decoding as well: a minute or "
        "two each. Later runs start at once."
    )
    return remark(words, "hint") if engine == COMPILED else ""


def method_hint(method: str, strictness: float) -> str:
    """Return a sentence on the method and, for a learned head, one on the strictness."""
    words = METHOD_HINTS.get(method, "")
    if method == DIVERSED:
        marks = {0.0: "0 accepts every draft token.", 0.5: "0.5 is the head as trained.", 1.0: "1 is lossless."}
        between = "More permissive than trained." if strictness < 0.5 else "Stricter than trained."
        words += f" Strictness: {marks.get(strictness, between)}"
    return f'<p class="hint">{words}</p>'


def remark(text: str, state: str) -> str:
    """Return a message that is not an error. The page's script and style sheet use its state."""
    return f'<div class="notice remark" role="status" data-state="{state}">{escape(text)}</div>'


def _panel(title: str, legend: str, text: str) -> str:
    body = text or '<em class="empty">Press Generate.</em>'
    inside = f'<h3>{title}</h3><div class="legend">{legend}</div><div class="text">{body}</div>'
    return f'<section class="panel">{inside}</section>'


def _token(piece: Piece, style: str, classes: str) -> str:
    numbers = (("w", piece.weight), ("target p", piece.p), ("draft q", piece.q))
    shown = [f"{name} {value:.3f}" for name, value in numbers if value is not None]
    title = escape(" · ".join([ORIGINS[piece.origin].meaning, *shown]))
    return f'<span class="{classes}" style="{style}" title="{title}">{escape(piece.text)}</span>'


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None or math.isnan(value) else f"{value:{form}}{unit}"
