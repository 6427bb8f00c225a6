"""Tests of the running Space in Chromium; `make test-browser` runs them, `make test` does not."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright


ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "space" / "app.py"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 60_000  # milliseconds, for a busy machine
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM, "the browser tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A running Space, whose log is shown if it dies."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("space") / "log"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(log.parent),  # without the published pair, so the page shows the embedded one
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


def _set_strictness(page: Page, value: float) -> None:
    """Move the slider as a keyboard would."""
    page.locator("#strictness input[type=number]").fill(str(value))
    page.locator("#strictness input[type=number]").press("Tab")


def _generate(page: Page) -> None:
    """Press the button and wait until both sides have ended."""
    page.locator("#generate").click()
    for side in ("#exact", "#relaxed"):
        expect(page.locator(f'{side} [data-state="ended"]')).to_be_visible()


def test_both_sides_show_colours_figures_and_a_score(page):
    """Catches panels that stay empty, colours that are not there, and figures that never arrive."""
    _generate(page)
    for side in ("#exact", "#relaxed"):
        for tile in ("seconds", "tokens/s", "accepted"):
            expect(page.locator(f'{side} [data-tile="{tile}"] strong')).to_have_text(re.compile(r"\d"))
        expect(page.locator(f'{side} [data-tile="score"] strong')).to_have_text(re.compile("right|wrong"))
        colour = page.locator(f"{side} .tok").first.evaluate("node => getComputedStyle(node).backgroundColor")
        assert colour != "rgba(0, 0, 0, 0)"
    assert page.locator("#exact .tok.relaxed").count() == 0
    assert page.locator("#relaxed .tok.relaxed").count() > 0


def test_strictness_reaches_the_verifier(page):
    """Catches a slider that is not connected, and sides with different random numbers."""
    _set_strictness(page, 1)
    _generate(page)
    assert page.locator("#relaxed .text").inner_text() == page.locator("#exact .text").inner_text()
    _set_strictness(page, 0)
    _generate(page)
    expect(page.locator('#relaxed [data-tile="accepted"] strong')).to_have_text("100%")


def test_stop_and_start_again(page):
    """Catches a stopped run that blocks the next one, and an example that cannot be answered."""
    page.locator("#generate").click()
    expect(page.locator("#relaxed .tok").first).to_be_visible()
    page.locator("#stop").click()
    page.locator("#another").click()
    _generate(page)
