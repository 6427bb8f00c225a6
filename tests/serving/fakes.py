"""The fields of vLLM's configuration and sampling parameters that the plugin reads."""

from types import SimpleNamespace
from typing import Any

from hf_diversed.zoo.loader import HEADS, WEIGHTS


HEAD = str(WEIGHTS / HEADS / "math")
VOCAB = 1024
MAX_TOKENS = 16


def speculative(**changes: Any) -> SimpleNamespace:
    """Return a `vllm.config.SpeculativeConfig` of a draft model that samples."""
    given = {"method": "draft_model", "draft_sample_method": "probabilistic", "num_speculative_tokens": 5}
    return SimpleNamespace(**given | {"rejection_sample_method": "standard"} | changes)


def engine(settings: Any = None, speculative_config: Any = None, vocab_size: int = VOCAB) -> SimpleNamespace:
    """Return a `vllm.config.VllmConfig` with `settings` in `--additional-config`."""
    return SimpleNamespace(
        additional_config={"of_another_plugin": 1} if settings is None else {"hf_diversed": settings},
        speculative_config=speculative() if speculative_config is None else speculative_config,
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab_size),
    )


def request(temperature: float = 1.0, *, sampling: dict[str, Any] | None = None, **fields: Any) -> SimpleNamespace:
    """Return `vllm.SamplingParams` with `fields` in `vllm_xargs`, without their prefix."""
    plain = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": MAX_TOKENS, "repetition_penalty": 1.0}
    plain |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    plain |= dict.fromkeys(("logit_bias", "allowed_token_ids", "bad_words", "structured_outputs"))
    extra = {f"diversed_{name}": value for name, value in fields.items()}
    return SimpleNamespace(temperature=temperature, extra_args=extra or None, **plain | (sampling or {}))
