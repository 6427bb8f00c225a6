"""Time the forward passes of a compiled round alone, for comparison with the whole round."""

import statistics
from collections.abc import Callable
from functools import partial

import torch
from transformers import CompileConfig, PreTrainedModel

from benchmarks.rounds.timing import Stopwatch
from hf_diversed import model_facts
from hf_diversed.engines.compiling import Compiler, Shape
from hf_diversed.engines.static_model import StaticModel, extend
from hf_diversed.generation.rows import RaggedRows


_REPEATS = 10


class CompiledForwards:
    """The forwards of one round: the draft's on two tokens, its gamma - 1 on one, and the target's on gamma + 1.

    Each is compiled separately and runs over the prompt in caches of the size that a round uses.

    Args:
        inputs: `input_ids` and `attention_mask`, long `[B, S]`.
        columns: minimum number of cache columns.
        hidden: whose hidden states to return, see `Verifier.needs_hidden_states`.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        inputs: dict[str, torch.Tensor],
        gamma: int,
        columns: int,
        hidden: bool | str,
        config: CompileConfig,
    ):
        self._inputs, self._columns, self._config = inputs, columns, config
        known = model_facts.known_ids(draft)
        drafter = self._over(draft, hidden is True, known - 1 if known < model_facts.vocab_size(target) else None)
        step = self._forward(drafter, 1, keep=1)
        verify = self._forward(self._over(target, bool(hidden)), gamma + 1, keep=gamma + 1)
        self._calls = [self._forward(drafter, 2, keep=1), *[step] * (gamma - 1), verify]

    @torch.no_grad()
    def milliseconds(self, watch: Stopwatch) -> float:
        """Return the median time of one round's forwards over several runs; the first call compiles them."""
        marks = []
        for _ in range(1 + _REPEATS):
            marks.append(watch.mark())
            for call in self._calls:
                call()
        return statistics.median(watch.milliseconds(marks)[1:])

    @torch.no_grad()
    def _over(self, model: PreTrainedModel, keep_hidden: bool, max_id: int | None = None) -> StaticModel:
        """Prefill a static cache with the prompt and return the model over it."""
        ids, mask = self._inputs["input_ids"], self._inputs["attention_mask"]
        made = StaticModel(
            model,
            rows=RaggedRows(ids, max_length=self._columns, spare=0, eos_ids=[], pad_id=0),
            prompt_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp_min(0),
            keep_hidden=keep_hidden,
            max_id=max_id,
            compiler=Compiler(self._config, model_facts.base_model(model)),
        )
        made.prefill(ids[:, :-1])
        made.make_room(self._columns)
        return made

    def _forward(self, model: StaticModel, width: int, keep: int) -> Callable[[], tuple]:
        """Return a function that runs one forward of `width` tokens at the prompt's end."""
        rows, capacity = model.buffers.real.shape
        compiler = Compiler(self._config, model_facts.base_model(model.model))
        shape = Shape(rows, capacity, (width, keep))
        last = self._inputs["input_ids"].shape[1] - 1
        columns = torch.arange(last, last + width, device=model.device).repeat(rows, 1)
        tokens = torch.zeros_like(columns)  # the values do not affect the time
        inputs = (model.model, model.traits, model.buffers, tokens, columns, keep)
        return partial(compiler.run, extend, [model.model], shape, "", *inputs)
