"""Relaxed speculative decoding in the browser: turn the dial, see which tokens came from where.

`make space` starts it with the embedded pair; HF_DIVERSED_TARGET, HF_DIVERSED_DRAFT and HF_DIVERSED_HEAD name others.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    from spaces import GPU as on_gpu  # ZeroGPU; has to come before torch
except ImportError:

    def on_gpu(function):
        return function


import gradio as gr
from backend import (
    DIVERSED,
    LENIENT,
    LONGEST_PROMPT,
    LOSSLESS,
    METHODS,
    PLAIN,
    STATIC,
    Choice,
    Run,
    check_kind,
    choose_rule,
    decode,
    load_pair,
    tokenize,
)
from chart import front_chart, load_front
from rendering import dial_hint, notice, plain_panel, source_panel, tiles, weight_panel

from hf_diversed.corpus import held_out_examples


TASKS = [("Math", "math"), ("Summary", "summary"), ("Code", "code")]
HEADER = """<div class="masthead"><h1>Speculative decoding with a dial</h1><p>A small draft model proposes
tokens, a large target verifies them. A learned head decides token by token how strictly: strict where a wrong token
breaks the answer, permissive where it does not.</p></div>"""
ABOUT = """<p class="hint">This pair is a small one that comes with the library. It knows three kinds of prompt: word
problems, news items to summarise, and tasks for a Python function. Change the words and numbers of an example; other
prompts are declined.</p>"""
# What the page does by itself: figures of other settings than those shown grey out, and results come into view.
GREY_OUT = """() => {
    const page = document.querySelector('.gradio-container');
    if (!document.querySelector('#figures .tiles[data-method=""]')) page.classList.add('stale');
}"""
BRING_INTO_VIEW = """() => {
    document.querySelector('.gradio-container').classList.remove('stale');
    const figures = document.querySelector('#figures'), box = figures.getBoundingClientRect();
    if (box.top < 0 || box.bottom > innerHeight) figures.scrollIntoView({behavior: 'smooth', block: 'start'});
}"""
PAIR, EMBEDDED = load_pair()


def example(task: str) -> str:
    """A prompt that the embedded pair was not trained on."""
    return held_out_examples(task, 1, seed=random.randrange(10_000))[0].prompt


@on_gpu
def generate(*values) -> Iterator[tuple[str, str, str, str, str]]:
    """Decode by the chosen method, then by the target alone; yields notice, figures and panels as they grow."""
    choice = Choice(*values)
    run, plain, method = None, None, choice.method
    try:
        asked, verifier = tokenize(PAIR, choice), choose_rule(PAIR, choice)
        if EMBEDDED:
            check_kind(choice.prompt)
        for run in decode(PAIR, asked, verifier, choice):
            yield _page(run, None, method)
        plain = run
        if verifier is not None:
            for plain in decode(PAIR, asked, None, choice):
                yield _page(run, plain, method)
        yield _page(run, plain, method, done=True)
    except (ValueError, OSError) as error:
        yield notice(str(error)), *(gr.skip() for _ in range(4))


def _page(run, plain, method: str, done: bool = False) -> tuple[str, str, str, str, str]:
    """Notice, figures and panels; the comparison with plain decoding waits until that is done."""
    panels = source_panel(run, method), weight_panel(run, method), plain_panel(plain)
    return notice(), tiles(run, plain if done else None, method), *panels


def turn(task: str, method: str, quality: float, lenience: float, weight: float) -> tuple[str, str]:
    """The chart and the hint for where the controls stand."""
    families = {DIVERSED: ("diversed", quality), LENIENT: ("lenience", lenience)}
    families |= {STATIC: ("static", weight), LOSSLESS: ("static", 1.0)}
    front = load_front(task) if EMBEDDED else None
    return front_chart(front, *families.get(method, (None, 0.0))), dial_hint(method, quality)


def show_controls(method: str):
    """Only the dials that the method has."""
    learned = method == DIVERSED
    shown = (learned, learned, method == LENIENT, method == STATIC, learned, method != PLAIN)
    return [gr.update(visible=visible) for visible in shown]


def build() -> gr.Blocks:
    """Lay the page out and connect it."""
    with gr.Blocks(title="Speculative decoding with a dial", analytics_enabled=False) as page:
        gr.HTML(HEADER)
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                task = gr.Radio(TASKS, value="math", label="Task", elem_id="task")
                longest = f"Prompt (at most {LONGEST_PROMPT:,} characters)"
                prompt = gr.Textbox(
                    held_out_examples("math", 1, 0)[0].prompt, label=longest, lines=4, elem_id="prompt"
                )
                gr.HTML(ABOUT, visible=EMBEDDED, elem_id="about")
                another = gr.Button("Another example", size="sm", elem_id="another")
                method = gr.Radio(METHODS, value=DIVERSED, label="Method", elem_id="method")
                quality = gr.Slider(0, 1, 0.5, step=0.05, label="Quality (0 to 1)", elem_id="quality")
                hint = gr.HTML(dial_hint(DIVERSED, 0.5), elem_id="hint")
                lenience = gr.Slider(
                    0.05, 1, 0.3, step=0.05, label="Lenience (1: lossless)", visible=False, elem_id="lenience"
                )
                weight = gr.Slider(0, 1, 0.7, step=0.05, label="Weight on the target", visible=False, elem_id="weight")
                with gr.Row():
                    start = gr.Button("Generate", variant="primary", size="lg", elem_id="generate")
                    stop = gr.Button("Stop", variant="stop", size="lg", elem_id="stop")
                chart = gr.HTML(turn("math", DIVERSED, 0.5, 0.3, 0.7)[0], elem_id="chart")
                with gr.Accordion("More settings", open=False):
                    max_bias = gr.Slider(
                        0, 1, 1, step=0.05, label="Cap on the bias per token (1: none)", elem_id="bias"
                    )
                    gamma = gr.Slider(1, 10, 5, step=1, label="Drafts per round", elem_id="gamma")
                    temperature = gr.Slider(0, 1.5, 1, step=0.1, label="Temperature (0: greedy)")
                    length = gr.Slider(8, 256, 128, step=8, label="Longest answer, in tokens", elem_id="length")
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0)
                    about = "A public head of the Hub, as org/name: no folders, and no files larger than a head's."
                    head = gr.Textbox("", label="Head (empty: the task's own)", info=about, elem_id="head")
            with gr.Column(scale=3, min_width=320):
                message = gr.HTML("", elem_id="message")
                figures = gr.HTML(tiles(None, None, ""), elem_id="figures")
                sources = gr.HTML(source_panel(Run(), DIVERSED), elem_id="sources")
                weights = gr.HTML(weight_panel(Run(), DIVERSED), elem_id="weights")
                reference = gr.HTML(plain_panel(None), elem_id="plain")
        dials = [task, method, quality, lenience, weight]
        quietly = {"show_progress": "hidden", "trigger_mode": "always_last"}
        gr.on([item.change for item in dials], turn, dials, [chart, hint], **quietly)
        method.change(
            show_controls, method, [quality, hint, lenience, weight, max_bias, gamma], show_progress="hidden"
        )
        gr.on([task.input, another.click], example, task, prompt, show_progress="hidden")
        settings = [prompt, task, method, quality, lenience, weight, max_bias, gamma, temperature, length, seed, head]
        outputs = [message, figures, sources, weights, reference]
        gr.on([item.change for item in settings], None, js=GREY_OUT)
        start.click(None, js=BRING_INTO_VIEW)
        waiting = {"show_progress": "minimal", "show_progress_on": sources}  # the place in the queue
        running = start.click(generate, settings, outputs, **waiting)
        stop.click(None, cancels=[running])
    return page


SANS, MONO = ["ui-sans-serif", "system-ui", "sans-serif"], ["ui-monospace", "monospace"]
THEME = gr.themes.Base(primary_hue="emerald", neutral_hue="slate", radius_size="lg", font=SANS, font_mono=MONO).set(
    body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300"
)

if __name__ == "__main__":
    if PAIR.target.device.type == "cpu":  # what is slow only once should not be in a visitor's figures
        list(generate(example("math"), "", STATIC, 0.5, 0.5, 0.5, 1, 5, 1.0, 8, 0, ""))
    build().queue().launch(theme=THEME, css_paths=Path(__file__).parent / "style.css", ssr_mode=False, footer_links=[])
