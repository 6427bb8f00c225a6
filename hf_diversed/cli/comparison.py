"""Run the same prompts through several decoding methods and measure each. Prints nothing but progress."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_diversed.evaluation.upstream import constant_draft, generated_lengths
from hf_diversed.generation.options import sampling_kwargs
from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.head import DiversedHead
from hf_diversed.outputs import SpeculativeStats, TokenRecords
from hf_diversed.verifiers import DiversedVerifier, PhaseVerifier, StaticEnsembleVerifier, build_verifier


@dataclass(frozen=True)
class Pair:
    """Target, draft, their tokenizer and the heads that come with them, by task. Prompts from a chat template bring
    their own special tokens."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    add_special_tokens: bool = True
    heads: Mapping[str, DiversedHead] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What all methods share. Temperature 0 is greedy; top_k and top_p are off: p and q are the models' own laws."""

    max_new_tokens: int
    gamma: int | None
    temperature: float
    seed: int

    def generation_kwargs(self) -> dict[str, Any]:
        return {"max_new_tokens": self.max_new_tokens, **sampling_kwargs(self.temperature)}


@dataclass(frozen=True)
class Method:
    """A row of the comparison.

    Attributes:
        kwargs: what `generate` gets besides prompts and settings; None for plain decoding.
        upstream: run upstream's assisted decoding instead of ours. greedy: whatever the settings' temperature.
        batch_size: prompts per call.
    """

    label: str
    kwargs: dict[str, Any] | None
    upstream: bool = False
    greedy: bool = False
    batch_size: int = 1


@dataclass
class Row:
    """What one method did; `row_forwards` counts a target forward once per row, `stats` is None where unreported."""

    label: str
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0
    row_forwards: int = 0
    stats: SpeculativeStats | None = None
    records: TokenRecords | None = None


def demo_methods(head: DiversedHead, head_label: str) -> list[Method]:
    """The demo's rows, from plain decoding to a batch of eight."""
    diversed = {"diversed_head": head}
    return [
        Method("plain decoding", None),
        Method("upstream assisted, w = 0.7", {"assistant_ensemble_weight": 0.7}, upstream=True),
        Method("lossless", {"verifier": "lossless"}),
        Method("static, w = 0.7", {"verifier": "static:0.7"}),
        Method("static, w = 0.3", {"verifier": "static:0.3"}),
        Method(head_label, diversed),
        Method(f"{head_label}, batch 8", diversed, batch_size=8),
    ]


ALL_RULES = (
    *("static:0.7", "static:0.3", "lenience:0.5", "lossy:0.5", "spec_cascade:token_v3:0.5", "fuzzy:0.2:js"),
    *("contrastive:0.5:0.1", "cactus:0.25", "typical", "top_k_relaxed:10:0.6", "fly:0.3:2", "block"),
    *("block:static:0.7", "regret_budget:2"),
)


def all_methods(head: DiversedHead, head_label: str, begin: int, end: int) -> list[Method]:
    """Every rule in a usual setting; between two tokens, and lossless outside of them, the static one."""
    phase = PhaseVerifier(StaticEnsembleVerifier(0.3), begin=begin, end=end)
    budget = DiversedVerifier(head, bias_budget=1.0)
    rules = [build_verifier(spec) for spec in ALL_RULES]
    return [
        Method("plain decoding", None),
        Method("lossless", {"verifier": "lossless"}),
        *(
            Method(spec + (" (greedy)" if rule.greedy_only else ""), {"verifier": rule}, greedy=rule.greedy_only)
            for spec, rule in zip(ALL_RULES, rules)
        ),
        Method("static:0.3, first sentence", {"verifier": phase}),
        Method(head_label, {"diversed_head": head}),
        Method("DIVERSED, bias_budget 1", {"verifier": budget}),
    ]


def compare(pair: Pair, methods: list[Method], prompts: list[str], settings: Settings, console: Console) -> list[Row]:
    """Measure every method on every prompt, each after a short warm-up, under the same seeds."""
    rows = []
    for method in track(methods, description="decoding", console=console, transient=True):
        measure(pair, method, prompts[:1], Settings(8, settings.gamma, settings.temperature, settings.seed))
        rows.append(measure(pair, method, prompts, settings))
    return rows


def measure(pair: Pair, method: Method, prompts: list[str], settings: Settings, records: bool = False) -> Row:
    """Run one method over all prompts. Every call is seeded by its place, so one prompt does not move the next."""
    row = Row(method.label)
    for start in range(0, len(prompts), method.batch_size):
        batch = prompts[start : start + method.batch_size]
        options = {"padding": len(batch) > 1, "add_special_tokens": pair.add_special_tokens}
        inputs = pair.tokenizer(batch, return_tensors="pt", **options).to(pair.target.device)
        inputs.pop("token_type_ids", None)
        torch.manual_seed(settings.seed + start)
        _run(pair, method, inputs, settings, records, row)
    return row


def _run(pair: Pair, method: Method, inputs, settings: Settings, records: bool, row: Row) -> None:
    if method.greedy:
        settings = replace(settings, temperature=0.0)
    kwargs = settings.generation_kwargs() | {"return_dict_in_generate": True} | (method.kwargs or {})
    if method.upstream:
        kwargs["assistant_model"] = constant_draft(pair.draft, settings.gamma or DEFAULT_NUM_ASSISTANT_TOKENS)
    elif method.kwargs is not None:
        kwargs |= {"assistant_model": pair.draft, "output_token_records": records}
        if settings.gamma is not None:
            kwargs["num_assistant_tokens"] = settings.gamma
    with _counted_forwards(pair.target) as forwards:
        began = time.perf_counter()
        out = pair.target.generate(**inputs, **kwargs)
        row.seconds += time.perf_counter() - began
    row.row_forwards += forwards[0] * len(inputs["input_ids"])
    new = out.sequences[:, inputs["input_ids"].shape[1] :]
    row.num_tokens += int(generated_lengths(new, pair.target.generation_config.eos_token_id).sum())
    row.texts += pair.tokenizer.batch_decode(new, skip_special_tokens=True)
    if method.kwargs is not None and not method.upstream:
        row.stats = row.stats or SpeculativeStats()
        row.stats.add(out.stats)
        row.records = out.token_records


@contextmanager
def _counted_forwards(model: PreTrainedModel) -> Iterator[list[int]]:
    count = [0]

    def hook(module, args, kwargs):
        count[0] += 1

    handle = model.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
