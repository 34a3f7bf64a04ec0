"""A fleet of any size in memory: one running and one waiting job are made by the services, the rest are copies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from evenkeel.domain.jobs.attempt import Attempt, ObservedPod
from evenkeel.domain.waiting import ConditionKind
from evenkeel.ports import Key, Put, Row, Table, WorkflowName
from evenkeel.services.admin import set_quotas
from evenkeel.services.sweep import sweep_fleet
from evenkeel.services.tables import job_rows, quota_rows
from evenkeel.services.waits import open_wait
from tests.fakes import FakeWorld
from tests.fakes.cluster import CLUSTER, FakeWorkload, instance_id
from tests.unit.scheduling.test_sharing import a_team
from tests.unit.services_jobs.job_scenario import JobScenario

_RUNNING_SHARE: Final = 0.9
"""Largest share of the nodes that run a job, and of the jobs that run."""
_FITTING: Final = 10
"""Waiting jobs that fit on the free nodes; the other waiting jobs need more nodes than the fleet has free."""
_LARGEST_JOB: Final = 1024
"""Nodes of the largest job that a submission may ask for."""
_AT_ONCE: Final = 100


@dataclass(frozen=True)
class FleetSize:
    """Nodes and jobs of a fleet."""

    nodes: int
    jobs: int

    @property
    def running(self) -> int:
        """Jobs that run, each on one node."""
        return max(1, min(int(self.jobs * _RUNNING_SHARE), int(self.nodes * _RUNNING_SHARE)))

    @property
    def waiting(self) -> int:
        return max(1, self.jobs - self.running)

    def __str__(self) -> str:
        return f"{self.nodes:,} nodes, {self.jobs:,} jobs"


def build_world(size: FleetSize) -> tuple[FakeWorld, tuple[str, ...]]:
    """Return the world of a fleet after its first sweep, and the ids of its running jobs."""
    scenario = JobScenario(size=size.nodes)
    world = scenario.world
    running = scenario.running(nodes=1).job_id
    wait = {"kind": ConditionKind.ATTEMPT_ENDED, "token": "of-its-task", "job_id": running, "attempt": 1}
    open_wait.run(open_wait.OpenWaitRequest.model_validate(wait), scenario.context())
    world.workflows.start(WorkflowName.RUN_JOB, f"{running}-a1", {})
    free = size.nodes - size.running
    fitting = scenario.submit("fitting", nodes=1).job_id
    world.clock.advance(1)  # copies of the fitting job are older than the first large job
    large = scenario.submit("large", nodes=max(2, min(_LARGEST_JOB, 2 * free + 2))).job_id
    world.ledger.commits.clear()
    jobs = _copies(world, running, size.running, on_nodes=True)
    _copies(world, fitting, min(_FITTING, size.waiting), on_nodes=False)
    _copies(world, large, max(1, size.waiting - _FITTING), on_nodes=False)
    _set_usage(world, size.running)
    world.cycle_requests.reasons.clear()
    # A first sweep stores each node; the sweeps that count find nothing new.
    sweep_fleet.run(scenario.context())
    world.ledger.commits.clear()
    world.cluster.changes.clear()
    return world, jobs


def build_long_queue(nodes: int, pending: int, teams: int) -> FakeWorld:
    """Return the world of a fleet with queues that are too long for one cycle.

    Nine tenths of the nodes run a job of one node. In each queue, every tenth job fits, with its own number of nodes,
    and the other jobs ask for more nodes than are free.
    """
    scenario = JobScenario(size=nodes)
    world = scenario.world
    names = [f"team-{number:03d}" for number in range(teams)]
    quota = 8 * nodes // teams
    for name in names:
        team_part = a_team(name, quota, members=[{"principal": "arn:aws:iam::111122223333:role/ana"}])
        set_quotas.run(
            set_quotas.SetQuotasRequest(part=team_part, expected=0, by="role/Platform", reason="Quota."),
            world.context(),
        )
    team_nodes = int(nodes * _RUNNING_SHARE) // teams
    running = scenario.running(nodes=1, team=names[0]).job_id
    waiting = scenario.submit("waiting", nodes=2, team=names[0]).job_id
    for number, name in enumerate(names):
        _copies(world, running, team_nodes, on_nodes=True, first_number=number * team_nodes, swaps={names[0]: name})
    for number, name in enumerate(names):
        queue = _pending(world, waiting, pending // teams, name, names[0], number)
        for start in range(0, len(queue), _AT_ONCE):
            world.ledger.commit(*queue[start : start + _AT_ONCE])
    _set_usage(world, team_nodes, names)
    world.cycle_requests.reasons.clear()
    sweep_fleet.run(scenario.context())
    world.ledger.commits.clear()
    world.cluster.changes.clear()
    return world


def _pending(world: FakeWorld, job_id: str, count: int, team: str, first_team: str, number: int) -> list[Put]:
    """Return copies of a pending job's row for one queue."""
    row = world.ledger.get(job_rows.job_key(job_id))
    assert row is not None
    text, copies = json.dumps(row.doc), []
    for index in range(count):
        name = f"job-{(number + 1) * 10**6 + index:010d}"
        copy = _copy_of(row, text, _replacing({job_id: name, first_team: team}))
        copy.row.doc["spec"]["nodes"] = 1 + index % 4 if index % 10 == 9 else 30 + index % 300
        copies.append(copy)
    return copies


def _copies(
    world: FakeWorld,
    job_id: str,
    count: int,
    *,
    on_nodes: bool,
    first_number: int = 0,
    swaps: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Copy a job with all its rows until there are `count` of it; on nodes, each copy has the next node."""
    rows = [row for row in world.ledger.rows.values() if job_id in f"{row.key} {row.doc} {row.state}"]
    rows = [
        row for row in rows if row.key.table in (Table.JOBS, Table.QUOTAS, Table.INCIDENTS) and _is_own(row, job_id)
    ]
    stored = {row.key: _text(world, row.key) for row in rows}
    names = [job_id]
    writes: list[Put] = []
    jobs = world.cluster.jobs.get(CLUSTER, {})
    workload = next((candidate for (_, job, _), candidate in jobs.items() if job == job_id), None)
    first = int(workload.pods[0].node_name[-17:], 16) if workload and on_nodes else 0
    prefix, _, digits = job_id.partition("-")
    for number in range(max(1, first_number), first_number + count):
        # The new id has the same length, and sorts after the ids that the services made.
        name = f"{prefix}-{10 ** len(digits) // 2 + int(digits) * 10**6 + number:0{len(digits)}d}"
        node = number + 1 if number >= first else number
        names_of_node = {instance_id(first): instance_id(node)} if first else {}
        uids = {f'"{workload.uid}"': f'"{workload.uid}-{number}"'} if workload else {}
        swap = _replacing({job_id: name, **names_of_node, **uids, **(swaps or {})})
        writes += [_copy_of(row, stored[row.key], swap) for row in rows]
        names.append(name)
        if workload is not None:
            jobs[workload.spec.attempt.namespace, name, 1] = _workload_copy(workload, swap, f"{workload.uid}-{number}")
            world.workflows.start(WorkflowName.RUN_JOB, f"{name}-a1", {})
        while len(writes) >= _AT_ONCE:
            world.ledger.commit(*writes[:_AT_ONCE])
            del writes[:_AT_ONCE]
    world.ledger.commit(*writes)
    return tuple(names)


def _is_own(row: Row, job_id: str) -> bool:
    """Whether a row exists once for each job, so that a copy of the job has its own."""
    return job_id in row.key.pk or job_id in row.key.sk


def _text(world: FakeWorld, key: Key) -> str:
    row = world.ledger.get(key)
    assert row is not None
    return json.dumps(row.doc)


def _replacing(names: Mapping[str, str]) -> Callable[[str], str]:
    def swap(text: str) -> str:
        for old, new in names.items():
            text = text.replace(old, new)
        return text

    return swap


def _copy_of(row: Row, text: str, swap: Callable[[str], str]) -> Put:
    key = Key(row.key.table, swap(row.key.pk), swap(row.key.sk))
    state = (row.state[0], swap(row.state[1])) if row.state else None
    # Services expect the version that the original has, for example of a charge.
    return Put(Row(key, json.loads(swap(text)), 0, state, row.expires_at), first_version=row.version - 1)


def _workload_copy(workload: FakeWorkload, swap: Callable[[str], str], uid: str) -> FakeWorkload:
    attempt = Attempt.model_validate_json(swap(workload.spec.attempt.model_dump_json()))
    pods = [ObservedPod.model_validate_json(swap(pod.model_dump_json())) for pod in workload.pods]
    return FakeWorkload(dataclasses.replace(workload.spec, attempt=attempt), uid, pods)


def _set_usage(world: FakeWorld, running: int, teams: Iterable[str] = ("default",)) -> None:
    """Set the usage of each team to the sum of its running jobs."""
    for team in teams:
        key = quota_rows.usage_key(team)
        row = world.ledger.get(key)
        world.ledger.commit(Put(Row(key, {"accelerators": running * 8}, row.version if row else 0)))


def events_of(world: FakeWorld, count: int) -> Iterator[dict[str, Any]]:
    """Yield events of HyperPod about faulty nodes, one node after the other."""
    machines = sorted(world.provider.by_id)
    arn = "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9x2m7q1ab"
    reason = "HyperPod Health Monitoring Agent (HMA) has detected fault type NvidiaErrorReboot on this node."
    for number in range(count):
        yield {
            "version": "0",
            "id": f"event-{number}",
            "detail-type": "SageMaker HyperPod Cluster Node Health Event",
            "source": "aws.sagemaker",
            "account": "111122223333",
            "time": "2026-11-03T10:15:00Z",
            "region": "us-west-2",
            "resources": [arn],
            "detail": {
                "ClusterName": "research-train",
                "ClusterArn": arn,
                "InstanceId": machines[number % len(machines)],
                "Tags": {},
                "HealthSummary": {
                    "HealthStatus": "Unhealthy",
                    "HealthStatusReason": reason,
                    "RepairAction": "Reboot",
                    "Recommendation": "",
                },
            },
        }
