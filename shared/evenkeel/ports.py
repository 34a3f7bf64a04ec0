"""Define the ports of the services as Protocols, and the errors that ports may raise.

EvenkeelError
├── TransientError            the same call may soon succeed
│   ├── Throttled
│   ├── Unreachable           no answer, or a 5xx: whether it took effect is unknown
│   └── Conflict              a condition of a ledger write failed: reload and decide anew
│       └── StaleVersion      it is at another version than the change was written for
└── PermanentError            the same call will not succeed
    ├── NotFound
    ├── NotAllowed            401, 403, AccessDenied
    └── Refused               the request itself is wrong
        ├── Invalid           names each field that is wrong
        └── KeyReused         an idempotency key came again with another content
"""

import json
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from evenkeel.domain.capacity import efa
from evenkeel.domain.capacity.efa import EfaRequest
from evenkeel.domain.checkpoints import Distrust
from evenkeel.domain.external.unmanaged_workloads import UnmanagedPod
from evenkeel.domain.jobs.attempt import Attempt, ObservedWorkload, ResumePoint
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.nodes import KubernetesNode, ProviderCluster, ProviderNode
from evenkeel.domain.recovery.validation import CheckResult


class EvenkeelError(Exception):
    """Root of the errors a port may raise. The message says what was attempted, on which id, what was seen."""


class TransientError(EvenkeelError):
    """The same call may soon succeed."""


class Throttled(TransientError):
    """The other side asked for a slower pace."""


class Unreachable(TransientError):
    """No answer, or a 5xx: whether the call took effect is unknown."""


class Conflict(TransientError):
    """A condition of a ledger write failed: another writer was first. Reload and decide again."""

    def __init__(self, message: str, failed: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.failed = failed
        """Indexes of the writes whose condition failed."""


class StaleVersion(Conflict):
    """The resource is at another version than the caller's change expects."""


class PermanentError(EvenkeelError):
    """The same call will not succeed."""


class NotFound(PermanentError):
    """The named resource does not exist."""


class NotAllowed(PermanentError):
    """The caller may not do this."""


class Refused(PermanentError):
    """The provider refused the request as invalid."""


class TooLarge(Refused):
    """The object is larger than the limit for its kind."""


class Invalid(Refused):
    """The request is not valid. Names each field and its fault."""

    def __init__(self, message: str, faults: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults
        """Pairs of field in camelCase and its fault."""


class KeyReused(Refused):
    """An idempotency key was used again with different content."""


# ---------------------------------------------------------------- ledger


class Table(StrEnum):
    """The four tables."""

    JOBS = "JOBS"
    INCIDENTS = "INCIDENTS"
    FLEET = "FLEET"
    QUOTAS = "QUOTAS"


class Key(NamedTuple):
    """Key of a row: table, partition key and sort key."""

    table: Table
    pk: str
    sk: str


def site_policy_key(table: Table) -> Key:
    """`POLICY#site / META`: what the site has otherwise than the shipped policy.

    Kept with incidents and with jobs, always alike, so that every function finds it where it has business anyway. Known
    here, since the wiring reads it and a service writes it.
    """
    return Key(table, "POLICY#site", "META")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a document under a key, with a version that every write raises by one.

    `state` puts the row into the sparse index `byState` as (partition, sort); None leaves it out.
    """

    key: Key
    doc: dict[str, Any]
    version: int = 0
    """As read; 0 = never stored. A write stores the condition's version + 1, or begins at `Put.first_version`."""
    state: tuple[str, str] | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Store a row if it is still at `row.version` (0: if there is none).

    A row that is deleted and put anew under its key would come to the versions of the one before, and whoever read that
    one could write over this one. So what is born again and again says when: its versions begin there.
    """

    row: Row
    first_version: int = 0
    """What the first version counts from: another number each time, as milliseconds are."""

    @property
    def version(self) -> int:
        """What the row is at once it is stored."""
        return (self.row.version or self.first_version) + 1


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a row if it is still at this version."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class ConditionCheck:
    """Hold the commit to a row being at this version (0: absent) without writing it."""

    key: Key
    version: int


@dataclass(frozen=True, slots=True)
class Add:
    """Add numbers to top-level fields of a row's document, creating both; commutes, so it has no condition.

    The version is raised as well.
    """

    key: Key
    amounts: Mapping[str, int]


Write = Put | Delete | ConditionCheck | Add

LARGEST_ROW = 400_000
"""Bytes of one stored row, names and keys included. DynamoDB takes 400 KB; this is a little below in any counting."""
LARGEST_COMMIT = 4_000_000
"""Bytes of all rows of one commit. DynamoDB takes 4 MB; this is a little below in any counting."""
MOST_WRITES = 100
"""Writes of one commit: the limit of DynamoDB."""
LONGEST_PK = 2048
"""Bytes of a partition key, also of the index."""
LONGEST_SK = 1024
"""Bytes of a sort key, also of the index."""
_ROW_OVERHEAD = 64
"""Bytes of a row's attribute names, version and expiry, rounded up."""
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_SURROGATE = re.compile("[\ud800-\udfff]")


def document_text(doc: Mapping[str, Any]) -> str:
    """Return a row's document as the JSON text that is stored. A lone surrogate becomes its escape, as in keys.

    Raises:
        Refused: it is not JSON.
    """
    try:
        text = _ENCODE(doc)
    except (TypeError, ValueError) as error:
        raise Refused(f"a document that is not JSON: {error}") from error
    return text if text.isascii() else _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)


def row_bytes(row: Row, text: str | None = None) -> int:
    """Return how many bytes a row takes in the ledger.

    Args:
        row: The row.
        text: Its `document_text`, where the caller has it already.
    """
    parts = (document_text(row.doc) if text is None else text, row.key.pk, row.key.sk, *(row.state or ()))
    return _ROW_OVERHEAD + sum(utf8_bytes(part) for part in parts)


def utf8_bytes(text: str) -> int:
    """Return how many bytes a text takes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True, slots=True)
class Page:
    """One page of rows; `cursor` is opaque, None at the end."""

    rows: tuple[Row, ...]
    cursor: str | None = None


class Ledger(Protocol):
    """The durable memory: rows under conditional, all-or-nothing writes.

    Reads are strongly consistent, but for `by_state`.
    """

    def get(self, key: Key) -> Row | None:
        """Return the row, or None."""
        ...

    def batch_get(self, *keys: Key) -> tuple[Row | None, ...]:
        """Return the rows of these keys (at most 100), None where there is none: one round trip, not one instant."""
        ...

    def partition(self, table: Table, pk: str, prefix: str = "") -> tuple[Row, ...]:
        """Return every row of a partition whose sort key starts with `prefix`, by sort key. Follows all pages."""
        ...

    def by_state(
        self,
        table: Table,
        state: str,
        *,
        prefix: str = "",
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> Page:
        """Return rows of one `byState` partition in the order of their sort value. Eventually consistent on AWS.

        With `prefix` only those whose sort value begins so.
        """
        ...

    def commit(self, *writes: Write, token: str = "") -> None:
        """Do all writes or none: at most `MOST_WRITES` of them, `LARGEST_COMMIT` bytes, each row `LARGEST_ROW`.

        Idempotent: yes where `token` is given (the same token and writes within 10 minutes succeed without effect);
        else guarded by the writes' own conditions.

        Raises:
            Conflict: a condition failed; `failed` names which.
            Refused: a row, a key or the whole is larger than the ledger takes, or a document is not JSON.
            Throttled, Unreachable: nothing is known about the effect.
        """
        ...


# ---------------------------------------------------------------- cluster and provider


class CordonResult(StrEnum):
    """Result of a cordon."""

    CORDONED = "CORDONED"
    ALREADY_OURS = "ALREADY_OURS"
    BY_PERSON = "BY_PERSON"
    """Cordoned by a person: unchanged."""
    BY_OTHER_INCIDENT = "BY_OTHER_INCIDENT"
    GONE = "GONE"


class ReleaseResult(StrEnum):
    """Result of removing a cordon."""

    RELEASED = "RELEASED"
    ALREADY_FREE = "ALREADY_FREE"
    NOT_OURS = "NOT_OURS"
    """Cordoned by a person or for another incident: unchanged."""
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class ProofTerms:
    """On which terms rank 0 proves checkpoints that lie where no function can look."""

    distrust: Distrust | None
    accepts_convention: bool
    may_start_over: bool
    damaged: tuple[ResumePoint, ...] = ()
    """What an earlier attempt could not read back."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What an attempt's Kubernetes Job is made from."""

    job: JobSpec
    attempt: Attempt
    resume_from: str
    """Manifest key relative to the checkpoint URI, or empty."""
    service_account: str
    terms: ProofTerms | None = None
    """Where given, nothing is said about `resume_from`: rank 0 finds out."""
    avoid: tuple[str, ...] = ()
    """Nodes that its pods keep off, where the attempt names none to be on."""
    accelerator_resource: str = ""
    """As which its accelerators are asked for; empty = that of the nodes that the attempt names."""
    network: EfaRequest = efa.NO_EFA
    """What each pod asks for to use EFA."""


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """What a node's test job is made from."""

    cluster: str
    namespace: str
    name: str
    node_name: str
    image: str
    command: tuple[str, ...]
    accelerators: int
    accelerator_resource: str
    deadline_seconds: int


@dataclass(frozen=True, slots=True)
class KubernetesPermission:
    """One verb on one kind of Kubernetes object."""

    verb: str
    group: str
    """API group; empty for the core group."""
    resource: str
    """Plural name, with its subresource: `pods/eviction`."""
    namespace: str = ""
    """Empty: at the scope of the whole cluster."""


class LaunchResult(StrEnum):
    """Result of a launch."""

    CREATED = "CREATED"
    ALREADY_THERE = "ALREADY_THERE"


class EvictionStatus(StrEnum):
    """Result of an eviction."""

    EVICTED = "EVICTED"
    """It ends within its own grace; another one of its name may follow."""
    GONE = "GONE"
    NOT_NOW = "NOT_NOW"
    """Disruption budgets allow none now, the server cannot do it now, or the pod's namespace is being deleted."""
    REFUSED = "REFUSED"
    """Access control or an admission webhook refuses it. A retry fails until that changes."""
    NO_ANSWER = "NO_ANSWER"
    """Whether it took effect is unknown; asking again is harmless."""


@dataclass(frozen=True, slots=True)
class EvictionAnswer:
    """The answer to one eviction. No answer is an error: a drain goes on with its other pods."""

    result: EvictionStatus
    why: str = ""
    """What the server said; empty for EVICTED and GONE."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last log lines of a pod, or why they could not be read."""

    pod_name: str
    node_name: str
    text: str = ""
    why: str = ""
    """Empty where it was read."""


@dataclass(frozen=True, slots=True)
class CapacitySpec:
    """Pods that make Karpenter launch a rental's nodes and hold them, one a node, each of them whole."""

    cluster: str
    namespace: str
    name: str
    """The rental's."""
    pool: str
    nodes: int
    accelerators: int
    """Of one node."""
    accelerator_resource: str
    image: str
    efa: int = 0
    """EFA interfaces of one node. Karpenter attaches them to a machine only if a pod that it launches it for asks."""


@dataclass(frozen=True, slots=True)
class NodeClaim:
    """A machine that Karpenter has asked for in a pool, or has."""

    name: str
    node_name: str = ""
    """Empty until it has joined."""


class LimitResult(StrEnum):
    """Result of setting a pool's limit."""

    SET = "SET"
    UNCHANGED = "UNCHANGED"
    UNBOUNDED = "UNBOUNDED"
    """It has no limit of accelerators or nodes: left alone, and never rented from."""
    GONE = "GONE"


class RentedCapacity(Protocol):
    """What renting does in a Kubernetes cluster."""

    def create_capacity_pods(self, spec: CapacitySpec) -> None:
        """Create a rental's capacity pods. Idempotent: yes, by name."""
        ...

    def delete_capacity_pods(self, cluster: str, namespace: str, name: str) -> bool:
        """Delete a rental's capacity pods; True where none is left. Idempotent: yes, gone is success."""
        ...

    def set_pool_limit(self, cluster: str, pool: str, rented: Callable[[], tuple[int, int]]) -> LimitResult:
        """Set a NodePool's limits to what is rented of it.

        Idempotent: yes, by the pool's resourceVersion: whoever was slower counts again.

        Args:
            cluster: The cluster.
            pool: The NodePool's name.
            rented: Counts nodes and accelerators that are rented of it; called after the pool was read.
        """
        ...

    def claims(self, cluster: str, pool: str) -> tuple[NodeClaim, ...]:
        """List the machines of a NodePool, asked for or there."""
        ...

    def delete_claim(self, cluster: str, name: str) -> None:
        """Have Karpenter drain a machine and give it back. Idempotent: yes, gone is success."""
        ...

    def refusal(self, cluster: str, pool: str, since: datetime) -> str:
        """Return what Karpenter was told when it found no capacity for a pool since then; empty for nothing."""
        ...


class Cluster(RentedCapacity, Protocol):
    """The Kubernetes clusters of the fleet, by name, reduced to what Evenkeel does with them."""

    def server_version(self, cluster: str) -> str:
        """Return the API server's version, as it spells it: `v1.33.1-eks-595af52`."""
        ...

    def missing_rights(self, cluster: str, rights: Iterable[KubernetesPermission]) -> tuple[KubernetesPermission, ...]:
        """Return those of the rights that the caller's own identity lacks, in the order given. Changes nothing."""
        ...

    def nodes(self, cluster: str) -> tuple[KubernetesNode, ...]:
        """List all nodes."""
        ...

    def node(self, cluster: str, name: str) -> KubernetesNode | None:
        """Read one node; None where there is none."""
        ...

    def cordon(self, cluster: str, name: str, incident_id: str | None) -> CordonResult:
        """Mark a node unschedulable, with our mark; with None without one, as a person's own cordon is.

        Idempotent: yes, reads first, patches what it read.
        """
        ...

    def release(self, cluster: str, name: str, incident_id: str | None) -> ReleaseResult:
        """Un-cordon what `incident_id` cordoned and take the awaiting-validation taint off.

        With None only the taint is taken off, and only from a node that is not cordoned. Idempotent: yes.
        """
        ...

    def uncordon(self, cluster: str, name: str) -> ReleaseResult:
        """Un-cordon a node without a mark of ours, and change nothing else; NOT_OURS where it carries a recovery's.

        Idempotent: yes, reads first, patches what it read.
        """
        ...

    def delete_node(self, cluster: str, name: str, instance_id: str) -> "RepairAnswer":
        """Delete the node object of a machine of Karpenter's, which then drains it and gives the machine back.

        ACCEPTED, or NO_SUCH_NODE where it is gone or the name is another machine's by now. Idempotent: yes.

        Raises:
            Refused: the machine is not Karpenter's: nobody would end it.
        """
        ...

    def start_check(self, spec: CheckSpec) -> None:
        """Start a test job on one node, cordoned and tainted as it is. Idempotent: yes, by name."""
        ...

    def check_result(self, cluster: str, namespace: str, name: str) -> CheckResult:
        """Return how a test job ended; PENDING while it runs, and where there is none."""
        ...

    def launch(self, spec: LaunchSpec) -> tuple[LaunchResult, str]:
        """Create the headless Service and the Indexed Job of an attempt; return what happened and the Job's UID.

        Idempotent: yes, by name; an existing Job that carries the attempt's decision is ALREADY_THERE.

        Raises:
            Refused: a Job of that name is not ours, the API server rejects the manifest, or somebody else suspends what
                was not handed over to Kueue.
        """
        ...

    def workload(self, attempt: Attempt) -> ObservedWorkload:
        """Read an attempt's own Job and pods: in its namespace, with its UID (`Attempt.owns`)."""
        ...

    def workloads(self, cluster: str) -> tuple[ObservedWorkload, ...]:
        """List every Job with its pods that carries our labels, over all namespaces (two list calls).

        Labels prove nothing: `Attempt.own` picks an attempt's.
        """
        ...

    def accelerators_in_use(self, cluster: str) -> Mapping[str, int]:
        """Return accelerators requested by live pods per node name, unmanaged pods included."""
        ...

    def pods(self, cluster: str, on: str | None = None) -> tuple[UnmanagedPod, ...]:
        """List the live pods of all namespaces, without those of a DaemonSet and static ones.

        Which of them are not Evenkeel's, `services/recovery/unmanaged.py` tells.

        Args:
            cluster: Kubernetes cluster.
            on: Only those on this node; empty: those that stand on none; None: all.
        """
        ...

    def kueue_namespaces(self, cluster: str) -> Mapping[str, str]:
        """Return the namespaces in which Kueue admits jobs, each with what says so; none where there is no Kueue."""
        ...

    def evict(self, cluster: str, pod: UnmanagedPod) -> EvictionAnswer:
        """Ask for the eviction of this very pod, within its disruption budget.

        Never raises for what the server answers, or where it does not answer. Idempotent: yes, by its uid.
        """
        ...

    def stop(self, attempt: Attempt, grace_seconds: int, nodes_without_grace: Container[str] = ()) -> None:
        """Delete an attempt's own Job and pods, with this grace; without any on the nodes named.

        Idempotent: yes, gone is success.
        """
        ...

    def force_delete_pods(self, attempt: Attempt, node_names: Iterable[str]) -> None:
        """Force-delete the attempt's own pods on lost nodes. Only once the fence is raised or the node is gone.

        Idempotent: yes.
        """
        ...

    def logs(self, attempt: Attempt, rank: int, tail_lines: int | None) -> str:
        """Return the last lines of the log of an attempt's own pod; with None its beginning, 64 KiB at most.

        Raises:
            NotFound: no such pod.
        """
        ...

    def tails(self, attempt: Attempt, lines: int, most: int, within_seconds: float) -> Mapping[int, LogTail]:
        """Return the last lines of the attempt's own pods by rank, of `most` pods, those that failed first.

        A log that could not be read within the time says why. Ranks without a pod are missing.
        """
        ...

    def watch(
        self,
        cluster: str,
        on_change: Callable[[str], None],
        *,
        until: Callable[[], bool],
        on_state: Callable[[str, str], None] | None = None,
    ) -> None:
        """Call `on_change(kind)` (`node`, `pod`, `job`) at each change until `until()` is true. Relists after 410.

        `on_state(kind, error)` reports each time that the watch of a kind answered (the error is empty) or broke; a
        broken one is opened again. All are called in the caller's own thread, `until` several times a second even when
        nothing changes: the caller does its work in it.
        """
        ...


class RepairAnswer(StrEnum):
    """The provider's answer to a reboot or replace request for one node."""

    ACCEPTED = "ACCEPTED"
    IN_USE = "IN_USE"
    """InstanceIdInUse: an operation already runs on it. After a lost reply this is good news."""
    NOT_NOW = "NOT_NOW"
    """InvalidInstanceStatus: wait."""
    NO_SUCH_NODE = "NO_SUCH_NODE"
    """InstanceIdNotFound: another life. The action is stale."""
    FAILED = "FAILED"
    """InternalServerError for this node: may be retried once."""
    UNKNOWN = "UNKNOWN"
    """No reply, or the node is in neither list: look for evidence, do not resend."""


class Provider(Protocol):
    """The HyperPod control plane."""

    def cluster(self) -> ProviderCluster:
        """Describe the cluster."""
        ...

    def nodes(self) -> tuple[ProviderNode, ...]:
        """List all nodes with their logical ids, all pages."""
        ...

    def node(self, instance_id: str) -> ProviderNode | None:
        """Describe one node; None where there is none."""
        ...

    def reboot(self, instance_id: str) -> RepairAnswer:
        """Ask for a reboot, one call, one attempt. Idempotent: no, there is no client token; guarded by the lease."""
        ...

    def replace(self, instance_id: str) -> RepairAnswer:
        """Ask for a replacement, one call, one attempt. Idempotent: no; guarded by the lease."""
        ...

    def check_health(self, instance_group: str, instance_id: str) -> RepairAnswer:
        """Ask for a deep health check of one machine. Idempotent: no, there is no client token.

        A second one costs hours and harms nothing; guarded by the incident's own note of the first.
        """
        ...


# ---------------------------------------------------------------- checkpoints


@dataclass(frozen=True, slots=True)
class StoredShard:
    """One stored object as the store itself describes it."""

    size_bytes: int
    sha256: str | None = None
    """Hex, where the store keeps one."""
    modified_at: datetime | None = None


class CheckpointStore(Protocol):
    """Store of checkpoints. `uri` is the job's checkpoint URI."""

    def folders(self, uri: str) -> tuple[str, ...]:
        """List checkpoint folders (`attempt=<n>/step=<9 digits>`) relative to the URI, finished or not."""
        ...

    def contents(self, uri: str, folder: str, *, checksums_of: Collection[str] = ()) -> Mapping[str, StoredShard]:
        """Return size and time of everything in one folder, and stored checksums of some, by key relative to the URI.

        Never reads the data. What goes while it is looked at is left out. One listing, and a question a checksum.
        """
        ...

    def read(self, uri: str, key: str) -> bytes:
        """Read a small object (a manifest, the fence).

        Raises:
            NotFound: no such object.
            TooLarge: it is no small object.
        """
        ...

    def fence(self, uri: str) -> tuple[dict[str, Any] | None, str]:
        """Return the fence document and its tag; (None, "") where there is none."""
        ...

    def raise_fence(self, uri: str, document: dict[str, Any], tag: str) -> None:
        """Replace the fence if it still carries `tag` ("" = none exists).

        Raises:
            Conflict: another writer was first.
        """
        ...


# ---------------------------------------------------------------- workflows, messages, the rest


class ExecutionState(StrEnum):
    """State of a workflow execution."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    """Failed, timed out or aborted."""
    NONE = "NONE"


class WorkflowName(StrEnum):
    """The workflows that services start."""

    RECOVER_NODE = "recover_node"
    RUN_JOB = "run_job"
    BURST_CAPACITY = "burst_capacity"


class Workflows(Protocol):
    """Step Functions."""

    def start(self, machine: WorkflowName, name: str, document: Mapping[str, Any]) -> bool:
        """Start an execution; False where one of that name exists already. Idempotent: yes, by name."""
        ...

    def state(self, machine: WorkflowName, name: str) -> ExecutionState:
        """Look an execution up by name."""
        ...

    def running(self, machine: WorkflowName) -> frozenset[str]:
        """Return the names of executions under way, in a call for each thousand. Eventually consistent on AWS.

        One that is missing may run all the same: ask `state`.
        """
        ...


class Tokens(Protocol):
    """Task tokens. Only `resolve_wait` answers one."""

    def succeed(self, token: str, output: Mapping[str, Any]) -> bool:
        """Send success; False where the task is over already (timed out, answered, unknown)."""
        ...


class WaitAnswers(Protocol):
    """Requests answers to waits."""

    def request(self, subject: str, name: str, generation: int, answer: Mapping[str, Any]) -> None:
        """Have `resolve_wait` answer. Idempotent: yes, the row's OPEN -> ANSWERED decides."""
        ...


class CycleRequests(Protocol):
    """Requests scheduling cycles."""

    def request(self, reason: str) -> None:
        """Request a scheduling cycle. Idempotent: yes, an extra cycle does nothing. A schedule covers lost requests."""
        ...


class Pager(Protocol):
    """Pages people."""

    def page(self, subject: str, message: str, *, key: str) -> None:
        """Send one page; `key` lets a repeat be recognised."""
        ...


class RawEvents(Protocol):
    """The archive of inbound events, as they came."""

    def keep(self, envelope_id: str, body: bytes) -> None:
        """Store a raw event under its id. Idempotent: yes, same name."""
        ...


class Inbox(Protocol):
    """The queue behind the rules: what Evenkeel itself has to say to `receive_event`."""

    def put(self, document: Mapping[str, Any]) -> None:
        """Queue one envelope. Idempotent: no, a repeat is a second copy; what it tells is known by then."""
        ...

    def waiting(self) -> int:
        """Return about how many envelopes wait to be taken in."""
        ...

    def delay_redelivery(self, receipt: str, seconds: int) -> None:
        """Have an envelope that was not taken in delivered again in so long. Idempotent: yes, the last one counts."""
        ...


class DeadLetters(Protocol):
    """Store of malformed events of a known kind."""

    def put(self, body: str, code: str, reason: str) -> None:
        """Keep the whole event with the code of its fault. Raises on failure, so that the event is retried."""
        ...


class Clock(Protocol):
    """The time."""

    def now(self) -> datetime:
        """Return the aware present in UTC."""
        ...


class Ids(Protocol):
    """New ids."""

    def new(self, prefix: str) -> str:
        """Return `<prefix>-` and ten unambiguous characters (`inc`, `job`, `dec`, `op`)."""
        ...


class Telemetry(Protocol):
    """Metrics and log lines with keys bound by the entry wrapper.

    A metric has at most three dimensions of few values each; ids are never dimensions.
    """

    def count(self, name: str, value: float = 1.0, **dimensions: str) -> None:
        """Emit a count."""
        ...

    def seconds(self, name: str, value: float, **dimensions: str) -> None:
        """Emit a duration in seconds."""
        ...

    def info(self, message: str, **keys: Any) -> None:
        """Log a state change."""
        ...

    def warning(self, message: str, **keys: Any) -> None:
        """Log something degraded but handled."""
        ...

    def error(self, message: str, **keys: Any) -> None:
        """Log what a person must act on; names the runbook in `runbook`."""
        ...


def every(pages: Callable[[str | None], Page]) -> Iterator[Row]:
    """Yield the rows of all pages of a `by_state` read."""
    cursor: str | None = None
    while True:
        page = pages(cursor)
        yield from page.rows
        if page.cursor is None:
            return
        cursor = page.cursor


_READ_AT_ONCE = 100


def get_all(ledger: Ledger, keys: Iterable[Key]) -> dict[Key, Row]:
    """Return the rows of any number of keys, those that exist: a round trip for each hundred, not one instant."""
    wanted = tuple(dict.fromkeys(keys))
    found: dict[Key, Row] = {}
    for start in range(0, len(wanted), _READ_AT_ONCE):
        some = wanted[start : start + _READ_AT_ONCE]
        found |= {key: row for key, row in zip(some, ledger.batch_get(*some), strict=True) if row is not None}
    return found
