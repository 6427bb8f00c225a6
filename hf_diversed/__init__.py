"""Relaxed speculative decoding for Hugging Face `generate()`.

`import hf_diversed` teaches `model.generate` the arguments `diversed_head=` and `verifier=`, and does nothing else.
Set HF_DIVERSED_NO_HOOK=1 to import without the hook.
"""

import os

from hf_diversed._version import __version__
from hf_diversed.generation.attachment import detach
from hf_diversed.generation.decoding import diversed_decoding
from hf_diversed.generation.hook import attach, install_hook, uninstall_hook
from hf_diversed.generation.observing import RoundStreamer
from hf_diversed.generation.recording import record_stats
from hf_diversed.head import DiversedHead, DiversedHeadConfig
from hf_diversed.outputs import GenerateDiversedOutput, SpeculativeStats
from hf_diversed.verifiers import (
    VERIFIERS,
    BlockVerifier,
    CactusVerifier,
    ContrastiveVerifier,
    DiversedVerifier,
    FLyVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    LossyVerifier,
    PhaseVerifier,
    RegretBudgetVerifier,
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
    "CactusVerifier",
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
    "PhaseVerifier",
    "RegretBudgetVerifier",
    "RoundStreamer",
    "SpecCascadeVerifier",
    "SpeculativeStats",
    "StaticEnsembleVerifier",
    "TopKRelaxedVerifier",
    "TypicalAcceptanceVerifier",
    "Verifier",
    "__version__",
    "attach",
    "detach",
    "diversed_decoding",
    "install_hook",
    "load_demo_pair",
    "record_stats",
    "uninstall_hook",
]

if os.environ.get("HF_DIVERSED_NO_HOOK", "") in ("", "0"):
    install_hook()
