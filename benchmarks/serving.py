"""Measure the embedded pair in vLLM: acceptance and quality compared with `generate`.

    python -m benchmarks.serving

Runs in the environment of `make vllm`, on a CPU; writes results/serving.json. Two differences affect the rates. vLLM
counts all draft tokens of every round, `generate` none after EOS; and vLLM samples the first token of a text from the
target, whereas `generate` drafts it. The report contains the two rates as each counts them, and their difference on
the tokens that both count.
"""

import argparse
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

    def __init__(self, pair: Path, settings: Mapping[str, Any] | None, seed: int = 0):
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
            seed=seed,
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

    def complete(
        self, prompts: Sequence[str], verifier: str | None, max_tokens: int, stop: Sequence[str]
    ) -> Iterator[tuple[str, Counted, Counted]]:
        """Yield for each prompt the text at temperature 1 and the draft tokens as counted by vLLM and by `generate`.

        Args:
            verifier: None decodes with the target alone.
        """
        from vllm import SamplingParams

        xargs = None if verifier is None else {"diversed_verifier": verifier}
        params = SamplingParams(temperature=1.0, max_tokens=max_tokens, stop=list(stop), extra_args=xargs)
        with self._counting() as until_end:
            answers = self.llm.generate(list(prompts), params, use_tqdm=False)
        for answer in answers:
            completion, counted = answer.outputs[0], Counted()
            if (metrics := completion.spec_decode_metrics) is not None:
                accepted = sum(kept * rounds for kept, rounds in enumerate(metrics.histogram))
                counted = Counted(metrics.num_draft_tokens, accepted)
            yield completion.text, counted, until_end.get(answer.request_id, Counted())

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

        scheduler.update_from_output = update
        try:
            yield by_request
        finally:
            del scheduler.update_from_output


@dataclass
class Completed:
    """Results by sample: scores, draft tokens as the engine counts them, and draft tokens up to EOS."""

    scores: list[float] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    until_end: list[Counted] = field(default_factory=list)


def acceptance(arguments: argparse.Namespace, pair: Path) -> dict[str, Any]:
    """Return each verifier's results in the engine and with `generate`, on the same problems."""
    problems = load_records(TASK, "test", arguments.num_examples, seed=arguments.seed)
    bootstrap = Bootstrap(len(problems), seed=arguments.seed)
    served = {
        engine: _alone(_serve, pair, engine, verifiers, problems, arguments) for engine, verifiers in ENGINES.items()
    }
    records = []
    for engine, verifiers in ENGINES.items():
        for verifier, in_engine in zip(verifiers, served[engine]):
            generated = _generate(verifier, engine, problems, arguments)
            name = f"diversed ({engine})" if verifier == "diversed" else verifier
            statistics = comparison(in_engine, *generated, bootstrap, arguments.samples_per_prompt)
            records.append({"verifier": name, **statistics})
            print(json.dumps(records[-1]), flush=True)
    return {"task": "math", "n": len(problems), "samples_per_prompt": arguments.samples_per_prompt, "records": records}


def _serve(pair: Path, engine: str, verifiers: Sequence[str], problems: Sequence[Any], arguments) -> list[Completed]:
    choices = [verifier for verifier in verifiers if verifier != "diversed"]
    settings = None if engine == PLAIN else {"head": str(pair / engine / "math"), "choices": choices}
    running = Engine(pair, settings, seed=arguments.seed)
    prompts = [TASK.prompt(record) for record in problems for _ in range(arguments.samples_per_prompt)]
    by_verifier = []
    for verifier in verifiers:
        completed = Completed()
        answers = running.complete(
            prompts, None if verifier == PLAIN else verifier, TASK.max_new_tokens, TASK.stop_strings
        )
        for index, (text, counted, until_end) in enumerate(answers):
            completed.scores.append(TASK.score(text, problems[index // arguments.samples_per_prompt]))
            completed.counted.append(counted)
            completed.until_end.append(until_end)
        by_verifier.append(completed)
    return by_verifier


def _generate(
    method: str, engine: str, problems: Sequence[Any], arguments: argparse.Namespace
) -> tuple[Completed, Completed]:
    """Return the results of `generate` for the problems, and for continuations after a first token from the target."""
    pair = load_demo_pair(heads=MIXTURE if engine == MIXTURE else HEADS)
    sampling = Sampling(
        max_new_tokens=TASK.max_new_tokens, batch_size=arguments.batch_size, stop_strings=tuple(TASK.stop_strings)
    )
    decode, (plain,) = Decoder(pair, sampling), build_methods(["target"])
    (built,) = build_methods([method], pair.heads["math"])
    records = [record for record in problems for _ in range(arguments.samples_per_prompt)]
    prompts = encode(pair.tokenizer, [TASK.prompt(record) for record in records])
    whole, after_first = Completed(), Completed()
    for first in range(0, len(records), arguments.batch_size):
        batch, seed = slice(first, first + arguments.batch_size), arguments.seed + first
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
    assert decoded.stats is not None
    return [Counted(row.num_drafted, row.num_accepted) for row in decoded.stats.per_row]


def comparison(
    in_engine: Completed, generated: Completed, after_first: Completed, bootstrap: Bootstrap, samples: int
) -> dict[str, Any]:
    """Return statistics with 95% bounds, clustered by prompt; differences are engine minus `generate`, paired."""

    def by_prompt(values: Sequence[float]) -> np.ndarray:
        return np.asarray(values, dtype=float).reshape(-1, samples).sum(axis=1)

    def rate(counts: Sequence[Counted]) -> np.ndarray:
        return bootstrap.ratio(
            *(by_prompt([getattr(one, name) for one in counts]) for name in ("accepted", "drafted"))
        )

    def quality(completed: Completed) -> np.ndarray:
        return bootstrap.ratio(by_prompt(completed.scores), np.full(len(completed.scores) // samples, samples))

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
    arguments = _arguments()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        export_demo_pair(Path(folder))
        results = acceptance(arguments, Path(folder))
    origin = provenance(arguments.seed, "cpu")
    origin["versions"]["vllm-cpu"] = version("vllm-cpu")
    write_json(Path(arguments.output), {"acceptance": {**results, "provenance": origin}})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="results/serving.json")
    parser.add_argument("--num-examples", type=int, default=300)
    parser.add_argument("--samples-per-prompt", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100, help="Batch size of `generate`.")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
