"""Relaxed speculative decoding in the browser: set the strictness and see the origin of each token.

`make space` starts it with the embedded pair. HF_DIVERSED_TARGET, HF_DIVERSED_DRAFT and HF_DIVERSED_HEAD name others.
"""

import os
from collections.abc import Iterator
from pathlib import Path


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

try:
    from spaces import GPU as on_gpu  # ZeroGPU; must be imported before torch

    KEEPS_COMPILED = False  # every call runs in a new process
except ImportError:
    KEEPS_COMPILED = True

    def on_gpu(function):
        return function


import gradio as gr
from backend import Comparison, compare
from chart import front_chart, load_front
from choice import EAGER, ENGINES, LONGEST_PROMPT, METHODS, SETTINGS, Choice, choose_verifier, curve_point, tokenize
from controls import BEGIN, GREY_OUT, STOP, UNSTOP, allow_stop, refuse_stop, show_controls, slider
from models import find_models
from rendering import engine_hint, method_hint, notice, plain_panel, source_panel, status, tiles, weight_panel


MODELS = {model.label: model for model in find_models()}
FIRST = next(iter(MODELS.values()))
DEFAULTS = [SETTINGS[name].default for name in ("strictness", "lenience", "weight")]


@on_gpu
def generate(label: str, *values) -> Iterator[tuple]:
    """Decode with the chosen method and with the target alone; yield message, figures and panels as tokens arrive."""
    choice = Choice(*values)
    try:
        model = MODELS.get(label, FIRST)
        choice.check()
        prompt, verifier = tokenize(model.pair, choice), choose_verifier(model.pair, choice)
        model.check(choice.prompt)
        for both in compare(model.pair, prompt, verifier, choice):
            panels = [gr.skip()] * 3 if both.repeat else _panels(both, choice.method)
            yield status(both, choice.method, choice.gamma), tiles(both, choice.method), *panels
    except (ValueError, OSError) as error:
        yield notice(str(error)), tiles(Comparison(), ""), *_panels(Comparison(), choice.method)


def _panels(both: Comparison, method: str) -> list[str]:
    return [source_panel(both.run, method), weight_panel(both.run, method), plain_panel(both.plain)]


def show_point(label: str, task: str, method: str, strictness: float, lenience: float, weight: float):
    """Return the chart with a point at the current setting, and the hint for the method."""
    front = load_front(task) if MODELS.get(label, FIRST).is_embedded else None
    return front_chart(front, *curve_point(method, strictness, lenience, weight)), method_hint(method, strictness)


def example(label: str, task: str) -> str:
    """Return another prompt of a task."""
    return MODELS.get(label, FIRST).example(task)


def select_model(label: str):
    """Return masthead, tasks, prompt, hint, method and temperature of a model."""
    model = MODELS.get(label, FIRST)
    (_, task), *_ = model.tasks
    tasks = gr.update(choices=model.tasks, value=task)
    return model.masthead, tasks, model.example(task), model.about, model.method, model.temperature


def build() -> gr.Blocks:
    """Build the page and connect its events."""
    (_, first_task), *_ = FIRST.tasks
    chart_html, hint_html = show_point(FIRST.label, first_task, FIRST.method, *DEFAULTS)
    with gr.Blocks(title="Relaxed speculative decoding", analytics_enabled=False) as page:
        masthead = gr.HTML(FIRST.masthead)
        with gr.Row():
            with gr.Column(scale=2, min_width=320):
                several = len(MODELS) > 1
                model = gr.Radio(list(MODELS), value=FIRST.label, label="Model", visible=several, elem_id="model")
                task = gr.Radio(FIRST.tasks, value=first_task, label="Task", elem_id="task")
                limit = f"Prompt (at most {LONGEST_PROMPT:,} characters)"
                prompt = gr.Textbox(FIRST.first_example, label=limit, lines=4, elem_id="prompt")
                about = gr.HTML(FIRST.about, elem_id="about")
                another = gr.Button("Another example", size="sm", elem_id="another")
                method = gr.Radio(METHODS, value=FIRST.method, label="Method", elem_id="method")
                hint = gr.HTML(hint_html, elem_id="hint")
                strictness, lenience, weight = (
                    slider(name, FIRST.method) for name in ("strictness", "lenience", "weight")
                )
                with gr.Row():
                    start = gr.Button("Generate", variant="primary", size="lg", elem_id="generate")
                    stop = gr.Button("Stop", variant="stop", size="lg", elem_id="stop", interactive=False)
                chart = gr.HTML(chart_html, elem_id="chart")
                with gr.Accordion("More settings", open=False):
                    max_bias, gamma = slider("max_bias", FIRST.method), slider("gamma", FIRST.method)
                    engine = gr.Radio(ENGINES, value=EAGER, label="Engine", visible=KEEPS_COMPILED, elem_id="engine")
                    temperature = slider("temperature", FIRST.method, value=FIRST.temperature)
                    length = slider("max_new_tokens", FIRST.method)
                    seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=SETTINGS["seed"].high)
                    heads = "A public head on the Hub, as org/name. Local folders and large files are refused."
                    head = gr.Textbox("", label="Head (empty: the task's own head)", info=heads, elem_id="head")
            with gr.Column(scale=3, min_width=320):
                message = gr.HTML("", elem_id="message")
                figures = gr.HTML(tiles(Comparison(), ""), elem_id="figures")
                empty = _panels(Comparison(), FIRST.method)
                names = ("sources", "weights", "plain")
                sources, weights, reference = (gr.HTML(html, elem_id=name) for html, name in zip(empty, names))
        inputs = [model, task, method, strictness, lenience, weight]
        quietly = {"show_progress": "hidden", "trigger_mode": "always_last"}
        gr.on([item.change for item in inputs], show_point, inputs, [chart, hint], **quietly)
        controls = [strictness, lenience, weight, max_bias, gamma, weights]
        method.change(show_controls, method, controls, show_progress="hidden")
        gr.on([task.input, another.click], example, [model, task], prompt, show_progress="hidden")
        model.input(select_model, model, [masthead, task, prompt, about, method, temperature], show_progress="hidden")
        engine.input(engine_hint, engine, message, show_progress="hidden", js=UNSTOP)
        settings = [model, prompt, task, method, strictness, lenience, weight]
        settings += [max_bias, gamma, engine, temperature, length, seed, head]
        gr.on([item.change for item in settings], None, js=GREY_OUT)
        start.click(None, None, message, js=BEGIN)
        hidden = {"show_progress": "hidden", "queue": False}
        progress = {"show_progress": "minimal", "show_progress_on": sources}  # the place in the queue
        start.click(allow_stop, None, stop, **hidden)
        running = start.click(generate, settings, [message, figures, sources, weights, reference], **progress)
        stop.click(None, cancels=[running])
        stop.click(None, js=STOP)
        for ended in (running.then, stop.click):
            ended(refuse_stop, None, stop, **hidden)
    return page


SANS, MONO = ["ui-sans-serif", "system-ui", "sans-serif"], ["ui-monospace", "monospace"]
THEME = gr.themes.Base(primary_hue="emerald", neutral_hue="slate", radius_size="lg", font=SANS, font_mono=MONO).set(
    body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300"
)

if __name__ == "__main__":
    FIRST.pair  # noqa: B018  loads the first model before the first request; others load when first used
    build().queue().launch(theme=THEME, css_paths=Path(__file__).parent / "style.css", ssr_mode=False, footer_links=[])
