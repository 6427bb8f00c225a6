"""Models with random weights and the configurations of published models, and a verifier with a given acceptance."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from hf_diversed.blocks import DecodingContext, DraftOutput, TargetOutput, Verdict
from hf_diversed.verifiers import Verifier
from hf_diversed.verifiers.base import CompositeVerifier, check_range


_SHAPES = Path(__file__).parent / "configs"


def shape_names() -> list[str]:
    """Return the names of the configurations in `configs/`."""
    return sorted(path.stem for path in _SHAPES.glob("*.json"))


def random_model(
    shape: str | Path,
    *,
    num_layers: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> PreTrainedModel:
    """Build a causal LM with random weights.

    Args:
        shape: a name from `shape_names()`, or the path of a file like the Hub's `config.json`; for a multimodal
            configuration the text model is built.
        num_layers: maximum number of layers.

    Raises:
        ValueError: for an unknown name or a file that is not a model configuration.
    """
    fields = _read_fields(shape)
    if num_layers is not None:
        if num_layers < 1:
            raise ValueError(f"`num_layers` must be >= 1, got {num_layers!r}.")
        fields["num_hidden_layers"] = min(num_layers, fields["num_hidden_layers"])
        if fields.get("layer_types") is not None:
            fields["layer_types"] = fields["layer_types"][: fields["num_hidden_layers"]]
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def _read_fields(shape: str | Path) -> dict[str, Any]:
    path = _SHAPES / f"{shape}.json" if str(shape) in shape_names() else Path(shape)
    if not path.is_file():
        raise ValueError(f"no configuration {str(shape)!r}: pass a config.json, or one of {', '.join(shape_names())}.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields = fields.get("text_config", fields)
        missing = {"model_type", "num_hidden_layers"} - fields.keys()
    except (json.JSONDecodeError, AttributeError) as error:
        raise ValueError(f"{path} is no model configuration ({error}); pass the config.json of a model.") from error
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}; pass the config.json of a causal LM.")
    return {name: value for name, value in fields.items() if name not in ("architectures", "dtype", "torch_dtype")}


class SyntheticVerifier(CompositeVerifier):
    """Run a verifier, then accept at given rates instead, to measure speed without a trained pair.

    Args:
        inner: the verifier that is executed; residual tokens follow its distribution.
        acceptance: in [0, 1], P(token j is accepted | all earlier ones are): one rate for all positions or one for
            each. The unconditional rates of vLLM's `synthetic` are the running products.

    Raises:
        ValueError: for rates out of range, for greedy decoding (before the first forward), and for more draft tokens
            than rates.
    """

    needs_input_ids = False  # an instance needs them if `inner` does

    def __init__(self, inner: Verifier, acceptance: float | Sequence[float]):
        super().__init__(inner)
        self.needs_check = inner.needs_check  # given rates need no check
        self.inner = inner
        rates = [acceptance] if isinstance(acceptance, (int, float)) else list(acceptance)
        self.acceptance = [check_range("acceptance", rate, 0.0, 1.0) for rate in rates]

    def check(self, context: DecodingContext) -> None:
        super().check(context)
        if context.temperature == 0:
            raise ValueError("synthetic acceptance needs do_sample=True: greedy decoding draws no random numbers.")

    def components(self) -> list[object]:
        # Excludes this class: one from outside the library would have the guards of compiled rounds checked each time.
        return self.inner.components()

    def settings(self) -> dict[str, object]:
        return {"inner": self.inner, "acceptance": self.acceptance}

    def __call__(
        self,
        input_ids: torch.Tensor,
        draft: DraftOutput,
        target: TargetOutput,
        row_values: dict[str, torch.Tensor] | None = None,
    ) -> Verdict:
        verdict = self.verify_parts(input_ids, [draft], target, row_values)[0]
        count = draft.tokens.shape[1]
        rates = self.acceptance * count if len(self.acceptance) == 1 else self.acceptance[:count]
        if len(rates) < count:
            raise ValueError(f"acceptance has {len(rates)} rates for {count} draft tokens; give one, or one each.")
        accept_prob = verdict.accept_prob.new_tensor(rates).expand_as(verdict.accept_prob)
        return replace(verdict, accept_prob=accept_prob)
