"""The nodes, the control planes and the training jobs, in virtual time. Their faults are known exactly."""

import functools
import itertools
import random
from collections.abc import Callable, Container, Mapping
from typing import Any

from evenkeel.domain.capacity.training_plans import TrainingPlan
from evenkeel.domain.jobs.attempt import Attempt, ObservedPod, PodPhase
from evenkeel.domain.jobs.attempt_end import PEER_LOST_EXIT
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode, ProviderNode
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.values import rfc3339
from evenkeel.ports import LaunchResult, LaunchSpec
from tests.fakes.checkpoints import InMemoryCheckpoints
from tests.fakes.cluster import CLUSTER, FakeCluster, FakeWorkload, a_node
from tests.fakes.provider import REBOOT, REPLACE, FakeProvider, a_provider_node
from tests.fakes.system import A_MOMENT, FixedClock
from tests.simulator.event_loop import VirtualTimeLoop

FAULT_TYPES = "sagemaker.amazonaws.com/fault-types"
_SAVES_EVERY = 20.0
_STEPS_A_SAVE = 10
_SAVES_AT_STOP = 0.8
"""Probability that an attempt saves once more when it is stopped."""
SPOT_POOL = "spot"


class LoopClock(FixedClock):
    """The loop's time, as the fakes read it."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self.loop = loop

    def now(self) -> Any:
        return self.loop.now()

    def sleep_about(self, seconds: float) -> None:
        """Wait no time: a simulated function runs at one instant."""


class SimulatedCluster(FakeCluster):
    """Kubernetes, and the processes behind its pods."""

    def __init__(self, loop: VirtualTimeLoop, rng: random.Random, *nodes: KubernetesNode) -> None:
        super().__init__(LoopClock(loop), *nodes, runs_at_once=True)
        self.loop = loop
        self.rng = rng
        self.dying: set[str] = set()
        """Pods that end after a delay."""
        self.on_change: Callable[[], None] = lambda: None
        self.on_launch: Callable[[LaunchSpec], None] = lambda _: None
        self.on_full: Callable[[], None] | None = None
        """Called to place pods whose node is full. Without it, a node always has capacity for admitted pods."""
        self.node_changes = 0
        self._new_numbers = itertools.count(501)

    def delete_node(self, cluster: str, name: str, instance_id: str) -> RepairAnswer:
        answer = super().delete_node(cluster, name, instance_id)
        if answer is RepairAnswer.ACCEPTED:
            self._karpenter_provisions()
        return answer

    def reclaim(self, name: str) -> None:
        """Remove a Spot node at once."""
        self.remove_node(name)
        self._karpenter_provisions()

    def _karpenter_provisions(self) -> None:
        number = next(self._new_numbers)
        self.loop.after(self.rng.uniform(15, 60), lambda: self.add_node(spot_node(number, created_at=self.loop.now())))

    def _changed(self, *kinds: str) -> None:
        self.node_changes += "node" in kinds
        self.on_change()

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        result = super().launch(spec)
        if result[0] is LaunchResult.CREATED:
            if self.on_full is not None:
                self._reject_pods(spec)
            self.on_launch(spec)
        return result

    def _reject_pods(self, spec: LaunchSpec) -> None:
        """Let the pods of a new attempt wait if other pods occupy their nodes."""
        workload = self.launched(spec.attempt.job_id, spec.attempt.attempt)
        used = self.accelerators_in_use(CLUSTER)
        full = {node.name for node in self.nodes(CLUSTER) if used.get(node.name, 0) > node.accelerators}
        workload.pods = [
            pod.replace(node_name="", phase=PodPhase.PENDING, reason="Unschedulable") if pod.node_name in full else pod
            for pod in workload.pods
        ]
        if full and self.on_full is not None:
            self.on_full()

    def bind_waiting_pods(self) -> bool:
        """Place waiting pods whose node has capacity now; return whether pods still wait."""
        is_left = False
        for workload in self.running():
            for index, pod in enumerate(workload.pods if workload.is_there else ()):
                if pod.phase is not PodPhase.PENDING or pod.node_name:
                    continue
                name = workload.spec.attempt.node_names[int(pod.name.rpartition("-")[2])]
                node, used = self.node(CLUSTER, name), self.accelerators_in_use(CLUSTER).get(name, 0)
                if (
                    node
                    and node.is_schedulable
                    and used + workload.spec.job_spec.accelerators_per_node <= node.accelerators
                ):
                    workload.pods[index] = pod.replace(node_name=name, phase=PodPhase.RUNNING, reason="")
                    self._changed("pod")
                is_left = is_left or not workload.pods[index].node_name
        return is_left

    def stop(self, attempt: Attempt, grace_seconds: int, nodes_without_grace: Container[str] = ()) -> None:
        """Delete a Job; its running, reachable pods use some of their grace."""
        workload = self._own(attempt)
        if workload and workload.is_there and grace_seconds:
            names = {
                pod.name
                for pod in workload.pods
                if pod.phase is PodPhase.RUNNING and pod.node_name not in nodes_without_grace
            }
            self.dying |= names
            self.loop.after(self.rng.uniform(0, grace_seconds), lambda: self._end_pods(workload, names))
        super().stop(attempt, grace_seconds, nodes_without_grace)

    def _end_pods(self, workload: FakeWorkload, names: set[str]) -> None:
        self.dying -= names
        workload.pods = [pod for pod in workload.pods if pod.name not in names or self._is_unreachable(CLUSTER, pod)]
        self._forget_empty(CLUSTER)
        self._changed("pod")

    def _is_unreachable(self, cluster: str, pod: ObservedPod) -> bool:
        return pod.name in self.dying or super()._is_unreachable(cluster, pod)

    def ready_node(self, name: str, cluster: str = CLUSTER, **changes: Any) -> None:
        """Connect a kubelet again. It first ends the pods that were deleted during its absence, which takes time."""
        for workload in self.running():
            names = {pod.name for pod in workload.pods if pod.is_terminating and pod.node_name == name}
            self.dying |= names
            self.loop.after(self.rng.uniform(0, 15), functools.partial(self._end_pods, workload, names))
        super().ready_node(name, cluster, **changes)

    def watch(
        self,
        cluster: str,
        on_change: Callable[[str], None],
        *,
        until: Callable[[], bool],
        on_state: Callable[[str, str], None] | None = None,
    ) -> None:
        """Run one watch whose connection ends at once. The loop schedules the next invocation."""
        if on_state is not None:
            for kind in ("node", "pod", "job"):
                on_state(kind, "")
        until()

    def running(self) -> list[FakeWorkload]:
        return [workload for _, workload in sorted(self.jobs.get(CLUSTER, {}).items())]


class SimulatedProvider(FakeProvider):
    """HyperPod: repairs take a while, and some of them fail."""

    def __init__(self, loop: VirtualTimeLoop, rng: random.Random, cluster: SimulatedCluster, size: int) -> None:
        """Create a provider with `size` nodes."""
        initial_nodes = [a_provider_node(number) for number in range(1, size + 1)]
        super().__init__(LoopClock(loop), *initial_nodes, kubernetes=cluster)
        self.loop = loop
        self.rng = rng
        self.fault_rate = 0.0
        """Share of calls and repairs that fail."""
        self.has_capacity = True
        self.shown: dict[str, tuple[float, ProviderNode]] = {}
        """Stale list entries of a node with their expiry: lists lag behind accepted calls."""
        self.is_told: Callable[[str], None] = lambda _: None
        self.on_no_capacity: Callable[[str], None] = lambda _: None
        self.on_new_node: Callable[[str], None] = lambda _: None
        self.own_repairs: dict[str, float] = {}
        """When HyperPod began its own repair of a node that runs now, by instance id."""
        self.describe_plan: Callable[[str], TrainingPlan] = super().training_plan

    def training_plan(self, arn: str) -> TrainingPlan:
        return self.describe_plan(arn)

    def _ask(self, rung: str, instance_id: str) -> RepairAnswer:
        if self.rng.random() < self.fault_rate / 2 and not self.scripted:
            self.scripted.append(self.rng.choice((RepairAnswer.NOT_NOW, RepairAnswer.FAILED, RepairAnswer.UNKNOWN)))
        if self.rng.random() < self.fault_rate / 2:
            self.lost_replies = 1
        before, was_running = self.by_id.get(instance_id), instance_id in self.running
        answer = super()._ask(rung, instance_id)
        self.lost_replies = 0
        if before and not was_running and instance_id in self.running:
            self.shown[instance_id] = (self.loop.seconds + self.rng.choice((0.0, 3.0, 15.0)), before)
            self.start_repair(instance_id)
        return answer

    def nodes(self) -> tuple[ProviderNode, ...]:
        return tuple(self._listed(node) for node in super().nodes())

    def node(self, instance_id: str) -> ProviderNode | None:
        node = super().node(instance_id)
        return self._listed(node) if node else None

    def _listed(self, node: ProviderNode) -> ProviderNode:
        until, before = self.shown.get(node.instance_id, (0.0, node))
        return before if self.loop.seconds < until and node.instance_id in self.running else node

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:
        answer = super().check_health(instance_group, instance_id)
        if answer is RepairAnswer.ACCEPTED:
            passed = self.rng.random() >= self.fault_rate / 2
            self.loop.after(self.rng.uniform(3, 12), lambda: self._end_check(instance_id, passed=passed))
        return answer

    def _end_check(self, instance_id: str, *, passed: bool) -> None:
        if instance_id in self.by_id and self.by_id[instance_id].status == "DeepHealthCheckInProgress":
            self.is_told(f"the deep health check of {instance_id} is over: {'well' if passed else 'sick'}")
            self.finish_check(instance_id, passed=passed)

    def repair_by_itself(self, instance_id: str, rung: str = REPLACE) -> None:
        """Reboot or replace a node without a request, if NodeRecovery is Automatic now."""
        if self.settings.repairs_by_itself and instance_id in self.by_id and instance_id not in self.running:
            self.running[instance_id] = rung
            self.own_repairs[instance_id] = self.loop.seconds
            self.by_id[instance_id] = self.by_id[instance_id].replace(status="Pending")
            assert self.kubernetes
            if node := self._seen(instance_id):
                take_down = self.kubernetes.kill_node if rung == REBOOT else self.kubernetes.remove_node
                take_down(node.name, node.cluster)
            self.start_repair(instance_id)

    def start_repair(self, instance_id: str) -> None:
        """Begin an accepted repair. It ends later, or never."""
        seconds = self.rng.uniform(3, 40)
        if self.rng.random() < self.fault_rate:
            seconds = self.rng.choice((80.0, 150.0, 1e9))  # late, later than any deadline, or never
        is_still_unhealthy = self.rng.random() < self.fault_rate
        self.loop.after(seconds, lambda: self._end_repair(instance_id, is_still_unhealthy=is_still_unhealthy))

    def _end_repair(self, instance_id: str, *, is_still_unhealthy: bool) -> None:
        if instance_id not in self.running:
            return
        if self.running[instance_id] != REBOOT and not self.has_capacity:
            self.is_told(f"no capacity to replace {instance_id}")
            self.on_no_capacity(instance_id)
            self.loop.after(30, lambda: self._end_repair(instance_id, is_still_unhealthy=is_still_unhealthy))
            return
        if not is_still_unhealthy and (node := self._seen(instance_id)):
            labels = without_health_labels(node.labels)
            self.kubernetes.set_node(node.name, node.cluster, labels=labels)  # type: ignore[union-attr]  # always given here
        rung = self.running[instance_id]
        now = self.finish(instance_id)
        self.own_repairs.pop(instance_id, None)
        self.is_told(
            f"{rung} of {instance_id} is over, {now} has the node slot"
            + (", still faulty" if is_still_unhealthy else "")
        )
        if rung != REBOOT:
            self.on_new_node(now)
        if is_still_unhealthy and rung != REBOOT and (node := self._seen(now)):
            self.kubernetes.set_node(node.name, node.cluster, accelerators=node.accelerators - 1)  # type: ignore[union-attr]  # always given here


class SimulatedTrainers:
    """The training processes of each attempt: they save, end, lose peers, and write late on an unreachable node.

    An attempt saves its steps in order, each once, and a save starts only after the previous save is written.
    """

    def __init__(
        self,
        loop: VirtualTimeLoop,
        rng: random.Random,
        cluster: SimulatedCluster,
        checkpoints: InMemoryCheckpoints,
        log: Callable[[str], None],
    ) -> None:
        self.loop, self.rng, self.cluster, self.checkpoints, self.log = loop, rng, cluster, checkpoints, log
        self.lengths: dict[str, float] = {}
        """Seconds each job trains, by name."""
        self.finished: set[str] = set()
        """Attempts whose own pods all succeeded."""
        self.late: set[str] = set()
        """`<job> <manifest>` of manifests that were written below a higher fence."""
        self.saving: set[str] = set()
        """Attempts that save on an unreachable node."""
        self.started: dict[str, float] = {}
        """When the write of each manifest began, by `<job> <manifest>`."""
        self.reached: dict[str, int] = {}
        """The last step that each attempt saved, by its name."""
        self.is_training: Callable[[LaunchSpec], bool] = lambda _: True
        """Whether the pods that began to train still do. Kueue may have evicted them, and started others."""
        self.on_save: Callable[[LaunchSpec], None] = lambda _: None

    def launched(self, spec: LaunchSpec) -> None:
        attempt = spec.attempt
        point = attempt.resume_from
        ends_at = self.loop.seconds + self.lengths.get(spec.job_spec.name, 60.0) - (point.step if point else 0)
        step = point.step if point else 0
        self.loop.after(
            _SAVES_EVERY, lambda: self._train(spec, step + _STEPS_A_SAVE, max(ends_at, self.loop.seconds + 5))
        )

    def _train(self, spec: LaunchSpec, step: int, ends_at: float) -> None:
        workload = self._workload(spec)
        if workload is None or not workload.is_there or not self.is_training(spec):
            return
        attempt = spec.attempt
        running = [rank for rank, pod in enumerate(workload.pods) if pod.phase is PodPhase.RUNNING]
        reached = [rank for rank in running if not self._is_cut_off(workload.pods[rank].node_name)]
        if not running:
            if self.cluster.on_full and any(pod.phase is PodPhase.PENDING for pod in workload.pods):
                self.loop.after(_SAVES_EVERY, lambda: self._train(spec, step, ends_at))
            return
        if len(reached) == spec.attempt.ranks:
            if self.loop.seconds >= ends_at:
                self.log(f"{attempt.workload_name} has trained to its end")
                self.finished.add(attempt.workload_name)
                self.cluster.set_pods(attempt.job_id, attempt.attempt, PodPhase.SUCCEEDED)
                return
            if attempt.workload_name not in self.saving:
                self._save(spec, step)
                step += _STEPS_A_SAVE
        elif len(reached) < len(running) and attempt.workload_name not in self.saving and self.rng.random() < 0.5:
            # This save on the unreachable node has already read the fence.
            self.saving.add(attempt.workload_name)
            self.loop.after(self.rng.uniform(1, 60), functools.partial(self._save, spec, step))
            step += _STEPS_A_SAVE
        elif reached and (
            len(workload.pods) < attempt.ranks or any(pod.node_name and self._is_gone(pod) for pod in workload.pods)
        ):
            self.cluster.fail_pods(attempt.job_id, attempt.attempt, *reached, exit_code=PEER_LOST_EXIT)
        self.loop.after(_SAVES_EVERY, lambda: self._train(spec, step, ends_at))

    def drain(self, job_id: str, attempt: int, grace_seconds: int, rng: random.Random) -> None:
        """Let a stopping attempt save once more, if time is left and all its ranks run."""
        seconds = rng.uniform(0, 1.5)
        if grace_seconds and rng.random() < _SAVES_AT_STOP:
            self.save_before_the_end(job_id, attempt, seconds)

    def save_before_the_end(self, job_id: str, attempt: int, seconds: float) -> None:
        """Let an attempt save once more after its stop request, if all its ranks still run."""
        jobs = self.cluster.jobs.get(CLUSTER, {})
        workload = next(
            (workload_there for (_, *name), workload_there in jobs.items() if name == [job_id, attempt]), None
        )
        if workload is None:
            return
        spec, name = workload.spec, workload.spec.attempt.workload_name
        point = spec.attempt.resume_from
        step = self.reached.get(name, point.step if point else 0) + _STEPS_A_SAVE

        def save() -> None:
            live_nodes = [
                pod for pod in workload.pods if pod.phase is PodPhase.RUNNING and not self._is_cut_off(pod.node_name)
            ]
            if len(live_nodes) == spec.attempt.ranks and name not in self.saving and self.reached.get(name, 0) < step:
                self.log(f"{name} saves step {step} before it ends")
                self._save(spec, step)

        self.loop.after(seconds, save)

    def _save(self, spec: LaunchSpec, step: int) -> None:
        self.on_save(spec)
        self.saving.discard(spec.attempt.workload_name)
        self.reached[spec.attempt.workload_name] = step
        uri = spec.job_spec.checkpoint_uri
        if not uri:
            return
        attempt = spec.attempt
        document, _ = self.checkpoints.fence(uri)
        key = self.checkpoints.save(
            uri, attempt.job_id, attempt.attempt, step, rfc3339(self.loop.now()), shards=spec.attempt.ranks
        )
        self.started[f"{attempt.job_id} {key}"] = self.loop.seconds
        if document and document["attempt"] > attempt.attempt:
            self.late.add(f"{attempt.job_id} {key}")
            self.log(f"{attempt.workload_name} writes step {step} late, below fence {document['attempt']}")

    def _workload(self, spec: LaunchSpec) -> FakeWorkload | None:
        attempt = spec.attempt
        return self.cluster.jobs.get(attempt.cluster, {}).get((attempt.namespace, attempt.job_id, attempt.attempt))

    def _is_gone(self, pod: ObservedPod) -> bool:
        return pod.has_ended or self._is_cut_off(pod.node_name)

    def _is_cut_off(self, node_name: str) -> bool:
        node = self.cluster.node(CLUSTER, node_name)
        return node is None or not node.is_ready


def without_health_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return a node's labels without HyperPod's health marks; the labels still name the node."""
    return {name: value for name, value in labels.items() if name != FAULT_TYPES}


def spot_node(number: int, **changes: Any) -> KubernetesNode:
    """Return a node that Karpenter launched and EC2 may reclaim."""
    node = a_node(number)
    facts: dict[str, Any] = {
        "hyperpod_cluster_id": None,
        "created_at": A_MOMENT.replace(hour=8, minute=0),
        "pool": SPOT_POOL,
        "instance_type": "p5.48xlarge",
        "labels": {**node.labels, KARPENTER_LABEL: SPOT_POOL},
    }
    return node.replace(**{**facts, **changes})


def initial_nodes(size: int, spot: int, rng: random.Random) -> list[KubernetesNode]:
    """Return the node objects of a fleet: HyperPod's pool, and the last of them Karpenter's; two zones."""
    zones = [f"us-west-2{rng.choice('ab')}" for _ in range(size)]
    return [(a_node if number <= size - spot else spot_node)(number, zone=zone) for number, zone in enumerate(zones, 1)]
