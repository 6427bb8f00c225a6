"""Run the embedded pair in a vLLM engine in this process, and count its draft tokens.

For `benchmarks/serving.py`; needs the environment of `make vllm`.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
