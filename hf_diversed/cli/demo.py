"""`hf-diversed demo`: decoding methods side by side on the embedded pair."""

from typing import Annotated

import typer

from hf_diversed.cli import evaluation_options as options
from hf_diversed.cli.terminal import hear_own_warnings_only


ENGINES = ("eager", "compiled", "both")


def demo(
    num_examples: Annotated[int, typer.Option(min=1, help="Held-out prompts to answer.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats of every prompt and method.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of sampling.")] = 0,
    num_assistant_tokens: Annotated[
        int, typer.Option("--num-assistant-tokens", min=1, help="Draft tokens per round.")
    ] = 5,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 128,
    temperature: options.Temperature = 1.0,
    every_rule: Annotated[bool, typer.Option("--all", help="Compare every verifier of the library.")] = False,
    engine: Annotated[str, typer.Option(help="eager, compiled (compilation takes minutes), or both.")] = "both",
    backend: Annotated[str, typer.Option(help="Backend of torch.compile; eager only traces.")] = "inductor",
    model: Annotated[
        str | None,
        typer.Option(help=f"A chat model: Hub id, folder, the pair qwen-coder, or one of {options.PACKAGED}."),
    ] = None,
    draft: Annotated[
        str, typer.Option(help="Draft model of --model: Hub id or folder, or lookup to copy from the prompt.")
    ] = "lookup",
    device: options.Device = None,
    dtype: options.Dtype = None,
) -> None:
    """Compare decoding methods on the embedded pair, offline.

    Methods alternate prompt by prompt. Speeds are medians of the repeats, with their range; a ratio whose range
    exceeds 30% of its median is shown as "too noisy to say".
    """
    if engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}.")
    if model is not None and every_rule:
        raise ValueError("--all compares verifiers on the embedded pair; it cannot be combined with --model.")

    import torch

    from hf_diversed.cli.demo_model import embedded_demo, model_demo
    from hf_diversed.running.compiled import default_compile_config
    from hf_diversed.running.sampling import Sampling

    hear_own_warnings_only()
    sampling = Sampling(
        temperature, num_assistant_tokens=num_assistant_tokens, max_new_tokens=max_new_tokens, batch_size=1
    )
    if model is None:
        chosen = embedded_demo(num_examples, sampling, seed, every_rule, device, dtype)
    else:
        chosen = model_demo(model, draft, num_examples, sampling, device, dtype)
    config = default_compile_config(torch.device(chosen.pair.target.device), backend)
    chosen.run(engine, config, seed, repeats)
