"""Jobs of several sizes, in every ninth seed: they grow on idle nodes and shrink for other jobs.

These seeds draw from their own random source, so other seeds stay unchanged.
"""

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from evenkeel.domain.elastic.sizes import ElasticPolicy
from evenkeel.domain.elastic.throughput import SizeThroughput
from evenkeel.domain.external.adoption_policy import ServingWorkload
from evenkeel.domain.external.unmanaged_workloads import PodRecreation, UnmanagedPod
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.jobs.spec import ElasticSpec, JobSpec
from evenkeel.domain.policy import Policy
from evenkeel.ports import Put, Write
from evenkeel.services.jobs import suspend_job
from evenkeel.services.tables import job_rows, rows
from tests.fakes.cluster import CLUSTER, GPUS
from tests.fakes.crashes import Crash
from tests.simulator.team_scenario import PEOPLE

if TYPE_CHECKING:
    from tests.simulator.simulation import Simulation
    from tests.simulator.team_scenario import TeamScenario

EVERY, _FIRST = 9, 4
"""Every ninth seed, from the fourth on, has elastic jobs and no teams."""
_WITH_TEAMS, _FIRST_WITH_TEAMS = 36, 12
"""Every 36th seed, from the twelfth on, has elastic jobs and teams."""
_ELASTIC_SHARE = 0.6
"""Probability that a job with checkpoints is elastic, if every seed submits it."""
_TEAMS = 10
"""Elastic jobs of teams have higher numbers. Other jobs of teams have lower numbers, and these seeds leave them out."""
_OWN = 60
"""Number of the first additional elastic job."""
_LATER, _LAST = 70, 80
"""Numbers, from and below, of the jobs that make elastic jobs shrink."""
CYCLES_EVERY = 30.0
_CYCLES_EVERY_DURING_FAULTS = 8.0
"""Seconds between scheduling cycles. During faults they are frequent: only cycles change sizes."""
_POOL = "p5-workers"
LENDERS = "amber"
"""A team with a job that shrinks for other jobs of the team."""
_ACTS_SHARE = 0.9
"""Probability that a seed runs in mode act, whatever mode other seeds would have."""
_SERVING_SHARE = 0.4
"""Probability that a Deployment serves in a seed."""
_BIND_SECONDS = 1.0
"""Seconds after which the scheduler of Kubernetes binds pods again."""
_DISTURBANCE_SHARE = 0.4
"""Probability that something happens to a job at a commit that resizes it."""
_TAKE_IDLE_NODE = "take an idle node"
KINDS = ("each", "step", "discrete")
OUTCOMES = ("RESIZE GROW", "RESIZE SHRINK", "RESUME SHRINK")
"""Decisions that at least one seed must make."""
_KNOWN_THROUGHPUT = 0.3
"""Probability that an elastic job declares its throughput."""
_OUTLASTS_FAULTS = 0.4
"""Probability that the first additional job runs long after the faults stop, so that it has time to grow again."""
DISTURBANCES = ("cancel", "suspend", "lose a node", "cordon an idle node", _TAKE_IDLE_NODE, "die", "die after")


def has_elastic_jobs(seed: int) -> bool:
    """Return whether a seed has elastic jobs."""
    return seed % EVERY == _FIRST or seed % _WITH_TEAMS == _FIRST_WITH_TEAMS


@dataclass
class GrowthAttempt:
    """Facts about the growth of a job."""

    resized_at: datetime | None = None
    """When an attempt was last admitted after a resize, or at another size."""
    asked: int = 0
    """Size of the next attempt, if the present attempt was stopped to grow."""
    grown: int = 0
    """The attempt with that size, until it has run."""
    failures: int = 0
    """Number of consecutive failed growths."""
    failed_at: datetime | None = None


@dataclass
class SizeHistory:
    """Facts about sizes for the checks."""

    growths: dict[str, GrowthAttempt] = field(default_factory=dict)
    made: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """(job, nodes before, nodes after) → number of these resizes since anything else changed."""
    era: tuple[int, ...] = ()
    """Counts of all changes from outside at the start of `made`."""
    changes: int = 0
    """Number of times that a job arrived, ended or was changed, or that a quota changed."""
    disturbed_at: float = 0.0
    """The time of the last change that sizes depend on."""


class ElasticScenario:
    """The elastic jobs of one seed."""

    def __init__(self, world: "Simulation", rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.watched = SizeHistory()
        self.size = rng.choice((4, 5, 6, 8))
        """Number of nodes: a smaller fleet leaves little capacity for growth."""
        self.mode = "act" if rng.random() < _ACTS_SHARE else world.mode
        self.terms = ElasticPolicy(
            resize_seconds=rng.choice((1, 3)),
            snooze_seconds=rng.choice((5, 20)),
            backoff_seconds=rng.choice((30, 60)),
            max_backoff_seconds=120,
            scaling_timeout_seconds=rng.choice((0, 0, 8)),
            spare_wait_seconds=rng.choice((10, 25)),
        )
        self.serving_target = rng.random() < _SERVING_SHARE
        self.spares = int(rng.random() < 0.15)
        self.repair_seconds = rng.choice((20, 60, 120))
        self._sizes: dict[int, ElasticSpec] = {}
        """By job number: its sizes, if they are not random."""
        self._wanted_replicas = 0
        """Replicas that the Deployment is to have."""
        self._replicas = 0
        """Number of pods that the Deployment has ever had."""
        self._is_binding_scheduled = False

    def policy(self, policy: Policy) -> Policy:
        """Return the policy of this seed."""
        chat = ServingWorkload(cluster=CLUSTER, namespace="serving", name="chat", max_replicas=3)
        return policy.replace(
            scheduling=policy.scheduling.replace(
                elastic=self.terms,
                serving=(chat,) if self.serving_target else (),
                spare_nodes={_POOL: 1} if self.spares and self.world.size > 3 else {},
            ),
            economy=policy.economy.replace(expected_reboot_seconds=self.repair_seconds),
            jobs=policy.jobs.replace(expected_replace_seconds=self.repair_seconds),
        )

    # ------------------------------------------------------------ jobs

    def schedule_events(self, chaos_seconds: float) -> None:
        """Submit the elastic jobs first, and other jobs while they run."""
        world, rng = self.world, self.rng
        world.cluster.on_full = self._schedule_pod_binding
        before = world.ledger.before_commit

        def disturb(writes: tuple[Write, ...]) -> None:
            if before:
                before(writes)
            self._disturb_resize(writes)

        world.ledger.before_commit = disturb
        if world.sharing:
            self._add_competing_jobs(world.sharing, chaos_seconds)
        for number in range(_OWN, _OWN + rng.choice((1, 1, 2, 2, 3)) if world.sharing is None else _OWN):
            length = rng.choice((150.0, 300.0, 400.0))
            if number == _OWN and random.Random(f"length/{world.seed}").random() < _OUTLASTS_FAULTS:
                length = 900.0
            world.loop.after(rng.uniform(0.5, 10), self._submit(number, 1, length))
        for number in range(_LATER, _LATER + rng.choice((1, 2, 3, 4)) if world.sharing is None else _LATER):
            nodes = rng.choice((1, 1, 2, max(1, world.size // 2)))
            world.loop.after(rng.uniform(25, chaos_seconds + 60), self._submit(number, nodes, rng.choice((20.0, 40.0))))
        for _ in range(rng.choice((1, 2)) if self.serving_target else 0):
            self._schedule_spike(rng.uniform(20, chaos_seconds), rng.uniform(20, 60), rng.choice((1, 2, 2, 4)))
        world.loop.after(rng.uniform(0, CYCLES_EVERY), self._run_scheduling_cycle)

    def _add_competing_jobs(self, sharing: "TeamScenario", chaos_seconds: float) -> None:
        """Let a job hold nodes that other jobs of its team request later; one of them requests more than exists."""
        world, rng = self.world, self.rng
        quota = rng.choice((2, 3, world.size - 1))
        group = {"ml.p5.48xlarge": {"nvidia.com/gpu": {"nominal": GPUS * quota}}}
        queue = {"groups": [group], "preemption": {"within": "LowerPriority"}}
        sharing.add(LENDERS, queue)
        nodes = rng.choice((1, quota, quota))
        self._sizes[_OWN] = ElasticSpec(min_nodes=1, max_nodes=world.size)
        sharing.set_job_fields(_OWN, team=LENDERS, nodes=nodes, priority_class="low")
        world.loop.after(rng.uniform(0.5, 5), self._submit(_OWN, nodes, rng.choice((200.0, 300.0))))
        for number, kind in enumerate(("high", "critical", "low")[: rng.choice((1, 2, 3))], _LATER):
            node_count = quota + 1 if kind == "low" else rng.choice((1, 1, max(1, quota - 1)))
            sharing.set_job_fields(number, team=LENDERS, nodes=node_count, priority_class=kind)
            world.loop.after(rng.uniform(30, chaos_seconds + 60), self._submit(number, node_count, 30.0))

    def omits_job(self, number: int) -> bool:
        """Return whether some job of the seed is left out: no job grows while all nodes are in use."""
        return number < _TEAMS

    def _submit(self, number: int, nodes: int, length: float) -> Callable[[], None]:
        return functools.partial(self.world.submit, number, nodes, length, keeps=True, finishes=False)

    def _run_scheduling_cycle(self) -> None:
        self.world.invoke_scheduled("schedule_jobs")
        self.world.loop.after(
            CYCLES_EVERY if self.world.faults_ended else _CYCLES_EVERY_DURING_FAULTS, self._run_scheduling_cycle
        )

    def with_sizes(self, number: int, spec: JobSpec) -> JobSpec:
        """Return the fields of a job, with its possible sizes."""
        rng = self.rng
        if number in self._sizes:
            return spec.replace(elastic=self._sizes[number])
        if _LATER <= number < _LAST or (number < _OWN and (not spec.checkpoint_uri or rng.random() > _ELASTIC_SHARE)):
            return spec
        size, kind = self.world.size, rng.choice((*KINDS, KINDS[0]))
        if kind == "discrete":
            legal = sorted({1, *(rng.randint(2, size + 1) for _ in range(3))})
            elastic = ElasticSpec(min_nodes=legal[0], max_nodes=legal[-1], sizes=tuple(legal))
        else:
            step = 2 if kind == "step" else None
            least = rng.choice((1, 1, 2))
            most = max(least + 2, rng.choice((size, size, size // 2, size + 2)))
            elastic = ElasticSpec(min_nodes=least, max_nodes=most, step=step)
            legal = list(range(least, most + 1, step or 1))
        self.world.seen[f"elastic {kind}"] += 1
        curve = random.Random(f"throughput/{self.world.seed}/{number}")
        if curve.random() < _KNOWN_THROUGHPUT:
            points = ((1, 100.0), (max(2, self.world.size // 2), curve.choice((90.0, 180.0, 400.0))))
            throughput = tuple(SizeThroughput(nodes=nodes, per_second=speed) for nodes, speed in points)
            elastic = elastic.replace(throughput=throughput)
        # A small request leaves room to grow.
        return spec.replace(nodes=legal[0] if rng.random() < 0.7 else rng.choice(legal), elastic=elastic)

    # ------------------------------------------------------------ what serves

    def _schedule_spike(self, begins: float, chaos_seconds: float, replicas: int) -> None:
        def wanted(more: int) -> None:
            self._wanted_replicas += more
            self.world.seen["elastic a spike"] += more > 0
            self.world.log(f"the Deployment is to have {self._wanted_replicas} replicas")
            self._reconcile_deployment()

        self.world.loop.after(begins, lambda: wanted(replicas))
        self.world.loop.after(begins + chaos_seconds, lambda: wanted(-replicas))

    def _reconcile_deployment(self) -> None:
        """Act as the Deployment's controller."""
        cluster = self.world.cluster
        pods = [pod for pod in cluster.unmanaged_pods(CLUSTER) if pod.namespace == "serving"]
        for pod in pods[self._wanted_replicas :]:
            cluster.unmanaged.remove(pod)
        for _ in range(self._wanted_replicas - len(pods)):
            self._replicas += 1
            name = f"chat-5d8f-{self._replicas}"
            pod = UnmanagedPod(
                namespace="serving",
                name=name,
                uid=name,
                node_name="",
                accelerators=GPUS,
                kind="ReplicaSet",
                workload="chat-5d8f",
                recreation=PodRecreation.BY_OWNER,
            )
            cluster.unmanaged.append(pod)
        if len(pods) != self._wanted_replicas:
            self._note_disturbance()
            self.world.ingest()
        if self._wanted_replicas:
            self._schedule_pod_binding()

    # ------------------------------------------------------------ Kubernetes' own scheduler

    def _schedule_pod_binding(self) -> None:
        if not self._is_binding_scheduled:
            self._is_binding_scheduled = True
            self.world.loop.after(_BIND_SECONDS, self._bind_pods)

    def _bind_pods(self) -> None:
        """Place the pods without a node: replicas on any node, pods of our attempts on their own nodes."""
        self._is_binding_scheduled = False
        cluster = self.world.cluster
        if self._wanted_replicas:
            self._reconcile_deployment()
        for pod in [pod for pod in cluster.unmanaged if not pod.node_name and pod.namespace == "serving"]:
            used = cluster.accelerators_in_use(CLUSTER)
            free = [node.name for node in cluster.nodes(CLUSTER) if node.is_schedulable and not used.get(node.name)]
            if free:
                self.world.log(f"{pod.name} takes {free[0]}")
                cluster.unmanaged[cluster.unmanaged.index(pod)] = pod.replace(node_name=free[0])
                self._note_disturbance()
                self.world.ingest()
        if cluster.bind_waiting_pods() or self._wanted_replicas:
            self._schedule_pod_binding()

    # ------------------------------------------------------------ trouble in mid-resize

    def _disturb_resize(self, writes: tuple[Write, ...]) -> None:
        """Have something happen, or the process die, where a job is changing size."""
        world = self.world
        docs = [write.row.doc for write in writes if isinstance(write, Put) and write.row.key.sk == "META"]
        jobs = [doc for doc in docs if doc.get("resize") and doc["resize"]["afterAttempt"] >= doc["currentAttempt"] - 1]
        if not jobs or world.faults_ended or not world.calls or self.rng.random() > _DISTURBANCE_SHARE:
            return
        is_asked = jobs[0]["state"] == "RUNNING" and jobs[0]["resize"]["afterAttempt"] == jobs[0]["currentAttempt"]
        # In most cases the idle nodes of a growing job are taken before it restarts.
        disturbances = (*DISTURBANCES, *3 * (_TAKE_IDLE_NODE,)) if is_asked else DISTURBANCES
        kind, seconds = self.rng.choice(disturbances), self.rng.uniform(0.1, 3 if is_asked else 8)
        job_id, number = str(jobs[0]["jobId"]), self.rng.randrange(100)
        world.seen[f"action {kind} in mid-resize"] += 1
        if kind == "die":
            world.chaos.injected_failures += 1
            world.log("the process dies before a commit of a resize")
            raise Crash("a commit of a resize")
        if kind == "die after":
            self._crash_times = True
            return
        actions: dict[str, Callable[[], None]] = {
            "cancel": lambda: world.cancel_job(job_id),
            "suspend": lambda: self._suspend(job_id, 5 + 4 * seconds),
            "lose a node": lambda: self._lose_node(job_id, number),
            "cordon an idle node": lambda: self._cordon_idle(number),
            _TAKE_IDLE_NODE: lambda: self._take_idle(number, 10 + 3 * seconds),
        }
        world.loop.after(seconds, actions[kind])

    _crash_times = False

    def die_after_commit(self) -> None:
        """Die after a commit, where this was planned before it."""
        if self._crash_times:
            self._crash_times = False
            self.world.chaos.injected_failures += 1
            self.world.log("the process dies after a commit of a resize")
            raise Crash("after a commit of a resize")

    def _suspend(self, job_id: str, seconds: float) -> None:
        world = self.world
        request = suspend_job.JobChangeRequest(job_id=job_id, requester=PEOPLE[0], reason="later")

        def say(verb: str, service: Callable[..., Any]) -> None:
            world.person(
                f"ana {verb} {job_id}",
                lambda: service(request, world.world.context()),
            )

        say("suspends", suspend_job.suspend)
        world.loop.after(seconds, lambda: say("resumes", suspend_job.resume))

    def _lose_node(self, job_id: str, number: int) -> None:
        names = [name for name in self._nodes_of(job_id) if (node := self._node(name)) and node.is_ready]
        if names:
            name = names[number % len(names)]
            self.world.log(f"{name} is cut off")
            self.world.cluster.lose_node(name)

    def _idle_node_name(self, number: int) -> str:
        used = self.world.cluster.accelerators_in_use(CLUSTER)
        free = [node.name for node in self.world.cluster.nodes(CLUSTER) if node.is_schedulable]
        free = [name for name in free if not used.get(name)]
        return free[number % len(free)] if free else ""

    def _cordon_idle(self, number: int) -> None:
        world, name = self.world, self._idle_node_name(number)
        if name:
            world.log(f"bo cordons {name}")
            world.cluster.set_node(name, is_cordoned=True)
            world.watched.persons[name] = world.loop.seconds

    def _take_idle(self, number: int, seconds: float) -> None:
        world, name = self.world, self._idle_node_name(number)
        if not name:
            return
        own = f"taken-{name}-{world.loop.seconds:.0f}"
        pod = UnmanagedPod(namespace="other", name=own, uid=own, node_name=name, accelerators=GPUS)
        world.log(f"an unmanaged pod runs on {name} for {seconds:.0f} s")
        world.cluster.unmanaged.append(pod)
        self._note_disturbance()
        world.ingest()

        def end() -> None:
            if pod in world.cluster.unmanaged:
                world.cluster.unmanaged.remove(pod)
                self._note_disturbance()
                world.ingest()

        world.loop.after(seconds, end)

    def _note_disturbance(self) -> None:
        self.watched.changes += 1
        self.watched.disturbed_at = self.world.loop.seconds

    def _node(self, name: str) -> Any:
        return self.world.cluster.node(CLUSTER, name)

    def _nodes_of(self, job_id: str) -> tuple[str, ...]:
        job = rows.decode(self.world.ledger.rows[job_rows.job_key(job_id)], Job)
        row = self.world.ledger.rows.get(job_rows.attempt_key(job_id, job.current_attempt))
        return tuple(row.doc["nodeNames"]) if row and not job.state.has_ended else ()
