"""`hf-diversed serve`: serve a pair with vLLM's OpenAI-compatible server; each request may set the strictness."""

import importlib.util
import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from hf_diversed.cli.options import LOOKUP, ServeOptions, flag
from hf_diversed.cli.terminal import notes
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.method_names import DIVERSED
from hf_diversed.serving.vllm.deployment import SETTINGS, Deployment


_HOW_TO_INSTALL = (
    'vLLM is not installed: pip install "vllm>=0.32,<0.34" beside hf-diversed on a machine with a GPU; `make vllm` '
    "shows what its build for CPUs needs."
)
_CHAT_NOTE = (
    "Chat requests (/v1/chat/completions) need a chat template: that of the target's tokenizer, or --chat-template "
    "FILE. /v1/completions needs none."
)


def serve(options: ServeOptions, more: list[str]) -> None:
    """Serve a pair with vLLM: hf-diversed serve TARGET --draft DRAFT --head HEAD. All other options are passed to
    vLLM: --port 8000 --max-model-len 4096 --tensor-parallel-size 2."""
    if options.target.startswith("-"):  # the parser reads an unknown option as TARGET
        raise ValueError(f"TARGET must come first, got {options.target!r}: hf-diversed serve TARGET --draft DRAFT ...")
    if options.head is None and options.verifier in (None, DIVERSED):
        raise ValueError('pass --head, or --verifier, for example --verifier "static:0.7".')
    if options.draft == LOOKUP:
        raise ValueError(
            "--draft must be a model, got lookup; for prompt lookup leave it out and pass --speculative-config "
            '\'{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}\'.'
        )
    has_config = any(word.startswith(("--spec", "-sc")) for word in more)
    if options.draft is None and not has_config:
        raise ValueError('pass --draft, or vLLM\'s --speculative-config, for example \'{"method": "mtp", ...}\'.')
    if has_config and (options.draft is not None or options.num_assistant_tokens is not None):
        raise ValueError(
            "--draft and --num-assistant-tokens cannot be combined with --speculative-config, which replaces them; "
            "set the model and num_speculative_tokens there."
        )
    if any(word.startswith(("--additional", "-ac")) for word in more):
        raise ValueError(
            "--additional-config cannot be combined with --verifier and --head, whose settings it would replace. Run "
            "the command without it and with --dry-run, and add yours to the JSON that it prints."
        )
    command = _command(options, more)
    if options.dry_run:
        print(shlex.join(command))
        return
    program = _program()
    for line in (shlex.join(command), _CHAT_NOTE):
        notes.print(line, soft_wrap=True, highlight=False, markup=False)
    os.execve(program, command, {**os.environ, "HF_DIVERSED_NO_HOOK": "1"})


def _command(options: ServeOptions, more: list[str]) -> list[str]:
    """Return the `vllm serve` command with a draft model that samples, if one is given, and the deployment's settings.
    Raises ValueError as `Deployment.build`."""
    settings = {name: getattr(options, name) for name in ("verifier", "head", *SETTINGS)}
    settings["choices"] = None if options.choices is None else [name.strip() for name in options.choices.split(",")]
    settings = {name: value for name, value in settings.items() if value is not None}
    head = Deployment.build(settings, spell=flag).head
    head_default = None if head is None else head.config.num_assistant_tokens
    speculative = {
        "method": "draft_model",
        "model": options.draft,
        "num_speculative_tokens": options.num_assistant_tokens or head_default or DEFAULT_NUM_ASSISTANT_TOKENS,
        "draft_sample_method": "probabilistic",
    }
    return [
        *("vllm", "serve", options.target),
        *(() if options.draft is None else ("--speculative-config", json.dumps(speculative))),
        *("--additional-config", json.dumps({"hf_diversed": settings})),
        *more,
    ]


def _program() -> str:
    """Return the path of `vllm`: in the folder of this Python, or on the PATH. Raises RuntimeError without one."""
    python_folder = str(Path(sys.executable).parent)
    found = shutil.which("vllm", path=python_folder) or shutil.which("vllm")
    if found is None or importlib.util.find_spec("vllm") is None:
        raise RuntimeError(_HOW_TO_INSTALL)
    return found
