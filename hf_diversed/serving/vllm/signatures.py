"""What the plugin requires of vLLM's source, checked without importing vLLM.

Every process of a deployment reads the same files and reaches the same result, so vLLM is never patched in part.
"""

import ast
import functools
from collections.abc import Mapping
from pathlib import Path


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
RELEASES = ("0.32", "0.33")

_V1_VERIFY = (
    "draft_token_ids num_draft_tokens max_spec_len cu_num_draft_tokens draft_probs target_logits bonus_token_ids "
    "sampling_metadata synthetic_mode synthetic_conditional_rates use_fp64_gumbel"
)
_V2_VERIFY = (
    "target_logits draft_logits draft_sampled cu_num_logits pos idx_mapping expanded_idx_mapping expanded_local_pos "
    "temperature seed num_speculative_steps synthetic_conditional_rates use_fp64 use_block_verification contexts "
    "watermarking watermarking_skip_mask watermark_key"
)
_FLY = "fly_window_size fly_entropy_threshold fly_entropy_top_k"
# Parameters of functions by file, with one entry per release that differs.
KNOWN: dict[tuple[str, str], tuple[str, ...]] = {
    ("v1/engine/input_processor.py", "InputProcessor.__init__"): ("self vllm_config renderer mm_registry",),
    ("entrypoints/launchers/app.py", "build_app"): ("args supported_tasks model_config",),
    ("entrypoints/openai/completion/protocol.py", "CompletionRequest.to_sampling_params"): (
        "self max_tokens default_sampling_params",
    ),
    ("entrypoints/openai/chat_completion/protocol.py", "ChatCompletionRequest.to_sampling_params"): (
        "self max_tokens default_sampling_params",
    ),
    ("entrypoints/openai/responses/protocol.py", "ResponsesRequest.to_sampling_params"): (
        "self default_max_tokens default_sampling_params",
    ),
    ("entrypoints/anthropic/serving.py", "AnthropicServingMessages.create_messages"): ("self request raw_request",),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner.__init__"): ("self vllm_config device",),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner._sample"): ("self logits spec_decode_metadata",),
    ("v1/sample/rejection_sampler.py", "rejection_sample"): (_V1_VERIFY, f"{_V1_VERIFY} {_FLY}"),
    ("v1/sample/rejection_sampler.py", "expand_batch_to_tokens"): (
        "x cu_num_tokens num_tokens replace_from replace_to",
    ),
    ("v1/worker/gpu/sample/sampler.py", "Sampler.__init__"): (
        "self vllm_config max_num_reqs vocab_size device req_states logprobs_mode num_speculative_tokens "
        "use_fp64_gumbel enable_trace_replay return_sampling_mask custom_logits_processors",
    ),
    ("v1/worker/gpu/sample/sampler.py", "Sampler.add_request"): ("self req_idx sampling_params",),
    ("v1/worker/gpu/spec_decode/rejection_sampler.py", "RejectionSampler._verify"): (
        "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping idx_mapping_np expanded_idx_mapping "
        "expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled",
    ),
    ("v1/worker/gpu/spec_decode/rejection_sampler_utils.py", "rejection_sample"): (_V2_VERIFY, f"{_V2_VERIFY} {_FLY}"),
}
# Names that a function must use: the plugin replaces them, and would otherwise have no effect.
USES: dict[tuple[str, str], tuple[str, ...]] = {
    ("entrypoints/launchers/api_server/entry.py", "build_and_serve"): ("build_app",),
    ("v1/engine/input_processor.py", "InputProcessor._validate_params"): ("validate_logits_processors_params",),
    ("v1/sample/rejection_sampler.py", "RejectionSampler.forward"): ("rejection_sample", "apply_sampling_constraints"),
    ("v1/sample/rejection_sampler.py", "apply_sampling_constraints"): ("expand_batch_to_tokens",),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner._sample"): ("rejection_sampler", "input_batch"),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner.sample_tokens"): ("_sample",),
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner._get_spec_decode_draft_probs"): ("req_ids",),
    ("v1/worker/gpu/sample/sampler.py", "Sampler.add_request"): ("needs_logits_processing",),
    ("v1/worker/gpu/spec_decode/rejection_sampler.py", "RejectionSampler._verify"): ("rejection_sample", "sampler"),
}


@functools.lru_cache(maxsize=8)
def differences(package: Path) -> tuple[str, ...]:
    """Return how a vLLM, given by the folder of its package, differs from `RELEASES`: one line per difference."""
    found: list[str] = []
    for file in dict.fromkeys(file for file, _ in (*KNOWN, *USES)):
        source = package / file
        if not source.is_file():
            found.append(f"{file} does not exist")
            continue
        functions = _functions(ast.parse(source.read_text(encoding="utf-8")))
        for name, known in _of_file(KNOWN, file):
            taken = _parameters(functions.get(name))
            if taken not in known:
                has = "does not exist" if taken is None else f"takes ({', '.join(taken.split())})"
                known_ones = ") or (".join(", ".join(line.split()) for line in known)
                found.append(f"{name} of {file} {has}, not ({known_ones})")
        for name, required in _of_file(USES, file):
            nodes = list(ast.walk(functions[name])) if name in functions else []
            used = {getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes}
            found += [f"{name} of {file} does not use {one}" for one in required if one not in used]
    return tuple(found)


def _of_file(table: Mapping[tuple[str, str], tuple[str, ...]], file: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, values) for (place, name), values in table.items() if place == file]


def _functions(module: ast.Module) -> dict[str, FunctionNode]:
    """Return the functions of a module and the methods of its classes, by qualified name."""
    classes = {f"{node.name}.": node.body for node in module.body if isinstance(node, ast.ClassDef)}
    return {
        f"{prefix}{node.name}": node
        for prefix, body in [("", module.body), *classes.items()]
        for node in body
        if isinstance(node, FunctionNode)
    }


def _parameters(function: FunctionNode | None) -> str | None:
    if function is None:
        return None
    return " ".join(node.arg for node in ast.iter_child_nodes(function.args) if isinstance(node, ast.arg))
