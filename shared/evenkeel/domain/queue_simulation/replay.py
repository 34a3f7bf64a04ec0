"""Replay events in order of time, and run Kueue cycles between them. It needs no cluster."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from evenkeel.domain.kueue.cycle_decisions import CycleDecision, Result
from evenkeel.domain.kueue.eviction_loops import Setting, candidate_settings, evictions_of, state_digest
from evenkeel.domain.kueue.objects import PodSet, StopPolicy, Workload
from evenkeel.domain.kueue.scheduler import Scheduler
from evenkeel.domain.plurals import count_of
from evenkeel.domain.queue_simulation.documents import (
    DocumentError,
    ReadWarnings,
    seconds,
)
from evenkeel.domain.queue_simulation.plan_events import (
    DeleteEvent,
    Event,
    Events,
    Evict,
    Finish,
    NotReady,
    PodsGone,
    PodsReady,
    PriorityChange,
    QuotaChange,
    Resize,
    RunCycles,
    Shrink,
    StopPolicyChange,
    Submit,
)
from evenkeel.domain.queue_simulation.plan_report import (
    CycleAnswer,
    DecisionAnswer,
    EvictionLoopReport,
    Plan,
    SettingAnswer,
    decision_of,
    state_of,
)
from evenkeel.domain.queue_simulation.queue_manifests import DEFAULT_NAMESPACE
from evenkeel.domain.queue_simulation.setup import QuotaDocuments

_MAX_EVICTING_CYCLES = 10_000
"""Maximum cycles with evictions at one instant. Then a plan stops, even if no state was repeated."""
_MAX_SETTINGS = 8
"""Maximum settings that are tried to end an eviction loop. Each setting needs a replay of its own."""
_MAX_TRIAL_CYCLES = 500
"""Maximum cycles within which a setting must end an eviction loop."""


@dataclass(slots=True)
class Replay:
    """A running replay of a plan's events."""

    declared: QuotaDocuments
    max_cycles: int | None = None
    """Maximum cycles at one instant; None runs them until nothing changes."""
    releases_at_once: bool = False
    """Whether evicted jobs stop, and are queued again, before the next cycle."""
    at: float = 0.0
    scheduler: Scheduler = field(init=False)
    cycles: list[CycleAnswer] = field(default_factory=list)
    loops: list[EvictionLoopReport] = field(default_factory=list)
    """Eviction loops found so far. The cycles of an instant stop after one period of a loop."""
    decisions: list[CycleDecision] = field(default_factory=list)
    unqueued: dict[str, str] = field(default_factory=dict)
    is_trial: bool = False
    """Whether this run only tests whether a changed setting ends a loop."""
    _timeouts: dict[str, int] = field(default_factory=dict)
    _removed: dict[str, Workload] = field(default_factory=dict)
    """Jobs that were pending, and were removed because of their queue."""
    _documents: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """(document, where) of each submitted job. It is read again when the declarations of its queue change."""

    def __post_init__(self) -> None:
        self.scheduler = self.declared.scheduler()
        for (namespace, name), local in self.declared.local_queues.items():
            if local.consumed is not None:
                amounts, at = local.consumed
                sub_queue = f"{namespace or DEFAULT_NAMESPACE}/{name}"
                self.scheduler.set_reported_use(
                    local.spec.cluster_queue, sub_queue, amounts, self.at if at is None else at
                )

    @property
    def documents(self) -> dict[str, Any]:
        """The document of each job that was submitted, by the id of the job."""
        return {job: raw for job, (raw, _) in self._documents.items()}

    def submit(self, raw: Any, where: str) -> None:
        """Add a job: pending, holding quota, or in no queue.

        Raises:
            DocumentError: The job cannot be read, or its name is taken.
        """
        job = self.declared.job(raw, where)
        name = job.workload.workload_id
        if self._is_known(name):
            raise DocumentError(where, name, "there are two jobs with this name")
        self.unqueued.pop(name, None)
        self._removed.pop(name, None)
        self._documents[name] = (raw, where)
        self._timeouts[name] = max(self._timeouts.get(name, 0), job.missed)
        if job.unqueued:
            self.unqueued[name] = job.unqueued
        elif job.admitted is not None:
            # Time starts at the latest admission: an unknown time of admission counts as the latest.
            self.at = max(self.at, job.admitted.reserved_at or 0.0)
            self.scheduler.restore(job.admitted)
        else:
            self.scheduler.submit(job.workload, not_before=job.not_before)

    def _is_known(self, name: str) -> bool:
        return self.scheduler.admitted(name) is not None or self._pending(name) is not None

    def _pending(self, name: str) -> Workload | None:
        pending = self.scheduler.waiting(name)
        return None if pending is None else pending.workload

    def run(self, events: Events, where: str = "events") -> None:
        """Replay the events, with cycles between them.

        Raises:
            DocumentError: An event is invalid. The message names it by its number.
        """
        ordered = sorted(enumerate(events.events), key=lambda numbered: (seconds(numbered[1].at), numbered[0]))
        has_cycle_events = any(isinstance(event, RunCycles) for event in events.events)
        first = seconds(ordered[0][1].at) if ordered else self.at
        if not has_cycle_events and (not ordered or first > self.at):
            self._run_until_stable()
        for position, (number, event) in enumerate(ordered):
            self.at = max(self.at, seconds(event.at))
            self.scheduler.advance_to(self.at)
            self._process(event, f"{where}: events[{number}]")
            is_last = position + 1 == len(ordered) or seconds(ordered[position + 1][1].at) > self.at
            if is_last and not has_cycle_events:
                self._run_until_stable()

    def _process(self, event: Event, where: str) -> None:
        match event:
            case Submit():
                for index, job in enumerate((*((event.job,) if event.job else ()), *event.jobs)):
                    self.submit(job, f"{where}.jobs[{index}]")
            case RunCycles():
                for _ in range(event.count):
                    self._cycle()
            case QuotaChange():
                self._change_quota(event, where)
            case StopPolicyChange():
                if event.queue not in self.declared.queues:
                    raise DocumentError(where, "queue", f"there is no queue {event.queue}")
                queue = self.declared.queues[event.queue]
                self.declared.queues[event.queue] = replace(queue, stop=event.policy)
                self._reconfigure()
            case _:
                self._process_job_event(event, where)

    def _process_job_event(
        self,
        event: Finish | DeleteEvent | Evict | PodsGone | PodsReady | NotReady | Shrink | Resize | PriorityChange,
        where: str,
    ) -> None:
        waiting = self._pending(event.job)
        if event.job in self.unqueued and isinstance(event, DeleteEvent):
            del self.unqueued[event.job]
            return
        if waiting is None and self.scheduler.admitted(event.job) is None:
            raise DocumentError(where, "job", f"there is no job {event.job}")
        match event:
            case Finish() | DeleteEvent():
                if waiting is not None:
                    self.scheduler.withdraw(waiting)
                self.scheduler.release(event.job)
            case Evict():
                self.scheduler.evict(event.job)
            case PodsGone():
                self._pods_gone(event)
            case PodsReady():
                self.scheduler.pods_ready(event.job)
            case NotReady():
                self._miss_ready_timeout(event.job)
            case Shrink() | Resize():
                self._resize(event, waiting, where)
            case PriorityChange():
                self._reprioritize(event, waiting)

    def _pods_gone(self, event: PodsGone) -> None:
        if event.reason == "Deactivated":
            self.scheduler.release(event.job)
            self._remove_for_good(event.job, "it is not active")
            return
        requeue_after = event.requeue_after_seconds
        self._requeue(
            event.job,
            requeued_at=None if event.reason == "Preempted" else self.at,
            not_before=None if requeue_after is None else self.at + requeue_after,
        )

    def _requeue(self, job: str, *, requeued_at: float | None = None, not_before: float | None = None) -> None:
        """Release the quota of a stopped job, and queue it again unless its LocalQueue is stopped."""
        self.scheduler.requeue_evicted(job, requeued_at=requeued_at, not_before=not_before)
        submitted = self._documents.get(job)
        if submitted is not None:
            self._documents[job] = (_without_admission(submitted[0]), submitted[1])
        waiting = self._pending(job)
        if waiting is not None and self.declared.stop_of(waiting) is not StopPolicy.NONE:
            self._remove_pending(waiting, f"LocalQueue {waiting.sub_queue} is stopped")

    def _remove_pending(self, waiting: Workload, reason: str) -> None:
        """Remove a pending job until its queue accepts it again."""
        self.scheduler.withdraw(waiting)
        self.unqueued[waiting.workload_id] = reason
        self._removed[waiting.workload_id] = waiting

    def _reapply_changes(self, job: str, removed: Workload | None) -> None:
        """Give a pending job the priority, the pod sets and the requeue time that it had when it was removed."""
        waiting = self._pending(job)
        if waiting is not None and removed is not None:
            self.scheduler.submit(
                replace(waiting, priority=removed.priority, pod_sets=removed.pod_sets, requeued_at=removed.requeued_at)
            )

    def _remove_for_good(self, job: str, reason: str) -> None:
        """Remove a job permanently."""
        self.unqueued[job] = reason
        self._documents.pop(job, None)

    def _miss_ready_timeout(self, job: str) -> None:
        strategy = self.declared.configuration.wait_for_pods_ready.requeuing_strategy
        missed = self._timeouts[job] = self._timeouts.get(job, 0) + 1
        limit = strategy.backoff_limit_count
        if limit is not None and missed > limit:
            self.scheduler.release(job)
            self._remove_for_good(job, f"its pods were not ready in time {count_of(missed, 'time')}")
            return
        wait = min(strategy.backoff_max_seconds, strategy.backoff_base_seconds * 2 ** (missed - 1))
        at = self.at if strategy.timestamp == "Eviction" else None
        self._requeue(job, requeued_at=at, not_before=self.at + wait)

    def _resize(self, event: Shrink | Resize, waiting: Workload | None, where: str) -> None:
        admitted = self.scheduler.admitted(event.job)
        pod_sets = (waiting or (admitted.workload if admitted else None) or _unreachable()).pod_sets
        if len(event.counts) != len(pod_sets):
            raise DocumentError(where, "counts", f"{event.job} has {len(pod_sets)} pod sets")
        if waiting is not None:
            self.scheduler.submit(replace(waiting, pod_sets=_with_counts(pod_sets, event.counts)))
            return
        assert admitted is not None
        is_smaller = all(new <= old for new, old in zip(event.counts, admitted.counts, strict=True))
        if is_smaller:
            self.scheduler.shrink(event.job, event.counts)
            return
        if isinstance(event, Shrink):
            raise DocumentError(where, "counts", f"{event.job} runs with {list(admitted.counts)}")
        name = event.slice or next(
            slice_name for slice_name in _slice_names(event.job) if not self._is_known(slice_name)
        )
        old = admitted.workload
        larger = replace(
            old,
            workload_id=name,
            uid="",
            pod_sets=_with_counts(pod_sets, event.counts),
            created_at=self.at,
            requeued_at=None,
            replaces=event.job,
        )
        for queue in self.scheduler.pending.values():  # if a job has several pending slices, only the last stays
            for workload in queue.all():
                if workload.workload.replaces == event.job:
                    queue.remove(workload.workload.workload_id)
        self.scheduler.submit(larger)

    def _reprioritize(self, event: PriorityChange, waiting: Workload | None) -> None:
        if waiting is not None:
            self.scheduler.submit(replace(waiting, priority=event.priority))
        else:
            self.scheduler.reprioritize(event.job, event.priority)

    def _change_quota(self, event: QuotaChange, where: str) -> None:
        for index, raw in enumerate(event.documents):
            self.declared.add(raw, f"{where}.documents[{index}]")
        for name in event.remove:
            if name in self.declared.queues:
                holders = sorted(self.scheduler.snapshot.queues[name].admitted)
                if holders:
                    raise DocumentError(where, "remove", f"queue {name} has jobs that hold quota: {', '.join(holders)}")
                for waiting in self.scheduler.pending[name].all():
                    self._remove_pending(waiting.workload, f"there is no queue {name}")
                del self.declared.queues[name]
            elif self.declared.cohorts.pop(name, None) is None:
                raise DocumentError(where, "remove", f"there is no queue or cohort {name}")
        self._reconfigure()
        self._reread_jobs()

    def _reread_jobs(self) -> None:
        """Read jobs again after a queue appeared, was stopped, or changed its namespaces."""
        for job_id, (raw, where) in list(self._documents.items()):
            admitted = self.scheduler.admitted(job_id)
            if admitted is not None:
                if self.declared.stop_of(admitted.workload).ends(admitted):
                    self.scheduler.evict(job_id)
                continue
            waiting, job = self._pending(job_id), self.declared.job(raw, where)
            if waiting is None and job_id in self.unqueued and not job.unqueued:
                removed = self._removed.get(job_id)
                self.submit(raw, where)
                self._reapply_changes(job_id, removed)
            elif waiting is not None and job.unqueued:
                self._remove_pending(waiting, job.unqueued)
            elif waiting is not None:
                declared = job.workload
                updated = replace(
                    waiting,
                    queue=declared.queue,
                    inadmissible_reason=declared.inadmissible_reason,
                    blocks_when_inadmissible=declared.blocks_when_inadmissible,
                    sub_weight=declared.sub_weight,
                )
                if updated != waiting:
                    self.scheduler.withdraw(waiting)
                    self.scheduler.submit(updated)

    def _reconfigure(self) -> None:
        self.scheduler.reconfigure(*self.declared.everything())

    def _with_checks(self, answer: DecisionAnswer) -> DecisionAnswer:
        """Return the decision with the admission checks of its flavors, which a job with quota must pass."""
        queue = self.declared.queues.get(answer.queue)
        if queue is None or answer.result != str(Result.ADMITTED):
            return answer
        flavors = {choice.flavor for pod_set in answer.pod_sets for choice in pod_set.flavors.values()}
        checks = tuple(check.name for check in queue.checks if check.concerns(flavors))
        if not checks:
            return answer
        reason = f"{answer.reason} It starts once its admission checks have passed: {', '.join(checks)}."
        return answer.model_copy(update={"checks": checks, "reason": reason})

    # ------------------------------------------------------------ cycles

    def _run_until_stable(self) -> None:
        """Run cycles until another cycle changes nothing or repeats earlier decisions."""
        past_states: set[object] = set()
        states: dict[bytes, int] = {}
        evicting: list[tuple[CycleDecision, ...]] = []
        for number in itertools.count():
            if self.max_cycles is not None and number >= self.max_cycles:
                return
            decisions, has_effect = self._cycle()
            if not decisions:
                return
            if has_effect:
                past_states.clear()
                if self.releases_at_once and any(decision.victims for decision in decisions):
                    state = state_digest(self.scheduler)
                    evicting.append(tuple(decisions))
                    if state in states or len(evicting) >= _MAX_EVICTING_CYCLES:
                        self._note_loop(evicting[states.get(state, 0) :], self.scheduler.cycles)
                        return
                    states[state] = len(evicting)
                continue
            repeated = tuple(
                (
                    decision.workload.workload_id,
                    decision.result,
                    decision.assignment.flavors,
                    decision.parked,
                    _scan_state(decision),
                )
                for decision in decisions
            )
            if repr(repeated) in past_states:
                del self.cycles[-1]  # the same decisions would repeat without end
                return
            past_states.add(repr(repeated))

    def _note_loop(self, evicting: list[tuple[CycleDecision, ...]], last_cycle: int) -> None:
        """Record an eviction loop, and the settings that would end it.

        A replay with each setting showed that the loop ends.
        """
        evictions = evictions_of(itertools.chain(*evicting))
        settings: dict[tuple[str, str], Setting] = {}
        if not self.is_trial:
            for setting in itertools.islice(candidate_settings(self.scheduler, evictions), _MAX_SETTINGS):
                if (setting.queue, setting.field) not in settings and self._ends_with(setting):
                    settings[setting.queue, setting.field] = setting  # the smallest sufficient change of this field
        loop = EvictionLoopReport(
            at=self.at,
            last_cycle=last_cycle,
            jobs=tuple(sorted({name for eviction in evictions for name in (eviction.by, eviction.victim)})),
            settings=tuple(
                SettingAnswer(queue=setting.queue, field=setting.field, value=setting.value)
                for setting in settings.values()
            ),
        )
        self.loops.append(loop)
        if not self.is_trial:
            self.declared.read_warnings.warn("plan", loop.sentence)

    def _ends_with(self, setting: Setting) -> bool:
        """Whether a changed preemption setting of one queue ends the loop of the same jobs."""
        queue = replace(self.declared.queues[setting.queue], preemption=setting.preemption)
        declared = replace(
            self.declared, queues={**self.declared.queues, setting.queue: queue}, read_warnings=ReadWarnings()
        )
        trial = Replay(declared, _MAX_TRIAL_CYCLES, self.releases_at_once, self.at, is_trial=True)
        for running in self.scheduler.snapshot.queues.values():
            for admitted in running.admitted.values():
                trial.scheduler.restore(replace(admitted))
        for pending in self.scheduler.pending.values():
            *waiting, _backing_off = pending.by_state()
            for name in itertools.chain(*waiting):
                in_queue = pending.get(name)
                assert in_queue is not None
                trial.scheduler.submit(in_queue.workload)
        trial.run(Events())
        return not trial.loops and len(trial.cycles) < _MAX_TRIAL_CYCLES

    def _cycle(self) -> tuple[list[CycleDecision], bool]:
        """Run a Kueue cycle; return its decisions, and whether a job was admitted or newly evicted."""
        queues = self.scheduler.snapshot.queues.values()
        evicted = frozenset(
            name for queue in queues for name, admitted in queue.admitted.items() if admitted.is_evicted
        )
        decisions = self.scheduler.cycle(self.at)
        if not decisions:
            return decisions, False
        pending = self.scheduler.pending
        answers: list[DecisionAnswer] = [
            self._with_checks(decision_of(decision, evicted, pending[decision.workload.queue].sticky))
            for decision in decisions
        ]
        self.cycles.append(CycleAnswer(number=self.scheduler.cycles, at=self.at, decisions=tuple(answers)))
        self.decisions += decisions
        victims = [victim.workload_id for decision in decisions for victim in decision.victims]
        has_effect = any(decision.result is Result.ADMITTED for decision in decisions) or bool(set(victims) - evicted)
        if self.releases_at_once:
            for name in victims:
                self._requeue(name)
        return decisions, has_effect

    def answer(self) -> Plan:
        """Return all decisions, and the state at the end."""
        return Plan(
            profile=str(self.declared.profile),
            fair_sharing=self.scheduler.rules.fair_sharing,
            cycles=tuple(self.cycles),
            loops=tuple(self.loops),
            end=state_of(self.scheduler, self.at, list(self.unqueued.items())),
            warnings=tuple(self.declared.read_warnings.warnings),
        )


def _without_admission(document: Any) -> Any:
    """Return a job's document without its admission."""
    if not isinstance(document, dict):
        return document
    status = document.get("status")
    if isinstance(status, dict):
        admission_fields = ("admission", "conditions", "admissionChecks")
        return {**document, "status": {name: value for name, value in status.items() if name not in admission_fields}}
    return {name: value for name, value in document.items() if name != "admitted"}


def _scan_state(decision: CycleDecision) -> object:
    flavor_cursor = decision.assignment.flavor_cursor
    return [sorted(indexes.items()) for indexes in flavor_cursor.tried] if flavor_cursor else None


def _with_counts(pod_sets: tuple[PodSet, ...], counts: tuple[int, ...]) -> tuple[PodSet, ...]:
    return tuple(replace(pod_set, count=count) for pod_set, count in zip(pod_sets, counts, strict=True))


def _slice_names(job: str) -> Iterator[str]:
    number = 2
    while True:
        yield f"{job}-{number}"
        number += 1


def _unreachable() -> Workload:
    raise AssertionError("the job was looked up before")
