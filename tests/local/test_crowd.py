"""Four passes, fifty submitters and three workers on the engine's DynamoDB, where now and then one of them dies.

The tables and their transactions are the engine's; nodes and workflows are twins in memory (`tests/crowd.py`).
"""

import uuid

import pytest

from evenkeel.domain.scheduling.jobs import JobState
from evenkeel_local.identities import Credentials, make_user
from tests import crowd
from tests.contract.test_ledger import make_tables


@pytest.mark.timeout(600)  # 200 jobs take a quiet machine half a minute, and a busy one its time
def test_every_version_of_the_tree_is_within_its_limits_and_nobody_is_lost_or_started_twice(
    deployer: Credentials,
) -> None:
    statement = {"Effect": "Allow", "Action": "dynamodb:*", "Resource": "*"}
    client = make_user(deployer, "crowd", [statement]).client("dynamodb")

    outcome = crowd.run(make_tables(client, f"crowd-{uuid.uuid4().hex[:8]}"), jobs=200, patience_seconds=500)

    assert outcome.errors == []
    assert outcome.faults == []
    assert (len(outcome.jobs), outcome.states) == (200, {JobState.SUCCEEDED})
    assert outcome.died > 0
    assert outcome.preempted > 0
    assert outcome.admissions == outcome.attempts
