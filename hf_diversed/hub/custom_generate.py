"""`model.generate(..., custom_generate="org/head", trust_remote_code=True)`: the script in a head's repository.

transformers copies the script to a module cache, without the head's files, and does not pass the repository's name.
The script therefore contains that name, and its path in the cache contains the commit.
"""

import json
from typing import Any

from hf_diversed import _compat, model_facts
from hf_diversed.generation.patching import install_hook
from hf_diversed.head import load_head
from hf_diversed.head.pulling import HUB_ARGUMENTS


logger = _compat.get_logger(__name__)

SCRIPT, REQUIREMENTS = "custom_generate/generate.py", "custom_generate/requirements.txt"
SINCE = "0.1.0"  # first release with `generate_with`, whose signature published scripts rely on


def script_files(repo_id: str, revision: str) -> dict[str, str]:
    """Return the files of `custom_generate/` in a head's repository."""
    script = f'''"""Decode with the head of this repository; written by hf_diversed when the head was pushed.

model.generate(..., assistant_model=draft, custom_generate="{repo_id}", trust_remote_code=True)
"""

from hf_diversed.hub import generate_with


def generate(model, **kwargs):
    return generate_with({json.dumps(f"{repo_id}@{revision}")}, __file__, model, **kwargs)
'''
    return {SCRIPT: script, REQUIREMENTS: f"hf-diversed>={SINCE}\n"}


def generate_with(published: str, script: str, model: Any, /, **kwargs: Any) -> Any:
    """Decode with a published head. The script in its repository calls this.

    Args:
        published: where the head was pushed, "org/head@revision".
        script: the script's path, which contains its commit; the head of that commit is used.
        model: the target.
        kwargs: arguments of `generate`; `token`, `cache_dir` and the like are for the download.

    Raises:
        ValueError: if the script was copied to another repository, or if another head or verifier is given.
    """
    repo_id, _, revision = published.partition("@")
    hub = {name: kwargs.pop(name, None) for name in HUB_ARGUMENTS}
    hub = {name: value for name, value in hub.items() if value is not None and name != "revision"}
    for name in ("diversed_head", "verifier"):
        if kwargs.pop(name, None) is not None:
            raise ValueError(f"custom_generate={repo_id!r} uses its own head; remove {name}=.")
    head = load_head(f"{repo_id}@{_commit(repo_id, script) or revision}", model_facts.device(model), **hub)
    install_hook()
    return type(model).generate(model, **kwargs, diversed_head=head)


def _commit(repo_id: str, script: str) -> str | None:
    """Return the commit that a script was downloaded at, or None if it was not downloaded."""
    origin = _compat.script_origin(script)
    if origin is None:
        return None
    name, commit = origin
    if commit is None:
        logger.warning_once(
            f"custom_generate with a folder uses the head of {repo_id} on the Hub, not the one in the folder. To use "
            "the folder's head, pass diversed_head=folder instead of custom_generate=."
        )
    elif name != _compat.module_name(repo_id):
        raise ValueError(
            f"this custom_generate script was copied from {repo_id} and would decode with the head there: push the "
            "head to its new repository with `hf-diversed push`, which writes a new script."
        )
    return commit
