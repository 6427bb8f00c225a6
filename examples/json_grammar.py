"""JSON that follows a schema, under a relaxed verifier. Needs outlines-core: pip install outlines-core."""

import json

import torch
from outlines_core import Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_diversed import load_demo_pair
from hf_diversed.tasks import get_task, load_records


SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer", "maxDigits": 3},
        "unit": {"enum": ["dollars", "pens", None]},
        "note": {"type": "string", "maxLength": 8},
    },
    "required": ["answer", "unit", "note"],
}


class GrammarProcessor(LogitsProcessor):
    """Allow only tokens that continue a text of the grammar, in draft blocks as well as token by token.

    Args:
        index: the grammar. prompt_length: S, number of columns of the prompts, with padding.
    """

    def __init__(self, index: Index, prompt_length: int):
        self.index, self.prompt_length = index, prompt_length
        self.read: list[list[int]] = []  # per row, the tokens that its states have read
        # Per row, the state before each of them and after the last; None after the end.
        self.states: list[list[int | None]] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        if not self.read:
            self.read = [[] for _ in scores]
            self.states = [[self.index.get_initial_state()] for _ in scores]
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        for row, tokens in enumerate(input_ids[:, self.prompt_length :].tolist()):
            state = self._state_after(row, tokens)
            if state is None:  # ended, or a draft token after the end
                allowed[row] = True
            else:
                allowed[row, self.index.get_allowed_tokens(state)] = True
        return scores.masked_fill(~allowed, -torch.inf)

    def _state_after(self, row: int, tokens: list[int]) -> int | None:
        """Return to the common prefix with the tokens of the row's last call, then read the others."""
        read, states = self.read[row], self.states[row]
        same = next((i for i, (old, new) in enumerate(zip(read, tokens)) if old != new), min(len(read), len(tokens)))
        del read[same:], states[same + 1 :]
        for token in tokens[same:]:
            state = states[-1]
            states.append(None if state is None else self.index.get_next_state(state, token))
            read.append(token)
        return states[-1]


def build_index(schema: dict, tokenizer: PreTrainedTokenizerBase) -> Index:
    """Return the grammar of a JSON schema over a byte-level vocabulary."""
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    ids: dict[bytes, list[int]] = {}
    for token, index in tokenizer.get_vocab().items():
        if index not in tokenizer.all_special_ids:
            ids.setdefault(bytes(byte_of[letter] for letter in token), []).append(index)
    return Index(build_regex_from_schema(json.dumps(schema)), Vocabulary(tokenizer.eos_token_id, ids))


def main() -> None:
    torch.manual_seed(0)
    pair, task = load_demo_pair(), get_task("math")
    index = build_index(SCHEMA, pair.tokenizer)
    prompts = [task.prompt(record) for record in load_records(task, "test", 4)]
    inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    out = pair.target.generate(
        **inputs,
        assistant_model=pair.draft,
        verifier="lenience:0.3",
        logits_processor=LogitsProcessorList([GrammarProcessor(index, length)]),  # a new one for every call
        do_sample=True,
        top_k=0,
        max_new_tokens=64,
        return_dict_in_generate=True,
    )
    for text in pair.tokenizer.batch_decode(out.sequences[:, length:], skip_special_tokens=True):
        print(json.loads(text))
    print(f"accepted {out.stats.acceptance_rate:.0%}")


if __name__ == "__main__":
    main()
