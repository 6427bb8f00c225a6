"""The trainer's push to the Hub, to which transformers would add pickles and its own card."""

from hf_diversed import DiversedHead
from tests.training import runs


REPO = "org/head-letters"
FILES = {"README.md", "config.json", "model.safetensors", "provenance.json"}
FILES |= {f"custom_generate/{name}" for name in ("generate.py", "requirements.txt")}


def published(hub) -> set[str]:
    return set(hub.files(REPO))


def test_training_publishes_heads(hub, tmp_path):
    """Catches training_args.bin, optimizer states and the card of transformers, and a push at a checkpoint."""
    trainer = runs.trainer(tmp_path, push_to_hub=True, hub_model_id=REPO, max_steps=4, save_steps=2)
    trainer.train()
    assert published(hub) == set()
    trainer.push_to_hub()
    assert published(hub) == FILES
    pulled = DiversedHead.from_pretrained(REPO, cache_dir=tmp_path / "elsewhere")
    assert all((value == trainer.model.state_dict()[name]).all() for name, value in pulled.state_dict().items())
    assert "generated_from_trainer" not in hub.files(REPO)["README.md"].decode()
