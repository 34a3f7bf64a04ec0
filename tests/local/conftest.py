"""A shared data centre for the tests that need the whole of it: engine, GPU cluster and the real template, deployed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from evenkeel_local.data_centre import DataCentre


@pytest.fixture(scope="session")
def data_centre(tmp_path_factory: pytest.TempPathFactory) -> Iterator["DataCentre"]:
    """The data centre of the demo, for the session. A test leaves its nodes healthy and its jobs ended.

    At the end, every recorded decision must replay to the same answer from its own facts.
    """
    from evenkeel_local.data_centre import DataCentre  # the tests of its parts run without it
    from evenkeel_local.drills.decision_replay import replay_mismatches

    with DataCentre.start(tmp_path_factory.mktemp("data-centre"), keeps_cluster=True) as running:
        yield running
        assert replay_mismatches(running) == []
