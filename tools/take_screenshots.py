"""Take screenshots of the Space on a desktop and on a phone while `make space` runs.

python -m tools.take_screenshots http://127.0.0.1:7860
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright


FOLDER = Path(__file__).parent.parent / "examples" / "space"
SIZES = {"desktop": (1280, 1000), "phone": (390, 844)}
_PATIENCE = 60_000  # milliseconds


def take(browser: Browser, address: str, name: str) -> None:
    """Generate once and save an image of the whole page."""
    width, height = SIZES[name]
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=1)
    page = context.new_page()
    page.goto(address)
    page.locator("#generate").click(timeout=_PATIENCE)
    expect(page.locator('#message [data-state="finished"]')).to_be_visible(timeout=_PATIENCE)
    page.screenshot(path=FOLDER / f"{name}.png", full_page=True)
    context.close()


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in SIZES:
            take(browser, sys.argv[1], name)
        browser.close()


if __name__ == "__main__":
    main()
