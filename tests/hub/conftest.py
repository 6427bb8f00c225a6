"""The huggingface_hub client with a local server, separate caches and no waiting between retries."""

import pytest
import transformers.dynamic_module_utils
import transformers.utils.hub
from huggingface_hub import constants, hf_api
from huggingface_hub.utils import _http, close_session

from hf_diversed.head import modeling_diversed
from tests.hub.loopback import LoopbackHub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A new Hub; this process is logged in as "org"."""
    cache = tmp_path / "cache"
    with LoopbackHub() as server:
        template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        # Constants that huggingface_hub reads from the environment on import.
        replaced = {"ENDPOINT": server.endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_CACHE": str(cache)}
        replaced |= {"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True, "HF_TOKEN_PATH": str(cache / "token")}
        for name, value in replaced.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
        monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(cache / "modules"))
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)  # between retries
        monkeypatch.setenv("HF_TOKEN", "hf_org")
        close_session()
        modeling_diversed._load.cache_clear()
        yield server
        close_session()
