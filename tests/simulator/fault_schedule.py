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
UNREACHABLE_PORTS = ("provider", "cluster")
"""Control planes that may be unreachable for a while."""
CHAOS_SECONDS = (60.0, 100.0, 160.0)
FAULTS = ("NvidiaErrorReboot", "NvidiaErrorTerminate", "EfaError", "XidHardwareFailure", "XidUserAppError", "NewThing")

INJECTED_FAULTS = (
    *("together", "new_node", "marked", "without_health_labels", "cut_off", "dead", "broken", "aborted", "scarce"),
    *("repaired_by_nvsentinel", "given_up_by_nvsentinel"),
)
NODE_RECOVERY = ("Automatic", "None")
"""The values to which people change NodeRecovery."""
PERSON_ACTIONS = ("cordon", "uncordon", "adopt", "hold", "mend", "reboot", "cancel", "answer", "forge")


def schedule_events(world: "Simulation") -> float:
    """Schedule the faults and actions of a run; return how many seconds the faults last."""
    rng = world.rng
    chaos_seconds = rng.choice(CHAOS_SECONDS)
    world.log(
        f"a fleet of {world.size} in mode {world.mode}"
        + (", all events are lost" if world.drops_events else "")
        + (", HyperPod repairs by itself" if world.owner_repairs else "")
    )
    _jobs(world)
    _outages(world, chaos_seconds)
    if rng.random() < _RARELY:
        chaos_seconds = _LONGER_THAN_RETRIES
        world.absent = rng.choice(sorted(functions()))
        world.seen["outage of a function"] += 1
        world.log(f"{world.absent} cannot be invoked")
    _control_plane_outages(world, chaos_seconds)
    rate = rng.choice((0.0, 0.01, 0.03, 0.06))
    fault_rate = rng.choice((0.0, 0.1, 0.3, 0.6))

    def begin() -> None:
        world.chaos.rate, world.provider.fault_rate = rate, fault_rate

    world.loop.after(3, begin)
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        world.loop.after(rng.uniform(5, chaos_seconds - 5), _fault(world))
    if rng.random() < 0.15:
        world.loop.after(
            rng.uniform(5, chaos_seconds - 5), world.counting("fault", "together", _simultaneous_faults(world))
        )
    if rng.random() < 0.06:
        world.loop.after(
            rng.uniform(5, chaos_seconds - 5), world.counting("fault", "scarce", _capacity_shortage(world))
        )
    action_count = rng.choice((0, 0, 1, 1, 2)) + (2 if world.mode == "recommend" else 0)
    for _ in range(action_count):
        world.loop.after(rng.uniform(3, chaos_seconds + 60), _choose_person_action(world))
    if rng.random() < 0.4:
        number = rng.randrange(3)
        world.loop.after(rng.uniform(3, 2 * chaos_seconds), lambda: world.cancel(number))
    _forgeries(world, random.Random(f"{world.seed} forgeries"), chaos_seconds)
    _other_controllers(world, random.Random(f"{world.seed} other controllers"), chaos_seconds)
    if world.changes_node_recovery:
        for _ in range(world.setting_rng.choice((1, 1, 2, 3))):
            world.loop.after(world.setting_rng.uniform(3, chaos_seconds + 30), world.change_node_recovery)
    return chaos_seconds


def _forgeries(world: "Simulation", rng: random.Random, chaos_seconds: float) -> None:
    """Create Jobs and pods with the labels of an attempt, in another namespace or under its name."""

    def forge(phase: PodPhase, namespace: str, number: int) -> None:
        running = [workload for workload in world.cluster.running() if workload.is_there]
        if not running:
            return
        attempt = running[number % len(running)].spec.attempt
        world.log(f"a person creates pods with the labels of {attempt.workload_name}: {phase}")
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

    if rng.random() < _FORGED:
        phases = (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.RUNNING)
        action = functools.partial(forge, rng.choice(phases), rng.choice(("other-team", "")), rng.randrange(100))
        world.loop.after(rng.uniform(5, chaos_seconds), world.counting("action", "forge", action))


@dataclass(frozen=True)
class _NvSentinel:
    """NVSentinel, another controller: it repairs a node on its own, or gives up."""

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
        world.break_node(instance_id, self.fault, is_marked=False, sends_event=True)
        for step, state in enumerate(("quarantined", *states) if self.is_late else states, 1):
            world.loop.after(step * self.step_seconds, functools.partial(self._set_state, instance_id, state))

    def _set_state(self, instance_id: str, state: str) -> None:
        """Set the label; cordon the node at first, and uncordon it at the end."""
        world, node = self.world, self.world.node_of(instance_id)
        if node is None:
            return
        world.log(f"NVSentinel: {instance_id} is {state or 'repaired'}")
        labels = {key: value for key, value in node.labels.items() if key != NVSENTINEL_LABEL}
        if state:
            world.cluster.set_node(node.name, labels={**labels, NVSENTINEL_LABEL: state}, is_cordoned=True)
            world.watched.controllers.setdefault(node.name, world.loop.seconds)
        else:
            # It removes only its own cordon.
            boot = {"boot_id": f"{node.boot_id}-nvsentinel"}
            world.cluster.set_node(node.name, labels=labels, is_cordoned=node.incident_id is not None, **boot)
            world.watched.controllers.pop(node.name, None)


def _other_controllers(world: "Simulation", rng: random.Random, chaos_seconds: float) -> None:
    """Let NVSentinel repair a node, or give up."""
    if rng.random() >= _WITH_NVSENTINEL:
        return
    nvsentinel = _NvSentinel(
        world,
        number=rng.randrange(100),
        fault=rng.choice(FAULTS[:2]),
        step_seconds=rng.choice((3.0, 12.0, 40.0)),
        is_late=rng.random() < 0.4,
    )
    happens = rng.choice((nvsentinel.repaired_by_nvsentinel, nvsentinel.given_up_by_nvsentinel))
    world.loop.after(rng.uniform(5, chaos_seconds), world.counting("fault", happens.__name__, happens))


def _jobs(world: "Simulation") -> None:
    rng = world.rng
    for number in range(rng.choice((1, 1, 2, 3, 5))):
        nodes = rng.choice((1, 1, 2, min(3, world.size), world.size))
        length = rng.choice((30.0, 80.0, 200.0))
        keeps = rng.random() < 0.7
        finishes = rng.random() < 0.15
        at = rng.choice((0.5, 1.0, 20.0, 50.0))
        world.loop.after(
            at,
            functools.partial(world.submit, number, nodes, length, keeps=keeps, finishes=finishes),
        )


def _outages(world: "Simulation", chaos_seconds: float) -> None:
    """Make the watch, the sweep or the provider's capacity unavailable for a part of the run."""
    rng = world.rng
    for name in OUTAGES:
        if rng.random() < (0.4 if name == "has_capacity" else 0.25):
            world.seen[f"outage {name}"] += 1
            owner = world.provider if name == "has_capacity" else world
            begins, ends = sorted(rng.uniform(0, chaos_seconds) for _ in range(2))
            world.loop.after(begins, lambda owner=owner, name=name: setattr(owner, name, False))  # type: ignore[misc]  # bound now
            back = not (name == "is_watching" and world.drops_events)
            world.loop.after(ends, lambda owner=owner, name=name, back=back: setattr(owner, name, back))  # type: ignore[misc]  # bound now


def _control_plane_outages(world: "Simulation", chaos_seconds: float) -> None:
    """Make a control plane unreachable for a large part of the run."""
    rng = world.rng

    def leave(port: str) -> None:
        world.seen[f"outage {port}"] += 1
        world.log(f"the {port} does not answer")
        world.chaos.away.add(port)
        world.away_since[port] = world.loop.seconds

    def come_back(port: str) -> None:
        world.log(f"the {port} answers again")
        world.chaos.away.discard(port)
        world.away_since.pop(port, None)

    for port in UNREACHABLE_PORTS:
        if rng.random() < 2 * _RARELY:
            begins = rng.uniform(5, chaos_seconds / 2)
            world.loop.after(begins, functools.partial(leave, port))
            world.loop.after(rng.uniform(begins, chaos_seconds), functools.partial(come_back, port))
    if rng.random() < 2 * _RARELY:
        begins = rng.uniform(5, chaos_seconds / 2)
        world.loop.after(begins, functools.partial(world.update_cluster, is_busy=True))
        world.loop.after(rng.uniform(begins, chaos_seconds), functools.partial(world.update_cluster, is_busy=False))


@dataclass(frozen=True)
class _Fault:
    """A fault of a node or a job, with its random parameters."""

    world: "Simulation"
    number: int
    """Chooses the node, job or workflow."""
    kind: int
    seconds: float
    fault: str
    soon: float

    def marked(self) -> None:
        world, instance_id = self.world, self.world.instance_id(self.number)
        world.break_node(instance_id, self.fault, is_marked=True, sends_event=True)
        if self.kind == 1:  # a series: the second event reports a worse fault
            world.loop.after(
                self.soon,
                lambda: world.break_node(instance_id, "NvidiaErrorTerminate", is_marked=True, sends_event=True),
            )
        if self.kind == 2:  # the fault appears, clears and returns
            world.loop.after(self.seconds, lambda: _clear_fault(world, instance_id))

    def without_health_labels(self) -> None:
        self.world.break_node(self.world.instance_id(self.number), self.fault, is_marked=False, sends_event=True)

    def cut_off(self) -> None:
        world = self.world
        node = world.node_of(world.instance_id(self.number))
        if node is None or not node.is_ready:
            return
        world.log(f"{node.instance_id} is unreachable")
        world.cluster.lose_node(node.name)
        if self.kind == 6:
            world.loop.after(self.seconds, lambda: _reconnect(world, node.name))
        elif self.number % 2:
            world.loop.after(
                20 + self.seconds / 3, self.broken
            )  # the replacement fails before the job has saved a checkpoint

    def dead(self) -> None:
        node = self.world.node_of(self.world.instance_id(self.number))
        if node is not None and node.is_ready:
            self.world.log(f"{node.instance_id} is dead")
            self.world.cluster.kill_node(node.name)

    def broken(self) -> None:
        running = [workload for workload in self.world.cluster.running() if workload.is_there and workload.pods]
        if running:
            attempt = running[self.number % len(running)].spec.attempt
            self.world.log(f"{attempt.workload_name} fails by itself")
            self.world.cluster.fail_pods(attempt.job_id, attempt.attempt, 0)

    def aborted(self) -> None:
        live_nodes = [execution for execution in self.world.engine.executions.values() if execution.status == "RUNNING"]
        if live_nodes:
            execution = live_nodes[self.number % len(live_nodes)]
            self.world.log(f"{execution.name} is aborted")
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
    rng = world.rng
    fault = _Fault(
        world,
        number=rng.randrange(100),
        kind=rng.randrange(len(_KINDS)),
        seconds=rng.uniform(5, 90),
        fault=rng.choice(FAULTS),
        soon=rng.choice((2.0, 2.0, 30.0)),
    )
    happens = _KINDS[fault.kind]
    return world.counting("fault", happens.__name__, functools.partial(happens, fault))


def _simultaneous_faults(world: "Simulation") -> Callable[[], None]:
    """Break several nodes at the same time, so that their recoveries run in parallel."""
    numbers, fault = range(world.rng.choice((2, 2, 3))), world.rng.choice(FAULTS[:2])

    def break_node() -> None:
        for instance_id in {world.instance_id(number): None for number in numbers}:
            world.break_node(instance_id, fault, is_marked=True, sends_event=True)

    return break_node


def _capacity_shortage(world: "Simulation") -> Callable[[], None]:
    """Let a launch find no capacity, and let a node fail that only another node can replace."""
    number, seconds = world.rng.randrange(100), world.rng.uniform(2, 20)

    def scarce() -> None:
        instance_id = world.instance_id(number)
        world.report_no_capacity("")
        break_node = functools.partial(
            world.break_node, instance_id, "NvidiaErrorTerminate", is_marked=True, sends_event=True
        )
        world.loop.after(seconds, break_node)

    return scarce


def _clear_fault(world: "Simulation", instance_id: str) -> None:
    node = world.node_of(instance_id)
    if node is not None:
        world.log(f"{instance_id} shows no fault")
        world.cluster.set_node(node.name, labels=without_health_labels(node.labels))
        if not world.drops_events:
            world.deliver(world.event(instance_id, ""), 1.0)


def _reconnect(world: "Simulation", name: str) -> None:
    node = world.cluster.node(CLUSTER, name)
    if node is not None and not node.is_ready and node.instance_id not in world.provider.running:
        world.log(f"{node.instance_id} is reachable again")
        world.cluster.ready_node(name)
        world.watched.returned[name] = world.loop.seconds


@dataclass(frozen=True)
class _PersonAction:
    """An action of a person, with its random parameters."""

    world: "Simulation"
    number: int
    """Chooses the node or job."""
    seconds: float

    def cordon(self) -> None:
        world = self.world
        node = world.node_of(world.instance_id(self.number))
        if node is not None and not node.is_cordoned:
            world.log(f"bo cordons {node.instance_id}")
            world.cluster.set_node(node.name, is_cordoned=True)
            world.watched.persons[node.name] = world.loop.seconds

    def uncordon(self) -> None:
        world = self.world
        cordoned = [node for node in world.cluster.by_name.values() if node.is_cordoned]
        if cordoned:
            node = cordoned[self.number % len(cordoned)]
            world.log(f"bo uncordons {node.instance_id}")
            world.watched.persons.pop(node.name, None)
            world.cluster.set_node(node.name, is_cordoned=False, incident_id=None)

    def adopt(self) -> None:
        world = self.world
        cordoned = [node for node in world.cluster.by_name.values() if node.is_cordoned and node.incident_id]
        if cordoned:
            node = cordoned[self.number % len(cordoned)]
            world.log(f"bo keeps {node.instance_id} for himself, cordoned")
            world.cluster.set_node(node.name, incident_id=None)
            world.watched.persons[node.name] = world.loop.seconds

    def hold(self) -> None:
        self.world.hold_automation(self.seconds)

    def clear_fault(self) -> None:
        world, instance_id, chaos_seconds = self.world, self.world.instance_id(self.number), self.seconds + 60
        world.break_node(instance_id, FAULTS[self.number % 4], is_marked=True, sends_event=True)
        world.hold_automation(chaos_seconds)
        if self.number % 2:
            world.loop.after(chaos_seconds * 0.7, lambda: world.clear_fault(instance_id))
        else:
            world.loop.after(chaos_seconds * 0.5, lambda: world.reboot(instance_id, chaos_seconds * 0.2))

    def cancel(self) -> None:
        self.world.cancel(self.number % 3)

    def answer(self) -> None:
        self.world.answer_plans(approves=bool(self.number % 3))


def _choose_person_action(world: "Simulation") -> Callable[[], None]:
    """Choose an action of a person."""
    rng = world.rng
    person = _PersonAction(world, number=rng.randrange(100), seconds=rng.uniform(20, 120))
    if world.mode == "recommend" and rng.random() < 0.6:
        return world.counting("action", "answer", person.answer)
    if rng.random() < 0.15:
        return person.clear_fault
    action = rng.choice((person.cordon, person.uncordon, person.adopt, person.hold, person.hold, person.cancel))
    return world.counting("action", action.__name__, action)
