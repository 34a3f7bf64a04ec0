"""Kueue admits the jobs, in every eleventh seed without other additions. It may admit fewer pods than requested.

Kueue evicts jobs and admits the same Jobs again, often with another number of pods. It also does so between two reads
of a function, and while a function records a number. These seeds draw from their own random source.
"""

import functools
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from evenkeel.domain.jobs.attempt import Attempt, AttemptState, ObservedWorkload
from evenkeel.domain.jobs.spec import ElasticSpec, JobSpec
from evenkeel.domain.nodes import KubernetesNode
from evenkeel.ports import LaunchSpec, Put, Write
from tests.fakes.cluster import CLUSTER, GPUS, FakeWorkload
from tests.fakes.crashes import Crash
from tests.simulator.data_centre import SimulatedCluster

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

EVERY, _FIRST = 11, 8
"""Every eleventh seed, from the eighth on."""
_OWN = 100
"""Number of the first job of this scenario."""
_ADMITS_EVERY = 2.0
"""Seconds between two runs of Kueue's scheduler."""
_CANCELLED_AFTER = 600.0
"""Seconds without faults after which a person cancels the jobs that Kueue cannot admit."""
_EVICTED_AT_READ = 0.04
"""Probability that Kueue evicts an attempt right after a function has read it."""
_DISTURBED = 0.9
"""Probability that something happens when a function records the number of pods."""
_ADMITTED_AT_ONCE = 0.7
"""Probability that an evicted Job whose pods are gone is admitted again at once."""
_REASONS = ("Preempted", "Preempted", "ClusterQueueStopped", "PodsReadyTimeout")
DISTURBANCES = ("die", "die after", "evict", "sweep")
KINDS = (
    *("all pods", "fewer pods", "no size of the job", "evicted", "evicted at a read", "another size again"),
    *(f"{kind} at a size" for kind in DISTURBANCES),
)


def has_kueue(seed: int) -> bool:
    """Return whether Kueue admits the jobs of a seed, if it has no other additions."""
    return seed % EVERY == _FIRST


@dataclass
class SizeRecord:
    """Facts about the number of pods of one Kubernetes Job, for the checks."""

    admitted: list[int] = field(default_factory=list)
    """Numbers of pods with which Kueue admitted it, in order."""
    evicted_at: float | None = None
    """When Kueue first evicted it."""
    trained: set[int] = field(default_factory=set)
    """Numbers of pods with which it saved checkpoints."""


class KueueScenario:
    """Kueue, and the jobs that it admits."""

    def __init__(self, world: "Simulation", rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.size = rng.choice((4, 5, 6, 8))
        self.records: defaultdict[str, SizeRecord] = defaultdict(SizeRecord)
        """By name of the Kubernetes Job."""
        self._quota = self.size
        """Nodes that Kueue may use."""
        self._sized: dict[str, LaunchSpec] = {}
        """By name: the spec of an attempt whose gang is complete, with its number of pods."""
        self._cancelled: set[str] = set()
        """Jobs that a person cancelled, because Kueue could not admit them."""
        self._dies = False

    @property
    def cluster(self) -> "KueueCluster":
        """The cluster that Kueue manages."""
        assert isinstance(self.world.cluster, KueueCluster)
        return self.world.cluster

    # ------------------------------------------------------------ jobs

    def with_sizes(self, spec: JobSpec) -> JobSpec:
        """Return the spec of a job; a job with checkpoints is elastic and requests its largest size."""
        if not spec.checkpoint_uri:
            return spec
        rng = self.rng
        most = rng.choice((self.size, self.size - 1, 3))
        sizes = tuple(sorted({1, most, *(rng.randint(1, most) for _ in range(2))})) if rng.random() < 0.5 else ()
        elastic = ElasticSpec(min_nodes=1 if sizes else rng.choice((1, 2)), max_nodes=most, sizes=sizes)
        return spec.replace(nodes=most, elastic=elastic, accelerators_per_node=GPUS)

    def schedule_events(self, chaos_seconds: float) -> None:
        """Submit jobs, change Kueue's quota, and evict jobs."""
        world, rng = self.world, self.rng
        world.ledger.before_commit = self._disturb
        world.every(_ADMITS_EVERY, self._admit_jobs)
        for number in range(_OWN, _OWN + rng.choice((1, 2, 2, 3))):
            submit = functools.partial(world.submit, number, 1, rng.choice((100.0, 300.0)), keeps=True, finishes=False)
            world.loop.after(rng.uniform(0.5, 40), submit)
        for _ in range(rng.choice((2, 3, 4))):
            quota = rng.randint(1, self.size)
            world.loop.after(rng.uniform(0, chaos_seconds), functools.partial(self._set_quota, quota))
        for _ in range(rng.choice((1, 2, 3, 4))):
            world.loop.after(rng.uniform(15, chaos_seconds), self._evict_any)

    def _set_quota(self, nodes: int) -> None:
        self.world.log(f"Kueue may use {nodes} nodes")
        self._quota = nodes

    # ------------------------------------------------------------ Kueue

    def _admit_jobs(self) -> None:
        """Act as Kueue's scheduler. A person cancels what it cannot admit once all faults are over."""
        is_late = self.world.faults_ended and self.world.loop.seconds - self.world.faults_ended_at > _CANCELLED_AFTER
        for workload in self.cluster.running():
            is_waiting = workload.is_there and workload.is_suspended and not workload.pods
            job_id = workload.spec.attempt.job_id
            if is_waiting and not self._admit(workload) and is_late and job_id not in self._cancelled:
                self._cancelled.add(job_id)
                self.world.cancel_job(job_id)

    def _admit(self, workload: FakeWorkload) -> bool:
        """Admit a waiting Job with the largest number of pods that fits; return whether one fits."""
        attempt, sizes = workload.spec.attempt, workload.spec.job_spec.sizes
        least = sizes.legal[0] if attempt.requested_size and sizes else attempt.ranks
        names = self._free_nodes(workload.spec.avoid)
        admitted = [other for other in self.cluster.running() if other.is_there and not other.is_suspended]
        quota = (self.size if self.world.faults_ended else self._quota) - sum(len(other.pods) for other in admitted)
        pods = min(attempt.ranks, len(names), quota)
        if pods < least:
            return False
        record = self.records[attempt.workload_name]
        again = bool(record.admitted)
        self._count("all pods" if pods == attempt.ranks else "fewer pods")
        self._count("another size again", again and pods != record.admitted[-1])
        self._count("no size of the job", sizes is not None and pods not in sizes.legal)
        record.admitted.append(pods)
        self.world.log(f"Kueue admits {attempt.workload_name} with {pods} of {attempt.ranks} pods")
        self.cluster.kueue_admits(attempt.job_id, attempt.attempt, *names[:pods], was_admitted=again)
        self.start_gang(workload)
        return True

    def _free_nodes(self, avoid: tuple[str, ...]) -> list[str]:
        used = self.cluster.accelerators_in_use(CLUSTER)
        nodes = self.cluster.nodes(CLUSTER)
        free = [node for node in nodes if node.is_schedulable and node.accelerators - used.get(node.name, 0) >= GPUS]
        return [node.name for node in free if node.name not in avoid]

    def start_gang(self, workload: FakeWorkload) -> None:
        """Let an attempt train if its pods run and all ranks of their WORLD_SIZE exist. Other gangs wait for ranks."""
        spec, pods = workload.spec, len(workload.pods)
        world_size = workload.published_size if spec.attempt.requested_size else spec.attempt.ranks
        if pods and pods == world_size:
            self._sized[spec.attempt.workload_name] = replace(spec, attempt=spec.attempt.at_size(pods))
            self.world.trainers.launched(self._sized[spec.attempt.workload_name])

    def is_training(self, spec: LaunchSpec) -> bool:
        """Return whether these pods of an attempt were not evicted since they began to train."""
        return self._sized.get(spec.attempt.workload_name) is spec

    def _evict_any(self) -> None:
        admitted = [workload for workload in self.cluster.running() if workload.is_there and not workload.is_suspended]
        if admitted:
            self._evict(self.rng.choice(admitted))

    def _evict(self, workload: FakeWorkload) -> None:
        """Evict a Job, and perhaps admit it again at once."""
        attempt, reason = workload.spec.attempt, self.rng.choice(_REASONS)
        self._count("evicted")
        self.world.log(f"Kueue evicts {attempt.workload_name}: {reason}")
        record = self.records[attempt.workload_name]
        record.evicted_at = self.world.loop.seconds if record.evicted_at is None else record.evicted_at
        self._sized.pop(attempt.workload_name, None)
        self.cluster.kueue_evicts(attempt.job_id, attempt.attempt, reason)
        if self.rng.random() < _ADMITTED_AT_ONCE:
            self._quota = self.rng.randint(1, self.size)
            self._admit(workload)

    def _count(self, kind: str, times: int = 1) -> None:
        self.world.seen[f"kueue {kind}"] += times

    # ------------------------------------------------------------ eviction between two steps

    def after_read(self, attempt: Attempt) -> None:
        """Evict an attempt between two reads of a function."""
        world = self.world
        workload = self.cluster.jobs.get(CLUSTER, {}).get((attempt.namespace, attempt.job_id, attempt.attempt))
        is_admitted = workload is not None and workload.is_there and not workload.is_suspended
        if not is_admitted or world.faults_ended or not world.calls or self.rng.random() >= _EVICTED_AT_READ:
            return
        assert workload
        self._count("evicted at a read")
        world.chaos.injected_failures += 1
        self._evict(workload)

    def _disturb(self, writes: tuple[Write, ...]) -> None:
        """Let something happen where a function records the number of pods that Kueue admitted."""
        world = self.world
        attempts = [write.row.doc for write in writes if isinstance(write, Put) and write.row.key.sk[:8] == "ATTEMPT#"]
        launched = [doc for doc in attempts if doc["state"] == AttemptState.LAUNCHED]
        sized = [doc for doc in launched if doc["size"] < doc["requestedSize"]]
        if not sized or world.faults_ended or not world.calls or self.rng.random() >= _DISTURBED:
            return
        kind = self.rng.choice(DISTURBANCES)
        self._count(f"{kind} at a size")
        world.chaos.injected_failures += 1
        world.log(f"Kueue's number is recorded: {kind}")
        if kind == "die":
            raise Crash("before the record of a number of pods")
        if kind == "die after":
            self._dies = True
        elif kind == "sweep":
            with world.outside_function():
                world.invoke_scheduled("sweep_fleet")
        else:
            workload = self.cluster.launched(sized[0]["jobId"], sized[0]["attempt"])
            if workload.is_there and not workload.is_suspended:
                self._evict(workload)

    def die_after_commit(self) -> None:
        """Die after a commit, if this was planned before it."""
        if self._dies:
            self._dies = False
            self.world.log("the process dies after the record of a number of pods")
            raise Crash("after the record of a number of pods")


class KueueCluster(SimulatedCluster):
    """A cluster whose pods start when Kueue admits their Job."""

    def __init__(self, world: "Simulation", kueue: KueueScenario, *nodes: KubernetesNode) -> None:
        super().__init__(world.loop, world.rng, *nodes)
        self.kueue = kueue

    def publish_size(self, attempt: Attempt) -> None:
        """Create the ConfigMap; the pods that waited for it start."""
        workload = self._own(attempt)
        is_first = workload is not None and not workload.published_size
        super().publish_size(attempt)
        if workload is not None and is_first:
            self.kueue.start_gang(workload)

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        """Return the pods of an attempt. Kueue may evict it right after."""
        observed = super().workload(attempt)
        self.kueue.after_read(attempt)
        return observed
