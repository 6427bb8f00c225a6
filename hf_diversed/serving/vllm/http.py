"""vLLM's HTTP server: check requests before the response starts, and report the verifier in the response headers.

vLLM ignores unknown fields of a request, and checks the sampling parameters of a streamed one only after it has sent
HTTP 200. Both are therefore checked where the server converts a request to sampling parameters.
"""

import functools
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hf_diversed.serving.vllm.admission import check_top_level, read_request
from hf_diversed.serving.vllm.deployment import Deployment
from hf_diversed.serving.vllm.logits import LOSSLESS, NEUTRAL, RequestSettings


SERVER = "vllm.entrypoints.launchers.api_server.entry"
REQUESTS = {
    "vllm.entrypoints.openai.completion.protocol": "CompletionRequest",
    "vllm.entrypoints.openai.chat_completion.protocol": "ChatCompletionRequest",
    "vllm.entrypoints.openai.responses.protocol": "ResponsesRequest",
}
MESSAGES = "vllm.entrypoints.anthropic.serving"
HEADER = "x-diversed-"
_HEADERS: ContextVar[dict[str, str] | None] = ContextVar("headers", default=None)


def serve(deployment: Deployment) -> None:
    """Patch this process's HTTP server to check requests and report the verifier; do nothing if there is no server."""
    server = sys.modules.get(SERVER)
    if server is None:
        return
    for module, name in REQUESTS.items():
        _check_requests(getattr(importlib.import_module(module), name), deployment)
    _check_messages(importlib.import_module(MESSAGES).AnthropicServingMessages)
    build_app = server.build_app

    @functools.wraps(build_app)
    def build(args: Any, *rest: Any, **named: Any) -> Any:
        args.middleware = [*args.middleware, f"{__name__}.{VerifierHeaders.__name__}"]
        return build_app(args, *rest, **named)

    server.build_app = build  # type: ignore[attr-defined]


def _check_requests(request_class: type, deployment: Deployment) -> None:
    original = request_class.to_sampling_params  # type: ignore[attr-defined]

    @functools.wraps(original)
    def to_sampling_params(self: Any, *args: Any, **named: Any) -> Any:
        with validation_errors():
            check_top_level(self.model_extra or {})
            params = original(self, *args, **named)
            settings = read_request(deployment, params)
        headers = _HEADERS.get()
        if headers is not None:
            headers.update(describe(deployment, settings))
        return params

    request_class.to_sampling_params = to_sampling_params  # type: ignore[attr-defined]


def _check_messages(serving_class: type) -> None:
    """Check the fields of `/v1/messages`, which vLLM drops before it creates a chat completion request."""
    original = serving_class.create_messages  # type: ignore[attr-defined]

    @functools.wraps(original)
    async def create_messages(self: Any, request: Any, raw_request: Any = None) -> Any:
        if raw_request is not None:
            with validation_errors():
                check_top_level(await raw_request.json())
        return await original(self, request, raw_request)

    serving_class.create_messages = create_messages  # type: ignore[attr-defined]


def describe(deployment: Deployment, settings: RequestSettings) -> dict[str, str]:
    """Return the verifier that serves a request, its strictness if it has one, and the bounds in force."""
    if settings.verifier == LOSSLESS:
        return {"verifier": "lossless", "strictness": "1"}
    index = settings.verifier - 1
    values = {name: getattr(settings, name) for name in NEUTRAL if name in deployment.settings_of(index)}
    shown = {name: f"{value:g}" for name, value in values.items() if name == "strictness" or value != NEUTRAL[name]}
    return {"verifier": deployment.names[index], **shown}


@contextmanager
def validation_errors() -> Iterator[None]:
    """Turn a ValueError into the error that vLLM's server answers with HTTP 400."""
    from vllm.exceptions import VLLMValidationError

    try:
        yield
    except ValueError as error:
        raise VLLMValidationError(str(error)) from error


class VerifierHeaders:
    """ASGI middleware that adds the headers set while a request was read: `x-diversed-verifier` and others."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Callable, send: Callable) -> None:
        headers: dict[str, str] = {}

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = ((HEADER + name.replace("_", "-"), value) for name, value in headers.items())
                message = message | {
                    "headers": [*message.get("headers", ()), *((n.encode(), v.encode()) for n, v in added)]
                }
            await send(message)

        token = _HEADERS.set(headers)
        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            _HEADERS.reset(token)
