"""Pulling heads with the huggingface_hub client from a local server."""

import json

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModel

from hf_diversed import DiversedHead
from hf_diversed.head import load_head, pulling
from hf_diversed.provenance import module_digest
from tests.hub.loopback import DROP, READER
from tests.verifier_cases import random_head


REPO = "org/head"


@pytest.fixture
def folder(hub, tmp_path):
    """A head in a folder, and the same head at REPO."""
    path = tmp_path / "head"
    random_head("mlp", "both").save_pretrained(path)
    hub.add(REPO, path)
    return path


def test_every_way_to_name_a_head(hub, folder, tmp_path):
    """Catches arguments that are dropped, so that another revision, cache or folder is read."""
    other = random_head("linear", "hidden")
    other.save_pretrained(tmp_path / "nested" / "inner")
    hub.add("org/nested", tmp_path / "nested")
    repository = hub.repositories[REPO]
    first = repository.at("main").sha
    repository.commit("v2", _flat(hub.files("org/nested")), "another one")
    main = module_digest(DiversedHead.from_pretrained(folder))
    assert module_digest(DiversedHead.from_pretrained(REPO)) == main
    assert module_digest(DiversedHead.from_pretrained(REPO, revision=first)) == main
    assert module_digest(AutoModel.from_pretrained(REPO)) == main
    assert module_digest(load_head(f"{REPO}@v2")) == module_digest(other)
    assert module_digest(DiversedHead.from_pretrained(REPO, revision="v2")) == module_digest(other)
    assert module_digest(DiversedHead.from_pretrained("org/nested", subfolder="inner")) == module_digest(other)
    assert module_digest(DiversedHead.from_pretrained(tmp_path / "nested", subfolder="inner")) == module_digest(other)
    cache = tmp_path / "my cache"
    DiversedHead.from_pretrained(REPO, cache_dir=cache)
    assert list(cache.glob("models--org--head/snapshots/*/model.safetensors"))
    assert DiversedHead.from_pretrained(REPO, num_assistant_tokens=9).config.num_assistant_tokens == 9
    assert DiversedHead.from_pretrained(REPO, dtype=torch.bfloat16).dtype == torch.bfloat16


def _flat(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path.rsplit("/", 1)[-1]: content for path, content in files.items()}


def test_private_heads_need_the_token(hub, folder, monkeypatch):
    """Catches a token that does not reach the Hub."""
    hub.add("org/private", folder, private=True)
    monkeypatch.delenv("HF_TOKEN")
    for token in (None, READER):
        with pytest.raises(OSError, match=r"org/private does not exist or is private.*hf auth login"):
            DiversedHead.from_pretrained("org/private", token=token)
    DiversedHead.from_pretrained("org/private", token="hf_writer")


def test_offline_uses_the_cache(hub, folder, monkeypatch):
    """Catches network access in offline mode, and a cached head that is not found."""
    DiversedHead.from_pretrained(REPO)
    hub.log.clear()
    DiversedHead.from_pretrained(REPO, local_files_only=True)
    with pytest.raises(OSError, match=r"org/none is not in the cache.*local_files_only"):
        DiversedHead.from_pretrained("org/none", local_files_only=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    DiversedHead.from_pretrained(REPO)
    with pytest.raises(OSError, match=r"org/none is not in the cache.*HF_HUB_OFFLINE"):
        DiversedHead.from_pretrained("org/none")
    assert hub.log == []


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("org/none", {}, r"org/none is not a folder, and http.*/org/none does not exist or is private"),
        ("org/gated", {"token": READER}, "org/gated is gated: request access at http.*/org/gated"),
        (REPO, {"revision": "v9"}, "org/head has no revision 'v9'"),
        ("/no/such/folder", {}, "'/no/such/folder' is neither a folder nor an id of the Hub"),
        ("org/torn", {}, "config.json of org/torn is not valid JSON"),
        ("org/cut", {}, "model.safetensors of org/cut is damaged or truncated.*force_download=True"),
        ("org/empty", {}, "org/empty is not a head: its model.safetensors has 0 bytes, .* It was not downloaded"),
        ("org/other", {}, r"does not fit its config.json: dense.bias is missing, must be \(5,\)"),
        ("org/pickle", {}, "no file named model.safetensors.*a pickle can execute code"),
        ("org/no-config", {}, "no file named config.json"),
    ],
)
def test_other_files_are_refused(hub, folder, name, arguments, words):
    """Catches unclear errors, and a head with random weights without notice."""
    good = hub.files(REPO)
    config, weights = good["config.json"], good["model.safetensors"]
    hub.add("org/gated", folder, gated=True)
    hub.add("org/torn", good | {"config.json": config[:40]})
    hub.add("org/cut", good | {"model.safetensors": weights[:-7]})
    hub.add("org/empty", good | {"model.safetensors": b""})
    hub.add("org/other", good | {"model.safetensors": _weights(random_head("linear", "both"), folder)})
    hub.add("org/pickle", {"config.json": config, "pytorch_model.bin": weights})
    hub.add("org/no-config", {"model.safetensors": weights})
    with pytest.raises(OSError, match=f"(?s){words}"):
        DiversedHead.from_pretrained(name, **arguments)


def _weights(head: DiversedHead, folder) -> bytes:
    head.save_pretrained(folder / "other")
    return (folder / "other" / "model.safetensors").read_bytes()


def test_no_code_of_the_repository_runs(hub, folder, tmp_path):
    """Catches remote code: only config.json and model.safetensors are read."""
    marker = tmp_path / "ran"
    evil = f"open({str(marker)!r}, 'w')\n".encode()
    config = json.loads(hub.files(REPO)["config.json"])
    config["auto_map"] = {"AutoModel": "modeling_evil.Evil", "AutoConfig": "modeling_evil.EvilConfig"}
    files = hub.files(REPO) | {"config.json": json.dumps(config).encode(), "modeling_evil.py": evil}
    hub.add("org/evil", files | {"custom_generate/generate.py": evil, "pytorch_model.bin": evil})
    hub.log.clear()
    DiversedHead.from_pretrained("org/evil")
    DiversedHead.from_pretrained("org/evil", trust_remote_code=True)
    assert not marker.exists()
    assert hub.log.count("download") == 1


def test_weights_of_another_model_are_not_downloaded(hub, folder, tmp_path):
    """Catches a download of any model by name: config.json is checked before weights are downloaded."""
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(300_000)}
    hub.add("org/llama", files)
    with pytest.raises(OSError, match="must be 'diversed_head', got 'llama'"):
        DiversedHead.from_pretrained("org/llama")
    hub.add(
        "org/bad", hub.files(REPO) | {"config.json": b'{"model_type": "diversed_head", "num_assistant_tokens": "5"}'}
    )
    with pytest.raises(OSError, match=r"config.json of org/bad cannot be used: num_assistant_tokens must be"):
        DiversedHead.from_pretrained("org/bad")
    assert "download" not in hub.log


@pytest.mark.parametrize(
    ("file", "size"), [("model.safetensors", 300_000), ("model.safetensors", 20), ("config.json", 2**20 + 1)]
)
def test_files_of_another_size_are_not_downloaded(hub, folder, tmp_path, file, size):
    """Catches a file of any size that has the name of a head's file."""
    content = hub.files(REPO)[file][:size].ljust(size)
    hub.add("org/heavy", hub.files(REPO) | {file: content})
    hub.log.clear()
    with pytest.raises(OSError, match=rf"{file} has {size:,} bytes, expected .* It was not downloaded"):
        DiversedHead.from_pretrained("org/heavy")
    assert "download" not in hub.log
    assert all(path.read_bytes() != content for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_all_files_come_from_one_commit(hub, folder, monkeypatch):
    """Catches weights of a push between the two downloads."""
    pulling_config, other = pulling.read_config, random_head("linear", "hidden")

    def read_config(*args, **kwargs):
        found = pulling_config(*args, **kwargs)
        other.save_pretrained(folder)
        hub.repositories[REPO].commit("main", _flat({p.name: p.read_bytes() for p in folder.iterdir()}), "faster")
        return found

    monkeypatch.setattr(pulling, "read_config", read_config)
    assert module_digest(DiversedHead.from_pretrained(REPO)) == module_digest(random_head("mlp", "both"))


def test_damaged_files_are_downloaded_again(hub, folder, tmp_path):
    """Catches a size check that refuses a new download because of a damaged file in the cache."""
    DiversedHead.from_pretrained(REPO)
    (weights,) = (tmp_path / "cache").glob("models--org--head/snapshots/*/model.safetensors")
    weights.resolve().write_bytes(b"")
    with pytest.raises(OSError, match=r"damaged or truncated.*force_download=True"):
        DiversedHead.from_pretrained(REPO)
    DiversedHead.from_pretrained(REPO, force_download=True)
    hub.log.clear()
    DiversedHead.from_pretrained(REPO)
    assert hub.log == ["info"]  # nothing that is cached is requested


@pytest.mark.parametrize(
    ("step", "fault"), [("info", 500), ("resolve", 429), ("resolve", DROP), ("download", 500), ("download", DROP)]
)
def test_faults_are_named_and_pass(hub, folder, step, fault):
    """Catches a failed download that is cached, used as a head, or reported as another error."""
    hub.fail(step, fault)
    with pytest.raises(OSError, match=f"{REPO} .*{hub.endpoint}"):
        DiversedHead.from_pretrained(REPO)
    hub.recover()
    hub.fail("download", DROP, times=1)  # once: the client resumes
    assert module_digest(DiversedHead.from_pretrained(REPO)) == module_digest(random_head("mlp", "both"))
