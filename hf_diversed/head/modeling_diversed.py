"""The head: a few thousand parameters on top of two frozen models."""

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import CommitInfo
from torch import nn
from transformers import PreTrainedModel

from hf_diversed.features import LOG_RATIO, NUM_DISTRIBUTION_FEATURES, NUM_TOKEN_FEATURES
from hf_diversed.head.configuration_diversed import DiversedHeadConfig


_LEAST_STD = 1e-3  # lower bound, so that almost constant inputs are not amplified
_LOADING = Lock()


class DiversedHead(PreTrainedModel):
    """Predicts the logit of w, the weight on the target, at a position; w = sigmoid(logit) (arXiv 2604.07622).

    Its inputs depend on the prefix only, so `w p + (1 - w) q` is a distribution. With `token_features` they also
    depend on the draft token, and acceptance differs (see `DiversedVerifier`). The head computes on its own
    device and, outside autocast, in float32, whatever its dtype and that of the models. An untrained head predicts
    w = 0.5 everywhere.

    Attributes:
        input_mean, input_std: `[width]`, in the dtype of the head, for the standardization of inputs; 0 and 1 until
            `standardize`.

    Example:
        ```python
        head = DiversedHead.from_pretrained("org/head-mbpp")
        model.generate(**inputs, assistant_model=draft, diversed_head=head)
        ```
    """

    config_class = DiversedHeadConfig
    config: DiversedHeadConfig
    base_model_prefix = ""
    main_input_name = "target_hidden"

    def __init__(self, config: DiversedHeadConfig):
        super().__init__(config)
        # Plain attributes: every round reads them, and reading from the config is slow.
        self.needs_hidden_states = config.features != "distribution"
        self.needs_distributions = config.features != "hidden"
        self.needs_token = config.token_features
        width = NUM_DISTRIBUTION_FEATURES if self.needs_distributions else 0
        if self.needs_hidden_states:
            width += config.target_hidden_size + config.draft_hidden_size
        width += NUM_TOKEN_FEATURES if self.needs_token else 0
        self.dense = nn.Linear(width, config.intermediate_size) if config.head_type == "mlp" else None
        self.out = nn.Linear(width if self.dense is None else config.intermediate_size, 1)
        self.input_mean: torch.Tensor
        self.input_std: torch.Tensor
        self.register_buffer("input_mean", torch.zeros(width, dtype=self.out.weight.dtype))
        self.register_buffer("input_std", torch.ones(width, dtype=self.out.weight.dtype))
        self.post_init()

    @classmethod
    def from_pretrained(cls, name, *args, output_loading_info: bool = False, **kwargs) -> Any:
        """Load a head, as in `PreTrainedModel`, from safetensors only.

        Args:
            name: folder or Hub id.
            kwargs: as in `PreTrainedModel.from_pretrained`: `revision`, `variant`, `subfolder`, `token` and the like.

        Raises:
            OSError: if the head does not exist, has no safetensors file, or cannot be downloaded.
            ValueError: if its configuration is not that of a head, or its weights have other names or widths.

        Example:
            ```python
            head = DiversedHead.from_pretrained("org/head-mbpp", revision="v1")
            ```
        """
        if str(name).startswith(("/", ".", "~")) and not os.path.isdir(name):
            raise FileNotFoundError(f"folder {name} does not exist.")
        kwargs |= {"use_safetensors": True, "ignore_mismatched_sizes": True}  # mismatches are reported below
        head, info = super().from_pretrained(name, *args, output_loading_info=True, **kwargs)
        other_shapes = (key for key, *_ in info["mismatched_keys"])
        if wrong := sorted([*info["missing_keys"], *info["unexpected_keys"], *other_shapes]):
            raise ValueError(
                f"the weights of {name} do not match its configuration: {', '.join(wrong)} are missing or "
                "unexpected, or have another shape."
            )
        for values in (*head.parameters(), *head.buffers()):
            values.data = values.data.clone()  # out of the memory-mapped file, which may be overwritten later
        return (head, info) if output_loading_info else head

    def push_to_hub(
        self,
        repo_id: str,
        *,
        evaluation: Mapping[str, Any] | str | Path | None = None,
        training: Mapping[str, Any] | str | Path | None = None,
        **options: Any,
    ) -> CommitInfo:
        """Upload the head in one commit: configuration, weights, a model card with results, and `custom_generate/`.

        Args:
            evaluation: output of `hf-diversed evaluate --output`, or its file; None for a card without results.
            training: the provenance.json of the trainer, or its content.
            options: of `hf_diversed.hub.push`: `license` and `tags` of the card, and `private`, `revision`,
                `create_pr`, `token`, `commit_message` and `commit_description` as in transformers.

        Raises:
            ValueError: if the evaluation was made with other weights.
            OSError: if the upload fails; all files are in one commit, so none is on the Hub then.

        Example:
            ```python
            head.push_to_hub("org/head-mbpp", evaluation="mbpp.json", training="head-mbpp/provenance.json")
            ```
        """
        hub = import_module("hf_diversed.hub")  # late, because it imports this module
        return hub.push(self, repo_id, evaluation, training, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if module is self:
            nn.init.zeros_(self.input_mean)
            nn.init.ones_(self.input_std)
        elif module is self.out:
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)

    def forward(
        self,
        target_hidden: torch.Tensor | None = None,
        draft_hidden: torch.Tensor | None = None,
        features: torch.Tensor | None = None,
        token: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the logit of the weight on the target.

        Args:
            target_hidden: `[..., Dp]`, any float dtype and device: input of the target's output embedding. None for
                `features="distribution"`.
            draft_hidden: `[..., Dq]`, the same for the draft model.
            features: float32 `[..., 8]` from `distribution_features`; None for `features="hidden"`.
            token: float32 `[..., 5]` from `token_features`, or `[..., N, 5]` for N tokens after each prefix; None
                unless the configuration has `token_features`.

        Returns:
            float32 `[...]`, or `[..., N]` for `token` of shape `[..., N, 5]`, on the head's device; autocast may
            narrow the dtype.

        Raises:
            ValueError: if an input that the configuration requires is missing or has a wrong width.
        """
        values = self._join_inputs(target_hidden, draft_hidden, features)
        if self.needs_token:
            token = self._as_input("token", token, NUM_TOKEN_FEATURES)
            if token.ndim > values.ndim:
                return self._token_logit(values, token)
            values = torch.cat([values, token], dim=-1)
        values = (values - self.input_mean.float()) / self.input_std.float()
        if self.dense is not None:
            values = F.gelu(F.linear(values, self.dense.weight.float(), self.dense.bias.float()))
        return F.linear(values, self.out.weight.float(), self.out.bias.float()).squeeze(-1)

    def _token_logit(self, values: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Return the logits of N tokens after one prefix; the prefix's part of the first layer is computed once.

        Args:
            values: float32 `[..., D - F]`, inputs of the prefix. token: float32 `[..., N, F]`, of the tokens.

        Returns:
            float32 `[..., N]`.
        """
        mean, std, split = self.input_mean.float(), self.input_std.float(), values.shape[-1]
        values, token = (values - mean[:split]) / std[:split], (token - mean[split:]) / std[split:]
        first = self.out if self.dense is None else self.dense
        weight = first.weight.float()
        prefix_part = F.linear(values, weight[:, :split], first.bias.float())
        units = prefix_part[..., None, :] + F.linear(token, weight[:, split:])
        if self.dense is not None:
            units = F.linear(F.gelu(units), self.out.weight.float(), self.out.bias.float())
        return units.squeeze(-1)

    @torch.no_grad()
    def standardize(self, **inputs: torch.Tensor) -> None:
        """Set `input_mean` and `input_std` from M inputs: arguments of `forward`, with shapes `[M, ...]`.

        Training calls this once. With centred inputs, changes of the weights do not shift the mean logit.
        """
        values = self.concatenate(**inputs)
        self.input_mean.copy_(values.mean(dim=0))
        self.input_std.copy_(values.std(dim=0, correction=0).clamp_min(_LEAST_STD))

    def concatenate(self, token: torch.Tensor | None = None, **inputs: torch.Tensor | None) -> torch.Tensor:
        """Return the inputs of `forward` as one vector per position, float32 `[..., width]`, not standardized."""
        values = self._join_inputs(**inputs)
        if self.needs_token:
            values = torch.cat([values, self._as_input("token", token, NUM_TOKEN_FEATURES)], dim=-1)
        return values

    @torch.no_grad()
    def start_lenient(self, lenience: float, slope: float = 2.0) -> None:
        """Initialise a head with token features as a smooth lenience.

        Its logit is `slope * (log lenience - log p/q)`, so w = 1/2 for tokens with p/q equal to `lenience`.

        Args:
            lenience: in (0, 1]. slope: above 0, in nats of the logit per nat of log p/q.

        Raises:
            ValueError: if the head has no token features.
        """
        if not self.needs_token:
            raise ValueError("start_lenient needs a head with token_features=True.")
        column = LOG_RATIO - NUM_TOKEN_FEATURES
        mean, std = float(self.input_mean[column]), float(self.input_std[column])
        nn.init.zeros_(self.out.weight)
        self.out.bias.fill_(slope * (math.log(lenience) - mean))
        if self.dense is None:
            self.out.weight[0, column] = -slope * std
            return
        # Two units represent the linear function, since gelu(z) - gelu(-z) = z.
        for unit, sign in enumerate((1.0, -1.0)):
            nn.init.zeros_(self.dense.weight[unit])
            self.dense.weight[unit, column], self.dense.bias[unit] = sign, 0.0
            self.out.weight[0, unit] = -sign * slope * std

    @torch.no_grad()
    def ratio_slope(self) -> torch.Tensor:
        """Return the change of the logit per unit of logit(strictness), a float32 scalar.

        This is minus the slope of the logit in the token's log p/q around the mean, with all other inputs at their
        means, but at least 1. Only for heads with token features.
        """
        mean, split = self.input_mean.float(), len(self.input_mean) - NUM_TOKEN_FEATURES
        is_ratio = (torch.arange(NUM_TOKEN_FEATURES, device=mean.device) == LOG_RATIO).float()
        around = mean[split:] + torch.stack([-0.5 * is_ratio, 0.5 * is_ratio])
        below, above = self._token_logit(mean[:split], around).unbind()
        return (below - above).clamp_min(1.0)

    def _join_inputs(
        self,
        target_hidden: torch.Tensor | None = None,
        draft_hidden: torch.Tensor | None = None,
        features: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the concatenated inputs other than those of the draft token, float32 `[..., width]`."""
        parts = []
        if self.needs_hidden_states:
            parts.append(self._hidden("target_hidden", target_hidden, self.config.target_hidden_size))
            parts.append(self._hidden("draft_hidden", draft_hidden, self.config.draft_hidden_size))
        if self.needs_distributions:
            parts.append(self._as_input("features", features, NUM_DISTRIBUTION_FEATURES))
        return torch.cat(parts, dim=-1)

    def _hidden(self, name: str, hidden: torch.Tensor | None, width: int) -> torch.Tensor:
        hidden = self._as_input(name, hidden, width)
        return F.layer_norm(hidden, (width,)) if self.config.normalize else hidden

    def _as_input(self, name: str, values: torch.Tensor | None, width: int) -> torch.Tensor:
        if values is None or values.shape[-1] != width:
            actual = "nothing" if values is None else f"width {values.shape[-1]}"
            kind = f"features={self.config.features!r}" + (", token_features=True" if self.needs_token else "")
            raise ValueError(f"{name} must have width {width} for {kind}, got {actual}.")
        return values.to(device=self.out.weight.device, dtype=torch.float32)


def load_head(name: str, device: torch.device | str | None = None, **hub: Any) -> DiversedHead:
    """Load a head by name, for `diversed_head="org/head-mbpp"`. The last eight are cached; a folder is read again once
    its files change.

    Args:
        name: folder, "org/name" or "org/name@revision". device: None for the CPU.
        hub: options of the download, as in `from_pretrained`.
    """
    changed: tuple[int, ...] = ()
    revision = None
    if os.path.isdir(name):
        files = (Path(name) / file for file in ("config.json", "model.safetensors"))
        changed = tuple(file.stat().st_mtime_ns for file in files if file.is_file())
    else:
        name, _, revision = name.partition("@")
    # transformers replaces global functions while it loads, and the cached head may be trained later.
    with _LOADING, torch.inference_mode(False):
        return _load(name, revision or None, str(device or "cpu"), changed, **hub)


@lru_cache(maxsize=8)
def _load(name: str, revision: str | None, device: str, changed: tuple[int, ...], **hub: Any) -> DiversedHead:
    return DiversedHead.from_pretrained(name, revision=revision, **hub).to(device).eval()
