"""Draw the documentation's pictures: a round, and an answer with its tokens coloured by origin.

python -m tools.draw_figures
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import torch

from hf_diversed import load_demo_pair
from hf_diversed.outputs import SOURCES
from hf_diversed.tasks import get_task, load_records


ASSETS = Path(__file__).parent.parent / "docs" / "assets"
INK, PAPER = "#222222", "#FFFFFF"
INK_AT_NIGHT, PAPER_AT_NIGHT = "#E6E6E6", "#1E2129"
LINE, CELL, TOP = 26, 8.4, 12
# Colours from Okabe and Ito's palette, safe for colour blindness, and meanings of the origins of a token.
ORIGINS = {
    "draft": ("#009E73", "accepted draft"),
    "relaxed": ("#E69F00", "relaxed: a draft token that lossless verification would have rejected"),
    "residual": ("#CC79A7", "residual: the target's correction"),
    "bonus": ("#56B4E9", "bonus: the target's next token"),
}
TOKENS_WIDTH, ROUND_WIDTH = 560, 760  # the first is narrow enough for phones


def answer() -> list[tuple[str, str]]:
    """Return text and origin of the tokens of the embedded pair's answer to a held-out prompt, with its head."""
    pair = load_demo_pair()
    prompt = load_records(get_task("math"), "test", 1)[0]["prompt"]
    torch.manual_seed(0)
    output = pair.target.generate(
        **pair.tokenizer(prompt, return_tensors="pt"),
        assistant_model=pair.draft,
        diversed_head=pair.heads["math"],
        do_sample=True,
        top_k=0,
        max_new_tokens=128,
        output_token_records=True,
        return_dict_in_generate=True,
    )
    records = output.token_records
    columns = (column[0].tolist() for column in (records.tokens, records.source, records.relaxed))
    texts = (
        (pair.tokenizer.decode([token], skip_special_tokens=True), "relaxed" if relaxed else SOURCES[source])
        for token, source, relaxed in zip(*columns)
        if source >= 0
    )
    return [(text, origin) for text, origin in texts if text]


def tokens_picture(pieces: Iterable[tuple[str, str]]) -> str:
    """Draw tokens as boxes in lines, with a legend."""
    x, y, parts = 10.0, TOP, []
    for text, origin in pieces:
        text = text.replace("\n", "⏎")
        width = max(len(text), 1) * CELL + 4
        if x + width > TOKENS_WIDTH - 10:
            x, y = 10.0, y + LINE
        parts.append(_box(x, y, width, 20, origin, text))
        x += width + 1
    top = y + 2 * LINE
    for row, origin in enumerate(("draft", "relaxed", "residual", "bonus")):
        parts.append(_box(10, top + row * 22, 16, 16, origin, ""))
        parts.append(_text(34, top + row * 22 + 13, ORIGINS[origin][1]))
    return _svg(TOKENS_WIDTH, top + 4 * 22 + 8, parts, "An answer; each token is coloured by its origin")


def round_picture() -> str:
    """Draw a round: four draft tokens, two accepted (one of them by relaxation), then a residual token."""
    rows: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
        ("draft model", (("draft", "x1 ~ q"), ("draft", "x2 ~ q"), ("draft", "x3 ~ q"), ("draft", "x4 ~ q"))),
        (
            "verifier",
            (("draft", "p ≥ q: accept"), ("relaxed", "relaxed: accept"), ("residual", "reject"), ("", "discard")),
        ),
        ("emitted", (("draft", "x1"), ("relaxed", "x2"), ("residual", "~ (p - q)+"))),
    )
    parts = []
    for number, (title, cells) in enumerate(rows):
        y = 24 + number * 70
        parts.append(_text(10, y + 25, title))
        for column, (origin, label) in enumerate(cells):
            parts.append(_box(140 + column * 152, y, 142, 40, origin, label))
    parts.append(_text(140, 88, "one forward pass of the target model: p at every position"))
    parts.append(_text(140, 238, "if all four are accepted: a bonus token, sampled from p"))
    parts.append(_box(602, 164, 142, 40, "bonus", "bonus ~ p"))
    return _svg(ROUND_WIDTH, 254, parts, "A round of relaxed speculative decoding")


def _box(x: float, y: float, width: float, height: float, origin: str, text: str) -> str:
    color = f'fill="{ORIGINS[origin][0]}"' if origin else f'fill="{PAPER}" stroke="{INK}"'
    words = f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 5:.1f}" text-anchor="middle">{escape(text)}</text>'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="4" {color}/>{words if text else ""}'
    )


def _text(x: float, y: float, words: str) -> str:
    return f'<text class="words" x="{x}" y="{y}">{escape(words)}</text>'


def _svg(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """Return an SVG whose text and background both follow the reader's colour scheme."""
    night = f".paper {{fill: {PAPER_AT_NIGHT}}} .words {{fill: {INK_AT_NIGHT}}}"
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
    (ASSETS / "tokens.svg").write_text(tokens_picture(answer()))
    (ASSETS / "round.svg").write_text(round_picture())


if __name__ == "__main__":
    main()
