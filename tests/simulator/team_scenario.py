"""Teams with quotas, in every sixth seed: their jobs, and actions of people on both.

These seeds draw from their own random source, so seeds without teams stay unchanged.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import Job, JobState
from evenkeel.domain.kueue.objects import StopPolicy
from evenkeel.domain.quotas.teams import FleetQuotas, Team, TeamSetup
from evenkeel.ports import Put, Write
from evenkeel.services.admin import set_quotas
from evenkeel.services.jobs import set_priority, suspend_job
from evenkeel.services.jobs.check_role import Requester
from evenkeel.services.storage import team_setup
from evenkeel.services.tables import job_rows, quota_rows, rows
from tests.fakes.cluster import CLUSTER, GPUS

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

EVERY = 6
"""Every sixth seed has teams: such a seed takes twice the time."""
_MAX_OVERCLAIM = 0.6
"""Share of these seeds in which a team borrows quota before its owners submit jobs."""
_CHANGE_SHARE = 0.7
"""Share of preemptions after which the preempting job is suspended and later resumed."""
NAMES = ("blue", "gold", "green", "red")
RIVALS = "violet"
SUCCESSORS = "white"
"""A team with quota for one job, and two jobs that need it."""
_CONTESTS = 0.6
"""Share of the seeds with teams in which this team exists."""
COHORT = "fleet"
CLASSES = {"low": 0, "high": 50, "critical": 100}
_OURS, _SPOT = "ml.p5.48xlarge", "p5.48xlarge"
_GPU = "nvidia.com/gpu"
_LATER = 10
"""Name prefix of the jobs submitted while other jobs run."""
_RIVAL = 20
"""Numbers of the two jobs that need the same quota."""
_SUCCESSION = 40
"""Numbers of two jobs: the older is interrupted while the younger waits."""
_LATEST = 30
"""Name prefix of the jobs that overtake other jobs."""
PEOPLE = tuple(Requester(principal=name, identity=f"111122223333:role/{name}", actor=name) for name in ("ana", "bea"))
"""Ana leads every team; Bea submits."""
PERSON_ACTIONS = ("suspend", "resume", "rank", "quota", "drain", "unmanaged pod", "overtake", "give back", "interrupt")
KINDS = ("fair sharing", "a strict queue", "budgets", "limits per member", "queues by use", "cohorts in cohorts")
OUTCOMES = ("PREEMPT", "NO_QUOTA", "LIMIT_REACHED", "EXCLUDED", "WAIT", "BLOCKED")
"""Decisions that at least one seed must make."""


@dataclass
class EvictionCounter:
    """Preemptions between pairs of jobs, for the checks."""

    at: dict[frozenset[str], datetime] = field(default_factory=dict)
    """Time of the last preemption between two jobs."""
    turns: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(preempting job, preempted job) → preemptions since the last start of the preempting job."""


class TeamScenario:
    """The teams of one seed."""

    def __init__(self, world: "Simulation", rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.names = NAMES[: rng.choice((2, 2, 3, 4))]
        self.greedy = self.names[0] if rng.random() < _MAX_OVERCLAIM else ""
        """A team whose early jobs borrow quota that other teams reclaim."""
        self.evictions = EvictionCounter()
        self._overtakes = rng.choice((0, 0, 1, 2))
        """Number of admissions that pause before their commit, while another writer commits."""
        self._random_changes = random.Random(f"{world.seed} whims")
        """Random source of the suspensions after a preemption."""
        self._asked: dict[int, dict[str, Any]] = {}
        """Fields of some jobs, by number."""
        self._known: tuple[int, TeamSetup] = (0, TeamSetup())

    @property
    def setup(self) -> TeamSetup:
        """The current setup, as stored in the tables."""
        row = self.world.ledger.rows.get(quota_rows.setup_key())
        version = row.version if row else 0
        if version != self._known[0]:
            with self.world.outside_function():
                self._known = (version, team_setup.load_setup(self.world.ledger).setup)
        return self._known[1]

    # ------------------------------------------------------------ the set-up

    def schedule_events(self, chaos_seconds: float) -> None:
        """Set up the teams, submit their jobs, and schedule the actions of people."""
        world, rng = self.world, self.rng
        world.log(f"the fleet is shared by {', '.join(self.names)}")
        world.ledger.before_commit = self._disturb_cycle
        self._set_up(self._fleet(), 0)
        for name in self.names:
            self._set_up(self._team(name), 0)
        for number in range(_LATER, _LATER + rng.choice((1, 2, 3))):
            self._submit_after(rng.uniform(10, chaos_seconds), number)
        if self._random_changes.random() < _CONTESTS:
            self._add_quota_contest()
        if world.ledger.lag:
            self._add_succession()
        for _ in range(rng.choice((1, 2, 3, 4))):
            world.loop.after(rng.uniform(3, chaos_seconds + 60), self._choose_action())
        for _ in range(rng.choice((0, 2, 4))):
            # The minute's cycle does not use the queue, so it may run beside another cycle.
            world.loop.after(rng.uniform(3, chaos_seconds), lambda: world.invoke_scheduled("schedule_jobs"))

    def _fleet(self) -> FleetQuotas:
        rng = self.rng
        self.is_nested = rng.random() < 0.2
        own = {"groups": [{_OURS: {_GPU: GPUS}}]} if rng.random() < 0.5 else {}
        cohorts = [{"name": COHORT, "parent": "company", **own}, {"name": "company"}] if self.is_nested else []
        is_fair = rng.random() < 0.5
        self._count_occurrence("fair sharing", is_fair)
        self._count_occurrence("cohorts in cohorts", self.is_nested)
        return FleetQuotas.model_validate(
            {
                "cohorts": cohorts,
                "priority_classes": CLASSES,
                "fair_sharing": is_fair,
                "switches": {
                    "flap_guard_seconds": rng.choice((3600.0, 3600.0, 60.0, 0.0)),
                    "min_run_seconds": rng.choice((0.0, 0.0, 30.0)),
                },
                "members": [_member("ana", "lead")],
            }
        )

    def _team(self, name: str) -> Team:
        rng = self.rng
        is_alone = rng.random() < 0.15
        quota: dict[str, Any] = {"nominal": self._nominal()}
        if not is_alone:
            quota["borrow"] = rng.choice((None, None, 0, GPUS, 2 * GPUS))
            quota["lend"] = rng.choice((None, None, None, 0, GPUS))
            quota["lend"] = quota["lend"] if quota["lend"] is None else min(quota["lend"], quota["nominal"])
        group = {_OURS: {_GPU: quota}}
        if self.world.spot or self.world.renting:
            group[_SPOT] = {_GPU: {"nominal": rng.choice((0, GPUS)) if self.world.renting is None else 2 * GPUS}}
        reclaim = rng.choice(("Never", "LowerPriority", "Any", "Any"))
        rng.random()  # drawn and not used, so that seeds stay unchanged
        document: dict[str, Any] = {
            "name": name,
            "members": [_member("bea", "submitter")],
            "namespace": name,
            "queue": {
                "cohort": "" if is_alone else COHORT,
                "groups": [group],
                "weight": rng.choice((1.0, 1.0, 2.0, 0.0)),
                "preemption": {
                    "within": rng.choice(("Never", "LowerPriority", "LowerPriority", "LowerOrNewerEqualPriority")),
                    "reclaim": reclaim,
                    "borrow_within": reclaim != "Never" and rng.random() < 0.2,
                },
                "strategy": "StrictFIFO" if rng.random() < 0.25 else "BestEffortFIFO",
                "by_use": rng.random() < 0.2,
            },
        }
        if rng.random() < 0.25:
            document["budgets"] = [{"period": rng.choice(("day", "month")), "gpu_hours": rng.choice((0.2, 0.5, 1.0))}]
        if rng.random() < 0.35:
            document["max_accelerators_per_user"] = rng.choice((GPUS, GPUS, 2 * GPUS))
        self._count_occurrence("a strict queue", document["queue"]["strategy"] == "StrictFIFO")
        self._count_occurrence("budgets", "budgets" in document)
        self._count_occurrence("limits per member", "max_accelerators_per_user" in document)
        self._count_occurrence("queues by use", document["queue"]["by_use"])
        if self.greedy:
            self._let_borrow(document)
        return Team.model_validate(document)

    def _let_borrow(self, submission: dict[str, Any]) -> None:
        """Let a team borrow, or lend and reclaim."""
        is_greedy = submission["name"] == self.greedy
        share = max(1, self.world.size // (len(self.names) - 1))
        for limit in ("budgets", "max_accelerators_per_user") if is_greedy else ():
            submission.pop(limit, None)
        queue = submission["queue"]
        queue["cohort"] = COHORT
        borrow = self.rng.choice((None, GPUS, 2 * GPUS)) if is_greedy else None
        queue["groups"][0][_OURS][_GPU] = {"nominal": 0 if is_greedy else GPUS * share, "borrow": borrow}
        if not is_greedy:
            queue["preemption"]["reclaim"] = self.rng.choice(("LowerPriority", "Any", "Any"))

    def _nominal(self) -> int:
        """Return a quota, in nodes. If it exceeds the fleet, jobs wait for nodes."""
        share = max(1, self.world.size // len(self.names))
        return GPUS * self.rng.choice((0, 1, 1, share, share, share, self.world.size))

    def _count_occurrence(self, kind: str, there_is: bool) -> None:
        self.world.seen[f"teams {kind}"] += there_is

    def _set_up(self, part: Team | FleetQuotas, expected: int) -> None:
        if isinstance(part, Team) and not part.namespace:
            part = part.replace(namespace=part.name)  # no two teams share a namespace
        request = set_quotas.SetQuotasRequest(part=part, expected=expected, by="role/platform", reason="A plan.")
        world = self.world
        name = part.name if isinstance(part, Team) else "the settings of all teams"
        world.person(
            f"the platform sets up {name}",
            lambda: set_quotas.run(request, world.world.context()),
            must_succeed=not expected,
        )

    # ------------------------------------------------------------ jobs

    def _add_quota_contest(self) -> None:
        """Submit a job of higher value while another job of its team uses the whole quota."""
        group = {_OURS: {_GPU: GPUS}}
        queue = {"groups": [group], "preemption": {"within": "LowerPriority"}}
        self._set_up(_team_of(RIVALS, queue), 0)
        arrives_at = self._random_changes.uniform(0, 5)
        for number, priority_class in enumerate(("low", "critical"), _RIVAL):
            submission = {"team": RIVALS, "nodes": 1, "priority_class": priority_class, "accelerators_per_node": GPUS}
            self._asked[number] = submission
            submit = functools.partial(self.world.submit, number, 1, 200.0, keeps=True, finishes=False)
            self.world.loop.after(arrives_at, submit)
            arrives_at += self._random_changes.uniform(15, 60)

    def _add_succession(self) -> None:
        """Interrupt a job that holds the whole quota of its team while a younger equal job waits."""
        queue = {"groups": [{_OURS: {_GPU: GPUS}}]}
        self._set_up(_team_of(SUCCESSORS, queue), 0)
        for number, arrives_at in enumerate((1.0, 20.0), _SUCCESSION):
            self._asked[number] = {"team": SUCCESSORS, "nodes": 1, "priority_class": "", "accelerators_per_node": GPUS}
            submit = functools.partial(self.world.submit, number, 1, 300.0, keeps=True, finishes=False)
            self.world.loop.after(arrives_at, submit)
        for after in (40.0, 55.0, 70.0):
            self.world.loop.after(after, self.world.counting("action", "interrupt", self._delete_job))

    def _delete_job(self) -> None:
        """Delete the Kubernetes Job of the older job without telling Evenkeel."""
        name = f"train-{_SUCCESSION}"
        docs = [row.doc for row in self.world.ledger.of("META", "JOB#") if row.doc["spec"]["name"] == name]
        for doc in docs:
            self.world.log(f"a person deletes the Kubernetes Job of {doc['jobId']}")
            row = self.world.ledger.rows.get(job_rows.attempt_key(doc["jobId"], doc["currentAttempt"]))
            if row is not None:
                self.world.cluster.stop(rows.decode(row, Attempt), 5)

    def add(self, name: str, queue: dict[str, Any]) -> None:
        """Set up one more team. `set_job_fields` describes its jobs."""
        self._set_up(_team_of(name, queue), 0)

    def set_job_fields(self, number: int, **parameters: Any) -> None:
        """Set the fields of a job that is submitted later."""
        self._asked[number] = {"accelerators_per_node": GPUS, **parameters}

    def job_fields(self, number: int, nodes: int) -> dict[str, Any]:
        """Return the fields of a submitted job of this setup; later jobs have a higher value."""
        if number in self._asked:
            return self._asked[number]
        is_first = number < _LATER
        classes = ("", "low", "low", "high") if is_first else ("low", "high", "high", "critical")
        team = self.greedy if is_first and self.greedy else self.rng.choice(self.names)
        if team == self.greedy:
            nodes = max(1, self.rng.choice((nodes, self.world.size // 2, self.world.size - 1)))
        return {
            "team": team,
            "nodes": nodes,
            "priority_class": self.rng.choice(classes),
            "accelerators_per_node": self.rng.choice((GPUS, GPUS, GPUS, GPUS // 2)),
        }

    def submitter(self) -> Requester:
        return self.rng.choice((*PEOPLE, PEOPLE[0]))

    def _disturb_cycle(self, writes: tuple[Write, ...]) -> None:
        self._suspend_preemptor(writes)
        self._race_cycle(writes)

    def _suspend_preemptor(self, writes: tuple[Write, ...]) -> None:
        """Suspend a preempting job, and resume it after the preempted job runs again."""
        world, whims = self.world, self._random_changes
        jobs = [write.row.doc for write in writes if isinstance(write, Put) and write.row.key.sk == "META"]
        stop_owners = [
            str((doc.get("stopRequest") or {}).get("by", "")) for doc in jobs if doc.get("state") == "RUNNING"
        ]
        winners = [by.removeprefix("schedule_jobs/") for by in stop_owners if by.startswith("schedule_jobs/job-")]
        if not winners or world.faults_ended or whims.random() > _CHANGE_SHARE:
            return
        world.seen["action give back"] += 1
        suspended, resumed = whims.uniform(10, 60), whims.uniform(30, 90)
        world.loop.after(suspended, lambda: self._suspend(winners[0]))
        world.loop.after(suspended + resumed, lambda: self._resume(winners[0]))

    def _race_cycle(self, writes: tuple[Write, ...]) -> None:
        """Pause a cycle right before it admits a job, while another writer commits or the quota is removed."""
        world = self.world
        if not self._overtakes or world.faults_ended:
            return
        charges = [write.row.doc for write in writes if isinstance(write, Put) and _is_admission(write)]
        charges = [charge for charge in charges if charge["team"] in (*self.names, RIVALS)]
        if not charges:
            return
        self._overtakes -= 1
        world.seen["action overtake"] += 1
        if self.rng.random() < 0.5:
            # No other cycle runs, so no job gets a new reason: only the version of the tree changes.
            world.loop.after(0.1, lambda: self._change(charges[0]["team"], _without_quota))
            world.chaos.pause("the commit of an admission", 0.2)
            return
        number, nodes = _LATEST + self._overtakes, len(charges[0]["nodeNames"])
        self._asked[number] = {
            "team": charges[0]["team"],
            "nodes": nodes,
            "accelerators_per_node": charges[0]["accelerators"] // nodes,
            "priority_class": "critical",
        }
        world.loop.after(0.1, functools.partial(world.submit, number, nodes, 30.0, keeps=True, finishes=False))
        world.loop.after(0.4, lambda: world.invoke_scheduled("schedule_jobs"))
        world.chaos.pause("the commit of an admission", 1.0)

    def _submit_after(self, delay_seconds: float, job_number: int) -> None:
        nodes = self.rng.choice((1, 1, 2, min(3, self.world.size)))
        length, keeps = self.rng.choice((30.0, 80.0, 200.0)), self.rng.random() < 0.7
        submit = functools.partial(self.world.submit, job_number, nodes, length, keeps=keeps, finishes=False)
        self.world.loop.after(delay_seconds, submit)

    # ------------------------------------------------------------ people

    def _choose_action(self) -> Callable[[], None]:
        kind = self.rng.choice((*PERSON_ACTIONS[:-3], "suspend", "quota"))
        number, seconds = self.rng.randrange(100), self.rng.uniform(20, 120)
        actions: dict[str, Callable[[], None]] = {
            "suspend": lambda: self._suspend_some(number, seconds),
            "resume": lambda: self._resume(self._choose_job(number, is_suspended=True)),
            "rank": lambda: self._change_priority(number),
            "quota": lambda: self._change_quota(number),
            "drain": lambda: self._drain(number, seconds),
            "unmanaged pod": lambda: self._run_unmanaged_pod(number, seconds),
        }
        return self.world.counting("action", kind, actions[kind])

    def _choose_job(self, number: int, *, is_suspended: bool = False) -> str:
        """Return the id of a job that has not ended; empty if there is none."""
        job_ids = [
            job.job_id
            for job in self._jobs()
            if not job.state.has_ended and job.state is not JobState.STOPPING and job.is_suspended >= is_suspended
        ]
        return job_ids[number % len(job_ids)] if job_ids else ""

    def _jobs(self) -> list[Job]:
        kept = self.world.ledger.rows.items()
        return [rows.decode(row, Job) for key, row in kept if key.pk.startswith("JOB#") and key.sk == "META"]

    def _suspend_some(self, number: int, seconds: float) -> None:
        job_id = self._choose_job(number)
        self._suspend(job_id)
        if number % 3:
            self.world.loop.after(seconds, lambda: self._resume(job_id))

    def _suspend(self, job_id: str) -> None:
        self._act_on_job(job_id, "suspends", suspend_job.suspend, "later")

    def _resume(self, job_id: str) -> None:
        self._act_on_job(job_id, "resumes", suspend_job.resume, "now")

    def _act_on_job(self, job_id: str, verb: str, service: Callable[..., Any], reason: str) -> None:
        world = self.world
        if job_id:
            request = suspend_job.JobChangeRequest(job_id=job_id, requester=PEOPLE[0], reason=reason)
            world.person(
                f"ana {verb} {job_id}",
                lambda: service(request, world.world.context()),
            )

    def _change_priority(self, number: int) -> None:
        job_id, world = self._choose_job(number), self.world
        if not job_id:
            return
        row = world.ledger.rows[job_rows.job_key(job_id)]
        request = set_priority.SetPriorityRequest(
            job_id=job_id, priority_class=sorted(CLASSES)[number % 3], expected=row.version, requester=PEOPLE[0]
        )
        world.person(
            f"ana makes {job_id} {request.priority_class}",
            lambda: set_priority.run(request, world.world.context()),
        )

    def _change_quota(self, number: int) -> None:
        """Change the quota and limits of a team."""
        drawn = self._team(self.names[number % len(self.names)])
        self._change(drawn.name, lambda team: drawn.replace(namespace=team.namespace))

    def _drain(self, number: int, seconds: float) -> None:
        """Stop a queue, and in most cases restart it later."""
        name = self.names[number % len(self.names)]
        stop = StopPolicy.HOLD if number % 4 == 0 else StopPolicy.HOLD_AND_DRAIN
        self._change(name, lambda team: _stopped(team, stop))
        if number % 5:
            self.world.loop.after(seconds, lambda: self._change(name, lambda team: _stopped(team, StopPolicy.NONE)))

    def _change(self, name: str, changed: Callable[[Team], Team]) -> None:
        with self.world.outside_function():
            stored_setup = team_setup.load_setup(self.world.ledger)
        team = stored_setup.setup.by_name.get(name)
        if team is not None:
            self._set_up(changed(team), stored_setup.version_of(name))

    def _run_unmanaged_pod(self, number: int, seconds: float) -> None:
        """Let a person run an unmanaged pod on free nodes for a while."""
        cluster = self.world.cluster
        used = cluster.accelerators_in_use(CLUSTER)
        free = [node for node in cluster.by_name.values() if node.is_ready and not used.get(node.name)]
        if not free:
            return
        node = free[number % len(free)]
        pod = UnmanagedPod(
            namespace="other", name=f"own-{number}", uid=f"own-{number}", node_name=node.name, accelerators=GPUS
        )
        self.world.log(f"an unmanaged pod runs on {node.name} for {seconds:.0f} s")
        cluster.unmanaged.append(pod)
        self.world.ingest()

        def end() -> None:
            if pod in cluster.unmanaged:
                cluster.unmanaged.remove(pod)
                self.world.ingest()

        self.world.loop.after(seconds, end)


def _is_admission(put: Put) -> bool:
    return put.row.key.sk.startswith("CHARGE#") and rows.decode(put.row, Charge).is_live


def _without_quota(team: Team) -> Team:
    nothing: dict[str, int] = {"nominal": 0, **({"borrow": 0} if team.queue.cohort else {})}
    groups = [{flavor: {_GPU: nothing} for flavor in group} for group in team.queue.groups]
    return Team.model_validate({**team.to_json(), "queue": {**team.queue.model_dump(), "groups": groups}})


def _stopped(team: Team, stop: StopPolicy) -> Team:
    return team.replace(queue=team.queue.model_copy(update={"stop": stop}))


def _team_of(name: str, queue: dict[str, Any]) -> Team:
    """Return a team that has a namespace of its own, as two or more teams must."""
    members = [_member("bea", "submitter")]
    return Team.model_validate({"name": name, "members": members, "namespace": name, "queue": queue})


def _member(name: str, role: str) -> dict[str, str]:
    return {"principal": f"arn:aws:iam::111122223333:role/{name}", "role": role}
