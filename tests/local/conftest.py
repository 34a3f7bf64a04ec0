"""A shared data centre for tests that need engine, GPU cluster and the deployed template."""

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from evenkeel_local.data_centre import DataCentre


EARLIER_POLICIES: set[str] = set()
"""Hashes of the policies of earlier releases that a test deployed."""


@pytest.fixture(scope="session")
def data_centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator["DataCentre"]:
    """The data centre of the demo, for the session. A test leaves its nodes healthy and its jobs ended.

    At the end, every recorded decision must replay to the same answer from its own facts.
    """
    from evenkeel_local.data_centre import DataCentre  # tests of single parts run without it
    from evenkeel_local.drills.decision_replay import replay_mismatches

    with DataCentre.start(tmp_path_factory.mktemp("data-centre"), keeps_cluster=True) as running:
        yield running
        assert replay_mismatches(running, EARLIER_POLICIES) == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Any:
    """Add the state of the shared data centre to a failure: its status, and the newest incidents with their outcome."""
    report = yield
    centre: Any = item.funcargs.get("data_centre")
    if report.when == "call" and report.failed and centre is not None:
        with contextlib.suppress(Exception):  # the report of the failure must not fail
            client = centre.client()
            status = client.get("/status")
            shown = {name: status[name] for name in ("reasons", "nodes", "unhealthy", "cordons")}
            report.sections.append(("status of the data centre", json.dumps(shown, indent=1)))
            incidents = client.get("/incidents", pageSize=12)["items"]
            lines = [
                f"{incident['incidentId']} {incident['node']['instanceId']} {incident['fault']['name']}\n"
                f"  {incident['state']}: {incident['outcome']}"
                for incident in incidents
            ]
            report.sections.append(("newest incidents", "\n".join(lines)))
    return report
