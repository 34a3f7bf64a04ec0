"""With the largest accepted policies, jobs are still submitted, admitted, recovered and settled."""

import bisect
import json
from collections.abc import Callable
from typing import Any

import pytest

from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.policy import Policy, PolicyError, changed
from evenkeel.domain.policy_section import Mode
from evenkeel.ports import LARGEST_ROW, row_bytes
from evenkeel.runtime.api import LARGEST_BODY
from evenkeel.services.admin import change_policy
from tests.fakes.cluster import CLUSTER
from tests.unit.services_jobs.job_scenario import JobScenario
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario

WIDE = "\U0001f600"
NAME = "n" * 240
Build = Callable[[int], dict[str, Any]]


def a_pool(n: int) -> dict[str, Any]:
    return {
        "name": f"{n:04d}{NAME}",
        "cluster": CLUSTER,
        "market": "spot",
        "instanceType": "p5.48xlarge",
        "zone": "z" * 253,
        "acceleratorsPerNode": 8,
        "maxNodes": 8,
        "microsPerNodeHour": 30_000_000,
        "launch": {"p50Seconds": 60, "p90Seconds": 120},
        "place": {"accelerator": "h100", "storage": {"s" * 253: WIDE * 300}},
        "taints": [f"{'t' * 150}=v:NoSchedule"],
        "labels": {"l" * 250: "v" * 250},
    }


def a_job_type(n: int) -> dict[str, Any]:
    return {f"t{n:03d}": {"image": "registry/llama:1", "env": {"E": WIDE * 1000}, "args": ['"' * 1000]}}


SECTIONS: dict[str, Build] = {
    "name and modes": lambda n: {
        "name": WIDE * 300,
        "modes": [{"faultClass": "hardware", "pool": f"{n}{NAME}"[:253], "mode": "observe"} for n in range(n)],
    },
    "pools to rent from": lambda n: {
        "burst": {
            "pools": [a_pool(number) for number in range(n)],
            "fleetCapMicrosPerHour": 10**12,
            "otherTeamCapMicrosPerHour": 10**12,
            "otherDelayMicrosPerHour": 10**12,
        }
    },
    "caps": lambda n: {"burst": {"teamCapsMicrosPerHour": {f"{number}{NAME}": 10**15 for number in range(n)}}},
    "reservations": lambda n: {
        "scheduling": {
            "reservations": [
                {
                    "cluster": CLUSTER,
                    "pool": f"{number}{NAME}",
                    "startsAt": "2026-11-01T00:00:00Z",
                    "endsAt": "2027-11-01T00:00:00Z",
                }
                for number in range(n)
            ]
        }
    },
    "spare nodes": lambda n: {"scheduling": {"spareNodes": {f"{number}{NAME}": 1 for number in range(n)}}},
    "job types": lambda n: {
        "jobTypes": {"types": {k: v for number in range(n) for k, v in a_job_type(number).items()}}
    },
    "pools of a job type": lambda n: {
        "jobTypes": {
            "default": "all",
            "types": {
                "all": {
                    "pools": ["p5-workers", *(f"p{number}" for number in range(n))],
                    "tolerations": [{"key": NAME, "value": NAME}] * n,
                }
            },
            "pools": {f"p{number}": {"labels": {"k" * 200: "v" * 200, "l" * 200: "v" * 200}} for number in range(n)},
        }
    },
    "storage": lambda n: {"storage": {CLUSTER: {f"{number}{NAME}": WIDE * 300 for number in range(n)}}},
    "faults": lambda n: {"faults": {"xid:79": {"ladder": ["reboot"] * n}}},
    "prices": lambda n: {
        "economy": {
            "prices": [
                {
                    "instanceType": "ml.p5.48xlarge",
                    "pool": f"{number}{NAME}",
                    "basis": "capacity-block",
                    "from": "2026-11-01",
                    "until": "2027-11-01",
                    "usdPerNodeHour": 9_999.25,
                }
                for number in range(n)
            ]
        }
    },
    "test job": lambda n: {"repair": {"testJobImage": "i" * 512, "testJobCommand": [WIDE * 2000] * n}},
}


def body_size(changes: dict[str, Any]) -> int:
    return len(json.dumps({"changes": changes, "reason": "r"}, ensure_ascii=False).encode())


def largest_changes(build: Build) -> dict[str, Any]:
    """Return the largest changes that fit one request and that the policy accepts."""
    count = bisect.bisect_right(range(1, 20_000), LARGEST_BODY, key=lambda number: body_size(build(number)))
    while count > 1:
        try:
            changed(QUICK, build(count))
        except PolicyError:
            count //= 2
        else:
            break
    return build(count)


@pytest.mark.parametrize("name", SECTIONS)
def test_largest_policy_lets_jobs_run_and_recover(name: str) -> None:
    changes = largest_changes(SECTIONS[name])
    policy = changed(QUICK, changes)
    scenario = JobScenario(size=4, policy=policy)
    for n in range(3):
        request = change_policy.ChangePolicyRequest(
            changes=changes, by="b" * 100, reason=WIDE * 300, request_id=f"r{n}", fingerprint="f"
        )
        change_policy.run(request, ledger=scenario.ledger, base=QUICK, now=scenario.world.clock.now())
    jobs = [scenario.submit(f"key-{n}").job_id for n in range(30)]

    scenario.run_scheduling_cycle()
    started = [job for job in jobs if scenario.job(job).state is JobState.STARTING]
    for job_id in started:
        scenario.run_attempt(job_id, 1)
        scenario.world.cluster.fail_pods(job_id, 1)
        scenario.settle(job_id)
    scenario.sweep()
    scenario.run_scheduling_cycle()

    assert len(started) == 2
    assert all(scenario.job(job).reason != "The job waits for the next scheduling cycle." for job in jobs)
    assert scenario.world.telemetry.totals["WritesRejected"] == 0
    recovery = RecoveryScenario(policy=policy, mode=Mode.ACT)
    recovery.report_fault()
    assert recovery.recover() == "RECOVERED"
    for world in (scenario.world, recovery.world):
        assert all(row_bytes(row) < LARGEST_ROW for row in world.ledger.rows.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "two\nlines"},
        {"modes": [{"pool": "p" * 254, "mode": "act"}]},
        {"modes": [{"faultClass": "caf\u00e9", "mode": "act"}]},
        {"burst": {"capacityPodImage": "an image"}},
        {"repair": {"testJobCommand": ["\x1b[2J"]}},
        {"jobTypes": {"types": {"t": {"env": {"E": "\x00"}}}}},
        {"jobTypes": {"types": {"t": {"tolerations": [{"key": "a b"}]}}}},
        {"storage": {"c": {"claim": "fs\u202e"}}},
        {"scheduling": {"spareNodes": {"a pool": 1}}},
        {"jobTypes": {"types": {"t": {"pools": [f"p{n}" for n in range(21)]}}}},
    ],
)
def test_policy_text_with_invalid_characters_or_size_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        changed(Policy(), changes)
