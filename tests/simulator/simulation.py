"""The simulation of a seed: a fleet, a schedule of faults, the real functions and workflows, and the result."""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import json
import pkgutil
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pydantic_core

import evenkeel.services
from evenkeel.domain.admission.authority import AdmissionAuthority
from evenkeel.domain.health.health_policy import SourcePolicy, WatchPolicy
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.charge import Charge
from evenkeel.domain.jobs.job import JobState
from evenkeel.domain.jobs.job_policy import JobPolicy
from evenkeel.domain.jobs.spec import JobSpec, OnNodeFault
from evenkeel.domain.nodes import KARPENTER_LABEL
from evenkeel.domain.policy import Policy
from evenkeel.domain.recovery import guardrails
from evenkeel.domain.recovery.guardrails import Guardrail, GuardrailAction, GuardrailFacts
from evenkeel.domain.recovery.repair_policy import GuardrailPolicy, RepairPolicy
from evenkeel.events import fields
from evenkeel.ports import (
    EvenkeelError,
    ExecutionState,
    Key,
    LaunchSpec,
    Page,
    PermanentError,
    Put,
    Row,
    Table,
    WorkflowName,
    Write,
)
from evenkeel.ports import ledger as ledger_port
from evenkeel.runtime import entry, wiring
from evenkeel.runtime.settings import Settings
from evenkeel.services.context import Context
from evenkeel.services.incidents import approve_recovery
from evenkeel.services.jobs import cancel_job, submit_job
from evenkeel.services.recovery import hold_automation
from evenkeel.services.sweep import sweep_run
from evenkeel.services.tables import rows
from tests.fakes.checkpoints import InMemoryCheckpoints
from tests.fakes.cluster import CLUSTER
from tests.fakes.crashes import Crash
from tests.fakes.ledger import InMemoryLedger
from tests.fakes.messages import InMemoryDeadLetters, InMemoryInbox, InMemoryRawEvents, RecordingOnCall
from tests.fakes.system import RecordingTelemetry, SequenceIds
from tests.simulator.asl import Execution, Failure, Json, Reply, WorkflowEngine
from tests.simulator.chaos import Chaos
from tests.simulator.data_centre import (
    FAULT_TYPES,
    LoopClock,
    SimulatedCluster,
    SimulatedProvider,
    SimulatedTrainers,
    initial_nodes,
    without_health_labels,
)
from tests.simulator.elastic_scenario import ElasticScenario, has_elastic_jobs
from tests.simulator.event_loop import VirtualTimeLoop
from tests.simulator.kueue_scenario import KueueCluster, KueueScenario, has_kueue
from tests.simulator.placement_scenario import ENDS_READ_EVERY, PlacementScenario, has_placements
from tests.simulator.privileges import TableRequest, request_of_write
from tests.simulator.renting_scenario import RentingCluster, RentingScenario, has_mixed_job, has_rentals
from tests.simulator.team_scenario import EVERY, PEOPLE, TeamScenario

FUNCTIONS = Path(__file__).resolve().parents[2] / "functions"
SWEEPS_EVERY = 30.0
WATCHES_EVERY = 30.0
STATUS_EVERY = 10.0
_LONG_AFTER_FAULTS, _SELDOM = 600.0, 4
"""After this many seconds without faults only deadlines remain, so schedules run this much less often."""
_SPOT_NOTICE = 120.0
MAX_SECONDS_AFTER_FAULTS = 30_000.0
"""Longest time from the last fault to the end of all work: eight hours, for fleets with two repairs an hour."""
_FORGED_EVERY, _FORGED_FIRST = 7, 3
"""Every seventh seed has forged drills, although drills may not act."""
_RECEIVES = 5
_SEEN_AGAIN_AFTER = 20.0
_CHANGES_NODE_RECOVERY = 0.12
"""Share of seeds in which people change NodeRecovery during the run."""
_RUN_TWICE = 0.04
"""Share of tasks whose function runs twice, without faults too: Lambda guarantees at least one invocation."""
_ASYNC_RETRIES = (60.0, 120.0)

POLICY = Policy(
    name="simulated",
    repair=RepairPolicy(
        reboot_deadline_seconds=60,
        replace_deadline_seconds=90,
        owner_deadline_seconds=150,
        reconcile_after_seconds=45,
        retry_seconds=5,
        settle_scale=0.05,
        drain_scale=0.05,
        validation_deadline_seconds=30,
        return_margin_seconds=2,
        takeover_seconds=60,
        leave_seconds=20,
        repair_possible_deadline_seconds=200,
        approval_deadline_seconds=150,
    ),
    jobs=JobPolicy(
        launch_deadline_seconds=120,
        running_deadline_seconds=60,
        stop_deadline_seconds=60,
        lost_node_seconds=15,
        resume_deadline_seconds=300,
        application_restarts=2,
        restart_backoff_seconds=5,
        restart_backoff_max_seconds=20,
        attribution_delay_seconds=8,
        distrust_guard_seconds=10,
        finish_seconds=70,
    ),
    watch=WatchPolicy(
        not_ready_seconds=20,
        watch_seconds=15,
        tick_seconds=10,
        first_boot_grace_seconds=60,
        execution_grace_seconds=20,
        max_runs=20,
    ),
    sources=SourcePolicy(kubernetes_list_seconds=31, hyperpod_seconds=31),
)

DEFAULT = GuardrailPolicy(shared_cause_window_seconds=240, stale_after_seconds=300)
LOOSE = GuardrailPolicy(pool_repair_share=0.67, pool_cordon_share=1.0, shared_cause_count=50, stale_after_seconds=60)
"""So that some fleets see several repairs at a time."""
TIGHT = GuardrailPolicy(
    fleet_repairs=1,
    repairs_per_hour=2,
    fleet_cordons=2,
    pool_repair_share=1.0,
    pool_cordon_share=1.0,
    shared_cause_count=50,
    stale_after_seconds=30,
)
"""So that the limits of the fleet bind, and old evidence is doubted."""
POLICIES = tuple(POLICY.replace(repair=POLICY.repair.replace(guardrails=rails)) for rails in (DEFAULT, LOOSE, TIGHT))


@functools.cache
def handler(name: str) -> Callable[[Json, Any], Json]:
    """Load the handler of a function, as Lambda does."""
    spec = importlib.util.spec_from_file_location(f"functions.{name}.handler", FUNCTIONS / name / "handler.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Json, Any], Json] = module.handler
    return function


@functools.cache
def function_of(placeholder: str) -> str:
    """Return `cordon_node` for `${CordonNodeArn}`."""
    words = placeholder.removeprefix("${").removesuffix("Arn}")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in words).lstrip("_")


class SequentialExecutor:
    """An executor without threads, so that a seed always runs in the same order."""

    def __init__(self, max_workers: int = 1) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except EvenkeelError as error:
            future.set_exception(error)
        return future


@functools.cache
def _with_threads() -> tuple[Any, ...]:
    walk_packages = pkgutil.walk_packages(evenkeel.services.__path__, "evenkeel.services.")
    modules = [entry, ledger_port, *(importlib.import_module(module_info.name) for module_info in walk_packages)]
    return tuple(module for module in modules if hasattr(module, "ThreadPoolExecutor"))


@contextlib.contextmanager
def _simulated(simulation: "Simulation") -> Iterator[None]:
    """Run services without threads, read no stored row twice, and count the guardrails that trip."""
    executors = [(module, module.ThreadPoolExecutor) for module in _with_threads()]
    read, rails, intervals = rows.decode, guardrails.GUARDRAILS, sweep_run._MIN_INTERVAL_SECONDS
    for module, _ in executors:
        module.ThreadPoolExecutor = SequentialExecutor
    rows.decode = simulation.ledger.read
    if simulation.placement:
        sweep_run._MIN_INTERVAL_SECONDS = {**intervals, "plans": ENDS_READ_EVERY}
    guardrails.GUARDRAILS = tuple(
        rail._replace(check=functools.partial(simulation.check_guardrail, rail)) for rail in rails
    )
    try:
        yield
    finally:
        rows.decode, guardrails.GUARDRAILS = read, rails
        sweep_run._MIN_INTERVAL_SECONDS = intervals
        for module, executor in executors:
            module.ThreadPoolExecutor = executor


class QuietTelemetry(RecordingTelemetry):
    """Telemetry that keeps only warnings, and logs the outcome of each event."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__()
        self.log = log

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None: ...
    def gauge(self, name: str, value: float, **dimensions: str) -> None: ...
    def seconds(self, name: str, value: float, **dimensions: str) -> None: ...

    def info(self, message: str, **keys: Any) -> None:
        if message == "EventDone":
            self.log(f"event {keys.get('outcome')}: {keys.get('reason')}")

    def warning(self, message: str, **keys: Any) -> None: ...


@dataclass(frozen=True)
class FunctionCall:
    """An invocation of a function."""

    function: str
    began: float
    injected_failures: int
    """Number of faults of the whole simulation when the call began."""
    table_requests: set[TableRequest] = field(default_factory=set)
    """Table requests of the call."""


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    text: str
    at: float


@dataclass
class SimulationResult:
    """Result of a seed."""

    seed: int
    violations: list[Violation]
    event_log: list[tuple[float, str]]
    seconds: float
    """Virtual time until everything was at rest."""
    incidents: int = 0
    decisions: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    """Number of times that each fault, action, decision and transition happened."""

    @property
    def trace(self) -> str:
        """A hash of everything that happened, in its order."""
        return hashlib.sha256("\n".join(f"{at:.6f} {text}" for at, text in self.event_log).encode()).hexdigest()[:16]


@dataclass
class RecordedEffects:
    """Facts for the checks that neither the ledger nor the data centre stores."""

    open_by_life: dict[str, set[str]] = field(default_factory=dict)
    answers: dict[tuple[str, int], Json] = field(default_factory=dict)
    """First answer to each token, by the number of waits opened for it."""
    opened: Counter[str] = field(default_factory=Counter)
    """By token: number of waits that were opened when none was stored."""
    alerts: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By incident: the key of its page, and the number of faults until then."""
    calls: dict[str, list[tuple[float, str, bool]]] = field(default_factory=dict)
    """Repair calls that the provider took, by node: when, which rung, and whether the reply got through."""
    launches: dict[str, float] = field(default_factory=dict)
    """By attempt: the time of its first LaunchJob."""
    persons: dict[str, float] = field(default_factory=dict)
    """Nodes that a person cordoned, with the time."""
    controllers: dict[str, float] = field(default_factory=dict)
    """Nodes that another controller has marked, with the time."""
    returned: dict[str, float] = field(default_factory=dict)
    """Nodes that were unreachable and became reachable without a repair, with the time."""
    delivered: list[str] = field(default_factory=list)
    """Bodies of events that the queue delivered successfully."""
    settled: dict[str, str] = field(default_factory=dict)
    """How each incident, attempt and job ended, by its row."""
    given_back: dict[str, Charge] = field(default_factory=dict)
    """By job: the charge of its last attempt at its settlement."""


_WAITS = f"JOB#{JobState.PENDING}"
_INDEX_LAG_EVERY = 4
"""In one of so many seeds, the index lags behind the table."""
_INDEX_LAG = 2.0


class WatchedLedger(InMemoryLedger):
    """Reports every row that a commit changed.

    For speed, all readers share one object of a stored row, it is parsed once, and its document is accepted as JSON
    without a check. `is_strict` gives each reader a copy and checks it. The first seed of each chunk is strict, and a
    test proves that this makes no difference.
    """

    def __init__(
        self,
        observe: Callable[[list[tuple[Key, Row | None, Row | None]]], None],
        on_request: Callable[[TableRequest], None],
        *,
        is_strict: bool,
    ) -> None:
        super().__init__()
        self.on_commit = observe
        self.on_request = on_request
        """Called for every request that DynamoDB would receive."""
        self.lag = 0.0
        """Seconds for which the index does not show that a job waits: on AWS it is eventually consistent."""
        self.seconds: Callable[[], float] = lambda: 0.0
        self._waits_since: dict[Key, float] = {}
        """By job: the time since which it waits."""
        self.before_commit: Callable[[tuple[Write, ...]], None] | None = None
        """Called before each commit, so that another writer can commit first."""
        self.is_strict = is_strict
        self._values: dict[int, dict[type[Any], Any]] = {}
        """Parsed values of each stored row, by the row's identity."""
        self._kinds: defaultdict[str, dict[Key, Row]] = defaultdict(dict)

    def read(self, row: Row, kind: type[Any]) -> Any:
        """Read a row's document as a domain value, as `rows.decode` does."""
        values = self._values.get(id(row))
        if values is None:
            return rows.parse(row.key, kind, row.doc)
        if kind not in values:
            values[kind] = rows.parse(row.key, kind, row.doc)
        return values[kind]

    def of(self, kind: str, pk: str = "") -> list[Row]:
        """Return all rows of a kind (`META`, `ATTEMPT`, `CHARGE`) in partitions with this prefix."""
        return [row for key, row in self._kinds[kind].items() if key.pk.startswith(pk)]

    def _store(self, key: Key, row: Row | None, stored: bytes) -> None:
        before = self.rows.get(key)
        self._values.pop(id(before), None)
        if self.lag and row and row.state and row.state[0] == _WAITS and not (before and before.state == row.state):
            self._waits_since[key] = self.seconds()
        super()._store(key, row, stored)
        kind = self._kinds[key.sk.partition("#")[0]]
        kind.pop(key, None)
        if row is not None:
            kind[key] = row
        if row is not None and not self.is_strict:
            self._values[id(row)] = {}

    def _copy(self, key: Key) -> Row:
        return super()._copy(key) if self.is_strict else self.rows[key]

    def _document(self, document: Mapping[str, Any]) -> dict[str, Any]:
        if self.is_strict:
            return super()._document(document)
        text = pydantic_core.to_json(document)
        # a whole number stored as a float is read back as an int.
        if b".0," in text or b".0}" in text or b".0]" in text:
            return super()._document(document)
        kept: dict[str, Any] = pydantic_core.from_json(text, allow_inf_nan=False)
        return kept

    def get(self, key: Key) -> Row | None:
        self.on_request(TableRequest("GetItem", key.table))
        return super().get(key)

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        for table in {key.table for key in keys}:
            self.on_request(TableRequest("BatchGetItem", table))
        return super().batch_get(*keys)

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        self.on_request(TableRequest("Query", table))
        return super().partition(table, pk, prefix)

    def by_state(self, table: Table, state: str, **how: Any) -> Page:
        self.on_request(TableRequest("Query", table, is_of_index=True))
        page = super().by_state(table, state, **how)
        if not self.lag or state != _WAITS:
            return page
        shown = (row for row in page.rows if self.seconds() - self._waits_since.get(row.key, -self.lag) >= self.lag)
        return Page(tuple(shown), page.cursor)

    def commit(self, *writes: Write, client_token: str = "") -> None:
        for write in writes:
            self.on_request(request_of_write(write))
        if self.before_commit is not None:
            self.before_commit(writes)
        before = {key: self.rows.get(key) for key in map(_key_of, writes)}
        count = len(self.commits)
        super().commit(*writes, client_token=client_token)
        if len(self.commits) > count:
            self.on_commit([(key, row, self.rows.get(key)) for key, row in before.items()])


def _key_of(write: Write) -> Key:
    return write.row.key if isinstance(write, Put) else write.key


class Simulation:
    """The simulation of one seed."""

    def __init__(self, seed: int, checks: Any, *, is_strict: bool = False) -> None:
        self.seed = seed
        self.is_strict = is_strict
        self.rng = random.Random(seed)
        self.forger = random.Random(f"{seed} drills") if seed % _FORGED_EVERY == _FORGED_FIRST else None
        self.loop = VirtualTimeLoop()
        self.event_log: list[tuple[float, str]] = []
        self.violations: list[Violation] = []
        self.watched = RecordedEffects()
        self.seen: Counter[str] = Counter()
        self.checks = checks
        self.calls: list[FunctionCall] = []
        """Functions that run now; more than one where some are paused."""
        self.size = self.rng.choice((3, 3, 4, 4, 5, 6, 8, 12))
        self.spot = self.rng.choice((0, 0, 0, 1, 2)) if self.size > 3 else 0
        """Number of nodes that Karpenter launched."""
        self.mode = self.rng.choices(("act", "observe", "recommend"), (83, 5, 12))[0]
        self.policy = self.rng.choices(POLICIES, (45, 45, 10))[0]
        self.drops_events = self.rng.random() < 0.12
        """Whether all events and watch changes are lost, so that only the sweep works."""
        self.absent = ""
        """Placeholder of a function that workflows cannot invoke for a while."""
        self.faults_ended = False
        self.is_watching = not self.drops_events
        self.is_sweeping = True
        self.away_since: dict[str, float] = {}
        """By control plane: the time since which it does not answer."""
        self.setting_rng = random.Random(f"{seed} node recovery")
        self.changes_node_recovery = self.setting_rng.random() < _CHANGES_NODE_RECOVERY
        """Whether people change NodeRecovery during the run."""
        self.automatic_since: float | None = None
        """Time since which NodeRecovery is Automatic; None if it is not."""
        self.hold: tuple[float, float] = (0.0, 0.0)
        """Start and end of the hold on automation."""
        self.rests_from = 0.0
        """The time of the last scheduled event."""
        self.sharing = TeamScenario(self, random.Random(f"{seed} teams")) if seed % EVERY == 0 else None
        """The teams, if the seed has any."""
        self.renting = RentingScenario(self, random.Random(f"{seed} renting")) if has_rentals(seed) else None
        """The rentable pools, if the seed has any."""
        self.policy = self.renting.with_pools(self.policy) if self.renting else self.policy
        self.elastic = (
            ElasticScenario(self, random.Random(f"{seed} elastic"))
            if has_elastic_jobs(seed) and not self.renting
            else None
        )
        """The elastic jobs, if the seed has any."""
        if self.elastic:
            self.policy, self.size = self.elastic.policy(self.policy), self.elastic.size
            self.mode = self.elastic.mode
        has_other_jobs = self.sharing or self.renting or self.elastic
        self.placement = (
            PlacementScenario(self, random.Random(f"{seed} placement"))
            if has_placements(seed) and not has_other_jobs
            else None
        )
        """The network levels and the end of the capacity, if the seed has any."""
        if self.placement:
            self.policy, self.size = self.placement.policy(self.policy), self.placement.size
        has_kueue_alone = has_kueue(seed) and not (has_other_jobs or self.placement)
        self.kueue = KueueScenario(self, random.Random(f"{seed} kueue")) if has_kueue_alone else None
        """Kueue, if it admits the jobs of the seed."""
        if self.kueue:
            self.mode, self.size, self.spot = "act", self.kueue.size, 0
        self.faults_ended_at = 0.0
        """When the faults stopped."""
        self._cycle_is_due = self._watch_is_due = False
        self._cycle_requested_at = self.loop.now()
        self._build()

    def _build(self) -> None:
        loop, rng = self.loop, self.rng
        self.chaos = Chaos(rng, loop, self.log, self.seen)
        self.ledger = WatchedLedger(self._committed, self._record_table_request, is_strict=self.is_strict)
        if self.seed % _INDEX_LAG_EVERY == 0 and not self.elastic:
            self.ledger.lag = _INDEX_LAG
        self.ledger.seconds = lambda: loop.seconds
        nodes = initial_nodes(self.size, self.spot, rng)
        if has_mixed_job(self.seed):
            nodes = [node.replace(zone="us-west-2a") for node in nodes]  # both parts of a job are in one zone
        if self.renting:
            self.cluster: SimulatedCluster = RentingCluster(self, self.renting, *nodes)
        elif self.kueue:
            self.cluster = KueueCluster(self, self.kueue, *nodes)
        else:
            self.cluster = SimulatedCluster(loop, rng, *nodes)
        self.pool_sizes = Counter(node.pool for node in self.cluster.by_name.values())
        self.provider = SimulatedProvider(loop, rng, self.cluster, self.size - self.spot)
        self.provider.is_told = self.log
        self.provider.on_no_capacity = self.report_no_capacity
        self.provider.on_new_node = self._fault_replacements
        self.owner_repairs = rng.random() < 0.08
        """Whether NodeRecovery is Automatic at the start."""
        if self.changes_node_recovery:
            self.owner_repairs = self.setting_rng.random() < 0.4
        self.provider.settings = self.provider.settings.replace(repairs_by_itself=self.owner_repairs)
        self.automatic_since = 0.0 if self.owner_repairs else None
        self.checkpoints = InMemoryCheckpoints()
        self.trainers = SimulatedTrainers(loop, rng, self.cluster, self.checkpoints, self.log)
        if self.kueue:
            self.trainers.is_training = self.kueue.is_training
            self.trainers.on_save = functools.partial(self.checks.saved, self)
        else:
            self.cluster.on_launch = self.trainers.launched
        self.cluster.on_change = self.ingest
        self.engine = WorkflowEngine(loop, self.invoke, rng)
        self.engine.on_end = self._execution_ended
        self.on_call = RecordingOnCall()
        self.ids = SequenceIds()
        wrapped = {
            name: self.chaos.wrap(name, port)
            for name, port in {
                "ledger": self.ledger,
                "cluster": WatchedCluster(self),
                "provider": WatchedProvider(self),
                "checkpoints": self.checkpoints,
                "workflows": SimulatedWorkflows(self),
                "task_tokens": SimulatedTaskTokens(self),
                "wait_answers": SimulatedWaitAnswerRequests(self),
                "cycle_requests": SimulatedCycleRequests(self),
                "on_call": SimulatedOnCall(self),
                "raw_events": InMemoryRawEvents(),
                "inbox": InMemoryInbox(),
                "dead_letters": InMemoryDeadLetters(),
            }.items()
        }
        if self.placement:
            wrapped["capacity_reservations"] = self.placement
        settings = Settings.from_environment(
            {
                "EVENKEEL_FLEET": "research",
                "EVENKEEL_MODE": self.mode,
                "HYPERPOD_CLUSTER_ARN": self.provider.settings.arn,
                "KUBERNETES_CLUSTERS": CLUSTER,
                **({"EVENKEEL_ADMISSION": AdmissionAuthority.KUEUE} if self.kueue else {}),
            }
        )
        self.telemetry = QuietTelemetry(self.log)
        self.world = wiring.Ports(
            settings,
            policy=self.policy,
            clock=LoopClock(loop),
            ids=self.ids,
            telemetry=self.telemetry,
            **wrapped,
        )

    def observer_context(self) -> Context:
        """Return a context with a ledger that never fails, for checks."""
        return self.world.context(ledger=self.ledger)

    def log(self, text: str) -> None:
        self.event_log.append((self.loop.seconds, text))

    def counting(self, group: str, kind: str, work: Callable[[], None]) -> Callable[[], None]:
        """Return a callable that does the work and counts it."""

        def counted() -> None:
            self.seen[f"{group} {kind}"] += 1
            work()

        return counted

    def check_guardrail(
        self, rail: Guardrail, act: GuardrailAction, facts: GuardrailFacts, policy: GuardrailPolicy
    ) -> Any:
        """Check a guardrail. Count it if it blocks an action of a function."""
        trip = rail.check(act, facts, policy)
        self.seen[f"guardrail {rail.name}"] += trip is not None and bool(self.calls)
        return trip

    def _committed(self, changes: list[tuple[Key, Row | None, Row | None]]) -> None:
        self.checks.commit(self, changes)
        if self.elastic:
            self.elastic.die_after_commit()
        if self.kueue:
            self.kueue.die_after_commit()

    def _record_table_request(self, ask: TableRequest) -> None:
        if self.calls:
            self.calls[-1].table_requests.add(ask)

    def record_violation(self, invariant: str, text: str) -> None:
        self.log(f"VIOLATED {invariant}: {text}")
        self.violations.append(Violation(invariant, text, self.loop.seconds))

    # ------------------------------------------------------------ functions

    def call(self, name: str, event: Json) -> Json:
        """Run a function once, in this process, as Lambda does."""
        call = FunctionCall(name, self.loop.seconds, self.chaos.injected_failures)
        self.calls.append(call)
        if name == "launch_job":
            self.watched.launches.setdefault(f"{event['jobId']}-a{event['attempt']}", self.loop.seconds)
        try:
            answer = handler(name)(
                event,
                SimpleNamespace(
                    function_name=name, aws_request_id="request", get_remaining_time_in_millis=lambda: 60_000
                ),
            )
        except Crash:
            raise
        except Exception as error:
            self.checks.raised(self, call, error)
            raise
        finally:
            self.checks.ended(self, self.calls.pop())
        return answer

    def invoke(self, state: str, placeholder: str, payload: Json, reply: Reply) -> None:
        """Call the function of a workflow state. Its answer comes a little later."""
        name = function_of(placeholder)

        def run() -> None:
            try:
                if placeholder == self.absent or self.chaos.should_fail():
                    self.log(f"{name} is throttled")
                    result: Any = Failure("Lambda.TooManyRequestsException")
                else:
                    if self.rng.random() < _RUN_TWICE:
                        self.call(name, payload)
                    result = self.call(name, payload)
            except Crash:
                result = Failure("Runtime.ExitError")
            except Exception as error:  # noqa: BLE001 - Lambda names whatever a function raises
                result = Failure(type(error).__name__, str(error))
            if self.chaos.should_fail(0.5):
                self.log(f"the answer of {name} is lost")
                result = Failure("Lambda.Unknown")
            subject = payload.get("incidentId") or f"{payload.get('jobId')}-a{payload.get('attempt')}"
            subject = f"{payload['jobId']}-b{payload['rental']}" if "rental" in payload else subject
            outcome = result.error if isinstance(result, Failure) else result.get("outcome", "")
            why = f": {result.cause}" if isinstance(result, Failure) else f": {result.get('reason', '')}"
            self.log(f"{subject} {state}: {outcome}{why[:160]}")
            self.loop.after(0.05, lambda: reply(result))

        self.loop.after(0.1, run)

    def invoke_async(self, name: str, event: Json, seconds: float, tries: tuple[float, ...] = _ASYNC_RETRIES) -> None:
        """Invoke a function asynchronously: at least once, with retries after failures."""

        def run() -> None:
            try:
                self.call(name, event)
            except (Crash, Exception):  # noqa: BLE001 - what a failed event leads to is Lambda's
                if tries:
                    self.invoke_async(name, event, tries[0], tries[1:])
                else:
                    self.log(f"{name} discards an event after its retries")

        self.loop.after(seconds, run)

    def deliver(self, body: str, seconds: float, receives: int = 1) -> None:
        """Deliver an event to its function through its queue, together with forged drills."""
        if self.forger and receives == 1:
            for _ in range(self.forger.choice((0, 1, 2))):
                self._queue(self._forge_drill(body), self.forger.choice((0.1, 0.5, 2.0, 15.0, 90.0)))
        self._queue(body, seconds, receives)

    def _forge_drill(self, body: str) -> str:
        """Return a drill that resembles an event: the same, another fault, a recovery, or another minute."""
        assert self.forger
        event = json.loads(body)
        event["source"] = fields.DRILL_SOURCE
        health = event["detail"].get("HealthSummary")
        if health and self.forger.random() < 0.6:
            fault = self.forger.choice(("", "NvidiaErrorTerminate", "NvidiaErrorReboot"))
            reason = f"The agent has detected fault type {fault} on this node." if fault else ""
            health |= {"HealthStatus": "Unhealthy" if fault else "Healthy", "HealthStatusReason": reason}
        at = self.loop.now() + timedelta(seconds=self.forger.choice((0, 0, -60, 60)))
        if self.forger.random() < 0.5:
            event["time"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.seen["shows a forged drill"] += 1
        return json.dumps(event)

    def _queue(self, body: str, seconds: float, receives: int = 1) -> None:

        def run() -> None:
            record = {"messageId": "m-1", "body": body}
            try:
                failed = self.call("receive_event", {"Records": [record]})["batchItemFailures"]
            except Crash:
                failed = [record]
            if not failed:
                self.watched.delivered.append(body)
            elif receives < _RECEIVES:
                self._queue(body, _SEEN_AGAIN_AFTER, receives + 1)

        self.loop.after(seconds, run)

    def request_cycle(self, seconds: float = 0.3) -> None:
        """Request a scheduling cycle. Pending requests are one batch, as old as its newest request."""
        self._cycle_requested_at = self.loop.now()
        if self._cycle_is_due:
            return
        self._cycle_is_due = True

        def run() -> None:
            self._cycle_is_due = False
            try:
                sent = {"SentTimestamp": str(int(self._cycle_requested_at.timestamp() * 1000))}
                failed = self.call(
                    "schedule_jobs", {"Records": [{"messageId": "m-1", "body": "{}", "attributes": sent}]}
                )
            except Crash:
                failed = {"batchItemFailures": ["m-1"]}
            if failed["batchItemFailures"]:
                self.request_cycle(_SEEN_AGAIN_AFTER)

        self.loop.after(seconds, run)

    def ingest(self) -> None:
        """Run the watch soon, after a change."""
        if self._watch_is_due or not self.is_watching:
            return
        self._watch_is_due = True
        self.loop.after(0.5, self._watch)

    def _watch(self) -> None:
        self._watch_is_due = False
        if self.is_watching:
            self.invoke_scheduled("watch_cluster")

    def invoke_scheduled(self, name: str) -> None:
        """Invoke a function as its schedule does, without waiting for the result."""
        with contextlib.suppress(Crash, EvenkeelError):
            self.call(name, {})

    def every(self, seconds: float, work: Callable[[], None]) -> None:
        def again() -> None:
            work()
            is_long_after_faults = self.faults_ended and self.loop.seconds > self.rests_from + _LONG_AFTER_FAULTS
            self.loop.after(_SELDOM * seconds if is_long_after_faults else seconds, again)

        self.loop.after(seconds, again)

    def _sweep(self) -> None:
        if self.is_sweeping:
            self.invoke_scheduled("sweep_fleet")

    def _execution_ended(self, execution: Execution) -> None:
        self.log(f"{execution.name} ended in {execution.ended_in or 'nothing'} {execution.error}".rstrip())

    # ------------------------------------------------------------ people

    @contextlib.contextmanager
    def outside_function(self) -> Iterator[None]:
        """Run work outside the current function, which may be paused meanwhile."""
        under_way, self.calls = self.calls, []
        try:
            yield
        finally:
            self.calls = under_way

    def person(self, what: str, work: Callable[[], Any], *, must_succeed: bool = False) -> None:
        """Act as a person through the API; retry transient failures.

        Raises:
            PermanentError: the API refuses an action that must succeed. Without it, the seed would test less.
        """

        def try_once() -> None:
            try:
                with self.outside_function():
                    work()
                self.log(what)
            except PermanentError as error:
                if must_succeed:
                    raise
                self.log(f"{what}: refused, {error}")
            except (Crash, EvenkeelError):
                self.loop.after(5, try_once)

        try_once()

    def submit(
        self, number: int, nodes: int, length: float, *, keeps: bool, finishes: bool, priority_class: str = ""
    ) -> None:
        if self.elastic and self.elastic.omits_job(number):
            return
        name = f"train-{number}"
        self.trainers.lengths[name] = length
        spec = JobSpec(
            name=name,
            image="trainer",
            command=("train",),
            nodes=nodes,
            checkpoint_uri=f"s3://checkpoints/{name}" if keeps else "",
            grace_seconds=5,
            on_node_fault=OnNodeFault.FINISH if finishes else OnNodeFault.MOVE,
            priority_class=priority_class,
        )
        requester = PEOPLE[0]
        team_text = ""
        if self.sharing:
            spec = spec.replace(**self.sharing.job_fields(number, nodes))
            requester = self.sharing.submitter()
            team_text = f", {spec.priority_class or 'no class'} of team {spec.team}"
        spec = self.elastic.with_sizes(number, spec) if self.elastic else spec
        spec = self.renting.with_mixed_pools(number, spec) if self.renting else spec
        spec = self.placement.with_levels(number, spec) if self.placement else spec
        spec = self.kueue.with_sizes(spec) if self.kueue else spec
        request = submit_job.SubmitJobRequest(spec=spec, requester=requester, idempotency_key=name)
        world = self.world
        self.person(
            f"{requester.actor} submits {name}: {spec.nodes} nodes for {length:.0f} s{team_text}",
            lambda: submit_job.run(
                request,
                world.context(site=world.settings.site.replace(job_namespace="jobs")),
            ),
        )

    def cancel(self, number: int) -> None:
        job_ids = [
            row.doc["jobId"]
            for key, row in self.ledger.rows.items()
            if key.pk.startswith("JOB#") and key.sk == "META" and row.doc["spec"]["name"] == f"train-{number}"
        ]
        for job_id in job_ids:
            self.cancel_job(job_id)

    def cancel_job(self, job_id: str) -> None:
        """Let a person cancel a job."""
        request = cancel_job.CancelJobRequest(job_id=job_id, requester=PEOPLE[0])
        self.person(f"ana cancels {job_id}", lambda: cancel_job.run(request, self.world.context()))

    def answer_plans(self, *, approves: bool) -> None:
        """Approve or decline every plan that asks for an approval."""
        for row in list(self.ledger.rows.values()):
            plan = row.doc.get("plan") if row.key.pk.startswith("INC#") and row.key.sk == "META" else None
            if not plan or plan["outcome"] != "ASK":
                continue
            request = approve_recovery.ApproveRecoveryRequest(
                incident_id=row.doc["incidentId"],
                decision_id=plan["decisionId"],
                approves=approves,
                by="bo",
                reason="seen",
            )
            verb = "approves" if approves else "declines"
            what = f"bo {verb} the plan of {request.incident_id}"
            say = functools.partial(self._approve, what, request)
            # A person answers a page after a while, and may answer an old page again.
            for seconds in self.rng.choice(((0.0,), (40.0,), (0.0, 20.0), (20.0, 90.0))):
                self.loop.after(seconds, say)

    def _approve(self, what: str, request: approve_recovery.ApproveRecoveryRequest) -> None:
        self.person(what, lambda: approve_recovery.run(request, self.world.context()))

    def hold_automation(self, seconds: float) -> None:
        since = self.loop.seconds
        until = self.loop.now() + timedelta(seconds=seconds)
        request = hold_automation.HoldRequest(
            by="bo", reason="looking at it", until=until, request_id=f"hold-{since}", fingerprint=""
        )

        def work() -> None:
            hold_automation.set_hold(request, self.world.context())
            self.hold = (self.loop.seconds, since + seconds)

        if seconds > 10:
            self.person(f"bo holds automation for {seconds:.0f} s", work)

    def end_cause(self, cause: str) -> None:
        """Let the paged person end a shared cause after a while."""
        chaos_seconds = self.rng.choice((60.0, 400.0, 1200.0))
        request = hold_automation.ReleaseRequest(
            by="bo", reason="it is back", cause=cause, request_id=f"end-{cause}-{self.loop.seconds}", fingerprint=""
        )

        def work() -> None:
            hold_automation.release_hold(request, self.world.context())

        self.loop.after(chaos_seconds, lambda: self.person(f"bo ends the shared cause {cause}", work))

    # ------------------------------------------------------------ faults

    def break_node(self, instance_id: str, fault: str, *, is_marked: bool, sends_event: bool) -> None:
        """Let HyperPod's agent find a fault: it labels the node and sends an event."""
        node = self.node_of(instance_id)
        if node is None:
            return
        if KARPENTER_LABEL in node.labels and is_marked and sends_event:
            self.warn_of_reclaim(instance_id)
            return
        self.seen[f"shows {fault}"] += 1
        self.log(f"{instance_id} shows {fault}" + ("" if is_marked else ", without health labels"))
        if is_marked:
            self.cluster.set_node(node.name, labels={**node.labels, FAULT_TYPES: fault})
        if sends_event and not self.drops_events:
            body = self.event(instance_id, fault)
            for _ in range(self.rng.choice((1, 1, 2, 3))):
                self.deliver(body, self.rng.choice((0.5, 2.0, 15.0, 60.0)))
        if self.automatic_since is not None and is_marked:
            self._let_hyperpod_repair(instance_id, fault)

    def change_node_recovery(self) -> None:
        """Let a person change NodeRecovery. Once it is Automatic, HyperPod also repairs the nodes marked before."""
        is_automatic = self.automatic_since is None
        self.seen[f"setting {'Automatic' if is_automatic else 'None'}"] += 1
        self.log(f"bo sets NodeRecovery to {'Automatic' if is_automatic else 'None'}")
        self.automatic_since = self.loop.seconds if is_automatic else None
        self.provider.settings = self.provider.settings.replace(repairs_by_itself=is_automatic)
        marked_nodes = [node for node in self.cluster.by_name.values() if is_automatic and FAULT_TYPES in node.labels]
        for node in marked_nodes:
            if node.instance_id:
                self._let_hyperpod_repair(node.instance_id, node.labels[FAULT_TYPES])

    def _let_hyperpod_repair(self, instance_id: str, fault: str) -> None:
        """Let HyperPod repair a marked node soon, if NodeRecovery is still Automatic then."""
        seconds = self.rng.uniform(5, 60)
        if not (self.changes_node_recovery and fault == "NvidiaErrorReboot"):
            self.loop.after(seconds, lambda: self.provider.repair_by_itself(instance_id))
            return

        def replace_if_still_marked() -> None:
            node = self.node_of(instance_id)
            if node is not None and FAULT_TYPES in node.labels:
                self.provider.repair_by_itself(instance_id)

        self.loop.after(seconds, lambda: self.provider.repair_by_itself(instance_id, "reboot"))
        self.loop.after(seconds + self.setting_rng.uniform(50, 200), replace_if_still_marked)

    def warn_of_reclaim(self, instance_id: str) -> None:
        """Let EC2 reclaim a Spot node two minutes after its notice."""
        self.seen["shows a spot notice"] += 1
        self.log(f"{instance_id} will be reclaimed in {_SPOT_NOTICE:g} s")
        if not self.drops_events:
            detail = {"instance-id": instance_id, "instance-action": "terminate"}
            self.deliver(self._envelope("EC2 Spot Instance Interruption Warning", "aws.ec2", detail), 1.0)

        def reclaim() -> None:
            node = self.node_of(instance_id)
            if node is not None:
                self.log(f"{instance_id} is reclaimed")
                self.cluster.reclaim(node.name)

        self.loop.after(_SPOT_NOTICE, reclaim)

    def warn_of_rebalance(self, instance_id: str) -> None:
        """Let EC2 recommend to rebalance a Spot node. It may reclaim the node later, or never."""
        self.seen["shows a rebalance recommendation"] += 1
        self.log(f"{instance_id} gets a rebalance recommendation")
        if not self.drops_events:
            detail = {"instance-id": instance_id}
            self.deliver(self._envelope("EC2 Instance Rebalance Recommendation", "aws.ec2", detail), 1.0)

    def _fault_replacements(self, instance_id: str) -> None:
        """Let some new replacements fail."""
        if not self.faults_ended and self.rng.random() < 0.3:
            break_node = functools.partial(
                self.break_node, instance_id, "NvidiaErrorTerminate", is_marked=True, sends_event=True
            )
            self.loop.after(self.rng.uniform(1, 15), self.counting("fault", "new_node", break_node))

    def clear_fault(self, instance_id: str) -> None:
        """Let a person clear a fault without telling Evenkeel."""
        node = self.node_of(instance_id)
        if node is not None and node.labels.get(FAULT_TYPES):
            self.seen["action mend"] += 1
            self.log(f"bo mends {instance_id}")
            self.cluster.set_node(node.name, labels=without_health_labels(node.labels))

    def reboot(self, instance_id: str, seconds: float) -> None:
        """Let a person reboot a node without telling Evenkeel. This clears its fault."""
        node = self.node_of(instance_id)
        if node is None or not node.is_ready or instance_id in self.provider.running:
            return
        self.seen["action reboot"] += 1
        self.log(f"bo reboots {instance_id}")
        self.cluster.kill_node(node.name)

        def boot() -> None:
            down = self.node_of(instance_id)
            if down is not None and not down.is_ready and instance_id not in self.provider.running:
                self.log(f"{instance_id} has rebooted")
                labels = without_health_labels(down.labels)
                self.cluster.ready_node(down.name, boot_id=f"{down.boot_id}-bo", labels=labels)

        self.loop.after(seconds, boot)

    def report_no_capacity(self, instance_id: str) -> None:
        """Let HyperPod report that it found no capacity for the group."""
        self.seen["outage no capacity"] += 1
        if self.drops_events:
            return
        failure = "We currently do not have sufficient capacity to launch new ml.p5.48xlarge instances."
        details = {
            "EventId": f"{self.rng.getrandbits(64):016x}",
            "ClusterArn": self.provider.settings.arn,
            "ClusterName": "research-train",
            "InstanceGroupName": "p5-workers",
            "InstanceId": instance_id,
            "ResourceType": "Instance",
            "EventTime": int(self.loop.now().timestamp() * 1000),
            "EventLevel": "Error",
            "Description": "Instance creation in Cluster research-train and InstanceGroup p5-workers failed",
            "EventDetails": {"EventMetadata": {"Instance": {"FailureMessage": failure}}},
        }
        self.deliver(
            self._envelope("SageMaker HyperPod Cluster Event", "aws.sagemaker", {"EventDetails": details}), 1.0
        )

    def event(self, instance_id: str, fault: str) -> str:
        detail = {
            "ClusterName": "research-train",
            "ClusterArn": self.provider.settings.arn,
            "InstanceId": instance_id,
            "HealthSummary": {
                "HealthStatus": "Unhealthy" if fault else "Healthy",
                "HealthStatusReason": f"The agent has detected fault type {fault} on this node." if fault else "",
            },
        }
        return self._envelope("SageMaker HyperPod Cluster Node Health Event", "aws.sagemaker", detail)

    def _envelope(self, kind: str, source: str, detail: Json) -> str:
        skew = self.rng.choice((0, 0, 0, -3, 2))
        at = self.loop.now() + timedelta(seconds=skew)
        return json.dumps(
            {
                "version": "0",
                "id": f"{self.rng.getrandbits(64):016x}",
                "detail-type": kind,
                "source": source,
                "account": "000000000000",
                "time": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "region": "us-west-2",
                "resources": [],
                "detail": detail,
            }
        )

    def update_cluster(self, *, is_busy: bool) -> None:
        """Let HyperPod begin or end an update of the whole cluster."""
        status = "SystemUpdating" if is_busy else "InService"
        if status != self.provider.settings.status:
            self.seen["outage cluster updating"] += is_busy
            self.log(f"the cluster is {status}")
            self.provider.settings = self.provider.settings.replace(status=status)

    def node_of(self, instance_id: str) -> Any:
        return next((node for node in self.cluster.by_name.values() if node.instance_id == instance_id), None)

    def instance_id(self, number: int) -> str:
        """Return the instance id of an existing node, chosen by number."""
        instance_ids = sorted(node.instance_id for node in self.cluster.by_name.values() if node.instance_id)
        return instance_ids[number % len(instance_ids)] if instance_ids else ""

    # ------------------------------------------------------------ the run

    def run(self) -> SimulationResult:
        """Run the faults, then wait without faults until all work has ended."""
        from tests.simulator.fault_schedule import schedule_events

        with wiring.use_ports(self.world), _simulated(self):
            self.loop.after(0.2, self._sweep)
            self.every(SWEEPS_EVERY, self._sweep)
            self.every(WATCHES_EVERY, self._watch)
            self.every(STATUS_EVERY, self._show_status)
            chaos_seconds = schedule_events(self)
            if self.sharing:
                self.sharing.schedule_events(chaos_seconds)
            if self.renting:
                self.renting.schedule_events(chaos_seconds)
            if self.elastic:
                self.elastic.schedule_events(chaos_seconds)
            if self.placement:
                self.placement.schedule_events(chaos_seconds)
            if self.kueue:
                self.kueue.schedule_events(chaos_seconds)
            self.loop.run(chaos_seconds, self._is_broken)
            self._end_faults()
            self.rests_from = self.loop.seconds + 65  # until then the last event of the queue is handled
            if self.placement:
                self.rests_from = max(self.rests_from, self.placement.rests_from)
            last = self.loop.seconds + MAX_SECONDS_AFTER_FAULTS
            while self.loop.seconds < last and not self._is_broken():
                self.loop.run(self.loop.seconds + SWEEPS_EVERY, self._is_broken)
                self.checks.after_faults(self)
                if self.checks.is_at_rest(self):
                    break
            if not self._is_broken():
                self.checks.end(self)
        kept = self.ledger.rows
        self._count_outcomes()
        return SimulationResult(
            self.seed,
            self.violations,
            self.event_log,
            self.loop.seconds,
            incidents=sum(key.pk.startswith("INC#") and key.sk == "META" for key in kept),
            decisions=sum(key.pk.startswith("DEC#") for key in kept),
            seen=self.seen,
        )

    def _count_outcomes(self) -> None:
        self.seen[f"mode {self.mode}"] += 1
        self.seen["mode all events are lost"] += self.drops_events
        self.seen["mode HyperPod repairs by itself"] += self.owner_repairs
        self.seen["mode with Karpenter's nodes"] += bool(self.spot)
        self.seen.update(self.engine.transition_counts)
        for key, row in self.ledger.rows.items():
            if key.pk.startswith("DEC#"):
                self.seen[f"decision {row.doc['kind']} {row.doc['action']}"] += 1
            elif key.sk == "META" and key.pk.startswith(("INC#", "JOB#")):
                self.seen[f"end {'incident' if key.pk.startswith('INC#') else 'job'} {row.doc['state']}"] += 1

    def _show_status(self) -> None:
        """Compute and check the status, outside any paused function."""
        calls, self.calls = self.calls, []
        try:
            self.checks.status_read(self)
        finally:
            self.calls = calls

    def _end_faults(self) -> None:
        self.log("the faults stop")
        self.faults_ended, self.faults_ended_at = True, self.loop.seconds
        self.chaos.stop_faults()
        self.away_since.clear()
        self.absent = ""
        self.update_cluster(is_busy=False)
        self.provider.fault_rate = 0.0
        self.provider.has_capacity = True
        self.is_sweeping = True
        self.is_watching = not self.drops_events
        self.ingest()

    def _is_broken(self) -> bool:
        return bool(self.violations)


# ---------------------------------------------------------------- ports


class SimulatedWorkflows:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def start(self, machine: WorkflowName, name: str, document: Any) -> bool:
        started = self.simulation.engine.start(str(machine), name, document)
        if started:
            self.simulation.log(f"{name} starts")
        return started

    def state(self, machine: WorkflowName, name: str) -> ExecutionState:
        execution = self.simulation.engine.executions.get((str(machine), name))
        return execution.status if execution else ExecutionState.NONE

    def trace(self, machine: WorkflowName, name: str) -> None:
        """Return nothing: no service of the simulator shows what an execution did."""

    def running(self, machine: WorkflowName) -> frozenset[str]:
        if self.simulation.chaos.should_fail():
            return frozenset()  # the list lags behind
        under_way = self.simulation.engine.executions.items()
        return frozenset(
            name
            for (kind, name), execution in under_way
            if kind == str(machine) and execution.status is ExecutionState.RUNNING
        )


class SimulatedTaskTokens:
    """Task tokens of the simulated workflow engine. The checks see each successful answer first."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def succeed(self, token: str, output: Json) -> bool:
        self.simulation.checks.answered(self.simulation, token, output)
        return self.simulation.engine.succeed(token, output)

    def fail(self, token: str, error: str, cause: str) -> bool:
        return self.simulation.engine.fail(token, Failure(error, cause))


class SimulatedWaitAnswerRequests:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def request(self, subject: str, name: str, generation: int, answer: Json) -> None:
        simulation = self.simulation
        event = {"subject": subject, "name": name, "generation": generation, "answer": dict(answer)}
        if simulation.chaos.should_fail():
            simulation.log(f"the answer to {subject}/{name} is dropped")
            return
        simulation.log(f"{subject}/{name} gets the answer {answer['outcome']}: {answer['reason'][:120]}")
        for _ in range(2 if simulation.chaos.should_fail() else 1):
            simulation.invoke_async("resolve_wait", event, simulation.rng.uniform(0.1, 0.6))


class SimulatedCycleRequests:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def request(self, reason: str) -> None:
        if not self.simulation.chaos.should_fail():
            self.simulation.request_cycle()


class SimulatedOnCall:
    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def alert(self, subject: str, message: str, *, key: str) -> None:
        self.simulation.log(f"PAGE {key}: {message.splitlines()[0][:160]}")
        self.simulation.checks.alert_sent(self.simulation, key)
        self.simulation.on_call.alert(subject, message, key=key)
        if "shared-cause-" in key:
            self.simulation.end_cause(key.partition("shared-cause-")[2])


class WatchedProvider:
    """The provider behind the checks of every repair call."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.simulation.provider, name)

    def reboot(self, instance_id: str) -> Any:
        return self._ask("reboot", instance_id)

    def replace(self, instance_id: str) -> Any:
        return self._ask("replace", instance_id)

    def _ask(self, rung: str, instance_id: str) -> Any:
        simulation = self.simulation
        simulation.checks.repair(simulation, rung, instance_id)
        accepted = len(simulation.provider.accepted)
        answer = getattr(simulation.provider, rung)(instance_id)
        took = len(simulation.provider.accepted) > accepted
        simulation.log(
            f"{rung} of {instance_id}: {answer}" + (" (it took effect)" if took and answer != "ACCEPTED" else "")
        )
        if took:
            simulation.watched.calls.setdefault(instance_id, []).append(
                (simulation.loop.seconds, rung, answer == "ACCEPTED")
            )
        return answer


class WatchedCluster:
    """The cluster behind the checks of every harmful call."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.simulation.cluster, name)

    def cordon(self, cluster: str, name: str, incident_id: str, uncordoned_resource_version: str = "") -> Any:
        self.simulation.checks.cordon(self.simulation, name)
        result = self.simulation.cluster.cordon(cluster, name, incident_id, uncordoned_resource_version)
        self.simulation.log(f"cordon {name} for {incident_id}: {result}")
        return result

    def delete_node(self, cluster: str, name: str, instance_id: str) -> Any:
        self.simulation.checks.repair(self.simulation, "replace", instance_id)
        result = self.simulation.cluster.delete_node(cluster, name, instance_id)
        self.simulation.log(f"delete {name}: {result}")
        return result

    def return_to_service(self, cluster: str, name: str, incident_id: str | None) -> Any:
        result = self.simulation.cluster.return_to_service(cluster, name, incident_id)
        self.simulation.log(f"release {name} for {incident_id}: {result}")
        self.simulation.checks.released(self.simulation, name, str(result))
        return result

    def launch(self, spec: LaunchSpec) -> Any:
        self.simulation.checks.launch(self.simulation, spec)
        result = self.simulation.cluster.launch(spec)
        at = f"from {spec.resume_from}" if spec.resume_from else "from the beginning"
        self.simulation.log(f"launch {spec.attempt.workload_name} {at}: {result[0]}")
        return result

    def publish_size(self, attempt: Attempt) -> None:
        self.simulation.checks.size_published(self.simulation, attempt)
        self.simulation.cluster.publish_size(attempt)
        self.simulation.log(f"the pods of {attempt.workload_name} know their world size: {attempt.ranks}")

    def stop(self, attempt: Attempt, grace_seconds: int, *rest: Any, **more: Any) -> None:
        simulation = self.simulation
        simulation.checks.stop(simulation, attempt.job_id, attempt.attempt)
        simulation.cluster.stop(attempt, grace_seconds, *rest, **more)
        if simulation.elastic:
            simulation.trainers.drain(attempt.job_id, attempt.attempt, grace_seconds, simulation.elastic.rng)
        if simulation.placement:
            rng = simulation.placement.drain_rng
            simulation.trainers.drain(attempt.job_id, attempt.attempt, grace_seconds, rng)
