"""`hf-diversed serve`: a pair behind vLLM's OpenAI-compatible server, with a verifier and a strictness per request."""

import shlex
from typing import Annotated

import typer

from hf_diversed.cli.terminal import errors_in_words, notes


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="Hub id or folder of the target model.")],
    draft: Annotated[str, typer.Option(help="Hub id or folder of the draft model.")],
    head: Annotated[str | None, typer.Option(help="Hub id or folder of a DiversedHead.", show_default=False)] = None,
    verifier: Annotated[str | None, typer.Option(help='For example "static:0.7"; by default the head.')] = None,
    choices: Annotated[
        str | None, typer.Option(help='Verifiers that requests may choose, for example "static:0.5,lenience:0.3".')
    ] = None,
    strictness: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Default of requests; 0.5 is the head as trained, 1 is lossless."),
    ] = None,
    max_bias: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Default of requests: bound on TV(v, p) at every token.")
    ] = None,
    max_ratio: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Default of requests: v <= p / max_ratio.")
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Default of requests: a certified drop, instead of a strictness."),
    ] = None,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Draft tokens per round; by default the head's own, or 5.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command without running it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Serve a pair with vLLM: hf-diversed serve TARGET --draft DRAFT --head HEAD. All other options are passed to
    vLLM: --port 8000 --max-model-len 4096 --tensor-parallel-size 2."""
    import os

    from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
    from hf_diversed.serving.command import CHAT_NOTE, free_memory, memory_note, program, serve_command
    from hf_diversed.serving.vllm.deployment import RENAMED, Deployment

    with errors_in_words(debug, serve.__annotations__):
        for old, new in RENAMED.items():
            if any(word.partition("=")[0] == f"--{old}" for word in context.args):
                raise ValueError(f"--{old} was renamed to --{new}.")
        if head is None and verifier in (None, "diversed"):
            raise ValueError('pass --head, or --verifier, for example --verifier "static:0.7".')
        given = {
            "verifier": verifier,
            "head": head,
            "choices": None if choices is None else choices.split(","),
            "strictness": strictness,
            "max_bias": max_bias,
            "max_ratio": max_ratio,
            "max_drop": max_drop,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        length = num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
        deployment = Deployment.build(settings, length, spell=lambda name: "--" + name.replace("_", "-"))
        if num_assistant_tokens is None and deployment.head is not None:
            length = deployment.head.config.num_assistant_tokens or length
        command = serve_command(target, draft, settings, length, context.args)
        if dry_run:
            print(shlex.join(command))
            return
        found = program()
        for line in (shlex.join(command), memory_note(context.args, *free_memory()), CHAT_NOTE):
            notes.print(line, soft_wrap=True, highlight=False, markup=False)
        os.execve(found, command, {**os.environ, "HF_DIVERSED_NO_HOOK": "1"})
