"""`hf-diversed demo`: decoding methods side by side on the embedded pair."""

from dataclasses import dataclass

import torch

from hf_diversed.cli.demo_model import embedded_demo, model_demo
from hf_diversed.cli.models import LOOKUP
from hf_diversed.cli.options import DeviceOptions, option
from hf_diversed.cli.terminal import show_own_warnings_only
from hf_diversed.running.compiled import default_compile_config
from hf_diversed.running.sampling import Sampling
from hf_diversed.zoo import packaged


ENGINES = ("eager", "compiled", "both")


@dataclass(kw_only=True)
class DemoOptions(DeviceOptions):
    """What to compare."""

    num_examples: int = option("Held-out prompts to answer.", 8)
    repeats: int = option("Timed repeats of every prompt and method.", 3)
    seed: int = option("Seed of the prompts and of sampling.", 0)
    num_assistant_tokens: int = option("Draft tokens per round.", 5)
    max_new_tokens: int = option("Longest answer, in tokens.", 128)
    temperature: float = option("Sampling temperature; 0 decodes greedily.", 1.0)
    all: bool = option("Compare every verifier of the library.", False)
    engine: str = option("eager, compiled (compilation takes minutes), or both.", "both")
    backend: str = option("Backend of torch.compile; eager only traces.", "inductor")
    model: str | None = option(
        f"A chat model: Hub id, folder, the pair qwen-coder, or one of {', '.join(packaged.MODELS)}."
    )
    draft: str = option("Draft model of --model: Hub id or folder, or lookup to copy from the prompt.", LOOKUP)


def demo(options: DemoOptions) -> None:
    """Compare decoding methods on the embedded pair, offline.

    Methods alternate prompt by prompt. Speeds are medians of the repeats, with their range; a ratio whose range
    exceeds 30 percent of its median is shown as "too noisy to say".
    """
    if options.engine not in ENGINES:
        raise ValueError(f"--engine must be one of {', '.join(ENGINES)}, got {options.engine!r}.")
    if options.model is not None and options.all:
        raise ValueError("--all compares verifiers on the embedded pair; it cannot be combined with --model.")
    show_own_warnings_only()
    sampling = Sampling(
        options.temperature,
        num_assistant_tokens=options.num_assistant_tokens,
        max_new_tokens=options.max_new_tokens,
        batch_size=1,
    )
    where = options.device, options.dtype
    if options.model is None:
        chosen = embedded_demo(options.num_examples, sampling, options.seed, options.all, *where)
    else:
        chosen = model_demo(options.model, options.draft, options.num_examples, sampling, *where)
    config = default_compile_config(torch.device(chosen.pair.target.device), options.backend)
    chosen.run(options.engine, config, options.seed, options.repeats)
