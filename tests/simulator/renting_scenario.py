"""Rented nodes, in every tenth seed: pools, a simulated Karpenter, and jobs that cannot wait.

These seeds draw from their own random source, so seeds without rentable pools stay unchanged.
"""

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evenkeel.domain.capacity.compatibility import PoolEnvironment
from evenkeel.domain.capacity.pools import LaunchDelay, Market
from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.spec import ElasticSpec, JobSpec
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery.repair_requests import RepairAnswer
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.resources import Resources, sum_by_node
from evenkeel.ports import CapacitySpec, LaunchResult, LaunchSpec, LimitResult, NodeClaim
from evenkeel.services.tables import quota_rows, rows
from tests.fakes.cluster import CLUSTER, GPUS, FakeCluster, a_node
from tests.simulator.data_centre import SimulatedCluster

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

EVERY, _OFFSET = 10, 3
"""Every tenth seed, from the third on, rents nodes and has no teams."""
_WITH_TEAMS, _SHARED = 120, 30
"""One seed in so many rents nodes for a fleet that teams share."""
_MIXED, _FIRST_MIXED = 40, 27
"""One seed in so many has a job whose committed nodes rented nodes may join."""
ON_DEMAND, OTHER_ZONE, SPOT = "burst-on-demand", "burst-other-zone", "burst-spot"
_MICROS = {ON_DEMAND: 50_000_000, OTHER_ZONE: 60_000_000, SPOT: 20_000_000}
_TYPE = "p5.48xlarge"
_CLASSES = {"burst": 500_000_000, "patient": 0, "high": 500_000_000, "critical": 500_000_000, "low": 0}
"""Price of an hour of delay of each class, in micro-dollars."""
_FIRST = 40
"""Name prefix of the jobs that arrive at a full fleet."""
_SECOND = 50
_MIXED_JOB = 55
_CHECKS_EVERY, _CYCLES_EVERY = 30.0, 60.0
_DRY_SECONDS = 900.0
"""Seconds for which a pool may have no capacity: longer than the faults last."""
_JOINS_WITHIN = 500.0
"""Seconds after the faults within which a rented part joins in most seeds with a mixed job."""
_NEVER = 1e9
_DRAINED = "karpenter.sh/disrupted=:NoSchedule"
"""The taint of Karpenter on a node that it will end."""
NODE_FAULTS = (
    *("refused", "late", "never joins", "joins not ready", "dies young", "taken back", "slow to go"),
    "slow controller",
)
"""Faults of Karpenter's nodes between launch and end."""
PART_FAULTS = (
    *("notice for the part", "rebalance of the part", "rebalance before a notice"),
    *("loss of half the part", "loss of the whole part", "part above the caps"),
)
"""Faults of the rented part of a mixed job."""
OUTCOMES = (
    "PLACEMENT RENT",
    "PLACEMENT WAIT",
    "MIXED_GROWTH RENT",
    "MIXED_GROWTH KEEP",
    "MIGRATION MIGRATE",
    "TEMPORARY_CAPACITY END",
    "TEMPORARY_CAPACITY RETURN",
)
"""Decisions that at least one seed must make."""
PERSON_ACTIONS = ("cancel a rented job", "cancel the first", "fail a committed node", "lower the caps", "drop a pool")
KINDS = ("a pool without a limit", "a pool that is not there", "a pool that runs dry")


def has_rentals(seed: int) -> bool:
    """Return whether nodes may be rented in this seed."""
    return seed % EVERY == _OFFSET or seed % _WITH_TEAMS == _SHARED or has_mixed_job(seed)


def has_mixed_job(seed: int) -> bool:
    """Return whether a seed has a job that may run on committed and rented nodes."""
    return seed % _MIXED == _FIRST_MIXED


@dataclass
class SimulatedRentedNode:
    """A node of a rented pool, from its NodeClaim to its end."""

    claim: str
    pool: str
    asked_at: float
    node_name: str = ""
    joined_at: float | None = None
    gone_at: float | None = None
    usable_until: float | None = None
    """The time when the node was last schedulable; None if it is schedulable."""


@dataclass
class CapacityRequest:
    """Pool and times of a rental's request."""

    pool: str
    nodes: int
    since: float
    until: float = math.inf


class RentingScenario:
    """The pools of one seed, and the jobs for which it rents."""

    def __init__(self, world: "Simulation", rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.fault_rate = rng.choice((0.0, 0.2, 0.4, 0.6))
        """Share of nodes with a fault."""
        names = rng.choice(((ON_DEMAND,), (ON_DEMAND, SPOT), (SPOT, ON_DEMAND), (ON_DEMAND, OTHER_ZONE, SPOT)))
        self.pools = tuple(self._pool(name) for name in names)
        self.by_name = {pool.name: pool for pool in self.pools}
        self.exhausted: dict[str, tuple[int, float]] = {}
        """By pool: the number of nodes that exist, and the time until which no more can be launched."""
        self.requests_by_offer: dict[tuple[str, int], CapacityRequest] = {}
        """By rental and its offers' numbers, for checks."""
        self.policies: list[tuple[float, BurstPolicy]] = []
        """The rentable pools and the start of each, for checks."""
        self.replaced: dict[str, Policy] = {}
        """Earlier policies, by the hash that decisions name."""
        self.refused_since: dict[tuple[str, int], float] = {}
        """Time since which a valid offer exists after a refusal, for checks."""
        self.home_free_since: dict[str, float] = {}
        """Time since which a rented job's nodes fit on committed capacity, for checks."""

    def _pool(self, name: str) -> RentedPool:
        return RentedPool(
            name=name,
            cluster=CLUSTER,
            market=Market.SPOT if name == SPOT else Market.ON_DEMAND,
            instance_type=_TYPE,
            zone="us-west-2b" if name == OTHER_ZONE else "us-west-2a",
            accelerators_per_node=GPUS,
            max_nodes=self.rng.choice((2, 3, 4)),
            micros_per_node_hour=_MICROS[name],
            launch=LaunchDelay(p50_seconds=20, p90_seconds=40),
            environment=PoolEnvironment(),
        )

    def with_pools(self, policy: Policy) -> Policy:
        """Return the policy with its rentable pools."""
        rng = self.rng
        a_node_hour = max(pool.micros_per_node_hour for pool in self.pools)
        burst = BurstPolicy(
            pools=self.pools,
            fleet_cap_micros_per_hour=a_node_hour * rng.choice((2, 3, 4, 8)),
            other_team_cap_micros_per_hour=a_node_hour * rng.choice((2, 3, 8)),
            delay_micros_per_hour=_CLASSES,
            other_delay_micros_per_hour=rng.choice((0, 400_000_000, 4_000_000_000, 4_000_000_000)),
            other_expected_run_seconds=rng.choice((600, 7200)),
            ready_seconds=rng.choice((25, 40, 60)),
            quiet_seconds=rng.choice((0, 5, 20)),
            temporary_seconds=rng.choice((60, 120, 300, 600)),
            max_offers=rng.choice((2, 4)),
            rentals_per_cycle=rng.choice((1, 4)),
        )
        self.policies.append((0.0, burst))
        jobs = policy.jobs.replace(expected_resume_seconds=60)
        policy = policy.replace(burst=burst, jobs=jobs)
        if not has_mixed_job(self.world.seed):
            return policy
        terms = ElasticPolicy(resize_seconds=3, snooze_seconds=10, backoff_seconds=20, spare_wait_seconds=10)
        burst = burst.replace(ready_seconds=60, quiet_seconds=20)
        self.policies[-1] = (0.0, burst)
        return policy.replace(burst=burst, scheduling=policy.scheduling.replace(elastic=terms))

    def with_mixed_pools(self, number: int, spec: JobSpec) -> JobSpec:
        """Return the fields of a job; the mixed job names every pool that its committed nodes may be joined by."""
        if number != _MIXED_JOB:
            return spec
        names = tuple(pool.name for pool in self.pools)
        return spec.replace(elastic=ElasticSpec(min_nodes=1, max_nodes=spec.nodes + 2, mixed_pools=names))

    # ------------------------------------------------------------ jobs

    def schedule_events(self, chaos_seconds: float) -> None:
        """Fill the fleet, and submit jobs that cannot wait for it."""
        world, rng = self.world, self.rng
        world.log(f"nodes may be rented of {', '.join(self.by_name)}")
        self._remove_pool_limit()
        if rng.random() < 0.4:
            world.seen[f"renting {KINDS[2]}"] += 1
            self.exhausted[rng.choice(self.pools).name] = (rng.choice((1, 2, 2, 3)), chaos_seconds + _DRY_SECONDS)
        if rng.random() < 0.18:
            change = rng.choice((self._lower_caps, self._remove_pool))
            world.loop.after(rng.uniform(5, chaos_seconds + 60), change)
        world.every(_CHECKS_EVERY, lambda: world.checks.half_minute_passed(world))
        world.every(_CYCLES_EVERY, self._run_scheduling_cycle)
        if has_mixed_job(world.seed):
            nodes = max(1, world.size - rng.choice((0, 0, 1)))
            submit = functools.partial(
                world.submit, _MIXED_JOB, nodes, 900.0, keeps=True, finishes=False, priority_class="burst"
            )
            world.loop.after(0.2, submit)
            for _ in range(rng.choice((1, 1, 2))):
                disturb = functools.partial(self._disturb_rented_part, until=chaos_seconds + _JOINS_WITHIN)
                world.loop.after(rng.uniform(20, 60), disturb)
        elif rng.random() < 0.75:
            # A second job takes the nodes of the first, loses one to a fault and gets rented nodes.
            left, length = rng.choice((0, 1, 1, 2)), rng.choice((100.0, 200.0, 400.0))
            self._submit_after(0.3, _FIRST, world.size - left, length, "patient")
            for _ in range(2 * bool(left)):
                world.loop.after(
                    rng.uniform(10, chaos_seconds),
                    world.counting("action", PERSON_ACTIONS[2], self._fail_committed_node),
                )
            if left:
                self._submit_after(0.4, _SECOND, left, rng.choice((400.0, 900.0)), "burst")
        for number in range(_FIRST + 1, _FIRST + 1 + rng.choice((1, 2, 2))):
            nodes, length = rng.choice((1, 1, 2, 2, 3)), rng.choice((30.0, 80.0, 200.0, 400.0))
            self._submit_after(rng.uniform(2, 0.7 * chaos_seconds), number, nodes, length, "burst")
        for _ in range(rng.choice((0, 0, 1))):
            number = _FIRST + rng.choice((1, 1, 2))
            cancel = functools.partial(world.cancel, number)
            world.loop.after(rng.uniform(5, chaos_seconds + 60), world.counting("action", PERSON_ACTIONS[0], cancel))
        if rng.random() < 0.3:
            cancel = functools.partial(world.cancel, _FIRST)
            world.loop.after(rng.uniform(10, chaos_seconds + 60), world.counting("action", PERSON_ACTIONS[1], cancel))

    def _disturb_rented_part(self, until: float) -> None:
        """Take nodes of a rented part back, or lower the caps below its rent, once a job has both parts."""
        world = self.world
        stored = (rows.decode(row, Charge) for row in world.ledger.of("CHARGE", f"TREE#{quota_rows.ROOT_TREE}"))
        names = next((charge.rented_part.node_names for charge in stored if charge.is_live and charge.rented_part), ())
        if not names:
            if world.loop.seconds + 5 < until:
                world.loop.after(5, functools.partial(self._disturb_rented_part, until))
            return
        kind = PART_FAULTS[(world.seed // _MIXED + world.seen["renting a fault of the part"]) % len(PART_FAULTS)]
        world.seen["renting a fault of the part"] += 1
        world.seen[f"renting {kind}"] += 1
        world.log(f"the rented part of {', '.join(names)}: {kind}")
        if kind == "part above the caps":
            burst = self.policies[-1][1]
            self._change_policy(kind, burst.replace(fleet_cap_micros_per_hour=1, other_team_cap_micros_per_hour=1))
            return
        for name in names if kind == "loss of the whole part" else names[:1]:
            node = world.cluster.node(CLUSTER, name)
            if node is None or node.instance_id is None:
                continue
            if kind in ("rebalance of the part", "rebalance before a notice"):
                world.warn_of_rebalance(node.instance_id)
            if kind in ("notice for the part", "rebalance before a notice"):
                delay = 0.0 if kind == "notice for the part" else self.rng.uniform(5, 120)
                world.loop.after(delay, functools.partial(world.warn_of_reclaim, node.instance_id))
            if kind.startswith("loss"):
                world.cluster.remove_node(name)

    def _remove_pool_limit(self) -> None:
        """Remove the limit of a pool, or the pool, before a node of it is rented."""
        limits, pool_key = self.world.cluster.limits, (CLUSTER, self.rng.choice(self.pools).name)
        draw = self.rng.random()
        if draw < 0.04:
            self.world.seen[f"renting {KINDS[0]}"] += 1
            limits[pool_key] = None
        elif draw < 0.08:
            self.world.seen[f"renting {KINDS[1]}"] += 1
            del limits[pool_key]

    def _lower_caps(self) -> None:
        burst = self.policies[-1][1]
        lower = {
            name: getattr(burst, name) // 2 for name in ("fleet_cap_micros_per_hour", "other_team_cap_micros_per_hour")
        }
        self._change_policy(PERSON_ACTIONS[3], burst.replace(**lower))

    def _remove_pool(self) -> None:
        burst = self.policies[-1][1]
        self._change_policy(PERSON_ACTIONS[4], burst.replace(pools=burst.pools[1:]))

    def _change_policy(self, what: str, burst: BurstPolicy) -> None:
        """Let the site apply another policy. Each function call reads it at its start."""
        world = self.world
        world.seen[f"action {what}"] += 1
        world.log(f"the platform applies a policy: {what}")
        self.policies.append((world.loop.seconds, burst))
        self.replaced[world.policy.hash] = world.policy
        world.policy = world.world.policies.base = world.policy.replace(burst=burst)

    def _run_scheduling_cycle(self) -> None:
        """Run the minute's cycle if nodes are rented: a cycle ends rentals whose time is over."""
        if any(request.until == math.inf for request in self.requests_by_offer.values()):
            self.world.invoke_scheduled("schedule_jobs")

    def _fail_committed_node(self) -> None:
        """Let a committed node fail under a job that cannot wait, so that nodes may be rented for it."""
        world = self.world
        at_work = [
            pod.node_name
            for workload in world.cluster.running()
            for pod in workload.pods
            if world.policy.burst.delay_of(workload.spec.job_spec.priority_class) and pod.phase is PodPhase.RUNNING
        ]
        nodes = [
            node for name in at_work if (node := world.cluster.node(CLUSTER, name)) and node.pool not in self.by_name
        ]
        if nodes and (rented_node := self.rng.choice(nodes).instance_id):
            world.break_node(rented_node, "NvidiaErrorTerminate", is_marked=True, sends_event=True)

    def _submit_after(
        self, delay_seconds: float, job_number: int, nodes: int, length: float, priority_class: str
    ) -> None:
        keeps = self.rng.random() < 0.8

        def submit() -> None:
            self.world.submit(job_number, nodes, length, keeps=keeps, finishes=False, priority_class=priority_class)

        self.world.loop.after(delay_seconds, submit)


class RentingCluster(SimulatedCluster):
    """Kubernetes with Karpenter: capacity pods run on nodes, and pending pods get new nodes."""

    def __init__(self, world: "Simulation", renting: RentingScenario, *nodes: KubernetesNode) -> None:
        super().__init__(world.loop, world.rng, *nodes)
        self.world, self.renting, self.renting_rng = world, renting, renting.rng
        self.limits = dict.fromkeys(((CLUSTER, pool.name) for pool in renting.pools), (0, 0))
        self.initial_nodes: dict[str, SimulatedRentedNode] = {}
        """All rented nodes of the run, by claim."""
        self.stands: dict[tuple[str, int], str] = {}
        """(Job, index) of each capacity pod → its node."""
        self._going_pods: set[str] = set()
        """Deleted capacity Jobs whose pods still exist."""
        self._held_up: list[LaunchSpec] = []
        """Attempts whose pods wait for the end of the capacity pods."""
        self._versions_of_pools = dict.fromkeys(renting.by_name, 0)
        self._numbers = itertools.count(801)
        self._is_due = False
        self._decided: Counter[str] = Counter()
        """By pool: number of claims that are decided and not created yet."""

    # ------------------------------------------------------------ the port

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        if spec.name not in self.capacity:
            self.world.checks.rented(self.world, spec)
            self.world.log(f"{spec.nodes} capacity pods of {spec.name} ask {spec.pool}")
        super().create_capacity_pods(spec)
        self._reconcile_soon()

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        if name in self.capacity and name not in self._going_pods:
            self._going_pods.add(name)
            self.loop.after(self.renting_rng.uniform(0.3, 2.0), lambda: self._pods_gone(name))
        return name not in self.capacity

    def _pods_gone(self, name: str) -> None:
        self._going_pods.discard(name)
        super().delete_capacity_pods(CLUSTER, "", name)
        self.stands = {pod: node for pod, node in self.stands.items() if pod[0] != name}
        for spec in list(self._held_up):
            self._run_pods(spec)
        self._reconcile_soon()

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        while True:
            version = self._versions_of_pools.get(pool, 0)
            wanted = rented()
            if version == self._versions_of_pools.get(pool, 0):
                break
            self.world.log(f"{pool} was patched meanwhile; its nodes are counted again")
        answer = super().set_pool_limit(cluster, pool, lambda: wanted)
        if answer in (LimitResult.SET, LimitResult.UNCHANGED):
            self.world.checks.limited(self.world, pool, wanted)
        if answer is LimitResult.SET:
            self._versions_of_pools[pool] += 1
            self.world.log(f"{pool} gets a limit of {wanted[0]} nodes")
            self._reconcile_soon()
        return answer

    def node_claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        return tuple(
            NodeClaim(name=machine.claim, node_name=machine.node_name)
            for machine in self.initial_nodes.values()
            if machine.pool == pool and machine.gone_at is None
        )

    def delete_node_claim(self, cluster: str, name: str) -> None:
        rented_node = self.initial_nodes.get(name)
        if rented_node is None or rented_node.gone_at is not None or name in self.going:
            return
        self.going.append(name)
        seconds = self.renting_rng.uniform(0.5, 20.0) if rented_node.joined_at is not None else 0.5
        if self._has_fault("slow to go"):
            seconds = self.renting_rng.uniform(60, 150)
        self.world.log(f"{name} will be deleted")
        if rented_node.node_name and self.node(CLUSTER, rented_node.node_name) is not None:
            self.set_node(rented_node.node_name, taints=(_DRAINED,))
        self.loop.after(seconds, lambda: self._remove_claim(rented_node))

    def delete_node(self, cluster: str, name: str, instance_id: str) -> RepairAnswer:
        node = self.node(cluster, name)
        if node is None or node.pool not in self.renting.by_name:
            return super().delete_node(cluster, name, instance_id)
        return FakeCluster.delete_node(self, cluster, name, instance_id)

    def reclaim(self, name: str) -> None:
        node = self.node(CLUSTER, name)
        if node is not None and node.pool in self.renting.by_name:
            self.remove_node(name)
        else:
            super().reclaim(name)

    def remove_node(self, name: str, cluster: str = CLUSTER) -> None:
        super().remove_node(name, cluster)
        rented_node = self.rented_node_of(name)
        if rented_node is not None:
            self._remove_claim(rented_node)

    def set_node(self, name: str, cluster: str = CLUSTER, **changes: Any) -> KubernetesNode:
        node = super().set_node(name, cluster, **changes)
        rented_node = self.rented_node_of(name)
        if rented_node is not None:
            is_usable = node.is_ready and node.is_schedulable
            rented_node.usable_until = None if is_usable else rented_node.usable_until or self.loop.seconds
        return node

    def requested(self, cluster: str) -> dict[str, Resources]:
        capacity_pods = (
            (node, Resources(accelerators=self.capacity[name].accelerators)) for (name, _), node in self.stands.items()
        )
        return sum_by_node(itertools.chain(super().requested(cluster).items(), capacity_pods))

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        result = FakeCluster.launch(self, spec)
        if result[0] is LaunchResult.CREATED:
            workload = self.launched(spec.attempt.job_id, spec.attempt.attempt)
            taken = set(self.stands.values())
            workload.pods = [
                pod.replace(phase=PodPhase.PENDING) if pod.node_name in taken else pod for pod in workload.pods
            ]
            self._held_up.append(spec)
            self._run_pods(spec)
        return result

    def _run_pods(self, spec: LaunchSpec) -> None:
        """Run the pods of an attempt on nodes without capacity pods; the attempt trains after all of them run."""
        workload = self.jobs.get(CLUSTER, {}).get((spec.attempt.namespace, spec.attempt.job_id, spec.attempt.attempt))
        if workload is None or not workload.is_there:
            self._held_up.remove(spec)
            return
        taken = set(self.stands.values())
        workload.pods = [
            pod.replace(phase=PodPhase.RUNNING)
            if pod.phase is PodPhase.PENDING and pod.node_name and pod.node_name not in taken
            else pod
            for pod in workload.pods
        ]
        self._changed("pod")
        if not any(pod.phase is PodPhase.PENDING and pod.node_name for pod in workload.pods):
            self._held_up.remove(spec)
            self.on_launch(spec)

    # ------------------------------------------------------------ Karpenter

    def rented_node_of(self, node_name: str) -> SimulatedRentedNode | None:
        """Return the rented node of a node; None if the node is not rented, or ended."""
        return next((rented_node for rented_node in self.live_nodes() if rented_node.node_name == node_name), None)

    def live_nodes(self) -> Iterator[SimulatedRentedNode]:
        """Yield the nodes that were requested and have not ended."""
        return (machine for machine in self.initial_nodes.values() if machine.gone_at is None)

    def leftovers(self) -> Iterator[str]:
        """Yield a description of each rented node, capacity pod and limit that still exists."""
        yield from (
            f"{rented_node.claim} is there, {rented_node.node_name or 'not joined'}"
            for rented_node in self.live_nodes()
        )
        yield from (f"capacity pods of {name} are there" for name in self.capacity)
        for (_, pool), limit in self.limits.items():
            if limit not in ((0, 0), None):
                yield f"{pool} may have {limit}"

    def _has_fault(self, kind: str, share: float = 1.0) -> bool:
        happens = not self.world.faults_ended and self.renting_rng.random() < self.renting.fault_rate * share
        self.world.seen[f"renting {kind}"] += happens
        return happens

    def _reconcile_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.after(self.renting_rng.uniform(0.5, 2.0), self._reconcile)

    def _reconcile(self) -> None:
        """Bind the schedulable pods, and request a node for each remaining pod, within the limits."""
        self._is_due = False
        for name, spec in self.capacity.items():
            if name in self._going_pods:
                continue
            homeless = [number for number in range(spec.nodes) if not self._bind(spec, number)]
            decided = self._decided[spec.pool]
            coming = decided + sum(
                rented_node.pool == spec.pool and not rented_node.node_name for rented_node in self.live_nodes()
            )
            present = decided + sum(rented_node.pool == spec.pool for rented_node in self.live_nodes())
            most = (self.limits.get((CLUSTER, spec.pool)) or (0, 0))[0]
            for _ in range(min(len(homeless) - coming, most - present)):
                size, until = self.renting.exhausted.get(spec.pool, (math.inf, math.inf))
                had = sum(rented_node.pool == spec.pool for rented_node in self.live_nodes()) + self._decided[spec.pool]
                if (had >= size and self.loop.seconds < until) or self._has_fault("refused"):
                    self.refusals[spec.pool] = (self.loop.now(), "InsufficientInstanceCapacity")
                    self.world.log(f"{spec.pool} has no capacity")
                    self._changed("event")
                    self.loop.after(self.renting_rng.uniform(5, 20), self._reconcile_soon)
                    break
                pool, seconds = self.renting.by_name[spec.pool], 0.0
                if self._has_fault("slow controller"):
                    seconds = self.renting_rng.uniform(0.2, 2.0)  # the controller creates the claims later, one by one
                self._create_claim(pool, seconds)

    def _bind(self, spec: CapacitySpec, number: int) -> bool:
        """Return whether a capacity pod is on a node now, binding it if possible."""
        at = self.stands.get((spec.name, number), "")
        if self.node(CLUSTER, at) is not None:
            return True
        self.stands.pop((spec.name, number), None)
        used = self.accelerators_in_use(CLUSTER)
        for node in self.nodes(CLUSTER):
            is_going = (rented_node := self.rented_node_of(node.name)) is None or rented_node.claim in self.going
            if (
                node.pool == spec.pool
                and node.is_ready
                and node.is_schedulable
                and not is_going
                and not used.get(node.name)
            ):
                self.stands[spec.name, number] = node.name
                return True
        return False

    def _create_claim(self, pool: RentedPool, after_seconds: float) -> None:
        """Create a claim, even if its pod is gone or the limit has changed since the decision."""
        number = next(self._numbers)
        rented_node = SimulatedRentedNode(f"{pool.name}-{number:05d}", pool.name, self.loop.seconds)
        self._decided[pool.name] += 1

        def create() -> None:
            self._decided[pool.name] -= 1
            rented_node.asked_at = self.loop.seconds
            self.initial_nodes[rented_node.claim] = rented_node
            self.world.log(f"{rented_node.claim} is requested")
            self._start(rented_node, number)

        self.loop.after(after_seconds, create)

    def _start(self, rented_node: SimulatedRentedNode, number: int) -> None:
        seconds = self.renting_rng.uniform(5, 30)
        if self._has_fault("late", 0.5):
            seconds = self.renting_rng.uniform(40, 120)
        elif self._has_fault("never joins"):
            seconds = _NEVER
        self.loop.after(seconds, lambda: self._join(rented_node, number))

    def _join(self, rented_node: SimulatedRentedNode, number: int) -> None:
        if rented_node.gone_at is not None or rented_node.claim in self.going:
            return
        pool = self.renting.by_name[rented_node.pool]
        is_ready = not self._has_fault("joins not ready", 0.5)
        node = a_node(
            number,
            name=f"ip-10-2-0-{number}",
            pool=pool.name,
            hyperpod_cluster_id=None,
            created_at=self.loop.now(),
            instance_type=pool.instance_type,
            zone=pool.zone,
            is_ready=is_ready,
            not_ready_since=None if is_ready else self.loop.now(),
            labels={"kubernetes.io/hostname": f"ip-10-2-0-{number}", KARPENTER_LABEL: pool.name},
        )
        rented_node.node_name, rented_node.joined_at = node.name, self.loop.seconds
        self.world.log(f"{node.name} joins {pool.name}" + ("" if is_ready else ", not ready yet"))
        self.add_node(node)
        self._reconcile_soon()
        if not is_ready:
            rented_node.usable_until = self.loop.seconds
            self.loop.after(self.renting_rng.uniform(3, 40), lambda: self._set_ready(rented_node))
        if self._has_fault("dies young", 0.7):
            self.loop.after(self.renting_rng.uniform(0.5, 60), lambda: self._fail_node(rented_node))
        elif pool.market is Market.SPOT and self._has_fault("taken back"):
            self.loop.after(self.renting_rng.uniform(5, 120), lambda: self._reclaim_now(rented_node))

    def _set_ready(self, rented_node: SimulatedRentedNode) -> None:
        node = self.node(CLUSTER, rented_node.node_name)
        if node is not None and rented_node.gone_at is None and not node.is_ready:
            self.ready_node(rented_node.node_name)
            self._reconcile_soon()

    def _fail_node(self, rented_node: SimulatedRentedNode) -> None:
        if rented_node.gone_at is None:
            self.world.log(f"{rented_node.node_name} fails")
            self.remove_node(rented_node.node_name)

    def _reclaim_now(self, rented_node: SimulatedRentedNode) -> None:
        node = self.node(CLUSTER, rented_node.node_name)
        if node is None or rented_node.gone_at is not None:
            return
        if self.renting_rng.random() < 0.5 and node.instance_id:
            self.world.warn_of_reclaim(node.instance_id)
        else:
            self.world.log(f"{rented_node.node_name} is reclaimed without notice")
            self.remove_node(rented_node.node_name)

    def _remove_claim(self, rented_node: SimulatedRentedNode) -> None:
        if rented_node.gone_at is not None:
            return
        rented_node.gone_at = self.loop.seconds
        self.going = [name for name in self.going if name != rented_node.claim]
        self.stands = {pod: node for pod, node in self.stands.items() if node != rented_node.node_name}
        self.world.log(f"{rented_node.claim} is gone")
        if rented_node.node_name and self.node(CLUSTER, rented_node.node_name) is not None:
            self.remove_node(rented_node.node_name)
        self._changed("node")
        self._reconcile_soon()
