"""Relaxed speculative decoding for Hugging Face `generate()`.

`import hf_diversed` adds the arguments `diversed_head=`, `verifier=` and others to `model.generate`, in any order of
imports. torch and transformers are imported when a name is first used that needs them. Set HF_DIVERSED_NO_HOOK=1 to
import without the hook.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_diversed._after_import import watch
from hf_diversed._version import __version__
from hf_diversed.generation.hook import attach, diversed_decoding, install_hook, uninstall_hook


if TYPE_CHECKING:
    from hf_diversed.generation.call import draft_source
    from hf_diversed.generation.compiling import clear_compiled
    from hf_diversed.generation.recording import RoundStreamer, record_stats
    from hf_diversed.generation.warmup import warmup
    from hf_diversed.head import DiversedHead, DiversedHeadConfig
    from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats
    from hf_diversed.verifiers import (
        VERIFIERS,
        BlockVerifier,
        ContrastiveVerifier,
        DiversedVerifier,
        FLyVerifier,
        FuzzyVerifier,
        LenientVerifier,
        LosslessVerifier,
        LossyVerifier,
        MarsVerifier,
        PhaseVerifier,
        SpecCascadeVerifier,
        StaticEnsembleVerifier,
        TopKRelaxedVerifier,
        TypicalAcceptanceVerifier,
        Verifier,
    )
    from hf_diversed.zoo import load_demo_pair


__all__ = [
    "VERIFIERS",
    "BlockVerifier",
    "ContrastiveVerifier",
    "DiversedHead",
    "DiversedHeadConfig",
    "DiversedVerifier",
    "FLyVerifier",
    "FuzzyVerifier",
    "GenerateDiversedOutput",
    "LenientVerifier",
    "LosslessVerifier",
    "LossyVerifier",
    "MarsVerifier",
    "PhaseVerifier",
    "RoundStreamer",
    "SpecCascadeVerifier",
    "SpeculativeStats",
    "StaticEnsembleVerifier",
    "TopKRelaxedVerifier",
    "TypicalAcceptanceVerifier",
    "Verifier",
    "__version__",
    "attach",
    "clear_compiled",
    "diversed_decoding",
    "draft_source",
    "install_hook",
    "load_demo_pair",
    "record_stats",
    "uninstall_hook",
    "warmup",
]

_HOMES = {
    "hf_diversed.generation.compiling": ("clear_compiled",),
    "hf_diversed.generation.call": ("draft_source",),
    "hf_diversed.generation.recording": ("RoundStreamer", "record_stats"),
    "hf_diversed.head": ("DiversedHead", "DiversedHeadConfig"),
    "hf_diversed.outputs": ("GenerateDiversedOutput", "SpeculativeStats"),
    "hf_diversed.generation.warmup": ("warmup",),
    "hf_diversed.zoo": ("load_demo_pair",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
# Modules that are available as attributes without importing them separately.
_MODULES = frozenset({"generation", "head", "outputs", "sampling", "verifiers", "zoo"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, f"{__name__}.verifiers")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def _register_heads(_: object) -> None:
    """Register heads with transformers' auto classes."""
    if "hf_diversed.head" not in sys.modules:  # otherwise another thread may be importing it, and this could deadlock
        import_module("hf_diversed.head")


watch("transformers.models.auto.modeling_auto", _register_heads)
if os.environ.get("HF_DIVERSED_NO_HOOK", "") in ("", "0"):
    install_hook()
