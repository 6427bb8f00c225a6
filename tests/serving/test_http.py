"""The HTTP server's part of the plugin, with modules that look like vLLM's; the real server is `make vllm`'s."""

import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest

from hf_diversed.serving.vllm import http
from hf_diversed.serving.vllm.deployment import Deployment
from tests.serving.fakes import HEAD, engine, request


class Refused(Exception):
    """In place of `vllm.exceptions.VLLMValidationError`."""


class App:
    """As much of FastAPI as the plugin uses: the endpoint reads the request's parameters, then starts the answer."""

    def __init__(self, args):
        module, _, name = args.middleware[-1].rpartition(".")
        self.middleware = getattr(importlib.import_module(module), name)

    async def endpoint(self, scope, receive, send):
        for one in scope["requests"]:
            one.to_sampling_params(16)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"server", b"vllm")]})
        await send({"type": "http.response.body", "body": b"text"})

    def answer(self, *requests):
        """Return the headers of the answer to requests."""
        sent = []

        async def send(message):
            sent.append(message)

        asyncio.run(self.middleware(self.endpoint)({"type": "http", "requests": requests}, None, send))
        return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


class CompletionRequest:
    def __init__(self, params, **extra):
        self.params, self.model_extra = params, extra

    def to_sampling_params(self, max_tokens, default_sampling_params=None):
        return self.params


class AnthropicServingMessages:
    async def create_messages(self, request, raw_request=None):
        return request


@pytest.fixture
def server(monkeypatch):
    """Return the request class and `build_app` of a server whose engine serves a head."""
    modules = {
        http.SERVER: {"build_app": App},
        http.MESSAGES: {"AnthropicServingMessages": type("Messages", (AnthropicServingMessages,), {})},
        "vllm.exceptions": {"VLLMValidationError": Refused},
        **{module: {name: type(name, (CompletionRequest,), {})} for module, name in http.REQUESTS.items()},
    }
    for name, attributes in modules.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    http.serve(Deployment.of(engine({"head": HEAD, "max_bias": 0.9, "choices": ["static:0.5", "lenience:0.3"]})))
    completion = sys.modules["vllm.entrypoints.openai.completion.protocol"].CompletionRequest
    return SimpleNamespace(
        request=completion,
        messages=sys.modules[http.MESSAGES].AnthropicServingMessages(),
        build_app=lambda: sys.modules[http.SERVER].build_app(SimpleNamespace(middleware=[])),
    )


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (request(), {"verifier": "diversed", "strictness": "0.5", "max-bias": "0.9"}),
        (request(strictness=0.7, max_ratio=4.0), {"strictness": "0.7", "max-ratio": "4"}),
        (request(verifier="static:0.5", max_bias=1), {"verifier": "static:0.5"}),
        (request(verifier="lenience:0.3"), {"verifier": "lenience:0.3"}),
        (request(verifier="lossless"), {"verifier": "lossless", "strictness": "1"}),
        (request(strictness=1), {"verifier": "lossless", "strictness": "1"}),
        (request(temperature=0.0, strictness=0.2), {"verifier": "lossless", "strictness": "1"}),
    ],
)
def test_every_answer_names_its_verifier(server, params, named):
    """Catches an answer without its verifier, with the previous request's setting, or one that has no effect."""
    app = server.build_app()
    app.answer(server.request(request(max_ratio=10.0)))
    headers = app.answer(server.request(params))
    found = {name.removeprefix("x-diversed-"): value for name, value in headers.items() if name != "server"}
    if "verifier" not in named or named["verifier"] == "diversed":
        named = {"verifier": "diversed", "max-bias": "0.9"} | named
    assert found == named
    assert headers["server"] == "vllm"


def test_other_answers_have_no_header(server):
    """Catches a header of an earlier answer on one that no model produced, such as /metrics."""
    app = server.build_app()
    app.answer(server.request(request()))
    assert app.answer() == {"server": "vllm"}


@pytest.mark.parametrize("name", ["diversed_strictness", "strictness", "diversed_x"])
def test_top_level_fields_are_refused(server, name):
    """Catches `"diversed_strictness": 7` beside `vllm_xargs`, which vLLM ignores: relaxed text without an error."""
    with pytest.raises(Refused, match=f"`{name}` has no effect at the top level of a request.* in `vllm_xargs`: div"):
        server.request(request(), **{name: 7}).to_sampling_params(16)
    params = server.request(request(), other_field=7).to_sampling_params(16)
    assert params.temperature == 1.0


def test_top_level_fields_of_messages_are_refused(server):
    """Catches `"diversed_strictness": 1` in a request to `/v1/messages`, whose unknown fields vLLM drops."""

    def answer(**fields):
        async def json():
            return {"model": "m", "max_tokens": 3} | fields

        return asyncio.run(server.messages.create_messages("request", SimpleNamespace(json=json)))

    with pytest.raises(Refused, match="`diversed_strictness` has no effect at the top level of a request"):
        answer(diversed_strictness=1)
    assert answer(vllm_xargs={"diversed_strictness": 1}) == "request"


def test_bad_values_are_refused_before_the_answer_starts(server):
    """Catches HTTP 200 with an error inside the stream: vLLM checks a stream's parameters after its headers."""
    with pytest.raises(Refused, match=r"`diversed_strictness` must lie in \[0, 1\], got 7"):
        server.build_app().answer(server.request(request(strictness=7)))


def test_nothing_happens_without_a_server(monkeypatch):
    """Catches an import of vLLM's HTTP server in a process that runs `vllm.LLM`."""
    monkeypatch.delitem(sys.modules, http.SERVER, raising=False)
    http.serve(Deployment.of(engine({"verifier": "static:0.5"})))
    assert http.SERVER not in sys.modules
