"""The available models: how to load each, its example prompts, and its texts on the page."""

import os
import random
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from choice import DIVERSED, LENIENT, check_kind

from hf_diversed import DiversedHead, LosslessVerifier
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling
from hf_diversed.tasks import get_task, load_records
from hf_diversed.zoo import LOOKUP, load_pair
from hf_diversed.zoo.loader import Pair


TASKS = [("Math", "math"), ("Summary", "summary"), ("Code", "code")]
FIRST_SEED = 4  # math: a wrong answer at strictness 0, the right one at 0.5 and 1
DRAFTED = "Orange words are guesses of the small model that the large one would have discarded."
LOOKED_UP = "Orange words are guesses copied from the text that the model would have discarded."
ABOUT_EMBEDDED = """This small pair comes with the library. It answers three kinds of prompt: word problems, news items
to summarise, and tasks for a Python function. Change the words and numbers of an example. Other prompts are
refused."""
ABOUT_LOOKUP = """Draft tokens are copied from the prompt and the answer so far, which costs no forward pass. This
helps where an answer repeats parts of the prompt: repeating, correcting or rewriting a text."""
REPEAT = "Repeat the following text word for word:\n\n"
TEXTS = (
    "The meeting was moved from Monday to Wednesday, because the room is being painted. Please bring the report with "
    "you, and tell Anna that she can join by phone.",
    "Our shop opens at nine in the morning and closes at six in the evening. On Sundays it is closed, and on the last "
    "Saturday of every month it opens one hour later.",
    "Take two cups of flour, one cup of sugar and three eggs. Mix the flour with the sugar, add the eggs one by one, "
    "and stir the dough until it is smooth. Then bake it for forty minutes.",
    "def total(prices, tax):\n    result = 0\n    for price in prices:\n        result += price * (1 + tax)\n"
    "    return result",
    "The river rises in the hills, runs through two lakes and reaches the sea after ninety kilometres. In spring, "
    "when the snow melts, it often floods the meadows along its banks.",
    "Dear customer, thank you for your order. We sent it today, and it should be with you within three working days. "
    "If anything is missing, write to us and we will send it at once.",
    "A train leaves at 8:15 and arrives at 10:40. The next one leaves at 9:05 and arrives at 11:20, but it does not "
    "run at weekends. Tickets are cheaper after ten in the morning.",
    "The old library was built of red brick in a year of drought. Its roof was repaired twice, and its windows were "
    "replaced after the storm. Today it holds a school of music.",
)


@dataclass(frozen=True)
class Model:
    """A pair, loaded at its first use; without names it is the embedded pair.

    Attributes:
        label: name on the page. target, draft: Hub ids or folders; the draft may be "lookup".
        head: Hub id or folder of a head for every task; None for the pair's own heads.
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
        return replace(pair, heads={"": DiversedHead.from_pretrained(self.head).to(device).eval()})

    @property
    def is_embedded(self) -> bool:
        return self.target is None

    @property
    def masthead(self) -> str:
        words = LOOKED_UP if self.draft == LOOKUP else DRAFTED
        return f'<div class="masthead"><h1>Faster answers from a language model</h1><p>{words}</p></div>'

    @property
    def about(self) -> str:
        """Description of suitable prompts as HTML; empty for other pairs."""
        words = ABOUT_EMBEDDED if self.is_embedded else ABOUT_LOOKUP if self.draft == LOOKUP else ""
        return words and f'<p class="hint">{words}</p>'

    @property
    def tasks(self) -> list[tuple[str, str]]:
        """Labels and names of the tasks with examples, the default first."""
        return [("Repeat a text", "repeat")] if self.draft == LOOKUP else TASKS

    @property
    def method(self) -> str:
        """The default method: DIVERSED if there is a head."""
        return DIVERSED if self.is_embedded or self.head else LENIENT

    @property
    def temperature(self) -> float:
        """The default temperature: greedy for repeating a text."""
        return 0.0 if self.draft == LOOKUP else 1.0

    @property
    def first_example(self) -> str:
        """The prompt that the page starts with."""
        return self.example(self.tasks[0][1], FIRST_SEED)

    def example(self, task: str, seed: int | None = None) -> str:
        """Return a prompt of a task; for the embedded pair, one that it was not trained on."""
        seed = random.randrange(10_000) if seed is None else seed
        if self.draft == LOOKUP:
            return REPEAT + TEXTS[seed % len(TEXTS)]
        names = [name for _, name in self.tasks]
        return load_records(get_task(task if task in names else names[0]), "test", 1, seed)[0]["prompt"]

    def check(self, prompt: str) -> None:
        """Raise ValueError for prompts of a kind that the model was not trained on."""
        if self.is_embedded:
            check_kind(prompt)


def _warm_up(pair: Pair) -> None:
    """Decode a few tokens, because the first calls are slow."""
    decoder = Decoder(pair, Sampling(num_assistant_tokens=5, max_new_tokens=8))
    for verifier in (None, LosslessVerifier()):
        decoder(Method("warm-up", verifier), [list(range(16))], seed=0)


def find_models() -> list[Model]:
    """Return the pair of HF_DIVERSED_TARGET, _DRAFT and _HEAD; if unset, the embedded pair."""
    target, draft, head = (os.environ.get(f"HF_DIVERSED_{name}") for name in ("TARGET", "DRAFT", "HEAD"))
    if (target is None) != (draft is None):
        raise ValueError("HF_DIVERSED_TARGET and HF_DIVERSED_DRAFT must be set together; set both, or neither.")
    if target is not None:
        return [Model("Named pair", target, draft, head)]
    return [Model("Embedded pair", head=head)]
