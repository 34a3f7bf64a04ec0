"""The net below all nets: compare ledger and world, and repeat what a crash left half done, by the same services.

Each step stands alone: one that fails is reported and comes again in the next round, and the others go on.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from evenkeel.domain.decisions import Decision
from evenkeel.domain.health.incidents import OPEN_STATES, Incident, IncidentState
from evenkeel.domain.nodes import FleetNode, KubernetesNode, Node, NodeLife, ProviderNode, join_nodes
from evenkeel.domain.policy import Mode, Policy
from evenkeel.domain.recovery.approval import is_approved
from evenkeel.domain.recovery.guardrails import Entry
from evenkeel.domain.recovery.leases import Lease, is_lemon
from evenkeel.domain.recovery.modes import mode_now
from evenkeel.domain.recovery.plan import not_allowed
from evenkeel.domain.recovery.seats import Holder
from evenkeel.domain.recovery.settling import runs_again_at
from evenkeel.domain.recovery.validation import Validity, expected_accelerators, judge_node
from evenkeel.domain.scheduling.attempts import judge_end, lost_nodes
from evenkeel.domain.scheduling.foreign import foreign_workloads
from evenkeel.domain.scheduling.jobs import Attempt, AttemptState, Job, JobState, PodPhase, WorkloadSeen
from evenkeel.domain.values import Value, rfc3339
from evenkeel.events import kubernetes_node
from evenkeel.ports import (
    Clock,
    Cluster,
    Conflict,
    Delete,
    EvenkeelError,
    ExecutionState,
    Ids,
    Ledger,
    Machine,
    Passes,
    Provider,
    Put,
    ReleaseResult,
    Row,
    Table,
    Telemetry,
    WaitAnswers,
    Workflows,
)
from evenkeel.services import (
    attempt_rows,
    evaluate_waits,
    guard_register,
    heartbeats,
    incident_record,
    locks,
    mark_running,
    note_group_fact,
    plan_resume,
    receive_event,
    record_pin,
    rows,
    schedule_jobs,
    settle_attempt,
    watch_cluster,
)
from evenkeel.services.guard_register import Which
from evenkeel.services.patient_answers import PatientWaitAnswers

WRITER = "sweep_fleet"
LOCK = "sweep"
_LOCK_SECONDS = 60
_GONE_KEPT = timedelta(days=30)
_PACES = {"ghosts": 50, "gauges": 50, "kept": 600}
"""Seconds between two runs of what need not be done in every round, where rounds come quicker than each minute."""
_FOREIGN_LISTED = 500
"""Workloads that are not ours and are remembered by name; each takes some 200 bytes of a row."""
_COUNTED = 1000
"""Rows that a gauge counts; past it the figure is a lower bound."""


class Outcome(Value):
    """What one round did."""

    outcome: str
    """`SWEPT`, or `HELD_BY_ANOTHER`."""
    mended: dict[str, int] = {}
    """What had been left half done, by step: the miss rate of everything above this net."""
    failed: tuple[str, ...] = ()
    """Steps that failed, and why."""


class World(NamedTuple):
    """The ports that a round needs."""

    ledger: Ledger
    cluster: Cluster
    provider: Provider
    workflows: Workflows
    wait_answers: WaitAnswers
    passes: Passes
    clock: Clock
    ids: Ids
    telemetry: Telemetry


def run(world: World, *, clusters: Sequence[str], policy: Policy, mode: Mode, drills_may_act: bool) -> Outcome:
    """Sweep once.

    Idempotent: yes, each step is, and a round that finds nothing amiss changes nothing but the heartbeat.
    """
    now = world.clock.now()
    lock = locks.take(world.ledger, LOCK, world.ids.new("op"), seconds=_LOCK_SECONDS, now=now)
    if lock is None:
        return Outcome(outcome="HELD_BY_ANOTHER")
    sweep = _Sweep(world, clusters, policy, mode, lock.notes, now, drills_may_act=drills_may_act)
    mended: dict[str, int] = {}
    failed: list[str] = []
    held: locks.Lock | None = lock
    for name, step in sweep.steps():
        held = locks.renew(world.ledger, held, now=world.clock.now()) if held else None
        if held is None:
            failed.append(f"{name}: the lock was lost")
            break
        if not sweep.is_due(name):
            continue
        try:
            count = step()
        except EvenkeelError as error:
            failed.append(f"{name}: {type(error).__name__}")
            world.telemetry.count("SweepStepsFailed", step=name)
            world.telemetry.warning(
                "A step of the sweep failed", step=name, error=type(error).__name__, detail=str(error)
            )
            continue
        if count:
            mended[name] = count
            world.telemetry.count("SweepMended", count, step=name)
    if held is not None:
        locks.release(world.ledger, held, now=world.clock.now(), notes=sweep.notes)
    heartbeats.beat(world.ledger, world.telemetry, WRITER, world.clock.now())
    return Outcome(outcome="SWEPT", mended=mended, failed=tuple(failed))


class _Sweep:
    """One round: the world as it is needed, each part read once, and the steps on it."""

    def __init__(
        self,
        world: World,
        clusters: Sequence[str],
        policy: Policy,
        mode: Mode,
        notes: Mapping[str, Any],
        now: datetime,
        *,
        drills_may_act: bool,
    ) -> None:
        self.world = world
        self.clusters = tuple(clusters)
        self.policy = policy
        self.mode = mode
        self.now = now
        self.drills_may_act = drills_may_act
        self.notes = dict(notes)
        """Where long lists were left off, for the next round."""
        self.pages_left = policy.watch.sweep_page_budget
        self.live: set[tuple[str, int]] = set()
        """Attempts that were seen not to be settled."""

    def steps(self) -> tuple[tuple[str, Callable[[], int]], ...]:
        """Return the steps in order; each returns how much it mended."""
        return (
            ("fleet", self.refresh_fleet),
            ("facts", self.tell_facts),
            ("unresolved", self.retry_unresolved),
            ("incidents", self.resume_incidents),
            ("rollbacks", self.take_back_jobs),
            ("ghosts", self.close_ghosts),
            ("registers", self.reconcile_registers),
            ("attempts", self.resume_attempts),
            ("workloads", self.clear_workloads),
            ("waits", self.answer_waits),
            ("arrivals", self.release_arrivals),
            ("gauges", self.measure),
            ("pass", self.ask_for_pass),
        )

    def is_due(self, name: str) -> bool:
        """Whether this is to be done in this round; remembers when it was."""
        pace = _PACES.get(name)
        if pace is None:
            return True
        done: dict[str, str] = self.notes.setdefault("doneAt", {})
        last = done.get(name)
        if last is not None and self.now - datetime.fromisoformat(last) < timedelta(seconds=pace):
            return False
        done[name] = rfc3339(self.now)
        return True

    # ------------------------------------------------------------ the world

    @cached_property
    def kubernetes(self) -> tuple[KubernetesNode, ...]:
        return tuple(node for cluster in self.clusters for node in self.world.cluster.nodes(cluster))

    @cached_property
    def records(self) -> tuple[ProviderNode, ...]:
        return self.world.provider.nodes()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return join_nodes(self.kubernetes, self.records, self.clusters[0])

    @cached_property
    def workloads(self) -> dict[tuple[str, int], tuple[str, WorkloadSeen]]:
        """Every attempt's Job and pods with its cluster, by job and attempt."""
        return {
            (seen.job_id, seen.attempt): (cluster, seen)
            for cluster in self.clusters
            for seen in self.world.cluster.workloads(cluster)
        }

    @cached_property
    def open_incidents(self) -> tuple[Incident, ...]:
        """Every incident that is open now, read from its own row: the index may lag behind."""
        found = []
        for state in OPEN_STATES:
            for listed in self.listed(Table.INCIDENTS, f"INC#{state}"):
                row = self.world.ledger.get(listed.key)
                incident = rows.read(row, Incident) if row else None
                if incident and not incident.state.is_settled:
                    found.append(incident)
        return tuple({incident.incident_id: incident for incident in found}.values())

    @cached_property
    def lemons(self) -> frozenset[str]:
        """The lives that are lemons now. A lease that holds the mark of what is over loses it."""
        found = set()
        for listed in self.listed(Table.FLEET, "LEMON"):
            row = self.world.ledger.get(listed.key)
            lease = rows.read(row, Lease) if row else None
            if row is None or lease is None or not lease.lemon:
                continue
            if is_lemon(lease, NodeLife.from_key(lease.lemon), self.policy.repair, self.now):
                found.add(lease.lemon)
                continue
            with contextlib.suppress(Conflict):  # a recovery holds it now: the next round sees
                self.world.ledger.commit(Put(rows.lease_row(lease.but(lemon=""), row.version)))
        return frozenset(found)

    def listed(self, table: Table, state: str) -> Iterator[Row]:
        """Yield the rows of a state, page by page while the round's budget lasts; the next round goes on from there."""
        name = f"{table}/{state}"
        cursor = self.notes.pop(name, None)
        while self.pages_left > 0:
            self.pages_left -= 1
            page = self.world.ledger.by_state(table, state, cursor=cursor)
            yield from page.rows
            cursor = page.cursor
            if cursor is None:
                return
        self.notes[name] = cursor
        self.world.telemetry.warning("The sweep's page budget is spent; the next round goes on", list=name)

    # ------------------------------------------------------------ the fleet's memory

    def refresh_fleet(self) -> int:
        """Write what changed about each machine, and mark those that no control plane shows any more."""
        ledger = self.world.ledger
        in_use = {
            (cluster, name): count
            for cluster in self.clusters
            for name, count in self.world.cluster.accelerators_in_use(cluster).items()
        }
        others, jobs = self._others(), self._jobs_on_nodes()
        seen = {
            (node.life.cluster, node.life.instance_id): FleetNode.seen(
                node,
                in_use.get((node.life.cluster, node.kubernetes.name), 0) if node.kubernetes else 0,
                self.now,
                is_lemon=node.life.key in self.lemons,
                others=others.get((node.life.cluster, node.kubernetes.name), ()) if node.kubernetes else (),
                job_ids=jobs.get((node.life.cluster, node.kubernetes.name), ()) if node.kubernetes else (),
            )
            for node in self.nodes
        }
        known: set[tuple[str, str]] = set()
        for row in self.listed(Table.FLEET, "NODE"):
            stored = rows.read(row, FleetNode)
            place = (stored.life.cluster, stored.life.instance_id)
            known.add(place)
            if place in seen:
                self._remember(seen[place], stored, row.version)
            elif not stored.is_gone:
                gone = stored.but(is_gone=True, is_ready=False, changed_at=self.now)
                self._remember(gone, stored, row.version, expires_at=self.now + _GONE_KEPT)
        for place, node in seen.items():
            if place not in known:
                row_now = ledger.get(rows.node_key(*place))
                stored_now = rows.read(row_now, FleetNode) if row_now else None
                self._remember(node, stored_now, row_now.version if row_now else 0)
        return 0

    def _jobs_on_nodes(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return which jobs have pods on each node: a fault that comes again is counted on them."""
        found: dict[tuple[str, str], set[str]] = {}
        for cluster, workload in self.workloads.values():
            for pod in workload.pods_alive():
                if pod.node_name:
                    found.setdefault((cluster, pod.node_name), set()).add(workload.job_id)
        return {place: tuple(sorted(jobs)) for place, jobs in found.items()}

    def _others(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Remember the work that is not ours; return which of it holds accelerators of each node."""
        found: dict[tuple[str, str], set[str]] = {}
        for cluster in self.clusters:
            pods = self.world.cluster.foreign_pods(cluster)
            listed = [each for each in foreign_workloads(cluster, pods) if each.accelerators]
            for each in listed:
                for name in each.node_names:
                    found.setdefault((cluster, name), set()).add(each.label)
            row = self.world.ledger.get(rows.foreign_key(cluster))
            doc = {"workloads": [each.to_json() for each in listed[:_FOREIGN_LISTED]]}
            if (row.doc if row else {"workloads": []}) != doc:
                with contextlib.suppress(Conflict):  # another round was quicker
                    self.world.ledger.commit(Put(Row(rows.foreign_key(cluster), doc, row.version if row else 0)))
        return {place: tuple(sorted(labels)) for place, labels in found.items()}

    def _remember(
        self, node: FleetNode, stored: FleetNode | None, version: int, *, expires_at: datetime | None = None
    ) -> None:
        if stored is not None and node.is_same_as(stored):
            return
        row = rows.node_row(node.life.cluster, node.life.instance_id, node.to_json(), version, expires_at)
        with contextlib.suppress(Conflict):  # the index lagged behind: the next round sees the row as it is
            self.world.ledger.commit(Put(row))

    # ------------------------------------------------------------ signals

    def tell_facts(self) -> int:
        """Tell what node objects say: the watch may have missed it."""
        world = self.world
        opened = 0
        ending = note_group_fact.ending_reservations(world.ledger, self.now)
        for node in self.kubernetes:
            for fact in kubernetes_node.facts_of(node, self.policy.watch, self.now, ending):
                outcome = receive_event.run(
                    fact,
                    ledger=world.ledger,
                    provider=world.provider,
                    workflows=world.workflows,
                    clock=world.clock,
                    ids=world.ids,
                    telemetry=world.telemetry,
                    clusters=self.clusters,
                    drills_may_act=self.drills_may_act,
                    catalogue=self.policy.catalogue,
                )
                opened += outcome.outcome == "OPEN"
        return opened

    def retry_unresolved(self) -> int:
        """Try again the facts whose machine was not known."""
        world = self.world
        outcomes = receive_event.retry_unresolved(
            ledger=world.ledger,
            provider=world.provider,
            workflows=world.workflows,
            clock=world.clock,
            ids=world.ids,
            telemetry=world.telemetry,
            clusters=self.clusters,
            drills_may_act=self.drills_may_act,
            catalogue=self.policy.catalogue,
        )
        return len(outcomes)

    # ------------------------------------------------------------ incidents

    def resume_incidents(self) -> int:
        """Start the workflow of every open incident that has none: the same run if none was, else the next one."""
        return sum(self._resume(incident) for incident in self.open_incidents)

    def _resume(self, incident: Incident) -> bool:
        if self._is_fresh(incident.opened_at):
            return False
        state = self.world.workflows.state(Machine.RECOVER_NODE, incident.execution_name)
        if state is ExecutionState.RUNNING:
            return False
        if state is ExecutionState.NONE:
            return receive_event.start_recovery(incident, self.world.workflows)
        due = runs_again_at(incident, self.policy.watch)
        if due is not None and self.now < due:
            return False
        if incident.run >= self.policy.watch.max_runs:
            self.world.telemetry.count("IncidentsStuck")
            self.world.telemetry.error(
                "The workflow of an incident ended again and again without settling it",
                incident_id=incident.incident_id,
                run=incident.run,
                runbook="recovery-failed",
            )
            return False
        return self._start_next_run(incident)

    def _start_next_run(self, ended: Incident) -> bool:
        """The run ended and the incident is open still: go on with the next run, unless somebody settled it now."""

        def change(incident: Incident) -> tuple[Incident, list[Put]] | None:
            if incident.state.is_settled or incident.run != ended.run:
                return None
            text = f"Run {ended.run} of its workflow ended early; run {ended.run + 1} goes on."
            subject = incident.incident_id
            entry = incident_record.told(subject, f"resumed-{ended.run + 1}", text, at=self.now, writer=WRITER)
            return incident.but(run=ended.run + 1, failed_at=None), [entry]

        after = incident_record.amend(self.world.ledger, ended.incident_id, change)
        if after.state.is_settled:
            return False
        return receive_event.start_recovery(after, self.world.workflows)

    def take_back_jobs(self) -> int:
        """Take back jobs that run again from a checkpoint which a later signal of an open incident casts doubt on."""
        world = self.world
        acting = (each for each in self.open_incidents if each.hurt_jobs and self._may_act_on(each))
        taken = sum(
            plan_resume.revise(
                incident,
                ledger=world.ledger,
                cluster=world.cluster,
                ids=world.ids,
                telemetry=world.telemetry,
                policy=self.policy,
                mode=self.mode,
                now=self.now,
            )
            for incident in acting
        )
        if taken:
            world.passes.request("jobs were taken back")
        return taken

    def _may_act_on(self, incident: Incident) -> bool:
        planned = incident.plan is not None and incident.plan.is_carried_out
        allowed = mode_now(self.mode, incident.mode, is_approved=is_approved(incident))
        return planned and not not_allowed(allowed, is_drill=incident.is_drill, drills_may_act=self.drills_may_act)

    def close_ghosts(self) -> int:
        """Delete pointers to incidents that are over: they would keep the next sickness of that machine out."""
        ledger = self.world.ledger
        closed = 0
        for listed in self.listed(Table.INCIDENTS, "OPEN"):
            pointer = ledger.get(listed.key)
            incident = ledger.get(rows.incident_key(pointer.doc["incidentId"])) if pointer else None
            if pointer and (incident is None or rows.read(incident, Incident).state.is_settled):
                with contextlib.suppress(Conflict):
                    ledger.commit(Delete(pointer.key, pointer.version))
                    closed += 1
        return closed

    def reconcile_registers(self) -> int:
        """Take machines out of the registers of repairs and cordons whose release was lost."""
        marks = {
            (node.cluster, node.instance_id): node.incident_id
            for node in self.kubernetes
            if node.incident_id is not None
        }

        def is_settled(entry: Entry) -> bool:
            row = self.world.ledger.get(rows.incident_key(entry.incident_id))
            return row is None or rows.read(row, Incident).state.is_settled

        def is_free(entry: Entry) -> bool:
            life = NodeLife.from_key(entry.life)
            return (life.cluster, life.instance_id) not in marks and not self._is_fresh(entry.since)

        ledger = self.world.ledger
        return guard_register.reconcile(ledger, Which.REPAIRS, is_settled, self.now) + guard_register.reconcile(
            ledger, Which.CORDONS, is_free, self.now
        )

    # ------------------------------------------------------------ attempts

    def resume_attempts(self) -> int:
        """Start, stop or settle attempts whose workflow is not there to do it."""
        mended = 0
        for listed in self.listed(Table.JOBS, "ATTEMPT#LIVE"):
            row = self.world.ledger.get(listed.key)
            attempt = rows.read(row, Attempt) if row else None
            if attempt and not attempt.state.has_ended:
                self.live.add((attempt.job_id, attempt.attempt))
            if attempt and attempt.state is AttemptState.RUNNING and not attempt.is_pinned:
                record_pin.run(attempt.job_id, attempt.attempt, self.world.ledger, self.world.cluster, now=self.now)
            if attempt and not attempt.state.has_ended and not self._is_fresh(attempt.admitted_at):
                mended += self._resume_attempt(attempt)
        return mended

    def _resume_attempt(self, attempt: Attempt) -> bool:
        state = self.world.workflows.state(Machine.RUN_JOB, attempt.workload_name)
        if state is ExecutionState.NONE and attempt.state is AttemptState.STARTING:
            return schedule_jobs.start_run(attempt, self.world.workflows, self.world.telemetry)
        job = attempt_rows.load(self.world.ledger, attempt.job_id, attempt.attempt).job
        nothing = WorkloadSeen(job_id=attempt.job_id, attempt=attempt.attempt)
        _, seen = self.workloads.get((attempt.job_id, attempt.attempt), (attempt.cluster, nothing))
        request = job.stop_of(attempt.attempt)
        is_stopped_again = False
        if request and not self._is_fresh(request.requested_at) and seen.is_let_run:
            # Asked to stop, and nobody told the cluster.
            self.world.cluster.stop(
                attempt.cluster,
                attempt.namespace,
                attempt.job_id,
                attempt.attempt,
                request.grace_seconds,
                request.at_once_on,
            )
            is_stopped_again = True
        if state is ExecutionState.RUNNING:
            return is_stopped_again
        return self._without_workflow(job, attempt, seen) or is_stopped_again

    def _without_workflow(self, job: Job, attempt: Attempt, seen: WorkloadSeen) -> bool:
        """The workflow is over and the attempt is not: go on in its place."""
        nodes = {node.name: node for node in self.kubernetes if node.cluster == attempt.cluster}
        lost = lost_nodes(nodes, attempt.node_names, self.now, self.policy.jobs.lost_node_seconds)
        has_ended = judge_end(seen, job, attempt, lost) is not None
        # Nothing else takes an attempt beyond STARTING: what its launch left half done is ended, and the job queued.
        if has_ended or attempt.state is AttemptState.STARTING:
            self._settle(attempt)
            return True
        running = [pod for pod in seen.pods if pod.phase is PodPhase.RUNNING]
        if attempt.state is AttemptState.LAUNCHED and len(running) >= job.spec.nodes:
            request = mark_running.Request(job_id=attempt.job_id, attempt=attempt.attempt)
            mark_running.run(request, self.world.ledger, self.world.telemetry, now=self.now)
            return True
        return False

    def _settle(self, attempt: Attempt) -> None:
        world = self.world
        settle_attempt.run(
            settle_attempt.Request(job_id=attempt.job_id, attempt=attempt.attempt),
            world.ledger,
            world.cluster,
            world.passes,
            world.telemetry,
            policy=self.policy,
            now=self.now,
        )

    def clear_workloads(self) -> int:
        """End what settled attempts left running, and delete what was kept long enough for its logs."""
        world = self.world
        cleared = 0
        looks_at_kept = self.is_due("kept")
        for (job_id, number), (cluster, seen) in self.workloads.items():
            if not (seen.is_let_run or looks_at_kept) or (job_id, number) in self.live:
                continue
            row = world.ledger.get(rows.attempt_key(job_id, number))
            attempt = rows.read(row, Attempt) if row else None
            if attempt is None or attempt.ended_at is None or self._is_fresh(attempt.ended_at):
                continue
            if seen.is_let_run:
                job = attempt_rows.load(world.ledger, job_id, number).job
                world.cluster.stop(cluster, attempt.namespace, job_id, number, job.spec.grace_seconds)
                cleared += 1
            elif self._is_kept_no_longer(attempt) and not seen.is_deleting:
                world.cluster.stop(cluster, attempt.namespace, job_id, number, 0)
        return cleared

    def _is_kept_no_longer(self, attempt: Attempt) -> bool:
        assert attempt.ended_at
        return self.now - attempt.ended_at > timedelta(seconds=self.policy.jobs.keep_workload_seconds)

    # ------------------------------------------------------------ waits, arrivals

    def answer_waits(self) -> int:
        """Judge every open wait, and repeat the answers that were recorded and never delivered.

        While somebody watches, an answer that has just fallen due is the watch's to ask for.
        """
        world = self.world
        answers = PatientWaitAnswers(
            world.wait_answers,
            world.clock,
            self.notes.pop("asked", {}),
            leaves_first_to_watch=locks.is_held(world.ledger, watch_cluster.LOCK, now=self.now),
        )
        evaluate_waits.run(
            ledger=world.ledger,
            cluster=world.cluster,
            provider=world.provider,
            wait_answers=answers,
            telemetry=world.telemetry,
            policy=self.policy,
            now=self.now,
            repeat_answered=True,
        )
        self.notes["asked"] = answers.asked
        return answers.requests

    def release_arrivals(self) -> int:
        """Let machines into service that wait for their validation and that no incident works on.

        That is a first boot, or a machine that came back after its incident was settled. In any mode but `act` the
        same is decided and recorded, and the taint stays.
        """
        released = 0
        for node in self.nodes:
            there = node.kubernetes
            if there is None or not there.is_awaiting_validation or there.is_cordoned or self._is_in_repair(node):
                continue
            peers = [peer for peer in self.kubernetes if peer.name != there.name]
            machine = Holder(record=node.provider, node=there)
            expected = expected_accelerators(there.instance_type, peers)
            verdict = judge_node(machine, expected=expected)
            if not verdict.is_valid or self.world.ledger.get(rows.open_key(node.life)):
                continue
            self._record_release(node, machine, expected, verdict)
            if self.mode is Mode.ACT:
                result = self.world.cluster.release(there.cluster, there.name, None)
                released += result is ReleaseResult.RELEASED
        if released:
            self.world.passes.request("machines arrived")
            self.world.telemetry.count("NodesArrived", released)
        return 0

    def _is_in_repair(self, node: Node) -> bool:
        """Whether an open incident waits for this machine: then validating it is that incident's business."""
        for incident in self.open_incidents:
            has_no_seat = incident.slot == incident.life.key
            if incident.slot == node.slot or (has_no_seat and incident.pool == node.pool):
                return True
        return False

    def _record_release(self, node: Node, machine: Holder, expected: int, verdict: Validity) -> None:
        assert node.kubernetes
        boot = node.kubernetes.boot_id or "first"
        record = Decision(
            # One for each boot and mode: the same look is taken each minute, and is one decision.
            decision_id=f"dec-{node.life.instance_id}-{boot}-{self.mode}",
            kind="VALIDATION",
            subject=node.life.key,
            action="RELEASE",
            reason=verdict.reason,
            facts={"machine": machine.to_json(), "expected": expected},
            policy_hash=self.policy.hash,
            mode=self.mode,
            decided_at=self.now,
        )
        with contextlib.suppress(Conflict):  # recorded before
            self.world.ledger.commit(Put(rows.decision_row(record)))

    # ------------------------------------------------------------ figures

    def measure(self) -> int:
        """Emit how much of everything there is."""
        world = self.world
        for state in (JobState.PENDING, JobState.STARTING, JobState.RUNNING, JobState.STOPPING):
            world.telemetry.count(f"Jobs{state.capitalize()}", self._count(Table.JOBS, f"JOB#{state}"))
        world.telemetry.count("IncidentsOpen", len(self.open_incidents))
        blocked = sum(incident.state is IncidentState.BLOCKED for incident in self.open_incidents)
        world.telemetry.count("IncidentsBlocked", blocked)
        ready = sum(node.kubernetes is not None and node.kubernetes.is_ready for node in self.nodes)
        world.telemetry.count("NodesReady", ready)
        world.telemetry.count("NodesNotReady", len(self.nodes) - ready)
        world.telemetry.count("NodesLemon", sum(node.life.key in self.lemons for node in self.nodes))
        stale = [kubernetes_node.stale_conditions(node, self.policy.watch, self.now) for node in self.kubernetes]
        world.telemetry.count("ConditionsStale", sum(map(len, stale)))
        return 0

    def _count(self, table: Table, state: str) -> int:
        count, cursor = 0, None
        while count < _COUNTED and self.pages_left > 0:
            self.pages_left -= 1
            page = self.world.ledger.by_state(table, state, cursor=cursor)
            count, cursor = count + len(page.rows), page.cursor
            if cursor is None:
                break
        return count

    def ask_for_pass(self) -> int:
        """Have the queue looked at: a lost request must not leave a job waiting."""
        if self.world.ledger.by_state(Table.JOBS, f"JOB#{JobState.PENDING}", limit=1).rows:
            self.world.passes.request("sweep")
        return 0

    def _is_fresh(self, at: datetime) -> bool:
        """Whether this is so new that whoever works on it may not have got round to it."""
        return self.now - at < timedelta(seconds=self.policy.watch.execution_grace_seconds)
