"""Tokens and figures as HTML. The colours of origins are those of `hf_diversed.token_view`."""

import math
from html import escape

from backend import COMPILED, COMPILING, DIVERSED, PLAIN, STOPPED, Run

from hf_diversed.token_view import ORIGINS, RELAXED, TARGET, Piece


def source_panel(run: Run, method: str) -> str:
    """Tokens coloured by where they came from, and how many came from where."""
    counts = {name: sum(piece.origin == name for piece in run.pieces) for name in ORIGINS}
    shown = [TARGET] if method == PLAIN else [name for name in ORIGINS if name != TARGET]
    legend = "".join(
        f'<span class="key" data-origin="{name}"><i style="--c:{ORIGINS[name].color}"></i>'
        f"{escape(ORIGINS[name].meaning)} <b>{counts[name]}</b></span>"
        for name in shown
    )
    text = "".join(_token(piece, f"--c:{ORIGINS[piece.origin].color}", f"tok {piece.origin}") for piece in run.pieces)
    return _panel("Where each token came from", legend, text)


def weight_panel(run: Run, method: str) -> str:
    """Tokens coloured by the weight that the target had."""
    legend = '<span class="scale">w = 0, as the draft<i></i>w = 1, as the target</span>'
    if method in (PLAIN, "Lossless"):
        legend += '<span class="key">this method has no weights</span>'
    text = "".join(
        _token(
            piece,
            "" if piece.weight is None else f"--w:{piece.weight:.3f}",
            "tok" if piece.weight is None else "tok w",
        )
        for piece in run.pieces
    )
    return _panel("How strictly it was verified: the weight w on the target", legend, text)


def plain_panel(run: Run | None) -> str:
    """What the target writes by itself under the same seed."""
    text = "" if run is None else escape("".join(piece.text for piece in run.pieces))
    return _panel("The target alone, for comparison", "", text)


def tiles(run: Run | None, plain: Run | None, method: str) -> str:
    """The figures of both decodings, side by side."""
    stats = None if run is None else run.stats
    relaxed = 0 if run is None else sum(piece.origin == RELAXED for piece in run.pieces)
    speed, reference = (math.nan if entry is None else entry.tokens_per_second for entry in (run, plain))
    accepted = math.nan if stats is None else 100 * stats.acceptance_rate
    drafted = (
        "of the drafts" if stats is None or not stats.num_drafted else f"{stats.num_accepted} of {stats.num_drafted}"
    )
    per_forward = math.nan if stats is None else stats.block_efficiency
    cells = [
        ("speed", "tokens per second", _number(speed, ".0f"), f"plain {_number(reference, '.0f')}"),
        (
            "ratio",
            "against plain",
            _number(speed / reference if reference else math.nan, ".2f", "x"),
            "same prompt and seed",
        ),
        ("accepted", "drafts accepted", _number(accepted, ".0f", "%"), drafted),
        ("forward", "tokens per target pass", _number(per_forward, ".2f"), "plain 1.00"),
        ("relaxed", "relaxed tokens", str(relaxed) if run else "-", "refused by the target alone"),
    ]
    body = "".join(
        f'<div class="tile" data-tile="{name}"><span>{label}</span><strong>{value}</strong><small>{note}</small></div>'
        for name, label, value, note in cells
    )
    return f'<div class="tiles" data-method="{escape(method)}">{body}</div>'


def notice(message: str = "") -> str:
    """What went wrong, or nothing."""
    return f'<div class="notice" role="alert">{escape(message)}</div>' if message else ""


def waiting(run: Run, method: str, gamma: int) -> str:
    """What a run waits for, or nothing."""
    what = "plain decoding" if method == PLAIN else f"{method} for {gamma} drafts per round"
    words = {
        COMPILING: f"Compiling {what}: a minute or two, the first time only. These seconds are in no figure.",
        STOPPED: "A run that was stopped still compiles what it has begun, for a minute or two; then this one starts.",
    }
    return _remark(words[run.waits_for]) if run.waits_for else ""


def engine_hint(engine: str) -> str:
    """What choosing an engine means, before it is used."""
    words = (
        "The first run of a method with a draft length compiles it, and plain decoding beside it: a minute or two "
        "for each. Later runs start at once."
    )
    return _remark(words) if engine == COMPILED else ""


def dial_hint(method: str, quality: float) -> str:
    """What the position of the dial means."""
    if method != DIVERSED:
        return ""
    marks = {0.0: "0 accepts every draft", 0.5: "0.5 is the head as trained", 1.0: "1 is exactly the target's law"}
    between = (
        "more permissive than the head was trained to be"
        if quality < 0.5
        else "stricter than the head was trained to be"
    )
    return f'<p class="hint">{marks.get(quality, between)}</p>'


def _remark(text: str) -> str:
    return f'<div class="notice remark" role="status">{escape(text)}</div>'


def _panel(title: str, legend: str, text: str) -> str:
    body = text or '<em class="empty">Press Generate.</em>'
    inside = f'<h3>{title}</h3><div class="legend">{legend}</div><div class="text">{body}</div>'
    return f'<section class="panel">{inside}</section>'


def _token(piece: Piece, style: str, classes: str) -> str:
    numbers = (("w", piece.weight), ("target p", piece.p), ("draft q", piece.q))
    shown = [f"{name} {value:.3f}" for name, value in numbers if value is not None]
    title = escape(" · ".join([ORIGINS[piece.origin].meaning, *shown]))
    return f'<span class="{classes}" style="{style}" title="{title}">{escape(piece.text)}</span>'


def _number(value: float, form: str, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:{form}}{unit}"
