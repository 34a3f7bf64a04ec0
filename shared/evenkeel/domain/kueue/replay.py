"""Events in order of time, and the cycles between them: what would have happened, without a cluster."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from evenkeel.domain.kueue.cycle import Decision, Result, Scheduler
from evenkeel.domain.kueue.documents import Document, DocumentError, Json, Number, When, Whole, seconds
from evenkeel.domain.kueue.eviction_loops import Setting, candidate_settings, evictions_of, state_digest
from evenkeel.domain.kueue.kueue import DEFAULT_NAMESPACE
from evenkeel.domain.kueue.objects import PodSet, StopPolicy, Workload
from evenkeel.domain.kueue.report import (
    CycleAnswer,
    DecisionAnswer,
    LoopAnswer,
    Plan,
    SettingAnswer,
    decision_of,
    state_of,
)
from evenkeel.domain.kueue.setup import Declared, ReadWarnings

_MOST_EVICTING_CYCLES = 10_000
"""Cycles of one instant that evict, after which a plan stops without having seen a state twice."""
_MOST_SETTINGS = 8
"""Settings that are tried against a loop: each is a run of its own."""
_CYCLES_TO_REST = 500
"""Cycles within which a setting must bring a loop to rest."""


class _Event(Document):
    at: When = Field(0, description="When it happens. Events of one instant happen together, in their order.")


class Submit(_Event):
    """A job, or several, begin to wait."""

    type: Literal["submit"]
    job: Json | None = Field(None, description="The short form, or a Kueue Workload.")
    jobs: tuple[Json, ...] = ()


class Finish(_Event):
    """A job has ended; its quota is free."""

    type: Literal["finish"]
    job: str


class DeleteEvent(_Event):
    """A job is gone, whether it waited or ran."""

    type: Literal["delete"]
    job: str


class Evict(_Event):
    """A running job is told to stop, for another reason than quota. It holds its quota until `podsGone`."""

    type: Literal["evict"]
    job: str


class PodsGone(_Event):
    """A job that was told to stop has stopped: it gives its quota up and waits again."""

    type: Literal["podsGone", "evictionDone"]
    job: str
    reason: Literal["Preempted", "PodsReadyTimeout", "AdmissionCheck", "Deactivated"] = Field(
        "Preempted",
        description="PodsReadyTimeout and AdmissionCheck cost it its place; Deactivated: it does not wait again.",
    )
    requeue_after_seconds: Number | None = Field(None, description="It is not tried before that.")


class PodsReady(_Event):
    """All pods of a job are ready. It matters where `waitForPodsReady.blockAdmission` is on."""

    type: Literal["podsReady"]
    job: str


class NotReady(_Event):
    """A job's pods missed their ready timeout: it stops, loses its place and is backed off, longer each time."""

    type: Literal["notReady"]
    job: str


class Shrink(_Event):
    """A job, running or waiting, gets by with smaller counts. Running, its quota falls at once."""

    type: Literal["shrink"]
    job: str
    counts: tuple[Whole, ...] = Field(description="By pod set.")


class Resize(_Event):
    """A job asks for other counts: waiting, in place; running and smaller, at once; else as a new, larger slice."""

    type: Literal["resize"]
    job: str
    counts: tuple[Whole, ...]
    slice: str = Field("", description="Name of the larger slice; without it, the job's name and `-2`, `-3`, …")


class Priority(_Event):
    """A waiting or running job's priority changes."""

    type: Literal["priority"]
    job: str
    priority: Whole


class QuotaChange(_Event):
    """Quota documents: those of a known name take its place."""

    type: Literal["quota"]
    documents: tuple[Json, ...] = ()
    remove: tuple[str, ...] = Field((), description="Names of queues or cohorts that are no more.")


class Stop(_Event):
    """A queue is stopped, or goes on."""

    type: Literal["stopPolicy"]
    queue: str
    policy: StopPolicy


class Cycle(_Event):
    """So many cycles, here and nowhere else: with one such event, no cycle runs of itself."""

    type: Literal["cycle"]
    count: Whole = Field(1, ge=1)


Event: TypeAlias = Annotated[
    Submit
    | Finish
    | DeleteEvent
    | Evict
    | PodsGone
    | PodsReady
    | NotReady
    | Shrink
    | Resize
    | Priority
    | QuotaChange
    | Stop
    | Cycle,
    Field(discriminator="type"),
]


class Events(Document):
    """Everything that happens, in order of time."""

    events: tuple[Event, ...] = ()


@dataclass(slots=True)
class Replay:
    """A plan under way."""

    declared: Declared
    most_cycles: int | None = None
    """Between two instants; None runs until nothing changes."""
    releases_at_once: bool = False
    """Whether who is evicted has stopped before the next cycle, and waits again."""
    at: float = 0.0
    scheduler: Scheduler = field(init=False)
    cycles: list[CycleAnswer] = field(default_factory=list)
    loops: list[LoopAnswer] = field(default_factory=list)
    """Instants at which jobs evict each other without end: cycles stop there after one period."""
    decisions: list[Decision] = field(default_factory=list)
    unqueued: dict[str, str] = field(default_factory=dict)
    is_trial: bool = False
    """Whether this is a run with one setting changed, made to see whether a loop ends."""
    _timeouts: dict[str, int] = field(default_factory=dict)
    _aside: dict[str, Workload] = field(default_factory=dict)
    """Who waited and waits no more, for the sake of its queue."""
    _documents: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """As what each job was submitted: where its queue's set-up changes, it is read again."""

    def __post_init__(self) -> None:
        self.scheduler = self.declared.scheduler()
        for (namespace, name), local in self.declared.local_queues.items():
            if local.consumed is not None:
                amounts, at = local.consumed
                sub_queue = f"{namespace or DEFAULT_NAMESPACE}/{name}"
                self.scheduler.set_reported_use(
                    local.spec.cluster_queue, sub_queue, amounts, self.at if at is None else at
                )

    def submit(self, found: Any, where: str) -> None:
        """Take a job in: it waits, or holds quota, or is in no queue.

        Raises:
            DocumentError: it cannot be read, or its name is taken.
        """
        job = self.declared.job(found, where)
        name = job.workload.workload_id
        if self._knows(name):
            raise DocumentError(where, name, "there are two jobs of this name")
        self.unqueued.pop(name, None)
        self._aside.pop(name, None)
        self._documents[name] = (found, where)
        self._timeouts[name] = max(self._timeouts.get(name, 0), job.missed)
        if job.unqueued:
            self.unqueued[name] = job.unqueued
        elif job.admitted is not None:
            # Time begins no earlier than what has happened: who holds quota since an unknown time counts as latest.
            self.at = max(self.at, job.admitted.reserved_at or 0.0)
            self.scheduler.restore(job.admitted)
        else:
            self.scheduler.submit(job.workload, not_before=job.not_before)

    def _knows(self, name: str) -> bool:
        return self.scheduler.holder(name) is not None or self._waits(name) is not None

    def _waits(self, name: str) -> Workload | None:
        for queue in self.scheduler.pending.values():
            found = queue.get(name)
            if found is not None:
                return found.workload
        return None

    def run(self, events: Events, where: str = "events") -> None:
        """Let everything happen, with cycles between.

        Raises:
            DocumentError: an event cannot be; names it by its number.
        """
        ordered = sorted(enumerate(events.events), key=lambda each: (seconds(each[1].at), each[0]))
        is_told = any(isinstance(event, Cycle) for event in events.events)
        first = seconds(ordered[0][1].at) if ordered else self.at
        if not is_told and (not ordered or first > self.at):
            self._until_quiet()
        for position, (number, event) in enumerate(ordered):
            self.at = max(self.at, seconds(event.at))
            self.scheduler.pass_time(self.at)
            self._happens(event, f"{where}: events[{number}]")
            is_last = position + 1 == len(ordered) or seconds(ordered[position + 1][1].at) > self.at
            if is_last and not is_told:
                self._until_quiet()

    def _happens(self, event: Event, where: str) -> None:
        match event:
            case Submit():
                for index, job in enumerate((*((event.job,) if event.job else ()), *event.jobs)):
                    self.submit(job, f"{where}.jobs[{index}]")
            case Cycle():
                for _ in range(event.count):
                    self._cycle()
            case QuotaChange():
                self._change_quota(event, where)
            case Stop():
                if event.queue not in self.declared.queues:
                    raise DocumentError(where, "queue", f"there is no queue {event.queue}")
                queue = self.declared.queues[event.queue]
                self.declared.queues[event.queue] = replace(queue, stop=event.policy)
                self._reconfigure()
            case _:
                self._happens_to_job(event, where)

    def _happens_to_job(
        self,
        event: Finish | DeleteEvent | Evict | PodsGone | PodsReady | NotReady | Shrink | Resize | Priority,
        where: str,
    ) -> None:
        waiting = self._waits(event.job)
        if event.job in self.unqueued and isinstance(event, DeleteEvent):
            del self.unqueued[event.job]
            return
        if waiting is None and self.scheduler.holder(event.job) is None:
            raise DocumentError(where, "job", f"there is no job {event.job}")
        match event:
            case Finish() | DeleteEvent():
                if waiting is not None:
                    self.scheduler.withdraw(waiting)
                self.scheduler.release(event.job)
            case Evict():
                self.scheduler.evict(event.job)
            case PodsGone():
                self._gives_up(event)
            case PodsReady():
                self.scheduler.pods_ready(event.job)
            case NotReady():
                self._misses_its_time(event.job)
            case Shrink() | Resize():
                self._resize(event, waiting, where)
            case Priority():
                self._reprioritize(event, waiting)

    def _gives_up(self, event: PodsGone) -> None:
        if event.reason == "Deactivated":
            self.scheduler.release(event.job)
            self._takes_out(event.job, "it is not active")
            return
        after = event.requeue_after_seconds
        self._waits_again(
            event.job,
            requeued_at=None if event.reason == "Preempted" else self.at,
            not_before=None if after is None else self.at + after,
        )

    def _waits_again(self, job: str, *, requeued_at: float | None = None, not_before: float | None = None) -> None:
        """Let a job that has stopped give its quota up and wait, unless its LocalQueue is stopped by now."""
        self.scheduler.give_up(job, requeued_at=requeued_at, not_before=not_before)
        known = self._documents.get(job)
        if known is not None:
            self._documents[job] = (_without_admission(known[0]), known[1])
        waiting = self._waits(job)
        if waiting is not None and self.declared.stop_of(waiting) is not StopPolicy.NONE:
            self._set_aside(waiting, f"LocalQueue {waiting.sub_queue} is stopped")

    def _set_aside(self, waiting: Workload, why: str) -> None:
        """Let a job wait no more until its queue takes it again."""
        self.scheduler.withdraw(waiting)
        self.unqueued[waiting.workload_id] = why
        self._aside[waiting.workload_id] = waiting

    def _becomes(self, job: str, was: Workload | None) -> None:
        """Give a job that waits again what events had made of it before it was set aside."""
        waiting = self._waits(job)
        if waiting is not None and was is not None:
            self.scheduler.submit(
                replace(waiting, priority=was.priority, pod_sets=was.pod_sets, requeued_at=was.requeued_at)
            )

    def _takes_out(self, job: str, why: str) -> None:
        """Let a job wait no more, whatever becomes of its queue."""
        self.unqueued[job] = why
        self._documents.pop(job, None)

    def _misses_its_time(self, job: str) -> None:
        strategy = self.declared.configuration.wait_for_pods_ready.requeuing_strategy
        missed = self._timeouts[job] = self._timeouts.get(job, 0) + 1
        limit = strategy.backoff_limit_count
        if limit is not None and missed > limit:
            self.scheduler.release(job)
            self._takes_out(job, f"its pods were not ready in time {missed} times")
            return
        wait = min(strategy.backoff_max_seconds, strategy.backoff_base_seconds * 2 ** (missed - 1))
        at = self.at if strategy.timestamp == "Eviction" else None
        self._waits_again(job, requeued_at=at, not_before=self.at + wait)

    def _resize(self, event: Shrink | Resize, waiting: Workload | None, where: str) -> None:
        admitted = self.scheduler.holder(event.job)
        pod_sets = (waiting or (admitted.workload if admitted else None) or _nobody()).pod_sets
        if len(event.counts) != len(pod_sets):
            raise DocumentError(where, "counts", f"{event.job} has {len(pod_sets)} pod sets")
        if waiting is not None:
            self.scheduler.submit(replace(waiting, pod_sets=_sized(pod_sets, event.counts)))
            return
        assert admitted is not None
        is_smaller = all(new <= old for new, old in zip(event.counts, admitted.counts, strict=True))
        if is_smaller:
            self.scheduler.shrink(event.job, event.counts)
            return
        if isinstance(event, Shrink):
            raise DocumentError(where, "counts", f"{event.job} runs with {list(admitted.counts)}")
        name = event.slice or next(each for each in _slice_names(event.job) if not self._knows(each))
        old = admitted.workload
        larger = replace(
            old,
            workload_id=name,
            uid="",
            pod_sets=_sized(pod_sets, event.counts),
            created_at=self.at,
            requeued_at=None,
            replaces=event.job,
        )
        for queue in self.scheduler.pending.values():  # rapid growth leaves one slice waiting
            for each in queue.all():
                if each.workload.replaces == event.job:
                    queue.remove(each.workload.workload_id)
        self.scheduler.submit(larger)

    def _reprioritize(self, event: Priority, waiting: Workload | None) -> None:
        if waiting is not None:
            self.scheduler.submit(replace(waiting, priority=event.priority))
        else:
            self.scheduler.reprioritize(event.job, event.priority)

    def _change_quota(self, event: QuotaChange, where: str) -> None:
        for index, found in enumerate(event.documents):
            self.declared.add(found, f"{where}.documents[{index}]")
        for name in event.remove:
            if name in self.declared.queues:
                holders = sorted(self.scheduler.snapshot.teams[name].admitted)
                if holders:
                    raise DocumentError(where, "remove", f"queue {name} has jobs that hold quota: {', '.join(holders)}")
                for waiting in self.scheduler.pending[name].all():
                    self._set_aside(waiting.workload, f"there is no queue {name}")
                del self.declared.queues[name]
            elif self.declared.cohorts.pop(name, None) is None:
                raise DocumentError(where, "remove", f"there is no queue or cohort {name}")
        self._reconfigure()
        self._read_again()

    def _read_again(self) -> None:
        """Let jobs follow their queues: one appeared, was stopped, or takes other namespaces now."""
        for name, (found, where) in list(self._documents.items()):
            holder = self.scheduler.holder(name)
            if holder is not None:
                if self.declared.stop_of(holder.workload).ends(holder):
                    self.scheduler.evict(name)
                continue
            waiting, job = self._waits(name), self.declared.job(found, where)
            if waiting is None and name in self.unqueued and not job.unqueued:
                was = self._aside.get(name)
                self.submit(found, where)
                self._becomes(name, was)
            elif waiting is not None and job.unqueued:
                self._set_aside(waiting, job.unqueued)
            elif waiting is not None:
                now = job.workload
                moved = replace(
                    waiting,
                    queue=now.queue,
                    barred=now.barred,
                    barred_holds_up=now.barred_holds_up,
                    sub_weight=now.sub_weight,
                )
                if moved != waiting:
                    self.scheduler.withdraw(waiting)
                    self.scheduler.submit(moved)

    def _reconfigure(self) -> None:
        self.scheduler.reconfigure(*self.declared.everything())

    # ------------------------------------------------------------ cycles

    def _until_quiet(self) -> None:
        """Run cycles until one more could change nothing, or would only repeat what was already decided."""
        seen: set[object] = set()
        states: dict[bytes, int] = {}
        evicting: list[tuple[Decision, ...]] = []
        for ran in itertools.count():
            if self.most_cycles is not None and ran >= self.most_cycles:
                return
            decisions, has_effect = self._cycle()
            if not decisions:
                return
            if has_effect:
                seen.clear()
                if self.releases_at_once and any(each.victims for each in decisions):
                    state = state_digest(self.scheduler)
                    evicting.append(tuple(decisions))
                    if state in states or len(evicting) >= _MOST_EVICTING_CYCLES:
                        self._note_loop(evicting[states.get(state, 0) :], self.scheduler.cycles)
                        return
                    states[state] = len(evicting)
                continue
            mark = tuple(
                (each.workload.workload_id, each.result, each.assignment.flavors, each.parked, _tried(each))
                for each in decisions
            )
            if repr(mark) in seen:
                del self.cycles[-1]  # said before, and so on for ever
                return
            seen.add(repr(mark))

    def _note_loop(self, evicting: list[tuple[Decision, ...]], last_cycle: int) -> None:
        """Record jobs that evict each other without end, and the settings that would stop it, each found by a run."""
        evictions = evictions_of(itertools.chain(*evicting))
        settings: dict[tuple[str, str], Setting] = {}
        if not self.is_trial:
            for each in itertools.islice(candidate_settings(self.scheduler, evictions), _MOST_SETTINGS):
                if (each.queue, each.field) not in settings and self._rests_with(each):
                    settings[each.queue, each.field] = each  # the smallest change of this field that is enough
        loop = LoopAnswer(
            at=self.at,
            last_cycle=last_cycle,
            jobs=tuple(sorted({name for each in evictions for name in (each.by, each.victim)})),
            settings=tuple(
                SettingAnswer(queue=each.queue, field=each.field, value=each.value) for each in settings.values()
            ),
        )
        self.loops.append(loop)
        if not self.is_trial:
            self.declared.read_warnings.warn("plan", loop.sentence)

    def _rests_with(self, setting: Setting) -> bool:
        """Whether the same jobs would come to rest with another preemption setting of one queue."""
        queue = replace(self.declared.queues[setting.queue], preemption=setting.preemption)
        declared = replace(
            self.declared, queues={**self.declared.queues, setting.queue: queue}, read_warnings=ReadWarnings()
        )
        trial = Replay(declared, _CYCLES_TO_REST, self.releases_at_once, self.at, is_trial=True)
        for team in self.scheduler.snapshot.teams.values():
            for admitted in team.admitted.values():
                trial.scheduler.restore(replace(admitted))
        for pending in self.scheduler.pending.values():
            *waiting, _backing_off = pending.by_state()
            for name in itertools.chain(*waiting):
                found = pending.get(name)
                assert found is not None
                trial.scheduler.submit(found.workload)
        trial.run(Events())
        return not trial.loops and len(trial.cycles) < _CYCLES_TO_REST

    def _cycle(self) -> tuple[list[Decision], bool]:
        """Run one cycle; return what was decided, and whether anything was admitted or newly evicted."""
        teams = self.scheduler.snapshot.teams.values()
        evicted = frozenset(name for team in teams for name, admitted in team.admitted.items() if admitted.is_evicted)
        decisions = self.scheduler.cycle(self.at)
        if not decisions:
            return decisions, False
        pending = self.scheduler.pending
        answers: list[DecisionAnswer] = [
            decision_of(each, evicted, pending[each.workload.queue].sticky) for each in decisions
        ]
        self.cycles.append(CycleAnswer(number=self.scheduler.cycles, at=self.at, decisions=tuple(answers)))
        self.decisions += decisions
        gone = [victim.workload_id for each in decisions for victim in each.victims]
        has_effect = any(each.result is Result.ADMITTED for each in decisions) or bool(set(gone) - evicted)
        if self.releases_at_once:
            for name in gone:
                self._waits_again(name)
        return decisions, has_effect

    def answer(self) -> Plan:
        """Return everything that was decided, and where it ended."""
        return Plan(
            profile=str(self.declared.profile),
            fair_sharing=self.scheduler.rules.fair_sharing,
            cycles=tuple(self.cycles),
            loops=tuple(self.loops),
            end=state_of(self.scheduler, self.at, list(self.unqueued.items())),
            warnings=tuple(self.declared.read_warnings.warnings),
        )


def _without_admission(found: Any) -> Any:
    """Return a job's document as it is once it holds no quota any more."""
    if not isinstance(found, dict):
        return found
    status = found.get("status")
    if isinstance(status, dict):
        gone = ("admission", "conditions", "admissionChecks")
        return {**found, "status": {name: each for name, each in status.items() if name not in gone}}
    return {name: each for name, each in found.items() if name != "admitted"}


def _tried(decision: Decision) -> object:
    progress = decision.assignment.progress
    return [sorted(each.items()) for each in progress.tried] if progress else None


def _sized(pod_sets: tuple[PodSet, ...], counts: tuple[int, ...]) -> tuple[PodSet, ...]:
    return tuple(replace(each, count=count) for each, count in zip(pod_sets, counts, strict=True))


def _slice_names(job: str) -> Iterator[str]:
    number = 2
    while True:
        yield f"{job}-{number}"
        number += 1


def _nobody() -> Workload:
    raise AssertionError("the job was looked up before")
