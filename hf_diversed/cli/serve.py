"""`hf-diversed serve`."""

from typing import Annotated

import typer

from hf_diversed.cli.options import Debug, notes


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="Hub id or folder of the target model.")],
    draft: Annotated[
        str | None,
        typer.Option(help="Hub id or folder of the draft model; or pass vLLM's --speculative-config instead."),
    ] = None,
    head: Annotated[str | None, typer.Option(help="Hub id or folder of a DiversedHead.")] = None,
    verifier: Annotated[str | None, typer.Option(help='For example "static:0.7"; by default the head.')] = None,
    choices: Annotated[
        str | None, typer.Option(help='Verifiers that requests may choose, for example "static:0.5,lenience:0.3".')
    ] = None,
    strictness: Annotated[
        float | None, typer.Option(help="0 accepts every draft token, 0.5 is the head as trained, 1 is lossless.")
    ] = None,
    max_bias: Annotated[float | None, typer.Option(help="Bound on TV(v, p) at each token.")] = None,
    max_ratio: Annotated[float | None, typer.Option(help="Bound v <= max_ratio p at each token; at least 1.")] = None,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Draft tokens per round; by default the head's own number, or 5.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve a pair with vLLM; all other options are passed to vLLM.

    For example: hf-diversed serve TARGET --draft DRAFT --head HEAD --port 8000 --max-model-len 4096. The settings are
    the defaults of requests; each request may set the strictness.
    """
    import json
    import os
    import shlex
    import shutil
    import sys

    from hf_diversed.generation.confidence import DEFAULT_NUM_ASSISTANT_TOKENS
    from hf_diversed.serving.vllm.deployment import Deployment

    given = {
        "verifier": verifier,
        "head": head,
        "choices": None if choices is None else [name.strip() for name in choices.split(",")],
        "strictness": strictness,
        "max_bias": max_bias,
        "max_ratio": max_ratio,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if target.startswith("-"):  # an unknown option is read as the first argument
        raise ValueError(f"TARGET must come first, got {target!r}: hf-diversed serve TARGET --draft DRAFT ...")
    if any(word.startswith(("--additional", "-ac")) for word in context.args):
        raise ValueError("--additional-config would replace the settings of this command; run `vllm serve` with both.")
    has_config = any(word.startswith(("--spec", "-sc")) for word in context.args)
    if has_config == (draft is not None):
        raise ValueError("pass either --draft, or vLLM's --speculative-config, which also names the draft model.")
    deployment = Deployment.build(settings)
    command = ["vllm", "serve", target, "--additional-config", json.dumps({"hf_diversed": settings})]
    if draft is not None:
        own = None if deployment.head is None else deployment.head.config.num_assistant_tokens
        speculative = {
            "method": "draft_model",
            "model": draft,
            "num_speculative_tokens": num_assistant_tokens or own or DEFAULT_NUM_ASSISTANT_TOKENS,
            "draft_sample_method": "probabilistic",
        }
        command += ["--speculative-config", json.dumps(speculative)]
    command += context.args
    program = shutil.which("vllm", path=os.path.dirname(sys.executable)) or shutil.which("vllm")
    if program is None:
        raise RuntimeError(
            'vLLM is not installed: pip install "vllm>=0.32,<0.34" beside hf-diversed on a machine with a GPU; '
            "`make vllm` shows what its build for CPUs needs."
        )
    notes.print(shlex.join(command), soft_wrap=True, highlight=False, markup=False)
    os.execve(program, command, {**os.environ, "HF_DIVERSED_NO_HOOK": "1"})
