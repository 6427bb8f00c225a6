"""Exact and relaxed speculative decoding side by side in the browser.

`make space` starts it. HF_DIVERSED_TARGET, HF_DIVERSED_DRAFT and HF_DIVERSED_HEAD name another pair.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks`, in a clone

try:
    from spaces import GPU as on_gpu  # ZeroGPU; must be imported before torch
except ImportError:

    def on_gpu(function):
        return function


import gradio as gr
from models import find_model
from race import race
from rendering import TITLES, lane_panel, legend, notice

from hf_diversed import LosslessVerifier
from hf_diversed.evaluation.decoder import Sampling


MODEL = find_model()
SAMPLING = Sampling(temperature=1.0, num_assistant_tokens=5, max_new_tokens=128)
EMPTY = [lane_panel(title, None) for title in TITLES]
TITLE = "Speculative decoding: exact and relaxed"
INTRODUCTION = (
    f"<h1>{TITLE}</h1><p>A small model drafts tokens, and a large one verifies them. Exact verification rejects some "
    "that would have been as good. Both sides answer the same prompt with the same models, in turns; each clock "
    "counts the time of its side only.</p>"
)


@on_gpu
def generate(task: str, prompt: str, strictness: float) -> Iterator[tuple[str, str, str]]:
    """Decode with both verifiers; yield message and panels as tokens arrive."""
    try:
        task = task if task in MODEL.tasks else MODEL.tasks[0]
        ids = MODEL.tokenize(prompt, SAMPLING.max_new_tokens)
        verifiers = [LosslessVerifier(), MODEL.verifier(task, strictness)]
        for lanes in race(MODEL.pair, ids, verifiers, SAMPLING):
            scores = ["" if lane.text is None else MODEL.score(task, prompt, lane.text) for lane in lanes]
            yield "", *(lane_panel(*each) for each in zip(TITLES, lanes, scores))
    except ValueError as error:
        yield notice(str(error)), *EMPTY


def build() -> gr.Blocks:
    """Build the page and connect its events."""
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.HTML(INTRODUCTION, elem_id="masthead")
        task = gr.Radio(MODEL.tasks, value=MODEL.tasks[0], label="Task", elem_id="task")
        prompt = gr.Textbox(next(iter(MODEL.examples(MODEL.tasks[0]))), label="Prompt", lines=4, elem_id="prompt")
        label = "Strictness of the relaxed side: 0 accepts every draft token, 1 is exact"
        strictness = gr.Slider(0, 1, MODEL.strictness, step=0.05, label=label, elem_id="strictness")
        with gr.Row():
            start = gr.Button("Generate", variant="primary", elem_id="generate")
            stop = gr.Button("Stop", elem_id="stop")
            another = gr.Button("Another example", elem_id="another")
        message = gr.HTML("", elem_id="message")
        with gr.Row():
            panels = [gr.HTML(html, elem_id=name) for html, name in zip(EMPTY, ("exact", "relaxed"))]
        gr.HTML(legend())
        gr.on([task.input, another.click], MODEL.example, task, prompt, show_progress="hidden")
        options = {"show_progress": "minimal", "show_progress_on": message}  # the place in the queue
        running = start.click(generate, [task, prompt, strictness], [message, *panels], **options)
        stop.click(None, cancels=[running])
    return page


THEME = gr.themes.Base(primary_hue="emerald", neutral_hue="slate", font=["ui-sans-serif", "system-ui", "sans-serif"])

if __name__ == "__main__":
    MODEL.pair  # noqa: B018  loads the models before the first request
    build().queue().launch(theme=THEME, css_paths=Path(__file__).parent / "style.css", ssr_mode=False, footer_links=[])
