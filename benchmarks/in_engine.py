"""Run the embedded pair in a vLLM engine in this process, with or without the plugin, and count its draft tokens.

For `benchmarks/serving.py`; needs the environment of `make vllm`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any


# A single process, so that the engine's objects and CPU time are accessible. vLLM reads these variables on import.
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
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
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

    def step_times(self, prompts: Sequence[str], xargs: Mapping[str, Any], steps: int) -> list[float]:
        """Return CPU seconds of steps that verify draft tokens of every prompt.

        Steps run alternately with and without the plugin, so that both have the same texts and lengths.

        Args:
            xargs: `vllm_xargs` of every request.
            steps: number of steps to time; texts continue after EOS.
        """
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, max_tokens=400, ignore_eos=True, extra_args=dict(xargs))
        engine, times = self.llm.llm_engine, list[float]()
        names = [str(number) for number in range(len(prompts))]
        for name, prompt in zip(names, prompts):
            engine.add_request(name, prompt, params)
        engine.step()  # prefill
        while len(times) < steps and engine.get_num_unfinished_requests() == len(prompts):
            with nullcontext() if len(times) % 2 == 0 else self._stock():
                began = process_time()
                outputs, model_executed = self.core.step_fn()
                times.append(process_time() - began)
            self.core.post_step(model_executed=model_executed)
            engine.output_processor.process_outputs(outputs[0].outputs)
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()
        return times

    @contextmanager
    def _stock(self) -> Iterator[None]:
        """Use vLLM's own functions instead of the plugin's within the block, except for the fix on CPUs."""
        from vllm.v1.sample import rejection_sampler

        ours = self.runner._sample, rejection_sampler.rejection_sample
        self.runner._sample, rejection_sampler.rejection_sample = (function.__wrapped__ for function in ours)
        try:
            yield
        finally:
            self.runner._sample, rejection_sampler.rejection_sample = ours
