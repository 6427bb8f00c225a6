"""`model.generate(..., custom_generate="org/head", trust_remote_code=True)`: the script that lies in a head's
repository, and what it calls.

transformers runs the script from a cache of modules, without the head's files and without saying which repository it
came from. So the script knows by heart where it was published and what the head looked like then.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from hf_diversed import _compat
from hf_diversed.generation.hook import install_hook
from hf_diversed.head import DiversedHead, DiversedHeadConfig, load_head
from hf_diversed.head.pulling import HUB_ARGUMENTS
from hf_diversed.provenance import module_digest


logger = _compat.get_logger(__name__)

SCRIPT, REQUIREMENTS = "custom_generate/generate.py", "custom_generate/requirements.txt"
SINCE = "0.1.0"  # the first release with `generate_with`. Published scripts never change: neither may what they call


@dataclass(frozen=True)
class PublishedHead:
    """Where a head was published, and its `fingerprint` at that time."""

    repo_id: str
    revision: str
    fingerprint: str


def door_files(published: PublishedHead) -> dict[str, str]:
    """The folder `custom_generate/` of a head's repository."""
    script = f'''"""Decodes with the head of this repository; written by hf_diversed when the head was pushed.

model.generate(..., assistant_model=draft, custom_generate="{published.repo_id}", trust_remote_code=True)
"""

from hf_diversed.hub import PublishedHead, generate_with


HEAD = PublishedHead(
    repo_id={json.dumps(published.repo_id)},
    revision={json.dumps(published.revision)},
    fingerprint={json.dumps(published.fingerprint)},
)


def generate(model, **kwargs):
    return generate_with(HEAD, __file__, model, **kwargs)
'''
    return {SCRIPT: script, REQUIREMENTS: f"hf-diversed>={SINCE}\n"}


def fingerprint(config: DiversedHeadConfig, head: DiversedHead) -> str:
    """A digest of what a head is: its configuration, without what transformers adds, and its weights.

    Defaults are left out: fields that later versions add must not change it. Neither, then, may a default ever change.
    """
    names = [name for name in DiversedHeadConfig.__annotations__ if name != "model_type"]
    given = {name: getattr(config, name) for name in names}
    own = {name: value for name, value in given.items() if value != getattr(DiversedHeadConfig, name)}
    text = json.dumps([own, module_digest(head)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def generate_with(published: PublishedHead, script: str, model, **kwargs: Any):
    """Decode with a published head; what its script calls.

    Args:
        script: path of the script, which tells the commit it was read at. model: the target.
        kwargs: those of `generate`; `token`, `cache_dir` and the like are for the download.

    Raises:
        ValueError: if the script was copied to another repository, if the head is not the one it was written for, or
            without an `assistant_model`.
    """
    hub = {name: kwargs.pop(name, None) for name in HUB_ARGUMENTS}
    hub = {name: value for name, value in hub.items() if value is not None and name != "revision"}
    for name in ("diversed_head", "verifier"):
        if kwargs.get(name) is not None:
            raise ValueError(f"custom_generate={published.repo_id!r} brings its own head; pass it without {name}=.")
    head = load_head(f"{published.repo_id}@{_revision(published, script)}", model.device, **hub)
    if fingerprint(head.config, head) != published.fingerprint:
        raise ValueError(
            f"the head in {published.repo_id} is not the one that its custom_generate script was written for: push "
            "it with `hf-diversed push`, which renews the script, or pass diversed_head= in place of custom_generate=."
        )
    install_hook()
    return type(model).generate(model, **kwargs, diversed_head=head)


def _revision(published: PublishedHead, script: str) -> str:
    """The commit of the script itself, where its place tells."""
    origin = _compat.script_origin(script)
    if origin is None:
        return published.revision
    name, commit = origin
    if commit is None:
        logger.warning_once(
            f"a script does not know its folder: the head is that of {published.repo_id} on the Hub, whatever else "
            "lies beside the script. For a head in a folder, pass diversed_head=folder in place of custom_generate=."
        )
        return published.revision
    if name != _compat.module_name(published.repo_id):
        raise ValueError(
            f"this custom_generate script was copied from {published.repo_id} and would decode with the head there: "
            "push the head to its new repository with `hf-diversed push`, which writes a script of its own."
        )
    return commit
