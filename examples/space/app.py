"""Relaxed speculative decoding in the browser: turn the dial, see which tokens came from where.

`make space` starts it with the embedded pair; HF_DIVERSED_TARGET, HF_DIVERSED_DRAFT and HF_DIVERSED_HEAD name others.
"""

import os
from collections.abc import Iterator
from pathlib import Path


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    from spaces import GPU as on_gpu  # ZeroGPU; has to come before torch

    KEEPS_COMPILED = False  # every call is a process of its own
except ImportError:
    KEEPS_COMPILED = True

    def on_gpu(function):
        return function


import gradio as gr
from backend import (
    DIVERSED,
    EAGER,
    ENGINES,
    LENIENT,
    LONGEST_PROMPT,
    LOSSLESS,
    METHODS,
    PLAIN,
    STATIC,
    Choice,
    Run,
    choose_rule,
    decode,
    tokenize,
)
from chart import front_chart, load_front
from models import find_models
from rendering import dial_hint, engine_hint, notice, plain_panel, source_panel, tiles, waiting, weight_panel


# What the page does by itself: figures of other settings than those shown grey out, results come into view, and after
# Stop no notice is shown, as frames that are on their way still bring them.
GREY_OUT = """() => {
    const page = document.querySelector('.gradio-container');
    if (!document.querySelector('#figures .tiles[data-method=""]')) page.classList.add('stale');
}"""
BEGIN = """() => {
    document.querySelector('.gradio-container').classList.remove('stale', 'stopped');
    const figures = document.querySelector('#figures'), box = figures.getBoundingClientRect();
    if (box.top < 128 || box.bottom > innerHeight) figures.scrollIntoView({behavior: 'smooth', block: 'start'});
    return '';
}"""
HUSH = "() => document.querySelector('.gradio-container').classList.add('stopped')"
SPEAK = "engine => { document.querySelector('.gradio-container').classList.remove('stopped'); return engine; }"
MODELS = {model.label: model for model in find_models()}
FIRST = next(iter(MODELS.values()))


@on_gpu
def generate(label: str, *values) -> Iterator[tuple[str, str, str, str, str]]:
    """Decode by the chosen method, then by the target alone; yields notice, figures and panels as they grow."""
    model, choice = MODELS[label], Choice(*values)
    run, plain = None, None
    try:
        asked, verifier = tokenize(model.pair, choice), choose_rule(model.pair, choice)
        model.check(choice.prompt)
        for run in decode(model.pair, asked, verifier, choice):
            yield _page(run, None, choice)
        plain = run
        if verifier is not None:
            for plain in decode(model.pair, asked, None, choice):
                yield _page(run, plain, choice)
        yield _page(run, plain, choice, done=True)
    except (ValueError, OSError) as error:
        yield notice(str(error)), *(gr.skip() for _ in range(4))


def _page(run, plain, choice: Choice, done: bool = False) -> tuple[str, str, str, str, str]:
    """Notice, figures and panels; the comparison with plain decoding waits until that is done."""
    method = choice.method
    message = waiting(run, method, choice.gamma) or ("" if plain is None else waiting(plain, PLAIN, choice.gamma))
    panels = source_panel(run, method), weight_panel(run, method), plain_panel(plain)
    return message, tiles(run, plain if done else None, method), *panels


def turn(label: str, task: str, method: str, quality: float, lenience: float, weight: float) -> tuple[str, str]:
    """The chart and the hint for where the controls stand."""
    families = {DIVERSED: ("diversed", quality), LENIENT: ("lenience", lenience)}
    families |= {STATIC: ("static", weight), LOSSLESS: ("static", 1.0)}
    front = load_front(task) if MODELS[label].is_embedded else None
    return front_chart(front, *families.get(method, (None, 0.0))), dial_hint(method, quality)


def example(label: str, task: str) -> str:
    """Another prompt of a task."""
    return MODELS[label].example(task)


def introduce(label: str):
    """Masthead, tasks, prompt, hint, method and temperature of a model that was chosen."""
    model = MODELS[label]
    (_, task), *_ = model.tasks
    tasks = gr.update(choices=model.tasks, value=task)
    return model.masthead, tasks, model.example(task), model.about, model.method, model.temperature


def show_controls(method: str):
    """Only the dials that the method has."""
    return [gr.update(visible=visible) for visible in _shown(method)]


def _shown(method: str) -> tuple[bool, bool, bool, bool, bool, bool]:
    """Which of quality, its hint, lenience, weight, cap and draft length a method has."""
    learned = method == DIVERSED
    return learned, learned, method == LENIENT, method == STATIC, learned, method != PLAIN


def build() -> gr.Blocks:
    """Lay the page out and connect it."""
    (_, first_task), *_ = FIRST.tasks
    shown = _shown(FIRST.method)
    with gr.Blocks(title="Speculative decoding with a dial", analytics_enabled=False) as page:
        masthead = gr.HTML(FIRST.masthead)
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                offered = len(MODELS) > 1
                model = gr.Radio(list(MODELS), value=FIRST.label, label="Model", visible=offered, elem_id="model")
                task = gr.Radio(FIRST.tasks, value=first_task, label="Task", elem_id="task")
                longest = f"Prompt (at most {LONGEST_PROMPT:,} characters)"
                prompt = gr.Textbox(FIRST.example(first_task, 0), label=longest, lines=4, elem_id="prompt")
                about = gr.HTML(FIRST.about, elem_id="about")
                another = gr.Button("Another example", size="sm", elem_id="another")
                method = gr.Radio(METHODS, value=FIRST.method, label="Method", elem_id="method")
                quality = gr.Slider(
                    0, 1, 0.5, step=0.05, label="Quality (0 to 1)", visible=shown[0], elem_id="quality"
                )
                hint = gr.HTML(dial_hint(FIRST.method, 0.5), visible=shown[1], elem_id="hint")
                lenience = gr.Slider(
                    0.05, 1, 0.3, step=0.05, label="Lenience (1: lossless)", visible=shown[2], elem_id="lenience"
                )
                weight = gr.Slider(
                    0, 1, 0.7, step=0.05, label="Weight on the target", visible=shown[3], elem_id="weight"
                )
                with gr.Row():
                    start = gr.Button("Generate", variant="primary", size="lg", elem_id="generate")
                    stop = gr.Button("Stop", variant="stop", size="lg", elem_id="stop")
                chart = gr.HTML(turn(FIRST.label, first_task, FIRST.method, 0.5, 0.3, 0.7)[0], elem_id="chart")
                with gr.Accordion("More settings", open=False):
                    cap = "Cap on the bias per token (1: none)"
                    max_bias = gr.Slider(0, 1, 1, step=0.05, label=cap, visible=shown[4], elem_id="bias")
                    gamma = gr.Slider(1, 10, 5, step=1, label="Drafts per round", visible=shown[5], elem_id="gamma")
                    engine = gr.Radio(ENGINES, value=EAGER, label="Engine", visible=KEEPS_COMPILED, elem_id="engine")
                    heat = "Temperature (0: greedy)"
                    temperature = gr.Slider(0, 1.5, FIRST.temperature, step=0.1, label=heat, elem_id="temperature")
                    length = gr.Slider(8, 256, 128, step=8, label="Longest answer, in tokens", elem_id="length")
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0)
                    heads = "A public head of the Hub, as org/name: no folders, and no files larger than a head's."
                    head = gr.Textbox("", label="Head (empty: the task's own)", info=heads, elem_id="head")
            with gr.Column(scale=3, min_width=320):
                message = gr.HTML("", elem_id="message")
                figures = gr.HTML(tiles(None, None, ""), elem_id="figures")
                sources = gr.HTML(source_panel(Run(), FIRST.method), elem_id="sources")
                weights = gr.HTML(weight_panel(Run(), FIRST.method), elem_id="weights")
                reference = gr.HTML(plain_panel(None), elem_id="plain")
        dials = [model, task, method, quality, lenience, weight]
        quietly = {"show_progress": "hidden", "trigger_mode": "always_last"}
        gr.on([item.change for item in dials], turn, dials, [chart, hint], **quietly)
        method.change(
            show_controls, method, [quality, hint, lenience, weight, max_bias, gamma], show_progress="hidden"
        )
        gr.on([task.input, another.click], example, [model, task], prompt, show_progress="hidden")
        introduced = [masthead, task, prompt, about, method, temperature]
        model.input(introduce, model, introduced, show_progress="hidden")
        engine.input(engine_hint, engine, message, show_progress="hidden", js=SPEAK)
        settings = [model, prompt, task, method, quality, lenience, weight]
        settings += [max_bias, gamma, engine, temperature, length, seed, head]
        outputs = [message, figures, sources, weights, reference]
        gr.on([item.change for item in settings], None, js=GREY_OUT)
        start.click(None, None, message, js=BEGIN)
        shows_place = {"show_progress": "minimal", "show_progress_on": sources}  # in the queue
        running = start.click(generate, settings, outputs, **shows_place)
        stop.click(None, cancels=[running])
        stop.click(None, js=HUSH)
    return page


SANS, MONO = ["ui-sans-serif", "system-ui", "sans-serif"], ["ui-monospace", "monospace"]
THEME = gr.themes.Base(primary_hue="emerald", neutral_hue="slate", radius_size="lg", font=SANS, font_mono=MONO).set(
    body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300"
)

if __name__ == "__main__":
    FIRST.pair  # noqa: B018  loaded before anybody comes; others when they are first asked for
    build().queue().launch(theme=THEME, css_paths=Path(__file__).parent / "style.css", ssr_mode=False, footer_links=[])
