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
from evenkeel.domain.jobs.attempt import PodPhase
from evenkeel.domain.nodes import KARPENTER_LABEL, KubernetesNode
from evenkeel.domain.policy import Policy
from evenkeel.domain.renting.burst_policy import BurstPolicy, RentedPool
from evenkeel.domain.resources import Resources, sum_by_place
from evenkeel.ports import CapacitySpec, LaunchResult, LaunchSpec, LimitResult, NodeClaim, RepairAnswer
from tests.fakes.cluster import CLUSTER, GPUS, FakeCluster, a_node
from tests.simulator.data_centre import SimulatedCluster

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation

EVERY, _OFFSET = 10, 3
"""One seed in so many, counted from here, rents and has no teams."""
_WITH_TEAMS, _SHARED = 120, 30
"""One seed in so many, counted from here, rents for a shared fleet."""
ON_DEMAND, OTHER_ZONE, SPOT = "burst-on-demand", "burst-other-zone", "burst-spot"
_MICROS = {ON_DEMAND: 50_000_000, OTHER_ZONE: 60_000_000, SPOT: 20_000_000}
_TYPE = "p5.48xlarge"
_CLASSES = {"burst": 500_000_000, "patient": 0, "high": 500_000_000, "critical": 500_000_000, "low": 0}
"""Price of an hour of delay of each class, in micro-dollars."""
_FIRST = 40
"""Name prefix of the jobs that arrive at a full fleet."""
_SECOND = 50
_LOOKS_EVERY, _PASSES_EVERY = 30.0, 60.0
_DRY_SECONDS = 900.0
"""A market may be without capacity for longer than faults happen."""
_NEVER = 1e9
_DRAINED = "karpenter.sh/disrupted=:NoSchedule"
"""The taint of Karpenter on a node that it will end."""
TROUBLES = (
    *("refused", "late", "never joins", "joins not ready", "dies young", "taken back", "slow to go"),
    "slow controller",
)
"""Faults of Karpenter's nodes between launch and end."""
OUTCOMES = (
    "PLACEMENT RENT",
    "PLACEMENT WAIT",
    "MIGRATION MIGRATE",
    "TEMPORARY_CAPACITY END",
    "TEMPORARY_CAPACITY RETURN",
)
"""Answers of the rules that some seed must have."""
DEEDS = ("cancel a rented job", "cancel the first", "fail a committed node", "lower the caps", "drop a pool")
KINDS = ("a pool without a limit", "a pool that is not there", "a pool that runs dry")


def rents(seed: int) -> bool:
    """Return whether nodes may be rented in this seed."""
    return seed % EVERY == _OFFSET or seed % _WITH_TEAMS == _SHARED


@dataclass
class BurstMachine:
    """A node of a rented pool, from Karpenter's asking for it to its end."""

    claim: str
    pool: str
    asked_at: float
    node_name: str = ""
    joined_at: float | None = None
    gone_at: float | None = None
    usable_until: float | None = None
    """When its node was last seen to take work, where it does not any more."""


@dataclass
class CapacityRequest:
    """Pool and times of a rental's request."""

    pool: str
    nodes: int
    since: float
    until: float = math.inf


class RentingScenario:
    """The pools of one seed, and the jobs for which it rents."""

    def __init__(self, world: "Simulation", dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.trouble = dice.choice((0.0, 0.2, 0.4, 0.6))
        """Share of nodes with a fault."""
        names = dice.choice(((ON_DEMAND,), (ON_DEMAND, SPOT), (SPOT, ON_DEMAND), (ON_DEMAND, OTHER_ZONE, SPOT)))
        self.pools = tuple(self._pool(name) for name in names)
        self.by_name = {pool.name: pool for pool in self.pools}
        self.dry: dict[str, tuple[int, float]] = {}
        """By pool: so many nodes there are, and until when there are no more."""
        self.asked: dict[tuple[str, int], CapacityRequest] = {}
        """By rental and its offers' numbers, for checks."""
        self.policies: list[tuple[float, BurstPolicy]] = []
        """The rentable pools and the start of each, for checks."""
        self.replaced: dict[str, Policy] = {}
        """Policies that are not in force any more, by the hash that decisions name."""
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
            max_nodes=self.dice.choice((2, 3, 4)),
            micros_per_node_hour=_MICROS[name],
            launch=LaunchDelay(p50_seconds=20, p90_seconds=40),
            place=PoolEnvironment(),
        )

    def governed(self, policy: Policy) -> Policy:
        """Return the policy with its rentable pools."""
        dice = self.dice
        a_node_hour = max(pool.micros_per_node_hour for pool in self.pools)
        burst = BurstPolicy(
            pools=self.pools,
            fleet_cap_micros_per_hour=a_node_hour * dice.choice((2, 3, 4, 8)),
            other_team_cap_micros_per_hour=a_node_hour * dice.choice((2, 3, 8)),
            delay_micros_per_hour=_CLASSES,
            other_delay_micros_per_hour=dice.choice((0, 400_000_000, 4_000_000_000, 4_000_000_000)),
            other_expected_run_seconds=dice.choice((600, 7200)),
            ready_seconds=dice.choice((25, 40, 60)),
            quiet_seconds=dice.choice((0, 5, 20)),
            temporary_seconds=dice.choice((60, 120, 300, 600)),
            max_offers=dice.choice((2, 4)),
            rentals_per_cycle=dice.choice((1, 4)),
        )
        self.policies.append((0.0, burst))
        jobs = policy.jobs.replace(expected_resume_seconds=60)
        return policy.replace(burst=burst, jobs=jobs)

    # ------------------------------------------------------------ jobs

    def lay_out(self, lasts: float) -> None:
        """Fill the fleet, and submit jobs that cannot wait for it."""
        world, dice = self.world, self.dice
        world.tell(f"nodes may be rented of {', '.join(self.by_name)}")
        self._have_no_limit()
        if dice.random() < 0.4:
            world.seen[f"renting {KINDS[2]}"] += 1
            self.dry[dice.choice(self.pools).name] = (dice.choice((1, 2, 2, 3)), lasts + _DRY_SECONDS)
        if dice.random() < 0.18:
            change = dice.choice((self._lower_the_caps, self._drop_a_pool))
            world.loop.after(dice.uniform(5, lasts + 60), change)
        world.every(_LOOKS_EVERY, lambda: world.checks.looked(world))
        world.every(_PASSES_EVERY, self._pass)
        if dice.random() < 0.75:
            # A second job takes the nodes of the first, loses one to a fault and gets rented nodes.
            left, length = dice.choice((0, 1, 1, 2)), dice.choice((100.0, 200.0, 400.0))
            self._submit_later(_FIRST, 0.3, world.size - left, length, "patient")
            for _ in range(2 * bool(left)):
                world.loop.after(dice.uniform(10, lasts), world.counted_as("deed", DEEDS[2], self._fail_committed_node))
            if left:
                self._submit_later(_SECOND, 0.4, left, dice.choice((400.0, 900.0)), "burst")
        for number in range(_FIRST + 1, _FIRST + 1 + dice.choice((1, 2, 2))):
            nodes, length = dice.choice((1, 1, 2, 2, 3)), dice.choice((30.0, 80.0, 200.0, 400.0))
            self._submit_later(number, dice.uniform(2, 0.7 * lasts), nodes, length, "burst")
        for _ in range(dice.choice((0, 0, 1))):
            number = _FIRST + dice.choice((1, 1, 2))
            cancel = functools.partial(world.cancel, number)
            world.loop.after(dice.uniform(5, lasts + 60), world.counted_as("deed", DEEDS[0], cancel))
        if dice.random() < 0.3:
            cancel = functools.partial(world.cancel, _FIRST)
            world.loop.after(dice.uniform(10, lasts + 60), world.counted_as("deed", DEEDS[1], cancel))

    def _have_no_limit(self) -> None:
        """Remove the limit of a pool, or the pool, before a node of it is rented."""
        limits, place = self.world.cluster.limits, (CLUSTER, self.dice.choice(self.pools).name)
        chance = self.dice.random()
        if chance < 0.04:
            self.world.seen[f"renting {KINDS[0]}"] += 1
            limits[place] = None
        elif chance < 0.08:
            self.world.seen[f"renting {KINDS[1]}"] += 1
            del limits[place]

    def _lower_the_caps(self) -> None:
        burst = self.policies[-1][1]
        lower = {
            name: getattr(burst, name) // 2 for name in ("fleet_cap_micros_per_hour", "other_team_cap_micros_per_hour")
        }
        self._change(DEEDS[3], burst.replace(**lower))

    def _drop_a_pool(self) -> None:
        burst = self.policies[-1][1]
        self._change(DEEDS[4], burst.replace(pools=burst.pools[1:]))

    def _change(self, what: str, burst: BurstPolicy) -> None:
        """Have the site apply another policy: each call reads it as it begins."""
        world = self.world
        world.seen[f"deed {what}"] += 1
        world.tell(f"the platform applies a policy: {what}")
        self.policies.append((world.loop.seconds, burst))
        self.replaced[world.policy.hash] = world.policy
        world.policy = world.world.policies.base = world.policy.replace(burst=burst)

    def _pass(self) -> None:
        """Run the minute's cycle if nodes are rented: a cycle ends rentals whose time is over."""
        if any(request.until == math.inf for request in self.asked.values()):
            self.world.invoke_scheduled("schedule_jobs")

    def _fail_committed_node(self) -> None:
        """Let a committed node fail under a job that cannot wait, so that nodes may be rented for it."""
        world = self.world
        at_work = [
            pod.node_name
            for workload in world.cluster.running()
            for pod in workload.pods
            if world.policy.burst.delay_of(workload.spec.job.priority_class) and pod.phase is PodPhase.RUNNING
        ]
        nodes = [
            node for name in at_work if (node := world.cluster.node(CLUSTER, name)) and node.pool not in self.by_name
        ]
        if nodes and (burst_node := self.dice.choice(nodes).instance_id):
            world.break_node(burst_node, "NvidiaErrorTerminate", marked=True, heard=True)

    def _submit_later(self, number: int, seconds: float, nodes: int, length: float, priority_class: str) -> None:
        keeps = self.dice.random() < 0.8

        def submit() -> None:
            self.world.submit(number, nodes, length, keeps=keeps, finishes=False, priority_class=priority_class)

        self.world.loop.after(seconds, submit)


class RentingCluster(SimulatedCluster):
    """Kubernetes with Karpenter: capacity pods run on nodes, and pending pods get new nodes."""

    def __init__(self, world: "Simulation", renting: RentingScenario, *nodes: KubernetesNode) -> None:
        super().__init__(world.loop, world.chance, *nodes)
        self.world, self.renting, self.dice = world, renting, renting.dice
        self.limits = dict.fromkeys(((CLUSTER, pool.name) for pool in renting.pools), (0, 0))
        self.machines: dict[str, BurstMachine] = {}
        """All that ever were, by claim."""
        self.stands: dict[tuple[str, int], str] = {}
        """Node of each capacity pod: (its Job, its number) → the node."""
        self._going_pods: set[str] = set()
        """Deleted capacity Jobs whose pods still exist."""
        self._held_up: list[LaunchSpec] = []
        """Attempts whose pods wait for the end of the capacity pods."""
        self._versions_of_pools = dict.fromkeys(renting.by_name, 0)
        self._numbers = itertools.count(801)
        self._is_due = False
        self._decided: Counter[str] = Counter()
        """Claims that are decided on, by pool, and not created yet."""

    # ------------------------------------------------------------ the port

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        if spec.name not in self.capacity:
            self.world.checks.rented(self.world, spec)
            self.world.tell(f"{spec.nodes} capacity pods of {spec.name} ask {spec.pool}")
        super().create_capacity_pods(spec)
        self._look_soon()

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        if name in self.capacity and name not in self._going_pods:
            self._going_pods.add(name)
            self.loop.after(self.dice.uniform(0.3, 2.0), lambda: self._pods_gone(name))
        return name not in self.capacity

    def _pods_gone(self, name: str) -> None:
        self._going_pods.discard(name)
        super().delete_capacity_pods(CLUSTER, "", name)
        self.stands = {pod: node for pod, node in self.stands.items() if pod[0] != name}
        for spec in list(self._held_up):
            self._let_run(spec)
        self._look_soon()

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        while True:
            version = self._versions_of_pools.get(pool, 0)
            wanted = rented()
            if version == self._versions_of_pools.get(pool, 0):
                break
            self.world.tell(f"{pool} was patched meanwhile, and is counted again")
        answer = super().set_pool_limit(cluster, pool, lambda: wanted)
        if answer in (LimitResult.SET, LimitResult.UNCHANGED):
            self.world.checks.limited(self.world, pool, wanted)
        if answer is LimitResult.SET:
            self._versions_of_pools[pool] += 1
            self.world.tell(f"{pool} may have {wanted[0]} nodes")
            self._look_soon()
        return answer

    def claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        return tuple(
            NodeClaim(name=machine.claim, node_name=machine.node_name)
            for machine in self.machines.values()
            if machine.pool == pool and machine.gone_at is None
        )

    def delete_claim(self, cluster: str, name: str) -> None:
        burst_node = self.machines.get(name)
        if burst_node is None or burst_node.gone_at is not None or name in self.going:
            return
        self.going.append(name)
        seconds = self.dice.uniform(0.5, 20.0) if burst_node.joined_at is not None else 0.5
        if self._makes_trouble("slow to go"):
            seconds = self.dice.uniform(60, 150)
        self.world.tell(f"{name} is to be given back")
        if burst_node.node_name and self.node(CLUSTER, burst_node.node_name) is not None:
            self.set_node(burst_node.node_name, taints=(_DRAINED,))
        self.loop.after(seconds, lambda: self._gone(burst_node))

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
        burst_node = self.machine_of(name)
        if burst_node is not None:
            self._gone(burst_node)

    def set_node(self, name: str, cluster: str = CLUSTER, **changes: Any) -> KubernetesNode:
        node = super().set_node(name, cluster, **changes)
        burst_node = self.machine_of(name)
        if burst_node is not None:
            is_usable = node.is_ready and node.is_schedulable
            burst_node.usable_until = None if is_usable else burst_node.usable_until or self.loop.seconds
        return node

    def requested(self, cluster: str) -> dict[str, Resources]:
        capacity_pods = (
            (node, Resources(accelerators=self.capacity[name].accelerators)) for (name, _), node in self.stands.items()
        )
        return sum_by_place(itertools.chain(super().requested(cluster).items(), capacity_pods))

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        result = FakeCluster.launch(self, spec)
        if result[0] is LaunchResult.CREATED:
            workload = self.launched(spec.attempt.job_id, spec.attempt.attempt)
            taken = set(self.stands.values())
            workload.pods = [
                pod.replace(phase=PodPhase.PENDING) if pod.node_name in taken else pod for pod in workload.pods
            ]
            self._held_up.append(spec)
            self._let_run(spec)
        return result

    def _let_run(self, spec: LaunchSpec) -> None:
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

    def machine_of(self, node_name: str) -> BurstMachine | None:
        """Return the rented node of a node; None if the node is not rented, or ended."""
        return next((burst_machine for burst_machine in self.alive() if burst_machine.node_name == node_name), None)

    def alive(self) -> Iterator[BurstMachine]:
        """Yield the nodes that were requested and have not ended."""
        return (machine for machine in self.machines.values() if machine.gone_at is None)

    def left(self) -> Iterator[str]:
        """Return the description of the rented nodes."""
        yield from (
            f"{burst_machine.claim} is there, {burst_machine.node_name or 'not joined'}"
            for burst_machine in self.alive()
        )
        yield from (f"capacity pods of {name} are there" for name in self.capacity)
        for (_, pool), limit in self.limits.items():
            if limit not in ((0, 0), None):
                yield f"{pool} may have {limit}"

    def _makes_trouble(self, kind: str, share: float = 1.0) -> bool:
        happens = not self.world.is_calm and self.dice.random() < self.renting.trouble * share
        self.world.seen[f"renting {kind}"] += happens
        return happens

    def _look_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.loop.after(self.dice.uniform(0.5, 2.0), self._look)

    def _look(self) -> None:
        """Bind the schedulable pods, and request a node for each remaining pod, within the limits."""
        self._is_due = False
        for name, spec in self.capacity.items():
            if name in self._going_pods:
                continue
            homeless = [number for number in range(spec.nodes) if not self._stand(spec, number)]
            decided = self._decided[spec.pool]
            coming = decided + sum(
                burst_machine.pool == spec.pool and not burst_machine.node_name for burst_machine in self.alive()
            )
            present = decided + sum(burst_machine.pool == spec.pool for burst_machine in self.alive())
            most = (self.limits.get((CLUSTER, spec.pool)) or (0, 0))[0]
            for _ in range(min(len(homeless) - coming, most - present)):
                size, until = self.renting.dry.get(spec.pool, (math.inf, math.inf))
                had = sum(burst_machine.pool == spec.pool for burst_machine in self.alive()) + self._decided[spec.pool]
                if (had >= size and self.loop.seconds < until) or self._makes_trouble("refused"):
                    self.refusals[spec.pool] = (self.loop.now(), "InsufficientInstanceCapacity")
                    self.world.tell(f"{spec.pool} has no capacity")
                    self._changed("event")
                    self.loop.after(self.dice.uniform(5, 20), self._look_soon)
                    break
                pool, seconds = self.renting.by_name[spec.pool], 0.0
                if self._makes_trouble("slow controller"):
                    seconds = self.dice.uniform(0.2, 2.0)  # it decides, and creates by and by
                self._ask(pool, seconds)

    def _stand(self, spec: CapacitySpec, number: int) -> bool:
        """Return whether a capacity pod is on a node now, binding it if possible."""
        at = self.stands.get((spec.name, number), "")
        if self.node(CLUSTER, at) is not None:
            return True
        self.stands.pop((spec.name, number), None)
        used = self.accelerators_in_use(CLUSTER)
        for node in self.nodes(CLUSTER):
            is_going = (burst_node := self.machine_of(node.name)) is None or burst_node.claim in self.going
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

    def _ask(self, pool: RentedPool, after_seconds: float) -> None:
        """Create a claim, whatever has become of its pod and of the limit since that was decided."""
        number = next(self._numbers)
        burst_node = BurstMachine(f"{pool.name}-{number:05d}", pool.name, self.loop.seconds)
        self._decided[pool.name] += 1

        def create() -> None:
            self._decided[pool.name] -= 1
            burst_node.asked_at = self.loop.seconds
            self.machines[burst_node.claim] = burst_node
            self.world.tell(f"{burst_node.claim} is asked for")
            self._start(burst_node, number)

        self.loop.after(after_seconds, create)

    def _start(self, burst_node: BurstMachine, number: int) -> None:
        seconds = self.dice.uniform(5, 30)
        if self._makes_trouble("late", 0.5):
            seconds = self.dice.uniform(40, 120)
        elif self._makes_trouble("never joins"):
            seconds = _NEVER
        self.loop.after(seconds, lambda: self._join(burst_node, number))

    def _join(self, burst_node: BurstMachine, number: int) -> None:
        if burst_node.gone_at is not None or burst_node.claim in self.going:
            return
        pool = self.renting.by_name[burst_node.pool]
        is_ready = not self._makes_trouble("joins not ready", 0.5)
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
        burst_node.node_name, burst_node.joined_at = node.name, self.loop.seconds
        self.world.tell(f"{node.name} joins {pool.name}" + ("" if is_ready else ", not ready yet"))
        self.add_node(node)
        self._look_soon()
        if not is_ready:
            burst_node.usable_until = self.loop.seconds
            self.loop.after(self.dice.uniform(3, 40), lambda: self._becomes_ready(burst_node))
        if self._makes_trouble("dies young", 0.7):
            self.loop.after(self.dice.uniform(0.5, 60), lambda: self._dies(burst_node))
        elif pool.market is Market.SPOT and self._makes_trouble("taken back"):
            self.loop.after(self.dice.uniform(5, 120), lambda: self._is_taken_back(burst_node))

    def _becomes_ready(self, burst_node: BurstMachine) -> None:
        node = self.node(CLUSTER, burst_node.node_name)
        if node is not None and burst_node.gone_at is None and not node.is_ready:
            self.ready_node(burst_node.node_name)
            self._look_soon()

    def _dies(self, burst_node: BurstMachine) -> None:
        if burst_node.gone_at is None:
            self.world.tell(f"{burst_node.node_name} ends by itself")
            self.remove_node(burst_node.node_name)

    def _is_taken_back(self, burst_node: BurstMachine) -> None:
        node = self.node(CLUSTER, burst_node.node_name)
        if node is None or burst_node.gone_at is not None:
            return
        if self.dice.random() < 0.5 and node.instance_id:
            self.world.warn_of_reclaim(node.instance_id)
        else:
            self.world.tell(f"{burst_node.node_name} is taken back without a word")
            self.remove_node(burst_node.node_name)

    def _gone(self, burst_node: BurstMachine) -> None:
        if burst_node.gone_at is not None:
            return
        burst_node.gone_at = self.loop.seconds
        self.going = [name for name in self.going if name != burst_node.claim]
        self.stands = {pod: node for pod, node in self.stands.items() if node != burst_node.node_name}
        self.world.tell(f"{burst_node.claim} is gone")
        if burst_node.node_name and self.node(CLUSTER, burst_node.node_name) is not None:
            self.remove_node(burst_node.node_name)
        self._changed("node")
        self._look_soon()
