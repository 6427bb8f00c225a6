"""The lanes of the page as HTML."""

from html import escape

from pieces import ORIGINS, Piece
from race import Lane


TITLES = ("Exact: lossless verification", "Relaxed")


def lane_panel(title: str, lane: Lane | None, score: str = "") -> str:
    """Return a lane: its clock, speed, acceptance and score, then its tokens coloured by origin."""
    figures = [("seconds", "-"), ("tokens/s", "-"), ("accepted", "-"), ("score", score or "-")]
    if lane is not None and lane.pieces:
        figures[:3] = [
            ("seconds", f"{lane.seconds:.1f}"),
            ("tokens/s", f"{lane.tokens_per_second:.0f}"),
            ("accepted", f"{lane.stats.acceptance_rate:.0%}" if lane.stats.num_drafted else "-"),
        ]
    tiles = "".join(
        f'<div class="tile" data-tile="{name}"><strong>{escape(value)}</strong><span>{name}</span></div>'
        for name, value in figures
    )
    text = "".join(map(_token, lane.pieces)) if lane is not None else ""
    state = "ended" if lane is not None and lane.text is not None else "running" if lane is not None else "empty"
    body = text or '<em class="empty">Press Generate.</em>'
    return (
        f'<section class="panel" data-state="{state}"><h3>{title}</h3><div class="tiles">{tiles}</div>'
        f'<div class="text">{body}</div></section>'
    )


def legend() -> str:
    """Return the meaning of the colours."""
    keys = "".join(
        f'<span class="key"><i style="--c:{origin.color}"></i>{origin.meaning}</span>' for origin in ORIGINS.values()
    )
    return f'<div class="legend">{keys}</div>'


def notice(message: str) -> str:
    """Return an error message as HTML; empty without a message."""
    return f'<div class="notice" role="alert">{escape(message)}</div>' if message else ""


def _token(piece: Piece) -> str:
    numbers = (("w", piece.weight), ("target p", piece.p), ("draft q", piece.q))
    shown = [f"{name} {value:.3f}" for name, value in numbers if value is not None]
    title, origin = " · ".join([ORIGINS[piece.origin].meaning, *shown]), ORIGINS[piece.origin]
    return (
        f'<span class="tok {piece.origin}" style="--c:{origin.color}" title="{escape(title)}">'
        f"{escape(piece.text)}</span>"
    )
