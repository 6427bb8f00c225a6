"""What a request asks for, checked where it enters: an exception inside a sampler would end the engine for everybody.

Knows vLLM's sampling parameters by the names of their fields, and imports nothing of it.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from hf_diversed.blocks import DecodingContext
from hf_diversed.head import DiversedHead
from hf_diversed.serving.vllm.deployment import DIALS, Deployment, no_dial, number
from hf_diversed.serving.vllm.law import LOSSLESS, Asked
from hf_diversed.verifiers import CertifiedVerifier


PREFIX = "diversed_"  # of what a request says, in `vllm_xargs`
_ASKED = ("rule", *DIALS)
_SAME = {"strictness", "max_drop"}  # two ways to set one dial
# Of a request, with the values at which sampling is what drops were certified for.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": (None,),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "structured_outputs": (None,),
}


def read_request(deployment: Deployment, params: Any) -> Asked:
    """What a request wants, from its vLLM `SamplingParams`: rule and dials, or the target's own law.

    Raises:
        ValueError: for names and values that are none, with the range and what to do.
    """
    said = _said(params.extra_args or {})
    chosen = said.pop("rule", None)
    index = 0 if chosen is None else _index(deployment, chosen)
    values = {name: number(PREFIX + name, value) for name, value in said.items()}
    known = frozenset() if index is None else deployment.dials_of(index)
    if wrong := sorted(values.keys() - known):
        raise ValueError(no_dial("lossless" if index is None else deployment.names[index], wrong, known, PREFIX))
    if index is None:
        return Asked()
    defaults = {name: value for name, value in deployment.dials.items() if name in known}
    if values.keys() & _SAME:
        defaults = {name: value for name, value in defaults.items() if name not in _SAME}
    asked = deployment.read(index, defaults | values, PREFIX)
    temperature = float(params.temperature)
    if asked.at(temperature).rule == LOSSLESS:
        return Asked()
    drop = (defaults | values).get("max_drop")
    return asked if drop is None else replace(asked, strictness=_certified(deployment, drop, temperature, params))


def _said(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says to us, without our prefix."""
    said = {name[len(PREFIX) :]: value for name, value in extra.items() if name.startswith(PREFIX)}
    if "bias_budget" in said:
        raise ValueError(
            f"`{PREFIX}bias_budget` needs a sum kept per sequence, which vLLM's sampler has no place for; bound "
            f"every token instead, with `{PREFIX}max_bias` or `{PREFIX}max_ratio`."
        )
    if unknown := sorted(said.keys() - set(_ASKED)):
        known = ", ".join(PREFIX + name for name in _ASKED)
        raise ValueError(f"unknown {', '.join(PREFIX + name for name in unknown)}; a request may say {known}.")
    return said


def _index(deployment: Deployment, name: Any) -> int | None:
    """Which of the rules a request names; None for lossless, which every request may have."""
    if name in deployment.names:
        return deployment.names.index(name)
    if name == "lossless":
        return None
    known = ", ".join(dict.fromkeys((*deployment.names, "lossless")))
    raise ValueError(f"`{PREFIX}rule` must be one of {known}, got {name!r:.200}; a deployment names its choices.")


def _certified(deployment: Deployment, drop: float, temperature: float, params: Any) -> float:
    """The dial of a stated drop, for requests that sample as it was certified."""
    for name, plain in _PLAIN.items():
        value = getattr(params, name)
        if value not in plain:
            raise ValueError(
                f"drops are certified for sampling without cut-offs and other processors, which vLLM applies to "
                f"the target alone; got {name}={value!r:.100} with a `max_drop`. Leave it out, or set "
                f"`{PREFIX}strictness` instead."
            )
    context = replace(deployment.context, temperature=temperature, max_new_tokens=params.max_tokens)
    return _dial_of(cast(DiversedHead, deployment.head), drop, context)


@functools.lru_cache(maxsize=1024)
def _dial_of(head: DiversedHead, drop: float, context: DecodingContext) -> float:
    return CertifiedVerifier(head, drop).for_call(context).strictness[0]
