"""Training of heads by policy gradient on rollouts of speculative decoding."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from hf_diversed.training.config import DiversedConfig
    from hf_diversed.training.trainer import DiversedTrainer

__all__ = ["DiversedConfig", "DiversedTrainer"]

_HOME_OF = {
    "DiversedConfig": "config",
    "DiversedTrainer": "trainer",
}


def __getattr__(name: str) -> Any:
    """Import a name at first use, so that `objective.py` can be imported without transformers."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
