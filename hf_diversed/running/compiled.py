"""Decoding over static shapes as the commands ask for it: compiled alike for us and for upstream."""

import torch
from transformers import CompileConfig


def compile_config(device: torch.device, backend: str = "inductor") -> CompileConfig:
    """How compiled methods are compiled on a device: for the shapes at hand, with CUDA graphs on CUDA.

    Args:
        backend: of `torch.compile`; "eager" only traces, for trials.
    """
    graphs = device.type == "cuda" and backend == "inductor"
    config = CompileConfig(backend=backend, mode="reduce-overhead" if graphs else "default", dynamic=False)
    config._compile_all_devices = True  # or upstream would not compile plain decoding on a CPU
    return config
