"""The headless browser of the tests: from `make setup`, or else from the machine."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).resolve().parent.parent / ".tools" / "browser"
AXE = FOLDER / "axe.min.js"
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_NO_BROWSER = (
    "There is no browser: `make setup` fetches one where npm is installed (x86_64), and Chromium on the PATH is used "
    "elsewhere. The pages of the console were not tested."
)
_NO_AXE = "There is no axe: `make setup` fetches it where npm is installed. Accessibility was not tested."
_FLAGS = (
    "--no-sandbox",  # containers often run the tests as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
)


def program() -> str | None:
    """Return the path of the browser; None if there is none."""
    pinned = FOLDER / "chromium"
    return str(pinned) if pinned.exists() else next(filter(None, map(shutil.which, _PROGRAMS)), None)


def axe_source() -> str:
    """Return the script of axe. Skip the test with the reason if there is none."""
    if not AXE.exists():
        pytest.skip(_NO_AXE)
    return AXE.read_text(encoding="utf-8")


@contextmanager
def running() -> Iterator[Browser]:
    """Start the browser. Skip the test with the reason if there is none."""
    path = program()
    if path is None:
        pytest.skip(_NO_BROWSER)
    libraries = f"{FOLDER / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment: dict[str, str | float | bool] = {
        **os.environ,
        "LD_LIBRARY_PATH": libraries,
        "FONTCONFIG_PATH": str(FOLDER) if not Path("/etc/fonts/fonts.conf").exists() else "/etc/fonts",
    }
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(_FLAGS), env=environment)
        yield browser
        browser.close()
