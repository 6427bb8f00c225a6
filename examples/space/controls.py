"""The controls of each method, and the page's own scripts."""

import json

import gradio as gr
from choice import DIVERSED, LENIENT, LOSSLESS, SETTINGS, STATIC
from rendering import remark


# The methods that show a control; "panel" is the panel of weights. Other controls belong to all methods.
SHOWN = {"strictness": [DIVERSED], "lenience": [LENIENT], "weight": [STATIC], "max_bias": [DIVERSED]}
SHOWN |= {"gamma": [LOSSLESS, LENIENT, STATIC, DIVERSED], "panel": [STATIC, DIVERSED]}

WAITING = json.dumps(remark("Waiting for the server.", "waiting"))
# Mark the figures as those of other settings, if there are figures.
GREY_OUT = """() => {
    const page = document.querySelector('.gradio-container');
    if (!document.querySelector('#figures .tiles[data-method=""]')) page.classList.add('stale');
}"""
# Show that the request waits, and bring the figures into view.
BEGIN = f"""() => {{
    document.querySelector('.gradio-container').classList.remove('stale', 'stopped');
    const figures = document.querySelector('#figures'), box = figures.getBoundingClientRect();
    if (box.top < 128 || box.bottom > innerHeight) figures.scrollIntoView({{behavior: 'smooth', block: 'start'}});
    return {WAITING};
}}"""
# A class, because frames that arrive after Stop replace the text of the message.
STOP = """() => {
    const state = document.querySelector('#message [data-state]')?.dataset.state;
    if (['waiting', 'running'].includes(state)) document.querySelector('.gradio-container').classList.add('stopped');
}"""
UNSTOP = "engine => { document.querySelector('.gradio-container').classList.remove('stopped'); return engine; }"


def allow_stop() -> dict:
    """Enable the button while a run waits or decodes."""
    return gr.update(interactive=True)


def refuse_stop() -> dict:
    """Disable the button once nothing runs."""
    return gr.update(interactive=False)


def show_controls(method: str) -> list:
    """Show the controls in `SHOWN` that a method has."""
    return [gr.update(visible=method in methods) for methods in SHOWN.values()]


def slider(name: str, method: str, **options) -> gr.Slider:
    """The slider of a setting, visible if the method has it."""
    entry = SETTINGS[name]
    options = {"value": entry.default, "visible": method in SHOWN.get(name, [method])} | options
    return gr.Slider(entry.low, entry.high, step=entry.step, label=entry.label, elem_id=name, **options)
