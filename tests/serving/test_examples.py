"""The files beside the serving docs: a dashboard with counters that vLLM has, and a client that compiles."""

import ast
import json
import re
from pathlib import Path

from hf_diversed.serving.vllm.deployment import PREFIX, SETTINGS


ROOT = Path(__file__).parents[2]
# Of vLLM 0.32, `v1/spec_decode/metrics.py` and `v1/metrics/loggers.py`.
NAMES = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
COUNTERS = {"vllm:generation_tokens_total", *(f"vllm:spec_decode_num_{name}_total" for name in NAMES)}


def test_the_dashboard_queries_counters_that_exist():
    """Catches a panel that stays empty."""
    dashboard = json.loads((ROOT / "examples" / "serving" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert set(re.findall(r"vllm:\w+", " ".join(asked))) <= COUNTERS
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_router_runs_as_an_ordinary_user():
    """Catches a log in nginx's compiled-in folder, and replicas skipped because of one request that always fails."""
    text = (ROOT / "examples" / "serving" / "nginx.conf").read_text()
    assert re.search(r"(?m)^error_log \w", text)
    assert not re.search(r"proxy_next_upstream .*http_500", text)


def test_the_client_sends_known_fields():
    source = (ROOT / "examples" / "serving" / "client.py").read_text()
    ast.parse(source)
    sent = set(re.findall(rf'"{PREFIX}(\w+)"', source))
    assert sent
    assert sent <= {"verifier", *SETTINGS}
