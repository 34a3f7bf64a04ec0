"""The age of every source of facts: what `status`, the metrics and `doctor` go by."""

from collections.abc import Sequence
from datetime import datetime

from evenkeel.domain.policy import Policy
from evenkeel.domain.sources import SourceAge, expected_sources, judge
from evenkeel.ports import Ledger
from evenkeel.services import heartbeats


def run(
    ledger: Ledger,
    *,
    clusters: Sequence[str],
    has_hyperpod: bool,
    policy: Policy,
    now: datetime,
    is_running: bool = True,
) -> tuple[SourceAge, ...]:
    """Return the age of every source that the fleet should have, by the reports of all functions."""
    expected = expected_sources(clusters, has_hyperpod=has_hyperpod)
    return judge(expected, heartbeats.load(ledger), policy.sources, now, is_running=is_running)
