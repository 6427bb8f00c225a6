"""The pair of the page, its examples, and the checks of a prompt."""

import os
import random
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from hf_diversed import DiversedHead, DiversedVerifier, LenientVerifier, LosslessVerifier, Verifier
from hf_diversed.evaluation.decoder import Decoder, Method, Sampling, encode
from hf_diversed.tasks import Task, get_task, load_records
from hf_diversed.zoo import load_pair
from hf_diversed.zoo.loader import Pair


LONGEST_PROMPT = 20_000  # characters; longer prompts are refused before they are tokenized
NUM_EXAMPLES = 200
# Beginnings and endings of the embedded pair's prompts. The pair was not trained on others.
KINDS = {"math": ("Question: ", "\nAnswer:"), "summary": ("Article: ", "\nSummary:")}
ABSTRACT = {
    "abstract": "Large language models generate text one token at a time, and every token requires a pass over all "
    "weights. Speculative decoding lets a small model propose several tokens, which the large model verifies in one "
    "pass. Standard verification keeps the large model's distribution, but it also rejects tokens that would have "
    "been just as good. We train a small network that decides at each token how strictly to verify, with the quality "
    "of whole answers as its reward. On summaries, more proposed tokens are kept at the same quality, so that the "
    "large model runs less often.",
    "tldr": "A small trained network decides how strictly speculative decoding verifies each token, so that more "
    "proposed tokens are kept at the same quality.",
}
PUBLISHED = ("qwen-coder-1.5b", "qwen-coder-0.5b")  # names of `benchmarks.packaged`
PUBLISHED_HEAD = Path(__file__).parents[2] / "model_cards" / "qwen2.5-coder-1.5b-0.5b-scitldr"


@dataclass(frozen=True)
class Model:
    """A pair, loaded at its first use; without names it is the embedded pair.

    Attributes:
        target, draft: Hub ids or folders. head: Hub id or folder of a head; None for the pair's own heads.
    """

    target: str | None = None
    draft: str | None = None
    head: str | None = None

    @cached_property
    def pair(self) -> Pair:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        pair = load_pair(self.target, self.draft, device)
        if self.head is not None:
            pair = replace(pair, heads={"": DiversedHead.from_pretrained(self.head).to(device).eval()})
        sampling = Sampling(num_assistant_tokens=5, max_new_tokens=8)  # the first call is slow
        Decoder(pair, sampling)(Method("warm-up", LosslessVerifier()), [list(range(16))], seed=0)
        return pair

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks with examples, the default first."""
        return ["math", "summary"] if self.target is None else ["scitldr"]

    @property
    def strictness(self) -> float:
        """The first value of the slider: the head as trained, or a lenience of 0.1."""
        return 0.5 if self.target is None or self.head is not None else 0.1

    def examples(self, name: str) -> dict[str, Any]:
        """Return records by prompt; the embedded pair was not trained on them."""
        task = get_task(name)
        records = load_records(task, "test", NUM_EXAMPLES) if self.target is None else [ABSTRACT]
        return {task.prompt(record): record for record in records}

    def example(self, name: str) -> str:
        return random.choice(list(self.examples(name)))

    def score(self, name: str, prompt: str, text: str) -> str:
        """Return the score of an answer to an example as text; empty for other prompts."""
        record = self.examples(name).get(prompt)
        if record is None:
            return ""
        task: Task = get_task(name)
        value = task.score(text, record)
        return f"ROUGE-2 {100 * value:.0f}" if task.metric == "rouge2" else "right" if value else "wrong"

    def verifier(self, name: str, strictness: float) -> Verifier:
        """Return the relaxed verifier: a head, or without one, lenience with the strictness as its parameter."""
        if not isinstance(strictness, (int, float)) or not 0 <= strictness <= 1:
            raise ValueError(f"The strictness must be a number from 0 to 1, got {strictness!r}.")
        head = self.pair.heads.get(name, self.pair.heads.get(""))
        return LenientVerifier(max(strictness, 0.01)) if head is None else DiversedVerifier(head, strictness)

    def tokenize(self, prompt: str, room: int) -> list[int]:
        """Return the ids of a prompt, with the chat template if the tokenizer has one.

        Raises:
            ValueError: if the prompt is empty, too long, or of a kind that the embedded pair was not trained on.
        """
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError("The prompt is empty. Write one, or choose an example.")
        if len(prompt) > LONGEST_PROMPT:
            raise ValueError(f"The prompt has {len(prompt)} characters; at most {LONGEST_PROMPT} are allowed.")
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise ValueError("The prompt must be valid Unicode text. Remove lone surrogates, then try again.")
        text = prompt.strip()
        if self.target is None and not any(text.startswith(a) and text.endswith(b) for a, b in KINDS.values()):
            kinds = " or ".join(f'"{begin}... {end.strip()}"' for begin, end in KINDS.values())
            raise ValueError(f"This small pair answers word problems and summarises news items: write {kinds}.")
        templated = self.pair.tokenizer.chat_template is not None
        (ids,) = encode(self.pair.tokenizer, [[{"role": "user", "content": prompt}] if templated else prompt])
        longest = self.pair.target.config.get_text_config().max_position_embeddings - room
        if len(ids) > longest:
            raise ValueError(f"The prompt has {len(ids)} tokens; at most {longest} leave room for the answer.")
        return ids


def find_model() -> Model:
    """Return the pair that the environment names, else the published pair if it is on this machine, else the embedded
    pair."""
    target, draft, head = (os.environ.get(f"HF_DIVERSED_{name}") for name in ("TARGET", "DRAFT", "HEAD"))
    if (target is None) != (draft is None):
        raise ValueError("HF_DIVERSED_TARGET and HF_DIVERSED_DRAFT must be set together; set both, or neither.")
    if target is None and (folders := _published()):
        target, draft = map(str, folders)
        head = head or (str(PUBLISHED_HEAD) if PUBLISHED_HEAD.is_dir() else None)
    return Model(target, draft, head)


def folder_of(name: str) -> Path | None:
    """Return the folder of a model of `benchmarks.packaged`; None outside of a clone."""
    try:
        from benchmarks.packaged import folder
    except ImportError:
        return None
    return folder(name)


def _published() -> list[Path]:
    """Return the folders of the published pair if both are on this machine, else nothing."""
    folders = [path for path in map(folder_of, PUBLISHED) if path is not None and (path / "config.json").is_file()]
    return folders if len(folders) == len(PUBLISHED) else []
