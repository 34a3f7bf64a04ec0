"""Network levels and capacity that ends, in every eighth seed.

Nodes get their labels late, change them, or never have them. The nodes are of a Capacity Block, or their instance group
has a training plan. AWS moves its end, gives no answer, or gives an older answer after a newer one. These seeds draw
from their own random source.
"""

import functools
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from evenkeel.domain.capacity.capacity_blocks import CapacityReservation
from evenkeel.domain.capacity.network_topology import NetworkLevel
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import NETWORK_LAYER_LABEL, RESERVATION_LABELS, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.ports import NotFound, Unreachable
from tests.fakes.cluster import GPUS

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

EVERY, _FIRST = 8, 5
"""Every eighth seed, from the fifth on."""
POOL = "p5-workers"
_BLOCK = "cr-0123456789abcdef0"
_PLAN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/plan-1"
_OWN = 90
"""Number of the first job of this scenario."""
_JOBS = 5
_CYCLES_EVERY = 30.0
ENDS_READ_EVERY = 20
"""Seconds between two reads of the ends; ten minutes on AWS."""
_FAR = timedelta(days=9)
_CLOSING_SECONDS = 1800
_PATHS = ("top/left/a", "top/left/b", "top/right/c", "top/right/d")
"""Network nodes above a node, from layer 1 to layer 3."""
_UNLABELLED, _LATE = 0.15, 0.3
"""Probabilities that a node never has labels, or gets them late."""
ENDS = ("moved earlier", "moved later", "unreadable", "an older answer", "a missing reservation")
LABELS = ("late", "changed", "missing")


def has_placements(seed: int) -> bool:
    """Return whether a seed has network levels and capacity that ends."""
    return seed % EVERY == _FIRST


@dataclass
class PlacementHistory:
    """Facts about positions and ends for the checks."""

    paths: dict[str, list[tuple[float, tuple[str, ...]]]] = field(default_factory=dict)
    """By instance id: its network nodes, with the time from which its labels named them."""
    labelled_at: dict[str, float] = field(default_factory=dict)
    """By instance id: since when its label names the Capacity Block, or its group has the training plan."""
    stored_ends: list[tuple[float, float]] = field(default_factory=list)
    """Time of each commit of an end, and the second from which the pool is not usable any more."""

    leaving: set[str] = field(default_factory=set)
    """Names of the attempts that were asked to leave before the end."""

    def path_at(self, instance_id: str, seconds: float) -> tuple[str, ...]:
        """Return the network nodes above a node, as its labels named them at a time; empty without labels."""
        paths = [path for since, path in self.paths.get(instance_id, ()) if since <= seconds]
        return paths[-1] if paths else ()

    def is_on_ending_nodes(self, attempt: Attempt, seconds: float) -> bool:
        """Return whether a node of an attempt was of the Capacity Block or training plan before a time."""
        return any(self.labelled_at.get(life.instance_id, seconds) < seconds for life in attempt.nodes)

    def usable_until(self, seconds: float) -> float | None:
        """Return until when the pool was usable, by the end that was stored at a time; None without a stored end."""
        ends = [end for stored_at, end in self.stored_ends if stored_at <= seconds]
        return ends[-1] if ends else None


class PlacementScenario:
    """The positions of nodes, and the end of their capacity. Answers for EC2, too."""

    def __init__(self, world: "Simulation", rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.size = rng.choice((5, 6, 8))
        self.history = PlacementHistory()
        self.rests_from = 0.0
        """The time of the last change."""
        self._has_block = rng.random() < 0.7
        """Whether the nodes are of a Capacity Block. Otherwise their group has a training plan."""
        self.drain_rng = random.Random(f"{world.seed} drain")
        """Random source of the last saves of attempts that stop."""
        self._answers: list[Reservation] = []
        """The periods that AWS has stated, the newest last."""
        self._fault = ""
        """How AWS answers now, one of `ENDS`; empty if correctly."""
        self._due: dict[str, float] = {}
        """By instance id: when it gets its labels."""
        self._specs = {number: self._levels() for number in range(_OWN, _OWN + _JOBS)}

    def policy(self, policy: Policy) -> Policy:
        """Return the policy of this seed, with a figure for the slowdown in half of the seeds."""
        slowdown = self.rng.choice((None, 0.05))
        economy = policy.economy.replace(slowdown_per_network_level=slowdown, expected_checkpoint_seconds=20)
        return policy.replace(economy=economy, jobs=policy.jobs.replace(expected_resume_seconds=20))

    def _levels(self) -> dict[str, Any]:
        level = self.rng.choice((NetworkLevel.LAYER_2, NetworkLevel.LAYER_3))
        return self.rng.choice(({"required_network_level": level}, {"preferred_network_level": level}))

    def with_levels(self, number: int, spec: JobSpec) -> JobSpec:
        """Return the spec of a job with the network level that it requires or prefers, if it has one."""
        fields = self._specs.get(number)
        return spec.replace(**fields, accelerators_per_node=GPUS) if fields else spec

    # ------------------------------------------------------------ events

    def schedule_events(self, chaos_seconds: float) -> None:
        """Label the nodes, submit jobs, and move the end of the capacity."""
        world, rng = self.world, self.rng
        self._answers.append(self._period_until(world.loop.seconds + _FAR.total_seconds()))
        if not self._has_block:
            world.provider.settings = world.provider.settings.replace(plan_by_group={POOL: _PLAN})
            world.provider.describe_plan = self.describe_plan
        self._label_nodes()
        world.every(5.0, self._label_nodes)
        world.every(_CYCLES_EVERY, lambda: world.invoke_scheduled("schedule_jobs"))
        world.loop.after(rng.uniform(10, chaos_seconds), world.counting("labels", "changed", self._move_node))
        for number in self._specs:
            nodes, length = rng.choice((2, 2, 3)), rng.choice((60.0, 200.0, 600.0))
            submit = functools.partial(world.submit, number, nodes, length, keeps=True, finishes=False)
            world.loop.after(rng.uniform(6, chaos_seconds), submit)
        self.rests_from = chaos_seconds + 65
        self._schedule_ends(chaos_seconds)

    def _schedule_ends(self, chaos_seconds: float) -> None:
        world, rng = self.world, self.rng
        subject = "end" if self._has_block else "plan"
        for kind in ENDS[2:]:
            if rng.random() < 0.5 or not self._has_block:
                at, seconds = rng.uniform(20, chaos_seconds), rng.uniform(30, 120)
                world.loop.after(at, world.counting(subject, kind, functools.partial(self._set_fault, kind)))
                world.loop.after(at + seconds, lambda: self._set_fault(""))
        earlier_at, lead = rng.uniform(30, chaos_seconds + 20), rng.uniform(120, 320)
        end = world.loop.seconds + earlier_at + lead
        world.loop.after(earlier_at, world.counting(subject, "moved earlier", lambda: self._move_end(end)))
        later_at = earlier_at + lead + rng.uniform(150, 300)
        far = world.loop.seconds + later_at + _FAR.total_seconds()
        world.loop.after(later_at, world.counting(subject, "moved later", lambda: self._move_end(far)))
        self.rests_from = max(self.rests_from, world.loop.seconds + later_at + 65)

    def _set_fault(self, kind: str) -> None:
        self.world.log(f"AWS answers about the end: {kind or 'correctly'}")
        self._fault = kind

    def _period_until(self, seconds: float) -> Reservation:
        """Return a period whose nodes are usable until a second of the simulation."""
        start = self.world.loop.now() - timedelta(seconds=self.world.loop.seconds)
        return Reservation(
            starts_at=start - timedelta(days=1), ends_at=start + timedelta(seconds=seconds + _CLOSING_SECONDS)
        )

    def _move_end(self, seconds: float) -> None:
        self.world.log(f"AWS moves the end: usable until {seconds:.0f}")
        self._answers.append(self._period_until(seconds))

    def describe(self, reservation_id: str) -> CapacityReservation:
        """Answer for EC2.

        Raises:
            Unreachable: EC2 gives no usable answer.
            NotFound: EC2 does not know the reservation now.
        """
        return CapacityReservation(reservation_id=reservation_id, period=self._period(reservation_id))

    def describe_plan(self, arn: str) -> TrainingPlan:
        """Answer for SageMaker.

        Raises:
            Unreachable: SageMaker gives no usable answer.
            NotFound: SageMaker does not know the plan now.
        """
        return TrainingPlan(name=arn.rpartition("/")[2], periods=(self._period(arn),))

    def _period(self, name: str) -> Reservation:
        """Return the period that AWS states now, or raise how it answers."""
        if self._fault == "unreadable":
            raise Unreachable(f"describe {name}: no usable answer")
        if self._fault == "a missing reservation":
            raise NotFound(f"{name} does not exist")
        is_old = self._fault == "an older answer" and self.rng.random() < 0.5
        return self._answers[-2 if is_old and len(self._answers) > 1 else -1]

    # ------------------------------------------------------------ labels

    def _label_nodes(self) -> None:
        """Label each node when its labels are due."""
        world, rng = self.world, self.rng
        for node in list(world.cluster.by_name.values()):
            if node.pool != POOL or not node.instance_id:
                continue
            if node.instance_id not in self._due:
                self._due[node.instance_id] = self._draw_delay()
                if self._has_block:
                    self._set_labels(node, {RESERVATION_LABELS[0]: _BLOCK})
                self.history.labelled_at[node.instance_id] = world.loop.seconds
            if node.instance_id not in self.history.paths and self._due[node.instance_id] <= world.loop.seconds:
                self._set_path(node.instance_id, rng.choice(_PATHS))

    def _draw_delay(self) -> float:
        draw, now = self.rng.random(), self.world.loop.seconds
        if draw < _UNLABELLED:
            self.world.seen["labels missing"] += 1
            return float("inf")
        if draw < _UNLABELLED + _LATE:
            self.world.seen["labels late"] += 1
            return now + self.rng.uniform(10, 90)
        return now

    def _move_node(self) -> None:
        """Give a node another position, as after a replacement behind the same id."""
        instance_ids = sorted(self.history.paths)
        if instance_ids:
            self._set_path(self.rng.choice(instance_ids), self.rng.choice(_PATHS))

    def _set_path(self, instance_id: str, path: str) -> None:
        world = self.world
        node = world.node_of(instance_id)
        if node is None:
            return
        layers = tuple(path.split("/"))
        self._set_labels(node, {f"{NETWORK_LAYER_LABEL}{layer}": name for layer, name in enumerate(layers, 1)})
        self.history.paths.setdefault(instance_id, []).append((world.loop.seconds, layers))
        world.log(f"{node.name} is labelled {path}")

    def _set_labels(self, node: KubernetesNode, labels: dict[str, str]) -> None:
        present = self.world.cluster.by_name[node.cluster, node.name].labels
        self.world.cluster.set_node(node.name, node.cluster, labels={**present, **labels})
