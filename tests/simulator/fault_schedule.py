"""The schedule of a seed: faults of nodes, actions of people, outages and jobs, fixed before it begins."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenkeel.domain.jobs.attempt import ObservedPod, ObservedWorkload, PodPhase
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.domain.recovery.other_controllers import NVSENTINEL_LABEL
from tests.fakes.cluster import CLUSTER
from tests.simulator.asl import functions
from tests.simulator.data_centre import without_health_labels

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

OUTAGES = ("is_watching", "is_sweeping", "has_capacity")
_RARELY = 0.04
_FORGED = 0.3
_WITH_NVSENTINEL = 0.08
_LONGER_THAN_RETRIES = 500.0
"""Twelve tries take about 200 s, and the last try of a run may begin while faults still happen."""
AWAY = ("provider", "cluster")
"""Control planes that may not answer for a while."""
CHAOS_SECONDS = (60.0, 100.0, 160.0)
FAULTS = ("NvidiaErrorReboot", "NvidiaErrorTerminate", "EfaError", "XidHardwareFailure", "XidUserAppError", "NewThing")

HURTS = (
    *("together", "new_node", "marked", "without_health_labels", "cut_off", "dead", "broken", "aborted", "scarce"),
    *("repaired_by_nvsentinel", "given_up_by_nvsentinel"),
)
DEEDS = ("cordon", "uncordon", "adopt", "hold", "mend", "reboot", "cancel", "answer", "forge")


def lay_out(world: "Simulation") -> float:
    """Plan the hostile part of a run; return how long it lasts."""
    chance = world.chance
    lasts = chance.choice(CHAOS_SECONDS)
    world.tell(
        f"a fleet of {world.size} in mode {world.mode}"
        + (", all events are lost" if world.drops_events else "")
        + (", HyperPod repairs by itself" if world.owner_repairs else "")
    )
    _jobs(world)
    _outages(world, lasts)
    if chance.random() < _RARELY:
        lasts = _LONGER_THAN_RETRIES
        world.absent = chance.choice(sorted(functions()))
        world.seen["outage of a function"] += 1
        world.tell(f"{world.absent} cannot be invoked")
    _control_plane_outages(world, lasts)
    rate = chance.choice((0.0, 0.01, 0.03, 0.06))
    trouble = chance.choice((0.0, 0.1, 0.3, 0.6))

    def begin() -> None:
        world.chaos.rate, world.provider.trouble = rate, trouble

    world.loop.after(3, begin)
    for _ in range(chance.choice((1, 1, 2, 2, 3, 4))):
        world.loop.after(chance.uniform(5, lasts - 5), _fault(world))
    if chance.random() < 0.15:
        world.loop.after(
            chance.uniform(5, lasts - 5), world.counted_as("fault", "together", _simultaneous_faults(world))
        )
    if chance.random() < 0.06:
        world.loop.after(chance.uniform(5, lasts - 5), world.counted_as("fault", "scarce", _capacity_shortage(world)))
    deeds = chance.choice((0, 0, 1, 1, 2)) + (2 if world.mode == "recommend" else 0)
    for _ in range(deeds):
        world.loop.after(chance.uniform(3, lasts + 60), _choose_person_action(world))
    if chance.random() < 0.4:
        number = chance.randrange(3)
        world.loop.after(chance.uniform(3, 2 * lasts), lambda: world.cancel(number))
    _forgeries(world, random.Random(f"{world.seed} forgeries"), lasts)
    _other_controllers(world, random.Random(f"{world.seed} other controllers"), lasts)
    return lasts


def _forgeries(world: "Simulation", chance: random.Random, lasts: float) -> None:
    """Create Jobs and pods with the labels of an attempt, in another namespace or under its name."""

    def forge(phase: PodPhase, namespace: str, number: int) -> None:
        running = [workload for workload in world.cluster.running() if workload.is_there]
        if not running:
            return
        attempt = running[number % len(running)].spec.attempt
        world.tell(f"a person creates pods with the labels of {attempt.workload_name}: {phase}")
        nodes = sorted(node.name for node in world.cluster.nodes(CLUSTER))
        pods = tuple(
            ObservedPod(name=f"forged-{rank}", node_name=nodes[(number + rank) % len(nodes)], phase=phase)
            for rank in range(attempt.ranks)
        )
        forged = ObservedWorkload(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            namespace=namespace or attempt.namespace,
            job_uid=f"forged-{number}",
            uid=f"forged-{number}",
            decision_id=attempt.decision_id,
            has_completed=phase is PodPhase.SUCCEEDED,
            has_failed=phase is PodPhase.FAILED,
            pods=pods,
        )
        world.cluster.forged.insert(0, forged)

    if chance.random() < _FORGED:
        phases = (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.RUNNING)
        deed = functools.partial(forge, chance.choice(phases), chance.choice(("other-team", "")), chance.randrange(100))
        world.loop.after(chance.uniform(5, lasts), world.counted_as("deed", "forge", deed))


@dataclass(frozen=True)
class _NvSentinel:
    """Another controller, which repairs a node on its own, with the probabilities of its course."""

    world: "Simulation"
    number: int
    """Chooses the node."""
    fault: str
    step_seconds: float
    is_late: bool
    """It marks the node only after Evenkeel may have begun its recovery."""

    def repaired_by_nvsentinel(self) -> None:
        self._quarantine(("draining", "drain-succeeded", "remediating", "remediation-succeeded", ""))

    def given_up_by_nvsentinel(self) -> None:
        self._quarantine(("draining", "drain-failed"))

    def _quarantine(self, states: tuple[str, ...]) -> None:
        world, instance_id = self.world, self.world.instance_id(self.number)
        node = world.node_of(instance_id)
        if node is None or KARPENTER_LABEL in node.labels:
            return
        if not self.is_late:
            self._set_state(instance_id, "quarantined")
        world.break_node(instance_id, self.fault, marked=False, heard=True)
        for step, state in enumerate(("quarantined", *states) if self.is_late else states, 1):
            world.loop.after(step * self.step_seconds, functools.partial(self._set_state, instance_id, state))

    def _set_state(self, instance_id: str, state: str) -> None:
        """Set the label; cordon the node at first, and uncordon it at the end."""
        world, node = self.world, self.world.node_of(instance_id)
        if node is None:
            return
        world.tell(f"NVSentinel: {instance_id} is {state or 'repaired'}")
        labels = {key: value for key, value in node.labels.items() if key != NVSENTINEL_LABEL}
        if state:
            world.cluster.set_node(node.name, labels={**labels, NVSENTINEL_LABEL: state}, is_cordoned=True)
            world.watched.controllers.setdefault(node.name, world.loop.seconds)
        else:
            # It removes only its own cordon.
            boot = {"boot_id": f"{node.boot_id}-nvsentinel"}
            world.cluster.set_node(node.name, labels=labels, is_cordoned=node.incident_id is not None, **boot)
            world.watched.controllers.pop(node.name, None)


def _other_controllers(world: "Simulation", chance: random.Random, lasts: float) -> None:
    """Let NVSentinel repair a node, or give up."""
    if chance.random() >= _WITH_NVSENTINEL:
        return
    nvsentinel = _NvSentinel(
        world,
        number=chance.randrange(100),
        fault=chance.choice(FAULTS[:2]),
        step_seconds=chance.choice((3.0, 12.0, 40.0)),
        is_late=chance.random() < 0.4,
    )
    happens = chance.choice((nvsentinel.repaired_by_nvsentinel, nvsentinel.given_up_by_nvsentinel))
    world.loop.after(chance.uniform(5, lasts), world.counted_as("fault", happens.__name__, happens))


def _jobs(world: "Simulation") -> None:
    chance = world.chance
    for number in range(chance.choice((1, 1, 2, 3, 5))):
        nodes = chance.choice((1, 1, 2, min(3, world.size), world.size))
        length = chance.choice((30.0, 80.0, 200.0))
        keeps = chance.random() < 0.7
        finishes = chance.random() < 0.15
        at = chance.choice((0.5, 1.0, 20.0, 50.0))
        world.loop.after(
            at,
            functools.partial(world.submit, number, nodes, length, keeps=keeps, finishes=finishes),
        )


def _outages(world: "Simulation", lasts: float) -> None:
    """Let the watch, the sweep or the provider's capacity be away for a part of it."""
    chance = world.chance
    for name in OUTAGES:
        if chance.random() < (0.4 if name == "has_capacity" else 0.25):
            world.seen[f"outage {name}"] += 1
            owner = world.provider if name == "has_capacity" else world
            begins, ends = sorted(chance.uniform(0, lasts) for _ in range(2))
            world.loop.after(begins, lambda owner=owner, name=name: setattr(owner, name, False))  # type: ignore[misc]  # bound now
            back = not (name == "is_watching" and world.drops_events)
            world.loop.after(ends, lambda owner=owner, name=name, back=back: setattr(owner, name, back))  # type: ignore[misc]  # bound now


def _control_plane_outages(world: "Simulation", lasts: float) -> None:
    """Let a control plane not answer for a large part of its run."""
    chance = world.chance

    def leave(port: str) -> None:
        world.seen[f"outage {port}"] += 1
        world.tell(f"the {port} does not answer any more")
        world.chaos.away.add(port)
        world.away_since[port] = world.loop.seconds

    def come_back(port: str) -> None:
        world.tell(f"the {port} answers again")
        world.chaos.away.discard(port)
        world.away_since.pop(port, None)

    for port in AWAY:
        if chance.random() < 2 * _RARELY:
            begins = chance.uniform(5, lasts / 2)
            world.loop.after(begins, functools.partial(leave, port))
            world.loop.after(chance.uniform(begins, lasts), functools.partial(come_back, port))
    if chance.random() < 2 * _RARELY:
        begins = chance.uniform(5, lasts / 2)
        world.loop.after(begins, functools.partial(world.update_cluster, is_busy=True))
        world.loop.after(chance.uniform(begins, lasts), functools.partial(world.update_cluster, is_busy=False))


@dataclass(frozen=True)
class _Fault:
    """A fault of a node or a job, with the probabilities of its course."""

    world: "Simulation"
    number: int
    """Chooses the node, job or workflow."""
    kind: int
    seconds: float
    fault: str
    soon: float

    def marked(self) -> None:
        world, instance_id = self.world, self.world.instance_id(self.number)
        world.break_node(instance_id, self.fault, marked=True, heard=True)
        if self.kind == 1:  # a burst: the second sign is worse, or another witness
            world.loop.after(
                self.soon, lambda: world.break_node(instance_id, "NvidiaErrorTerminate", marked=True, heard=True)
            )
        if self.kind == 2:  # it flaps
            world.loop.after(self.seconds, lambda: _clear_fault(world, instance_id))

    def without_health_labels(self) -> None:
        self.world.break_node(self.world.instance_id(self.number), self.fault, marked=False, heard=True)

    def cut_off(self) -> None:
        world = self.world
        node = world.node_of(world.instance_id(self.number))
        if node is None or not node.is_ready:
            return
        world.tell(f"{node.instance_id} is cut off")
        world.cluster.lose_node(node.name)
        if self.kind == 6:
            world.loop.after(self.seconds, lambda: _reconnect(world, node.name))
        elif self.number % 2:
            world.loop.after(20 + self.seconds / 3, self.broken)  # its replacement fails before it has saved anything

    def dead(self) -> None:
        node = self.world.node_of(self.world.instance_id(self.number))
        if node is not None and node.is_ready:
            self.world.tell(f"{node.instance_id} is dead")
            self.world.cluster.kill_node(node.name)

    def broken(self) -> None:
        running = [workload for workload in self.world.cluster.running() if workload.is_there and workload.pods]
        if running:
            attempt = running[self.number % len(running)].spec.attempt
            self.world.tell(f"{attempt.workload_name} fails by itself")
            self.world.cluster.fail_pods(attempt.job_id, attempt.attempt, 0)

    def aborted(self) -> None:
        alive = [execution for execution in self.world.engine.executions.values() if execution.status == "RUNNING"]
        if alive:
            execution = alive[self.number % len(alive)]
            self.world.tell(f"{execution.name} is aborted")
            self.world.engine.abort(execution)


_KINDS = (
    _Fault.marked,
    _Fault.marked,
    _Fault.marked,
    _Fault.without_health_labels,
    _Fault.without_health_labels,
    _Fault.cut_off,
    _Fault.cut_off,
    _Fault.dead,
    _Fault.broken,
    _Fault.aborted,
)


def _fault(world: "Simulation") -> Callable[[], None]:
    """Choose a fault of a node or a job."""
    chance = world.chance
    fault = _Fault(
        world,
        number=chance.randrange(100),
        kind=chance.randrange(len(_KINDS)),
        seconds=chance.uniform(5, 90),
        fault=chance.choice(FAULTS),
        soon=chance.choice((2.0, 2.0, 30.0)),
    )
    happens = _KINDS[fault.kind]
    return world.counted_as("fault", happens.__name__, functools.partial(happens, fault))


def _simultaneous_faults(world: "Simulation") -> Callable[[], None]:
    """Let some nodes break at one moment: their recoveries go in step."""
    numbers, fault = range(world.chance.choice((2, 2, 3))), world.chance.choice(FAULTS[:2])

    def break_node() -> None:
        for instance_id in {world.instance_id(number): None for number in numbers}:
            world.break_node(instance_id, fault, marked=True, heard=True)

    return break_node


def _capacity_shortage(world: "Simulation") -> Callable[[], None]:
    """Let a launch find no capacity, and let a node fail that only another node can replace."""
    number, seconds = world.chance.randrange(100), world.chance.uniform(2, 20)

    def scarce() -> None:
        instance_id = world.instance_id(number)
        world.without_capacity("")
        break_node = functools.partial(world.break_node, instance_id, "NvidiaErrorTerminate", marked=True, heard=True)
        world.loop.after(seconds, break_node)

    return scarce


def _clear_fault(world: "Simulation", instance_id: str) -> None:
    node = world.node_of(instance_id)
    if node is not None:
        world.tell(f"{instance_id} shows no fault any more")
        world.cluster.set_node(node.name, labels=without_health_labels(node.labels))
        if not world.drops_events:
            world.deliver(world.event(instance_id, ""), 1.0)


def _reconnect(world: "Simulation", name: str) -> None:
    node = world.cluster.node(CLUSTER, name)
    if node is not None and not node.is_ready and node.instance_id not in world.provider.running:
        world.tell(f"{node.instance_id} is back by itself")
        world.cluster.ready_node(name)
        world.watched.returned[name] = world.loop.seconds


@dataclass(frozen=True)
class _PersonAction:
    """An action of a person, with the probabilities of its course."""

    world: "Simulation"
    number: int
    """Chooses the node or job."""
    seconds: float

    def cordon(self) -> None:
        world = self.world
        node = world.node_of(world.instance_id(self.number))
        if node is not None and not node.is_cordoned:
            world.tell(f"bo cordons {node.instance_id}")
            world.cluster.set_node(node.name, is_cordoned=True)
            world.watched.persons[node.name] = world.loop.seconds

    def uncordon(self) -> None:
        world = self.world
        cordoned = [node for node in world.cluster.by_name.values() if node.is_cordoned]
        if cordoned:
            node = cordoned[self.number % len(cordoned)]
            world.tell(f"bo uncordons {node.instance_id}")
            world.watched.persons.pop(node.name, None)
            world.cluster.set_node(node.name, is_cordoned=False, incident_id=None)

    def adopt(self) -> None:
        world = self.world
        cordoned = [node for node in world.cluster.by_name.values() if node.is_cordoned and node.incident_id]
        if cordoned:
            node = cordoned[self.number % len(cordoned)]
            world.tell(f"bo keeps {node.instance_id} for himself, cordoned")
            world.cluster.set_node(node.name, incident_id=None)
            world.watched.persons[node.name] = world.loop.seconds

    def hold(self) -> None:
        self.world.hold_automation(self.seconds)

    def mend(self) -> None:
        world, instance_id, lasts = self.world, self.world.instance_id(self.number), self.seconds + 60
        world.break_node(instance_id, FAULTS[self.number % 4], marked=True, heard=True)
        world.hold_automation(lasts)
        if self.number % 2:
            world.loop.after(lasts * 0.7, lambda: world.mend(instance_id))
        else:
            world.loop.after(lasts * 0.5, lambda: world.reboot(instance_id, lasts * 0.2))

    def cancel(self) -> None:
        self.world.cancel(self.number % 3)

    def answer(self) -> None:
        self.world.answer_plans(approves=bool(self.number % 3))


def _choose_person_action(world: "Simulation") -> Callable[[], None]:
    """Choose one thing that a person does."""
    chance = world.chance
    person = _PersonAction(world, number=chance.randrange(100), seconds=chance.uniform(20, 120))
    if world.mode == "recommend" and chance.random() < 0.6:
        return world.counted_as("deed", "answer", person.answer)
    if chance.random() < 0.15:
        return person.mend
    deed = chance.choice((person.cordon, person.uncordon, person.adopt, person.hold, person.hold, person.cancel))
    return world.counted_as("deed", deed.__name__, deed)
