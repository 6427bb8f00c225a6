"""`model.generate(..., custom_generate="org/head", trust_remote_code=True)`: the script in a head's repository.

transformers copies the script to a module cache, without the head's files, and does not pass the repository's name.
The script therefore contains that name.
"""

from typing import Any

from hf_diversed import support
from hf_diversed.generation.hook import install_hook
from hf_diversed.head import load_head


FOLDER = "custom_generate"
SINCE = "0.1.0"  # first release with `generate_with`, whose signature published scripts rely on
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "token")


def script_files(repo_id: str, revision: str) -> dict[str, str]:
    """Return the files of `custom_generate/` in a head's repository."""
    script = f'''"""Decode with the head of this repository; written by hf_diversed when the head was pushed.

model.generate(..., assistant_model=draft, custom_generate="{repo_id}", trust_remote_code=True)
"""

from hf_diversed.hub import generate_with


def generate(model, **kwargs):
    return generate_with("{repo_id}", "{revision}", model, **kwargs)
'''
    return {"generate.py": script, "requirements.txt": f"hf-diversed>={SINCE}\n"}


def generate_with(repo_id: str, pushed: str, model: Any, /, **kwargs: Any) -> Any:
    """Decode with a published head. The script in its repository calls this.

    Args:
        repo_id: where the head was pushed. pushed: the branch, if the call has no `revision`.
        model: the target.
        kwargs: arguments of `generate`; `revision`, `token`, `cache_dir` and the like also select the head.

    Raises:
        ValueError: if another head or verifier is given.
    """
    for name in ("diversed_head", "verifier"):
        if kwargs.pop(name, None) is not None:
            raise ValueError(f"custom_generate={repo_id!r} uses its own head; remove {name}=.")
    revision = kwargs.pop("revision", None) or pushed
    hub = {name: kwargs.pop(name) for name in _DOWNLOAD if name in kwargs}
    head = load_head(f"{repo_id}@{revision}", support.device(model), **hub)
    install_hook()
    return type(model).generate(model, **kwargs, diversed_head=head)
