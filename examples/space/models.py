"""The models on offer, and what the page says of each. What they are asked by example comes with them."""

import os
import random
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from backend import DIVERSED, LENIENT, check_kind

from hf_diversed import DiversedHead, LosslessVerifier
from hf_diversed.cli.demo_model import REPEAT, TEXTS
from hf_diversed.cli.models import LOOKUP, load_pair
from hf_diversed.corpus import held_out_examples
from hf_diversed.running.decode import Decoder
from hf_diversed.running.methods import Method
from hf_diversed.running.pair import Pair
from hf_diversed.running.sampling import Sampling
from hf_diversed.zoo import smollm2


TASKS = [("Math", "math"), ("Summary", "summary"), ("Code", "code")]
DRAFTED = """A small draft model proposes tokens, a large target verifies them. A learned head decides token by token
how strictly: strict where a wrong token breaks the answer, permissive where it does not."""
LOOKED_UP = """What followed the last words where they stood before is proposed as the next ones, and the model
verifies all of them at once. A dial says how strictly."""
ABOUT_EMBEDDED = """This pair is a small one that comes with the library. It knows three kinds of prompt: word
problems, news items to summarise, and tasks for a Python function. Change the words and numbers of an example; other
prompts are declined."""
ABOUT_LOOKUP = """Drafts are looked up in the prompt and the answer so far. They cost nothing, and pay where an answer
takes up the prompt's own words: have a text repeated, mended or rewritten."""


@dataclass(frozen=True)
class Model:
    """A pair by the names of its models, loaded when it is first asked for; without names the embedded one.

    Attributes:
        label: what visitors choose it by. target, draft: Hub ids, folders or "smollm2"; the draft may be "lookup".
        head: Hub id or folder, for every task; None for those that come with the pair.
    """

    label: str
    target: str | None = None
    draft: str | None = None
    head: str | None = None

    @cached_property
    def pair(self) -> Pair:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        pair = load_pair(self.target, self.draft, device)
        if device == "cpu":
            _warm_up(pair)
        if self.head is None:
            return pair
        return replace(pair, heads={**pair.heads, "": DiversedHead.from_pretrained(self.head).to(device).eval()})

    @property
    def is_embedded(self) -> bool:
        return self.target is None

    @property
    def masthead(self) -> str:
        words = LOOKED_UP if self.draft == LOOKUP else DRAFTED
        return f'<div class="masthead"><h1>Speculative decoding with a dial</h1><p>{words}</p></div>'

    @property
    def about(self) -> str:
        """What it can do; empty where nobody knows."""
        words = ABOUT_EMBEDDED if self.is_embedded else ABOUT_LOOKUP if self.draft == LOOKUP else ""
        return words and f'<p class="hint">{words}</p>'

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """What there are examples of: labels and names, the usual one first."""
        return [("Repeat a text", "repeat")] if self.draft == LOOKUP else TASKS

    @property
    def method(self) -> str:
        """The method that a visitor finds chosen: a head's, where there is one."""
        return DIVERSED if self.is_embedded or self.head else LENIENT

    @property
    def temperature(self) -> float:
        """The temperature that a visitor finds chosen: who repeats a text needs no luck."""
        return 0.0 if self.draft == LOOKUP else 1.0

    def example(self, task: str, seed: int | None = None) -> str:
        """A prompt; of the embedded pair's kinds one that it was not trained on."""
        seed = random.randrange(10_000) if seed is None else seed
        if self.draft == LOOKUP:
            return REPEAT + TEXTS[seed % len(TEXTS)]
        return held_out_examples(task, 1, seed)[0].prompt

    def check(self, prompt: str) -> None:
        """Decline what it was not made for. Raises ValueError, in words for visitors."""
        if self.is_embedded:
            check_kind(prompt)


def _warm_up(pair: Pair) -> None:
    """Decode a little: what is slow only once should not be in a visitor's figures."""
    decoder = Decoder(pair, Sampling(num_assistant_tokens=5, max_new_tokens=8))
    for rule in (None, LosslessVerifier()):
        decoder(Method("warm-up", rule), [list(range(16))], seed=0)


def find_models() -> list[Model]:
    """The pair of HF_DIVERSED_TARGET, _DRAFT and _HEAD; without them the embedded one, and SmolLM2 if that is here."""
    target, draft, head = (os.environ.get(f"HF_DIVERSED_{name}") for name in ("TARGET", "DRAFT", "HEAD"))
    if (target is None) != (draft is None):
        raise ValueError("HF_DIVERSED_TARGET and HF_DIVERSED_DRAFT go together: set both, or neither.")
    if target is not None:
        return [Model("Named pair", target, draft, head)]
    models = [Model("Embedded pair", head=head)]
    if head is None and (smollm2.CACHE / smollm2.FOLDER).is_dir():
        models.append(Model("SmolLM2-135M-Instruct", smollm2.NAME, LOOKUP))
    return models
