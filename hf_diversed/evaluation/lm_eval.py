"""Generation tasks of lm-evaluation-harness with relaxed decoding.

    python -m hf_diversed.evaluation.lm_eval run --model hf-diversed --tasks gsm8k --batch_size 8 \\
        --model_args pretrained=org/target,assistant=org/draft,head=org/head,method=diversed@0.5

is `lm-eval run` with an additional model class. Releases with plugins find the class without this command.
"""

from collections import defaultdict
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteriaList

from hf_diversed.evaluation.decoder import Method, build_methods
from hf_diversed.generation.hook import install_hook
from hf_diversed.generation.processing import CompletionStopStrings, stop_criterion
from hf_diversed.generation.recording import record_stats
from hf_diversed.outputs import SpeculativeStats
from hf_diversed.verifiers.names import DIVERSED, LOSSLESS


try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ModuleNotFoundError as error:
    words = f"the lm-evaluation-harness is not completely installed ({error}): pip install 'hf-diversed[eval]'"
    raise (SystemExit if __name__ == "__main__" else ImportError)(words) from error


@register_model("hf-diversed")
class DiversedLM(HFLM):
    """`HFLM` that decodes with a draft model and a verifier, and reports statistics per task.

    They are stored in the results file, under "hf_diversed" of its "config". As usual in lm-eval, settings that
    `--gen_kwargs` leave out come from the target's generation config. Where several processes share the requests, the
    statistics include the copies with which lm-eval fills up the last batch.

    Args:
        pretrained, assistant: Hub ids or folders of target and draft model.
        head: Hub id or folder of a head.
        method: as in `hf-diversed evaluate`: "lossless", "static:0.7", "diversed@0.7" ...; "diversed" if there is a
            head, else "lossless". "target" is the target alone.
        num_assistant_tokens: draft tokens per round; by default the head's, or 5.
        hflm_args: arguments of `HFLM`. The draft model uses the target's dtype and device.

    Raises:
        ValueError: before a model is loaded, for unknown methods and without a draft model; before any forward pass,
            for a head of another pair and for tasks that require likelihoods.
    """

    def __init__(
        self,
        pretrained: str,
        assistant: str | None = None,
        head: str | None = None,
        method: str | None = None,
        num_assistant_tokens: int | None = None,
        **hflm_args: Any,
    ) -> None:
        spec = method or (LOSSLESS if head is None else DIVERSED)
        plain = build_methods([spec], head)[0].verifier is None  # checked here, before the models are loaded
        if assistant is None and not plain:
            raise ValueError(f"method {spec!r} needs a draft model: pass assistant=.")
        super().__init__(pretrained, **hflm_args)
        install_hook()
        self.method: Method = build_methods([spec], head, self.model.device)[0]
        self.named = {"assistant": assistant, "head": head, "num_assistant_tokens": num_assistant_tokens}
        self.stats: dict[str, SpeculativeStats] = defaultdict(SpeculativeStats)
        self.options: dict[str, Any] = {}
        if not plain:
            trusted = bool(hflm_args.get("trust_remote_code"))
            draft = AutoModelForCausalLM.from_pretrained(
                assistant, dtype=self.model.dtype, trust_remote_code=trusted
            ).to(self.model.device)
            gamma = num_assistant_tokens or self.method.default_gamma
            self.options = self.method.generate_kwargs(draft.eval(), gamma)
            self.named["num_assistant_tokens"] = gamma

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate task by task, for statistics per task; one process collects those of all processes."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[str(request.task_name)].append(index)
        answers: list[str] = [""] * len(requests)
        found: dict[str, SpeculativeStats] = {}
        for task, indices in groups.items():
            with record_stats() as found[task]:
                texts = super().generate_until([requests[index] for index in indices], disable_tqdm)
            for index, text in zip(indices, texts):
                answers[index] = text
        for process in self.gather_object(found) or []:
            for task, stats in process.items():
                self.stats[task].add(stats)
        return answers

    def _model_generate(self, context, max_length: int, stop: list[str], **generation_kwargs):
        """Generate as `HFLM` does, with the draft model, and stop strings that end each row separately.

        With lm-eval's criteria the batch continues until the last row ends, and statistics would include tokens that
        are cut off afterwards.
        """
        if not generation_kwargs.get("do_sample") and not generation_kwargs.get("temperature"):
            generation_kwargs = {name: v for name, v in generation_kwargs.items() if name != "temperature"}
            generation_kwargs["do_sample"] = False
        criteria = StoppingCriteriaList()
        if strings := [text for text in stop if text]:
            criteria.append(CompletionStopStrings(stop_criterion(self.tokenizer, strings), context.shape[1]))
        precision = self.mixed_precision_dtype
        with torch.autocast(self.device.type, dtype=precision, enabled=precision is not None):
            return self.model.generate(
                input_ids=context,
                max_length=max_length,
                stopping_criteria=criteria,
                pad_token_id=self.tokenizer.pad_token_id,
                tokenizer=self.tokenizer,  # for stop strings in the target's generation config
                **(self.options | generation_kwargs),
            )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False):
        """Raise: likelihoods are those of the target, whatever the verifier."""
        names = ", ".join(sorted({str(request.task_name) for request in requests}))
        raise ValueError(
            f"hf-diversed supports generation tasks only, but {names} needs likelihoods. They depend on the target "
            "alone; measure them with --model hf."
        )

    loglikelihood_rolling = loglikelihood

    def get_model_info(self) -> dict:
        """Return the "config" entry of lm-eval's results: the models, the verifier, and statistics by task."""
        method = {"method": self.method.label, "definition": self.method.definition, **self.named}
        tasks = {task: {"num_samples": len(stats.per_row)} | stats.to_dict() for task, stats in self.stats.items()}
        return super().get_model_info() | {"hf_diversed": method | {"tasks": tasks}}


if __name__ == "__main__":
    cli_evaluate()
