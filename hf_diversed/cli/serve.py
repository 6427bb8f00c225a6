"""`hf-diversed serve`: a pair behind vLLM's OpenAI-compatible server, with a rule and a dial per request."""

import shlex
from typing import Annotated

import typer

from hf_diversed.cli.terminal import errors_in_words, notes


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="Hub id or folder.")],
    draft: Annotated[str, typer.Option(help="Hub id or folder of the draft.")],
    head: Annotated[str | None, typer.Option(help="Hub id or folder of a DiversedHead.", show_default=False)] = None,
    rule: Annotated[str | None, typer.Option(help='As in "static:0.7"; the head if there is one.')] = None,
    choices: Annotated[
        str | None, typer.Option(help='Rules that requests may choose, as in "static:0.5,lenience:0.3".')
    ] = None,
    strictness: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Of requests that say none; 0.5 is the head as trained.")
    ] = None,
    max_bias: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Likewise: TV(v, p) at every token.")
    ] = None,
    max_ratio: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Likewise: v <= p / max_ratio.")] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Likewise, in place of a strictness: a drop that was certified."),
    ] = None,
    num_assistant_tokens: Annotated[
        int | None, typer.Option(min=1, help="Drafts per round; the head's own, or 5.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and leave it at that.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
) -> None:
    """Serve a pair with vLLM: hf-diversed serve TARGET --draft DRAFT --head HEAD. All other options are vLLM's:
    --port 8000 --max-model-len 4096 --tensor-parallel-size 2."""
    import os

    from hf_diversed.generation.planning import DEFAULT_NUM_ASSISTANT_TOKENS
    from hf_diversed.head import load_head
    from hf_diversed.serving.command import program, serve_command

    with errors_in_words(debug):
        if head is None and rule in (None, "diversed"):
            raise ValueError('a rule is needed: pass --head, or --rule, as in --rule "static:0.7".')
        if num_assistant_tokens is None and head is not None:
            num_assistant_tokens = load_head(head).config.num_assistant_tokens
        settings = {
            "rule": rule,
            "head": head,
            "choices": None if choices is None else choices.split(","),
            "strictness": strictness,
            "max_bias": max_bias,
            "max_ratio": max_ratio,
            "max_drop": max_drop,
        }
        drafts = num_assistant_tokens or DEFAULT_NUM_ASSISTANT_TOKENS
        command = serve_command(target, draft, settings, drafts, context.args)
        if dry_run:
            print(shlex.join(command))
            return
        found = program()
        notes.print(shlex.join(command), soft_wrap=True, highlight=False, markup=False)
        os.execve(found, command, {**os.environ, "HF_DIVERSED_NO_HOOK": "1"})
