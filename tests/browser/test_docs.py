"""Tests of the built documentation in Chromium; `make test-browser` runs them, `make test` does not."""

import os
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest


ROOT = Path(__file__).parents[2]
# The boxes that can scroll sideways, beside the page itself.
OVERFLOWING = """() => [document.documentElement, ...document.querySelectorAll('pre, code, .md-typeset__scrollwrap')]
    .filter(box => box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 0)
    .map(box => `${box.tagName}: ${box.scrollWidth} > ${box.clientWidth}: ${box.innerText.slice(0, 60)}`)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built documentation."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site):
    """The served documentation."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways(browser, site, address, width):
    """Catches tables and code that are wider than their column, on a laptop and on a phone."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    found = {}
    for file in sorted(site.rglob("index.html")):
        page.goto(f"{address}/{file.relative_to(site)}")
        found[file.parent.name] = page.evaluate(OVERFLOWING)
    page.close()
    assert len(found) == len(list((ROOT / "docs").glob("*.md")))
    assert {name: boxes for name, boxes in found.items() if boxes} == {}
