"""Take the pictures of the console for README and docs, from a fleet that the tests describe.

.venv/bin/python -m tools.screenshots     writes docs/images
"""

import sys
import tempfile
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import BurstPolicy
from evenkeel_cli.commands import lookup
from evenkeel_cli.console.server import ConsoleServer
from tests import browser
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER
from tests.unit.api.gateway import ACCOUNT, Gateway
from tests.unit.api.seeds import store_heartbeats
from tests.unit.cli.busy_fleet import store_busy_fleet
from tests.unit.cli.conftest import CliFixture
from tests.unit.scheduling.test_renting import POOL

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
RENTED_POOL = POOL.replace(name="p5-on-demand", cluster=CLUSTER)
SIZES = {"wide": (1280, 900), "large": (1920, 1080), "phone": (390, 844)}
PICTURES = (
    ("overview", "", "wide", "light"),
    ("overview-dark", "", "large", "dark"),
    ("overview-phone", "", "phone", "light"),
    ("incident", "incidents/inc-0000000001", "wide", "light"),
    ("queue", "queue", "wide", "dark"),
)
"""Name, route in the console, size and theme of each picture."""


def main() -> int:
    """Write every picture, and print its path."""
    operator = f"arn:aws:iam::{ACCOUNT}:role/Researcher"  # otherwise decisions about the jobs of teams are withheld
    burst = BurstPolicy(pools=(RENTED_POOL,), fleet_cap_micros_per_hour=900_000_000)
    gateway = Gateway(FakeWorld(policy=Policy(burst=burst)), {"OPERATOR_PRINCIPALS": operator})
    store_heartbeats(gateway.fakes.ledger)
    store_busy_fleet(gateway)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, browser.running() as chromium:
        api = CliFixture(gateway, Path(folder), patch)
        server = ConsoleServer(lookup.current_client())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium.new_context().new_page()
        page.goto(server.link)
        page.wait_for_selector(".panel")
        for name, route, size, theme in PICTURES:
            width, height = SIZES[size]
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            page.evaluate("route => { location.hash = `#/${route}`; }", route)
            page.wait_for_load_state("networkidle")
            expect(page.locator("main .loading")).to_have_count(0)
            path = IMAGES / f"console-{name}.png"
            page.screenshot(path=path)
            print(path)
        server.shutdown()
        api.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
