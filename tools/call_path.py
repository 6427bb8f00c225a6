"""Count the files and functions of the package that one eager `generate` call enters: `python tools/call_path.py`.

Prints both counts and, with `--list`, every function. The exit code is 1 if `--max-files` or `--max-functions` is
exceeded.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType


ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

import hf_diversed  # noqa: E402


PACKAGE = str(Path(hf_diversed.__file__).parent)


def entered_functions() -> dict[str, set[str]]:
    """Return the functions that a call with a head, sampling at batch size 2, enters, by file."""
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    torch.manual_seed(0)
    target, draft = (LlamaForCausalLM(config).eval() for _ in range(2))
    head = hf_diversed.DiversedHead(hf_diversed.DiversedHeadConfig(16, 16)).eval()
    inputs = {
        "input_ids": torch.tensor([[0, 5, 6], [4, 5, 6]]),
        "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
    }
    call = {**inputs, "assistant_model": draft, "diversed_head": head, "do_sample": True, "max_new_tokens": 8}
    target.generate(**call)  # imports
    functions: dict[str, set[str]] = defaultdict(set)

    def trace(frame, event, argument):
        code: CodeType = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            name = getattr(code, "co_qualname", code.co_name)
            # Lambdas, comprehensions and nested functions count as part of the enclosing function.
            functions[str(Path(code.co_filename).relative_to(PACKAGE))].add(name.partition(".<locals>")[0])

    sys.setprofile(trace)
    try:
        target.generate(**call)
    finally:
        sys.setprofile(None)
    return functions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every file and its functions")
    parser.add_argument("--max-files", type=int)
    parser.add_argument("--max-functions", type=int)
    arguments = parser.parse_args()
    entered = entered_functions()
    files, functions = len(entered), sum(map(len, entered.values()))
    if arguments.list:
        for file, names in sorted(entered.items()):
            print(f"{file}: {', '.join(sorted(names))}")
    print(f"{files} files, {functions} functions")
    limits = (files, arguments.max_files), (functions, arguments.max_functions)
    return int(any(most is not None and count > most for count, most in limits))


if __name__ == "__main__":
    sys.exit(main())
