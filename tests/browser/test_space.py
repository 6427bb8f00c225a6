"""Tests of the running Space in Chromium; `make test-browser` runs them, `make test` does not."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect


ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "space" / "app.py"
PATIENCE = 60_000  # milliseconds, for a busy machine
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A running Space: that of SPACE_URL, or one of our own, whose log is shown if it dies."""
    if running := os.environ.get("SPACE_URL"):
        yield running
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("space") / "log"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_SERVER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as output:
        server = subprocess.Popen([sys.executable, str(APP)], env=environment, stdout=output, stderr=output)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, server, log)
            yield url
            assert "Traceback" not in log.read_text(), log.read_text()
        finally:
            server.terminate()
            server.wait()


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(1200):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture
def page(browser, address):
    """A desktop page whose console stays clean, and that sends requests to its own server only."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, complaints = context.new_page(), []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "response", lambda answer: complaints.append(f"{answer.status} {answer.url}") if answer.status > 399 else 0
    )
    page.on("request", lambda request: None if _is_local(request.url, address) else complaints.append(request.url))
    page.goto(address)
    expect(page.locator("#generate")).to_be_visible()
    yield page
    context.close()
    assert complaints == []


def _is_local(url: str, address: str) -> bool:
    return url.startswith((address, "data:", "blob:"))


def _set(page: Page, control: str, value: float) -> None:
    """Move a slider as a keyboard would."""
    page.locator(f"{control} input[type=number]").fill(str(value))
    page.locator(f"{control} input[type=number]").press("Tab")


def _generate(page: Page) -> None:
    """Press the button and wait until all runs are timed."""
    page.locator("#generate").click()
    expect(page.locator('#message [data-state="finished"]')).to_be_visible()


def _shorten(page: Page) -> None:
    page.get_by_text("More settings").click()
    _set(page, "#max_new_tokens", 24)


def _dot(page: Page) -> tuple[str | None, str | None]:
    dot = page.locator("#chart circle.dot")
    return dot.get_attribute("cx"), dot.get_attribute("cy")


def test_generate_shows_colours_and_figures(page):
    """Catches panels that stay empty, colours that are not there, and figures that never arrive."""
    _shorten(page)
    _generate(page)
    expect(page.locator("#sources .tok").first).to_be_visible()
    colours = {
        token.evaluate("node => getComputedStyle(node).backgroundColor")
        for token in page.locator("#sources .tok").all()
    }
    assert len(colours) >= 2
    assert "rgba(0, 0, 0, 0)" not in colours
    assert page.locator("#weights .tok.w").count() > 0
    source, weights = page.locator("#sources .text").inner_text(), page.locator("#weights .text").inner_text()
    assert source == weights
    for tile in ("speed", "accepted"):
        expect(page.locator(f'[data-tile="{tile}"] strong')).to_have_text(re.compile(r"\d"))
    assert len(page.locator("#plain .text").inner_text()) > 10
    first = page.locator("#figures .tile").first
    expect(first).to_contain_text(re.compile("times as fast|tokens per pass of the large model"))
    expect(first.locator("strong")).to_have_text(re.compile(r"\d"))
    assert "accepted draft" in page.locator("#sources .tok.draft").first.get_attribute("title")


def test_strictness_moves_the_dot_and_the_acceptance(page):
    """Catches a slider that is not connected to the chart or does not reach the verifier."""
    _shorten(page)
    before = _dot(page)
    _set(page, "#strictness", 1)
    page.wait_for_function(
        "before => document.querySelector('#chart circle.dot').getAttribute('cx') != before", arg=before[0]
    )
    expect(page.locator("#hint")).to_contain_text("1 is lossless")
    assert _dot(page) != before
    _generate(page)
    assert page.locator("#sources .tok.relaxed").count() == 0  # strictness 1 is lossless
    _set(page, "#strictness", 0)
    expect(page.locator("#hint")).to_contain_text("accepts every draft token")
    page.locator("#generate").click()
    expect(page.locator('[data-tile="accepted"] strong')).to_have_text("100%")


def test_methods_have_their_own_controls(page):
    """Catches controls and panels that a method does not have, and a method that does not decode."""
    _shorten(page)
    expect(page.locator("#weights .panel")).to_be_visible()
    page.get_by_label("Static", exact=True).check()
    expect(page.locator("#weight")).to_be_visible()
    expect(page.locator("#strictness")).to_be_hidden()
    expect(page.locator("#hint")).to_contain_text("the same weight at every position")
    page.get_by_label("Lossless", exact=True).check()
    expect(page.locator("#weights .panel")).to_be_hidden()
    page.get_by_label("Plain", exact=True).check()
    expect(page.locator("#weight")).to_be_hidden()
    expect(page.locator("#chart circle.dot")).to_have_count(0)
    _generate(page)
    assert page.locator("#sources .tok.target").count() > 5
    expect(page.locator('[data-tile="forward"] strong')).to_have_text("1.00")


def test_bad_input_is_a_message(page):
    """Catches tracebacks, toasts with "Error", visitors' markup in the page, a message that outlives its cause, and
    results of an earlier run under an error."""
    page.get_by_text("More settings").click()
    prompt, head = page.locator("#prompt textarea"), page.locator("#head input, #head textarea")
    good, notice = prompt.input_value(), page.locator("#message .notice")
    expect(page.locator("#prompt")).to_contain_text("at most 20,000 characters")
    expect(page.locator("#head")).to_contain_text("Local folders and large files are refused")
    for control, value, words in (
        (prompt, " ", "prompt is empty"),
        (prompt, "Why is the sky blue?", "three kinds of prompt"),
        (prompt, "many words " * 1500, "leave room for the answer"),
        (prompt, "many words " * 3000, "at most 20000 are allowed"),
        (head, "no such <b>head</b>", "'no such <b>head</b>' could not be loaded"),
        (head, "missing/head", "'missing/head' could not be loaded"),
    ):
        prompt.fill(good)
        control.fill(value)
        page.locator("#generate").click()
        expect(notice).to_contain_text(words)
        assert page.locator("#message b").count() == 0
        assert "Traceback" not in page.content()
    head.fill("")
    _set(page, "#max_new_tokens", 8)
    _generate(page)
    expect(notice).not_to_have_attribute("role", "alert")
    prompt.fill("Why is the sky blue?")
    page.locator("#generate").click()
    expect(notice).to_have_attribute("role", "alert")
    expect(page.locator("#sources .tok")).to_have_count(0)
    expect(page.locator('[data-tile="accepted"] strong')).to_have_text("-")


def test_waiting_and_stopping_are_shown(page, browser, address):
    """Catches a visitor who sees nothing while another one is served, and incomplete text that looks finished."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    second = context.new_page()
    second.set_default_timeout(PATIENCE)
    second.goto(address)
    expect(second.locator("#generate")).to_be_visible()
    expect(second.locator("#stop")).to_be_disabled()
    page.get_by_text("More settings").click()
    _set(page, "#max_new_tokens", 256)
    page.locator("#generate").click()
    second.locator("#generate").click()
    expect(second.locator('#message [data-state="waiting"]')).to_be_visible()
    expect(second.locator("#sources .progress-text")).to_contain_text("queue: 1/1")
    expect(second.locator("#figures")).to_be_in_viewport(ratio=1.0)  # on a phone, too
    page.locator("#stop").click()
    assert "Stopped." in _stopped_message(page)
    expect(page.locator("#stop")).to_be_disabled()
    expect(second.locator('#message [data-state="finished"]')).to_be_visible()
    expect(second.locator("#stop")).to_be_disabled()
    expect(second.locator(".gradio-container")).not_to_have_class(re.compile(r"\bstopped\b"))
    context.close()


def _stopped_message(page: Page) -> str:
    expect(page.locator(".gradio-container")).to_have_class(re.compile(r"\bstopped\b"))
    return page.locator("#message .notice").evaluate("node => getComputedStyle(node, '::before').content")


def test_compilation_is_shown_and_can_be_stopped(page):
    """Catches a minute without a message, a Stop that waits for the compiler, and a state that later frames replace.
    It is the last test because the server still compiles when it ends."""
    page.get_by_text("More settings").click()
    page.get_by_label("Compiled", exact=True).check()
    notice = page.locator("#message .notice")
    expect(notice).to_contain_text("The first run with a method")
    page.locator("#generate").click()
    expect(notice).to_contain_text("compiling DIVERSED with 5 draft tokens per round")
    expect(notice).to_be_in_viewport()
    page.route(re.compile("/cancel"), lambda route: (time.sleep(1), route.continue_()))  # frames arrive after Stop
    with page.expect_response(re.compile("/cancel")):
        page.locator("#stop").click()
        assert "Stopped." in _stopped_message(page)
    page.wait_for_timeout(500)
    assert "Stopped." in _stopped_message(page)
    page.locator("#generate").click()
    expect(notice).to_contain_text("a stopped run has finished compiling")
    page.locator("#stop").click()
    assert "Stopped." in _stopped_message(page)
