"""`hf-diversed generate`: continue a prompt, with every token coloured by its origin."""

from typing import Annotated

import typer
from rich.text import Text

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import hear_own_warnings_only, notes


def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.", show_default=False)],
    task: options.HeadTask = "math",
    target: options.Target = None,
    draft: options.Draft = None,
    head: options.HeadSource = None,
    method: options.Method = None,
    strictness: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Strictness of the head: 0 accepts every draft token, 0.5 is as trained, 1 is lossless.",
        ),
    ] = None,
    max_bias: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Bound on TV(v, p) at each token.")] = None,
    bias_budget: Annotated[
        float | None, typer.Option(min=0.0, help="Bound on the sum of TV(v, p) over the answer.")
    ] = None,
    max_ratio: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Bound v <= p / max_ratio on each token's probability.")
    ] = None,
    max_drop: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Certified drop of quality to tolerate.")
    ] = None,
    num_assistant_tokens: options.Gamma = None,
    temperature: options.Temperature = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    chat: Annotated[bool, typer.Option(help="Apply the tokenizer's chat template to the prompt.")] = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
) -> None:
    """Continue a prompt. Standard output receives only the text, standard error everything else."""
    if not prompt.strip():
        raise ValueError("the prompt is empty; pass a text to continue.")

    from transformers.utils import logging

    from hf_diversed.cli.models import load_pair
    from hf_diversed.cli.rendering import source_legend, stats_line
    from hf_diversed.cli.streaming import build_method, check_method, stream
    from hf_diversed.running.sampling import Sampling

    hear_own_warnings_only()
    logging.disable_progress_bar()
    dials = {"strictness": strictness, "max_bias": max_bias, "bias_budget": bias_budget, "max_ratio": max_ratio}
    dials |= {"max_drop": max_drop}
    check_method(method, head, task, target, dials)
    pair = load_pair(target, draft, device, chat, dtype)
    label, verifier = build_method(pair, method, head or pair.heads.get(task), dials)
    notes.print(Text(prompt, style="bold"), end="", soft_wrap=True)
    sampling = Sampling(temperature, num_assistant_tokens=num_assistant_tokens, max_new_tokens=max_new_tokens)
    asked = [{"role": "user", "content": prompt}] if chat else prompt
    stats, seconds = stream(pair, asked, verifier, sampling, seed)
    notes.print(Text("\n").append_text(Text() if verifier is None else source_legend()))
    notes.print(Text(stats_line(label, stats, seconds), style="bold"), soft_wrap=True)
