"""The settings of the page: ranges, checks, and the verifier and token ids for them."""

import tempfile
from dataclasses import dataclass

from hf_diversed import (
    DiversedHead,
    DiversedVerifier,
    LenientVerifier,
    LosslessVerifier,
    StaticEnsembleVerifier,
    Verifier,
)
from hf_diversed.evaluation.decoder import encode
from hf_diversed.hub.card import is_hub_id
from hf_diversed.zoo.loader import Pair


PLAIN, LOSSLESS, LENIENT, STATIC, DIVERSED = METHODS = ("Plain", "Lossless", "Lenience", "Static", "DIVERSED")
EAGER, COMPILED = ENGINES = ("Eager", "Compiled")
LONGEST_PROMPT = 20_000  # characters; longer prompts are refused before they are tokenized
# Beginnings and endings of the embedded pair's prompts. The pair was not trained on others.
KINDS = {"math": ("Question: ", "\nAnswer:"), "summary": ("Article: ", "\nSummary:"), "code": ("Task: ", "\nCode:")}


@dataclass(frozen=True)
class Setting:
    """A numeric setting: its label, lowest and highest value, step and default. An integer step means integers."""

    label: str
    low: float
    high: float
    step: float
    default: float


SETTINGS = {
    "strictness": Setting("Strictness (1: lossless)", 0, 1, 0.05, 0.5),
    "lenience": Setting("Lenience (1: lossless)", 0.05, 1, 0.05, 0.3),
    "weight": Setting("Weight on the target (1: lossless)", 0, 1, 0.05, 0.7),
    "max_bias": Setting("Limit on the bias per token (1: no limit)", 0, 1, 0.05, 1.0),
    "gamma": Setting("Draft tokens per round", 1, 10, 1, 5),
    "temperature": Setting("Temperature (0: greedy)", 0, 1.5, 0.1, 1.0),
    "max_new_tokens": Setting("Maximum number of new tokens", 8, 256, 8, 128),
    "seed": Setting("Seed", 0, 2**53 - 1, 1, 0),  # the largest integer that JavaScript represents exactly
}


@dataclass(frozen=True)
class Choice:
    """The settings of one request, in the order of the page's inputs."""

    prompt: str
    task: str
    method: str
    strictness: float
    lenience: float
    weight: float
    max_bias: float
    gamma: int
    engine: str
    temperature: float
    max_new_tokens: int
    seed: int
    head: str

    def check(self) -> None:
        """Raise ValueError for invalid settings, which requests to the API may contain."""
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            kind = int if isinstance(setting.step, int) else (int, float)
            if not isinstance(value, kind) or not setting.low <= value <= setting.high:
                actual = "an empty field" if value is None else repr(value)
                number = "an integer" if kind is int else "a number"
                raise ValueError(
                    f"{setting.label.partition(' (')[0]} must be {number} from {setting.low} to {setting.high}, "
                    f"got {actual}."
                )
        for label, value, allowed in (("Method", self.method, METHODS), ("Engine", self.engine, ENGINES)):
            if value not in allowed:
                raise ValueError(f"{label} must be one of {', '.join(allowed)}, got {value!r}.")
        for label, text in (("prompt", self.prompt), ("head", self.head)):
            if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"The {label} must be valid Unicode text. Remove lone surrogates, then try again.")


def curve_point(method: str, strictness: float, lenience: float, weight: float) -> tuple[str | None, float]:
    """Return the measured curve of a method and its parameter on the curve; no curve for the target model alone."""
    points = {DIVERSED: ("diversed", strictness), LENIENT: ("lenience", lenience)}
    points |= {STATIC: ("static", weight), LOSSLESS: ("static", 1.0)}
    return points.get(method, (None, 0.0))


def check_kind(prompt: str) -> None:
    """Raise ValueError for prompts of a kind that the embedded pair was not trained on."""
    text = prompt.strip()
    if text and not any(text.startswith(begin) and text.endswith(end) for begin, end in KINDS.values()):
        kinds = ", ".join(f'"{begin}... {end.strip()}"' for begin, end in KINDS.values())
        raise ValueError(
            "This small pair answers three kinds of prompt: word problems, news items to summarise and tasks for a "
            f"Python function. Change the words or numbers of an example, or write {kinds}."
        )


def tokenize(pair: Pair, choice: Choice) -> list[int]:
    """Return the prompt's token ids, with the chat template if the tokenizer has one. Raises ValueError if the prompt
    is empty or too long."""
    if not choice.prompt.strip():
        raise ValueError("The prompt is empty. Write one, or choose an example.")
    if len(choice.prompt) > LONGEST_PROMPT:
        raise ValueError(
            f"The prompt is too long: {len(choice.prompt)} characters; at most {LONGEST_PROMPT} are allowed."
        )
    templated = pair.tokenizer.chat_template is not None
    (ids,) = encode(pair.tokenizer, [[{"role": "user", "content": choice.prompt}] if templated else choice.prompt])
    room = max_positions(pair) - choice.max_new_tokens
    if len(ids) > room:
        raise ValueError(f"The prompt is too long: {len(ids)} tokens; at most {room} leave room for the answer.")
    return ids


def max_positions(pair: Pair) -> int:
    """Return the number of positions that the target model supports."""
    return pair.target.config.get_text_config().max_position_embeddings


def choose_verifier(pair: Pair, choice: Choice) -> Verifier | None:
    """Return the verifier of the chosen method; None for the target model alone. Raises ValueError without a head."""
    if choice.method == DIVERSED:
        head = _find_head(pair, choice)
        if pair.draft is None and head.needs_hidden_states is True:
            raise ValueError(
                "This head reads the hidden states of a draft model, and prompt lookup has no draft model. Name a "
                "head that was trained for prompt lookup, or choose another method."
            )
        return DiversedVerifier(head, choice.strictness, None if choice.max_bias >= 1 else choice.max_bias)
    if choice.method == LENIENT:
        return LenientVerifier(choice.lenience)
    verifiers = {PLAIN: None, LOSSLESS: LosslessVerifier(), STATIC: StaticEnsembleVerifier(choice.weight)}
    return verifiers[choice.method]


def _find_head(pair: Pair, choice: Choice) -> DiversedHead:
    name = choice.head.strip()
    if not name:
        if head := pair.heads.get(choice.task, pair.heads.get("")):
            return head
        known = f"; there are heads for {', '.join(pair.heads)}" if pair.heads else ""
        which = "for prompt lookup" if pair.draft is None else f"for the task {choice.task!r}"
        raise ValueError(f"There is no head {which}{known}. Name a head, or choose another method.")
    repo_id, _, revision = name.partition("@")
    if not is_hub_id(repo_id):
        raise ValueError(
            f"The head {name!r} could not be loaded. Name a head of the Hub, as org/name or org/name@revision."
        )
    try:
        # Visitors must not read this machine's folders or its owner's private heads, and downloads are deleted.
        with tempfile.TemporaryDirectory() as cache:
            head = DiversedHead.from_pretrained(repo_id, revision=revision or "main", token=False, cache_dir=cache)
        return head.to(pair.target.device).eval()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"The head {name!r} could not be loaded. {reason}") from error
