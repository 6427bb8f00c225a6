"""Tokens and figures as HTML. The colours of the token origins are those of `pieces`."""

import math
from html import escape

from backend import COMPILING, OCCUPIED, Comparison, Run, Spread
from choice import COMPILED, DIVERSED, LENIENT, LOSSLESS, PLAIN, STATIC
from pieces import ORIGINS, RELAXED, TARGET, Piece


METHOD_HINTS = {
    PLAIN: "The large model writes alone: one token per pass.",
    LOSSLESS: "The small model guesses ahead. Guesses are discarded so that the text has exactly the distribution of "
    "the large model alone.",
    LENIENT: "A guess is kept even if it is less likely under the large model than under the small one. A smaller "
    "lenience keeps more guesses.",
    STATIC: "The large model has the same weight at every position. A smaller weight keeps more guesses.",
    DIVERSED: "A learned head predicts at each position how much the large model counts: a lot where a wrong token "
    "breaks the answer, little where it does not.",
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
        _main_cell(both, method),
        _speed_cell(both),
        ("accepted", "draft tokens accepted", _number(stats and 100 * stats.acceptance_rate, ".0f", "%"), drafted),
        ("relaxed", "relaxed tokens", str(relaxed) if stats else "-", "lossless decoding would reject them"),
    ]
    body = "".join(
        f'<div class="tile" data-tile="{name}"><span>{label}</span><strong>{value}</strong><small>{note}</small></div>'
        for name, label, value, note in cells
    )
    return f'<div class="tiles" data-method="{escape(method)}">{body}</div>'


def _main_cell(both: Comparison, method: str) -> tuple[str, str, str, str]:
    """Return the speedup if it was measured precisely, and the tokens per pass of the large model otherwise."""
    ratio = both.ratio
    if both.done and method != PLAIN and both.is_precise:
        note = f"{ratio.low:.2f} to {ratio.high:.2f}, 95% interval, {ratio.count} runs"
        return "ratio", "times as fast as the large model alone", f"{ratio.median:.2f}x", note
    passes = _number(both.run and both.run.stats.block_efficiency, ".2f")
    return "forward", "tokens per pass of the large model", passes, "the large model alone: 1"


def _speed_cell(both: Comparison) -> tuple[str, str, str, str]:
    """Return the median and range of the speeds."""
    if not both.done:
        return "speed", "tokens per second", "-", "median of several runs"
    speeds, plain = Spread.of(both.speeds), Spread.of(both.plain_speeds)
    note = f"{speeds.low:.0f} to {speeds.high:.0f}; large model alone {plain.median:.0f}"
    return "speed", "tokens per second", f"{speeds.median:.0f}", note


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
        return remark(f"Finished. Speeds are medians of {both.repeat} alternating runs.", "finished")
    if both.repeat == 0:
        return remark("Decoding.", "running")
    return remark(f"Timing: run {both.repeat}.", "running")


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
