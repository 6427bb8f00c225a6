"""Differences between releases of transformers, and its internals; `model_facts.py` has those of models.

`tests/test_compat.py` fails if a release of transformers changes one of these internals.
"""

import logging
from typing import NamedTuple

import transformers
from packaging.version import Version
from transformers import GenerationConfig
from transformers.generation import logits_process as lp
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList


RELEASE = Version(transformers.__version__).release
_MARKS_USER_CACHES = RELEASE >= (5, 17)

TESTED_TRANSFORMERS = "5.16.1 to 5.24"  # as in pyproject.toml

# Argument of a model's forward for its cache, and all names that `generate` accepts for it.
CACHE_ARGUMENT = "cache" if RELEASE >= (5, 24) else "past_key_values"
CACHE_NAMES = ("cache", "past_key_values")

# Processors that reshape a distribution. The tokens they remove depend on the scores, not on the prefix.
WARPERS = frozenset(
    {
        lp.TemperatureLogitsWarper,
        lp.TopKLogitsWarper,
        lp.TopPLogitsWarper,
        lp.MinPLogitsWarper,
        lp.TypicalLogitsWarper,
        lp.EpsilonLogitsWarper,
        lp.EtaLogitsWarper,
        lp.TopHLogitsWarper,
    }
)

# Processors of single positions. They use neither prefix nor row, so one call processes a whole block. Top-h is not
# included, as compiling it has not been tested.
POINTWISE_PROCESSORS = (WARPERS - {lp.TopHLogitsWarper}) | {
    lp.SuppressTokensLogitsProcessor,
    lp.InfNanRemoveLogitsProcessor,
    lp.LogitNormalization,
}

# Processors that read the prefix of a row, but not its index or other rows; a repetition penalty may have one number
# of ignored tokens per row.
ROWWISE_PROCESSORS = frozenset(
    {
        lp.RepetitionPenaltyLogitsProcessor,
        lp.NoRepeatNGramLogitsProcessor,
        lp.NoBadWordsLogitsProcessor,
        lp.SequenceBiasLogitsProcessor,
        lp.MinLengthLogitsProcessor,
        lp.MinNewTokensLengthLogitsProcessor,
        lp.ForcedBOSTokenLogitsProcessor,
        lp.ForcedEOSTokenLogitsProcessor,
        lp.SuppressTokensAtBeginLogitsProcessor,
        lp.ExponentialDecayLengthPenalty,
    }
)

# Processors that call a model, count calls or are for other modalities: wrong for rows of different lengths.
REFUSED_PROCESSORS = {
    lp.UnbatchedClassifierFreeGuidanceLogitsProcessor: "it runs the model itself, token by token (`guidance_scale`)",
    lp.ClassifierFreeGuidanceLogitsProcessor: "it expects a doubled batch",
    lp.SynthIDTextWatermarkLogitsProcessor: "it counts its calls (SynthID watermark)",
    lp.WhisperTimeStampLogitsProcessor: "it is made for speech",
    lp.AlternatingCodebooksLogitsProcessor: "it is made for audio codebooks",
    lp.BarkEosPrioritizerLogitsProcessor: "it is made for audio",
    lp.DiaClassifierFreeGuidanceLogitsProcessor: "it is made for audio",
    lp.DiaEOSChannelFilterLogitsProcessor: "it is made for audio",
    lp.DiaEOSDelayPatternLogitsProcessor: "it is made for audio",
    lp.WhisperNoSpeechDetection: "it is made for speech",
}


def get_logger(name: str):
    """Return a logger below "hf_diversed", which prints its name and the message to standard error."""
    root = logging.getLogger("hf_diversed")
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[hf_diversed] %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    return logging.getLogger(name)


def is_user_cache(cache) -> bool:
    """Whether the cache of a prepared call was passed by the caller. Otherwise `generate` creates an empty one.

    Before transformers 5.17 caches are not marked, so an empty cache counts as created by `generate`.
    """
    if cache is None or _MARKS_USER_CACHES:
        return bool(getattr(cache, "_is_user_defined", False))
    return bool(cache.get_seq_length() > 0)


def pad_token_id(config: GenerationConfig) -> int:
    """Return the pad id that `generate` prepared; 0 without pad and EOS ids, where padding is not needed."""
    return 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)


class Criteria(NamedTuple):
    """Stopping criteria of a prepared call, sorted.

    Attributes:
        max_lengths: of all `MaxLengthCriteria`. eos_ids: of all `EosTokenCriteria`. others: the remaining criteria.
        pads_stopped_rows: whether `generate` pads stopped rows, which it does if a criterion has an EOS id. Otherwise
            they continue.
    """

    max_lengths: list[int]
    eos_ids: list[int]
    others: StoppingCriteriaList
    pads_stopped_rows: bool


def sort_criteria(criteria: StoppingCriteriaList) -> Criteria:
    tensors = [each.eos_token_id for each in criteria if type(each) is EosTokenCriteria]
    return Criteria(
        [each.max_length for each in criteria if type(each) is MaxLengthCriteria],
        [token for ids in tensors for token in ids.flatten().tolist()],
        StoppingCriteriaList([each for each in criteria if type(each) not in (MaxLengthCriteria, EosTokenCriteria)]),
        any(hasattr(each, "eos_token_id") for each in criteria),
    )


def config_entry(config: GenerationConfig | None, name: str):
    """Return an attribute of a generation config, including entries of this library; None if unset."""
    return vars(config).get(name) if config is not None else None


def explicit_entry(config: GenerationConfig, name: str):
    """Return an attribute of a prepared config; None if it equals upstream's default."""
    value = getattr(config, name)
    return None if value == GenerationConfig._get_default_generation_params()[name] else value
