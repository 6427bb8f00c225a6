"""Compare lossless greedy decoding of a small model with plain `generate`: alone, also with static shapes, in a batch,
and left-padded."""

import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedModel

import hf_diversed
from hf_diversed import LosslessVerifier, SpeculativeStats
from hf_diversed.generation import runner
from tests.families.shrink import MARKER
from tests.tiny import PAD, VOCAB_SIZE, ragged_batch, sharpen, tiny_draft


ROWS, PROMPT, NEW, GAMMA = 5, 9, 24, 4  # 33 tokens in total: four times the sliding windows
NOISES = (0.06, 0.15, 0.02, 0.4)  # of the draft's weights, tried in this order
KINDS = ("equal", "refused", "upstream", "wrong")  # from good to bad
_PACKAGE = str(Path(hf_diversed.__file__).parent)


@dataclass
class Outcome:
    """Result of one layout.

    Attributes:
        kind: one of `KINDS`. "refused": an error that names the model, before any forward. "upstream": plain
            `generate` fails.
        detail: error message, or the rows that differ.
        undecided: rows that plain `generate` decodes differently alone and in a batch, and that differ from both here.
    """

    kind: str
    detail: str = ""
    undecided: list[int] = field(default_factory=list)


@dataclass
class Family:
    """Results of a model: `alone` for single rows, also with static shapes, `batch` for equal lengths, `padded` for
    different lengths. `eager_reason`: why the call with static shapes was decoded without them; "" if it was not."""

    alone: Outcome
    batch: Outcome
    padded: Outcome
    eager_reason: str = ""
    acceptance: float = 0.0
    is_ragged: bool = False

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return self.alone, self.batch, self.padded

    @property
    def kind(self) -> str:
        """One word if the layouts agree, else three."""
        kinds = [outcome.kind for outcome in self.outcomes]
        if "wrong" in kinds:
            return "wrong"
        return kinds[0] if len(set(kinds)) == 1 else ", ".join(kinds)

    @property
    def detail(self) -> str:
        return "; ".join(dict.fromkeys(outcome.detail for outcome in self.outcomes if outcome.detail))

    @property
    def is_tested(self) -> bool:
        """Whether some draft tokens were accepted and some rejected, by row; otherwise equality is weak evidence."""
        return 0.1 < self.acceptance < 0.98 and (self.is_ragged or self.batch.kind != "equal")


def examine(model: PreTrainedModel) -> Family:
    """Compare in every layout, with the first draft that tests it sufficiently."""
    prepare(model)
    for noise in NOISES:
        family = _compare(model, tiny_draft(model, noise))
        if family.kind in ("refused", "wrong", "upstream") or family.is_tested:
            break
    return family


def prepare(model: PreTrainedModel) -> None:
    """Change the weights so that the greedy text varies and has no near ties."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.nan_to_num_().add_(0.1 * torch.randn_like(parameter))
            elif not (parameter.isfinite().all() and parameter.std() > 0):
                parameter.normal_()
    sharpen(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):  # so that positions affect the output
            module.weight.data /= module.weight.std()
    model.generation_config = GenerationConfig(pad_token_id=PAD, suppress_tokens=[PAD, MARKER])


def _compare(target: PreTrainedModel, draft: PreTrainedModel) -> Family:
    ids = torch.randint(4, VOCAB_SIZE, (ROWS, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = ragged_batch(ROWS, PROMPT)["attention_mask"]
    even = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    stats: list[SpeculativeStats] = []
    static = {"cache_implementation": "static", "disable_compile": True}
    alone = [_decode_and_compare(target, draft, _row(even, 0), stats, **static)]
    eager_reason = stats[-1].engine_reason if stats else ""
    alone += [_decode_and_compare(target, draft, _row(even, row), stats) for row in range(2)]
    batch = _decode_and_compare(target, draft, even, stats)
    padded = _decode_and_compare(
        target, draft, {"input_ids": ids.where(mask == 1, PAD), "attention_mask": mask}, stats
    )
    return Family(
        alone=max(alone, key=lambda outcome: KINDS.index(outcome.kind)),
        batch=batch,
        padded=padded,
        eager_reason=eager_reason,
        acceptance=stats[-1].acceptance_rate if stats else 0.0,
        is_ragged=len({row.num_accepted for row in stats[-1].per_row}) > 1 if stats else False,
    )


def _row(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    """Return one row without its padding."""
    ids = inputs["input_ids"][row : row + 1, inputs["attention_mask"][row].bool()]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _plain(target: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the new ids, long `[B, NEW]`."""
    ids = target.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    return ids[:, inputs["input_ids"].shape[1] :]


def _decode_and_compare(target, draft, inputs, stats: list[SpeculativeStats], **options) -> Outcome:
    """Decode `inputs` with and without the draft and compare, including errors. Appends our statistics to `stats`.
    `options` are arguments of the call with the draft."""
    with _counted() as forwards:
        try:
            out = target.generate(
                **inputs,
                assistant_model=draft,
                verifier=LosslessVerifier(),
                num_assistant_tokens=GAMMA,
                max_new_tokens=NEW,
                do_sample=False,
                return_dict_in_generate=True,
                **options,
            )
        except Exception as error:
            failure, name = error, type(target).__name__
            if _is_refusal(error, name) and not forwards:
                return Outcome("refused", str(error))
        else:
            failure = None
            stats.append(out.stats)
    try:
        rows = [_plain(target, _row(inputs, row))[0] for row in range(len(inputs["input_ids"]))]
        together = _plain(target, inputs)
    except Exception as error:
        return Outcome("upstream", f"plain generate: {_in_words(error)}")
    if failure is not None:
        return Outcome("wrong", f"after {len(forwards)} forwards: {_in_words(failure)}")
    return _compare_rows(out.sequences[:, inputs["input_ids"].shape[1] :], rows, together)


def _compare_rows(ours: torch.Tensor, rows: list[torch.Tensor], together: torch.Tensor) -> Outcome:
    """Compare with upstream's rows, except for those that upstream decodes differently alone and in a batch."""
    agrees = [torch.equal(alone, batched) for alone, batched in zip(rows, together)]
    right = [torch.equal(got, alone) or torch.equal(got, batched) for got, alone, batched in zip(ours, rows, together)]
    wrong = [row for row, (same, good) in enumerate(zip(agrees, right)) if same and not good]
    undecided = [row for row, (same, good) in enumerate(zip(agrees, right)) if not (same or good)]
    if wrong:
        first = int((ours[wrong[0]] != together[wrong[0]]).nonzero()[0])
        return Outcome("wrong", f"rows {wrong} of {len(rows)}, row {wrong[0]} from new token {first} on", undecided)
    return Outcome("equal", "", undecided)


@contextmanager
def _counted():
    """Yield a list with one entry per forward of our loop. Hooks would count as user code, which keeps all rows."""
    seen: list[str] = []
    run = runner.run_model
    runner.run_model = lambda *args: (seen.append("forward"), run(*args))[1]
    try:
        yield seen
    finally:
        runner.run_model = run


def _is_refusal(error: Exception, name: str) -> bool:
    """Return whether this library raised the error, and it is a ValueError that names the model."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError) and raised_in.startswith(_PACKAGE) and name in str(error)


def _in_words(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {message} ({Path(frame.filename).name}:{frame.lineno})"
