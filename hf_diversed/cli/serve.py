"""`hf-diversed serve`: serve a pair with vLLM's OpenAI-compatible server; each request may set the strictness."""

import os
import shlex
from typing import Any

from hf_diversed.cli.options import ServeOptions
from hf_diversed.cli.terminal import notes
from hf_diversed.generation.options import DEFAULT_NUM_ASSISTANT_TOKENS
from hf_diversed.method_names import DIVERSED
from hf_diversed.serving import command as serving
from hf_diversed.serving.vllm.deployment import SETTINGS, Deployment


def serve(options: ServeOptions, more: list[str]) -> None:
    """Serve a pair with vLLM: hf-diversed serve TARGET --draft DRAFT --head HEAD. All other options are passed to
    vLLM: --port 8000 --max-model-len 4096 --tensor-parallel-size 2."""
    if options.head is None and options.verifier in (None, DIVERSED):
        raise ValueError('pass --head, or --verifier, for example --verifier "static:0.7".')
    if options.draft is None and not any(word.startswith(("--spec", "-sc")) for word in more):
        raise ValueError('pass --draft, or vLLM\'s --speculative-config, for example \'{"method": "mtp", ...}\'.')
    settings = _settings(options)
    deployment = Deployment.build(settings, spell=lambda name: "--" + name.replace("_", "-"))
    of_head = None if deployment.head is None else deployment.head.config.num_assistant_tokens
    length = options.num_assistant_tokens or of_head or DEFAULT_NUM_ASSISTANT_TOKENS
    command = serving.serve_command(options.target, options.draft, settings, length, more)
    if options.dry_run:
        print(shlex.join(command))
        return
    program = serving.program()
    for line in (shlex.join(command), serving.CHAT_NOTE):
        notes.print(line, soft_wrap=True, highlight=False, markup=False)
    os.execve(program, command, {**os.environ, "HF_DIVERSED_NO_HOOK": "1"})


def _settings(options: ServeOptions) -> dict[str, Any]:
    settings = {name: getattr(options, name) for name in ("verifier", "head", *SETTINGS)}
    settings["choices"] = None if options.choices is None else options.choices.split(",")
    return {name: value for name, value in settings.items() if value is not None}
