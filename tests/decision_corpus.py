"""Recorded decisions and function calls: their encoding, their translation to the current names, and their comparison.

Names change; answers must not. `tests/simulator/record_decisions.py` records the corpus below
`tests/fixtures/decisions`, and `tests/unit/test_decision_corpus.py` replays it.
"""

import dataclasses
import functools
import gzip
import json
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, TypeAdapter
from pydantic.alias_generators import to_camel

from evenkeel.domain.admission import build_request, decide_job, queue_with_teams, queue_without_teams
from evenkeel.domain.admission.admission_request import AdmissionRequest
from evenkeel.domain.capacity import compatibility, instance_types, start_estimates
from evenkeel.domain.capacity.compatibility import Storage
from evenkeel.domain.capacity.pod_shares import NodeShares
from evenkeel.domain.capacity.pools import Pool
from evenkeel.domain.checkpoints import (
    CheckpointContents,
    CheckpointRef,
    CheckpointRules,
    Distrust,
    fence,
    proof,
    resume_point,
)
from evenkeel.domain.economics import expected_durations, money
from evenkeel.domain.elastic import grow_shrink
from evenkeel.domain.external import kueue_status, serving, unmanaged_workloads
from evenkeel.domain.fault_preview import FaultPreview, preview
from evenkeel.domain.health import assessment, ingestion
from evenkeel.domain.health.classification import ClassifiedFact, IncidentFault
from evenkeel.domain.health.faults import Fault, FaultCatalogue, default_catalogue
from evenkeel.domain.health.incidents import AffectedNode, Incident, NodeFact, Signal
from evenkeel.domain.health.recurrence import FaultHistory, slot_history_key
from evenkeel.domain.jobs import attempt_end, attempt_waits, settlement
from evenkeel.domain.jobs.attempt import Attempt
from evenkeel.domain.jobs.job import Job
from evenkeel.domain.policy import Policy
from evenkeel.domain.policy_section import Section
from evenkeel.domain.quotas import spending
from evenkeel.domain.recovery import (
    approval,
    attribution,
    draining,
    guardrails,
    modes,
    node_slot,
    opt_out,
    plan,
    recovery_waits,
    repair,
    repair_facts,
    repair_lease,
    repair_requests,
    resume_options,
    rollback,
    settling,
    unhealthy_nodes,
    unmanaged_restarts,
    validation,
)
from evenkeel.domain.recovery.node_slot import ObservedNode
from evenkeel.domain.renting import (
    candidates,
    cost,
    displacement,
    migration,
    mixed_capacity,
    placement,
    rental_waits,
    serving_return,
)
from evenkeel.domain.resources import Resources
from evenkeel.domain.scheduling import burst_checks, resize_facts
from evenkeel.domain.values import Value, rfc3339
from evenkeel.events import envelope, kubernetes_node
from tests import state_writers

FOLDER = Path(__file__).resolve().parent / "fixtures" / "decisions"
TRANSLATION = FOLDER / "translation.json"
Json = Any

# ---------------------------------------------------------------- what is recorded


class ValidationFacts(Value):
    """The facts of a VALIDATION record, which has no model of its own."""

    observed: node_slot.ObservedNode
    expected: int


FACTS: Mapping[str, type[Value]] = {
    "RECOVERY": plan.PlanFacts,
    "REPAIR": repair_facts.RepairFacts,
    "CHECK": validation.CheckFacts,
    "RESUME": resume_options.ResumeFacts,
    "ROLLBACK": rollback.RollbackFacts,
    "DRAIN": draining.DrainFacts,
    "RESTART": unmanaged_restarts.RestartFacts,
    "ATTRIBUTION": attribution.AttributionFacts,
    "ADMISSION": decide_job.AdmissionFacts,
    "RESIZE": resize_facts.ResizeFacts,
    "PLACEMENT": placement.PlacementFacts,
    "BURST_CHECK": burst_checks.BurstCheckFacts,
    "SERVING_RETURN": serving_return.ServingReturnFacts,
    "MIXED_GROWTH": mixed_capacity.MixedFacts,
    "MIGRATION": migration.MigrationFacts,
    "DISPLACEMENT": displacement.DisplacementFacts,
    "TEMPORARY_CAPACITY": migration.TemporaryCapacityFacts,
    "VALIDATION": ValidationFacts,
}
"""The model that reads the facts of each kind of decision."""
ADDED_LATER = frozenset({"RESTART", "DISPLACEMENT", "BURST_CHECK", "SERVING_RETURN", "MIXED_GROWTH"})
"""Kinds of decisions that did not exist when the corpus was recorded."""


def fault_of(key: str) -> Fault:
    """Return the row of the shipped fault catalogue that a fault key leads to."""
    return default_catalogue().look_up(key)


def preview_of(key: str, policy: Policy) -> FaultPreview:
    """Return what the policy allows after a fault."""
    return preview(policy.catalogue.look_up(key), policy)


def choose_resume_point(  # noqa: PLR0913 - the arguments that the corpus recorded
    attempt: int,
    fence: fence.Fence | None,
    candidates: Collection[CheckpointRef],
    evidence: Mapping[CheckpointRef, CheckpointContents],
    distrust: tuple[Distrust, ...] = (),
    *,
    accepts_convention: bool = False,
    damaged: Collection[CheckpointRef] = (),
    max_reads: int | None = None,
) -> fence.ResumeChoice | resume_point.ContentsNeeded:
    """Return the resume point of an attempt, or the checkpoint to read first."""
    rules = CheckpointRules(distrust=distrust, accepts_convention=accepts_convention, damaged=frozenset(damaged))
    return resume_point.choose_resume_point(attempt, fence, candidates, evidence, rules, max_reads=max_reads)


class _NamedAmounts(NodeShares):
    """Leaves CPU and memory unset: the corpus is older than these amounts."""

    def request_of(self, wanted: Resources, cluster: str, instance_types: tuple[str, ...] = ()) -> Resources:
        return wanted


def _admission_request(job: Job, policy: Policy, now: datetime) -> AdmissionRequest:
    return build_request.build_request(job, _NamedAmounts(()), policy, now)


def join_or_open(  # noqa: PLR0913 - the arguments that the corpus recorded
    fact: NodeFact,
    affected: AffectedNode,
    *,
    known_incident_id: str,
    last: ingestion.LastIncident | None,
    current: Incident | None,
    new_id: str,
    now: datetime,
    histories: Mapping[str, FaultHistory] | None = None,
    catalogue: FaultCatalogue | None = None,
) -> ingestion.IngestDecision:
    """Return the effect of a fact."""
    fault_catalogue = catalogue or default_catalogue()
    records = ingestion.NodeHistory(
        known_incident_id=known_incident_id,
        last_incident=last,
        open_incident=current,
        histories=dict(histories or {}),
    )
    report = ClassifiedFact.of(fact, affected, fault_catalogue)
    return ingestion.decide_ingestion(report, records, fault_catalogue, new_id=new_id, now=now)


def independent_sources_of(signals: tuple[Signal, ...], catalogue: FaultCatalogue) -> tuple[str, ...]:
    """Return the independent source families of the signals."""
    faults = {signal.fault_key: catalogue.look_up(signal.fault_key) for signal in signals}
    return assessment.independent_sources_of(signals, faults)


def ladder_of(incident: Incident, catalogue: FaultCatalogue | None = None) -> tuple[str, ...]:
    """Return the rungs of an incident that act on the node itself."""
    return IncidentFault.of(incident, catalogue or default_catalogue()).node_rungs


def _why_healthy(incident: Incident, observed: ObservedNode, expected: int) -> str:
    """Call `why_healthy` with the shipped faults: a recorded call names no catalogue."""
    return unhealthy_nodes.why_healthy(incident, observed, default_catalogue(), expected_accelerators=expected)


def _why_not_portable(job: Job, pool: Pool, storage: Storage) -> tuple[str, ...]:
    """Decide with the shipped catalogue: no policy of the corpus has further instance types."""
    return candidates.why_not_portable(job, pool, storage, instance_types.shipped_instance_types())


def _attributed_to_faulty_nodes(
    end: attempt_end.AttemptEnd, attempt: Attempt, faulty_nodes: frozenset[str]
) -> attempt_end.AttemptEnd:
    """Call `attributed_to_faulty_nodes` with the faulty nodes of the attempt: a recorded call names those of all."""
    return attempt_end.attributed_to_faulty_nodes(end, faulty_nodes & set(attempt.node_names))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "admission.admit": queue_without_teams.decide_in_queue_order,
    "admission.decide": decide_job.decide,
    "admission.request_of": _admission_request,
    "admission.with_ends": build_request.with_reservation_ends,
    "approval.answer": approval.evaluate_approval,
    "approval.beyond": approval.why_beyond_approval,
    "approval.why_superseded": approval.why_superseded,
    "attempts.attempt_answer": attempt_waits.evaluate_attempt_wait,
    "attempts.attempt_writers": state_writers.attempt_writers,
    "attempts.contradicted": attempt_end.end_despite_live_pods,
    "attempts.excused": _attributed_to_faulty_nodes,
    "attempts.job_writers": state_writers.job_writers,
    "attempts.judge_abandoned": attempt_end.judge_abandoned_attempt,
    "attempts.judge_end": attempt_end.judge_end,
    "attempts.lost_nodes": attempt_end.lost_nodes,
    "attempts.outcome_of": settlement.settled_outcome,
    "attempts.settle": settlement.settle,
    "blame.blame": attribution.attribute_fault,
    "burst.judge_loan": migration.decide_temporary_capacity,
    "burst.judge_stay": migration.decide_migration,
    "checkpoints.choose_resume_point": choose_resume_point,
    "checkpoints.prove": proof.prove,
    "checkpoints.raised": fence.next_fence,
    "checkpoints.refusal": fence.fence_rejection,
    "checkpoints.standing": fence.fence_status,
    "checkpoints.weigh": proof.verify,
    "draining.drain_of": draining.plan_drain,
    "draining.may_finish": draining.finish_deadline,
    "draining.weigh_foreign": draining.decide_unmanaged_pod,
    "economics.bill": money.bill,
    "economics.forecast": expected_durations.expected_duration,
    "elastic.after_fault": grow_shrink.decide_after_node_loss,
    "elastic.grow": grow_shrink.plan_growth,
    "elastic.make_room": grow_shrink.plan_shrink,
    "events.node_facts": kubernetes_node.node_facts,
    "events.node_marks": kubernetes_node.fault_evidence,
    "events.parse": envelope.parse,
    "faults.fault_of": fault_of,
    "faults.preview_of": preview_of,
    "foreign.foreign_workloads": unmanaged_workloads.unmanaged_workloads,
    "guardrails.causes_of": guardrails.shared_causes,
    "guardrails.may_go": guardrails.unblocked_actions,
    "guardrails.weigh": guardrails.check_guardrails,
    "health.assess": assessment.assess,
    "health.cured_at": assessment.cleared_at,
    "health.trust": assessment.checkpoint_trust,
    "health.witnesses": independent_sources_of,
    "intake.doubt_of": assessment.checkpoint_trust_of,
    "intake.join_or_open": join_or_open,
    "intake.ladder_of": ladder_of,
    "kueue.eviction_of": kueue_status.eviction_of,
    "kueue.said_of": kueue_status.describe_status,
    "leases.is_lemon": repair_lease.is_lemon,
    "leases.settled": repair_lease.freed_lease,
    "modes.mode_for": modes.most_cautious_mode,
    "modes.mode_now": modes.current_mode,
    "moving.why_not_there": _why_not_portable,
    "placement.guards_deadline": cost.why_not_spot,
    "placement.place": placement.choose_pool,
    "placement.place_in_turn": placement.place_in_queue_order,
    "placement.shadow_price": cost.opportunity_cost,
    "placement.weigh": cost.cost_of_pool,
    "plan.plan_recovery": plan.plan_recovery,
    "portability.differences": compatibility.differences,
    "recovery.jobs_back": recovery_waits.evaluate_jobs_resumed,
    "recovery.late_from": recovery_waits.overdue_at,
    "recovery.node_back": recovery_waits.evaluate_node_back,
    "recovery.node_valid": recovery_waits.evaluate_node_valid,
    "recovery.way_clear": recovery_waits.evaluate_repair_possible,
    "renting.asked_again": candidates.facts_for_next_offer,
    "renting.end_answer": rental_waits.evaluate_rental_over,
    "renting.loan_of": migration.temporary_capacity_of,
    "renting.nodes_answer": rental_waits.evaluate_rental_ready,
    "renting.stay_facts": migration.migration_facts,
    "repair.choose_repair": repair.choose_repair,
    "repair.deadline_of": repair_requests.request_deadline,
    "repair.took_effect": repair_requests.evidence_of_effect,
    "resizing.answer_for": resize_facts.resize_answer,
    "resume.demand_after": resume_options.requirement_after,
    "resume.lost_work": resume_options.lost_work_seconds,
    "resume.plan_resume": resume_options.plan_resume,
    "rollback.roll_back": rollback.decide_rollback,
    "seats.look": node_slot.find_slot_state,
    "serving.short_of": serving.replica_shortfalls,
    "settling.outgrown": settling.why_new_plan,
    "settling.runs_again_at": settling.next_run_at,
    "settling.settle": settling.choose_incident_end,
    "sharing.share": queue_with_teams.decide_with_teams,
    "spending.limits_of": spending.usage_limits,
    "starts.expected_starts": start_estimates.expected_starts,
    "starts.expected_wait": start_estimates.expected_wait,
    "unhealthy.left_unhealthy": unhealthy_nodes.unhealthy_after,
    "unhealthy.resumed": unhealthy_nodes.resumed_incident,
    "unhealthy.why_over": _why_healthy,
    "unhealthy.why_resume": unhealthy_nodes.why_resume,
    "validation.choose_check": validation.choose_check,
    "validation.judge_deep_check": validation.judge_deep_check,
    "validation.judge_node": validation.judge_node,
    "validation.margin_seconds": validation.margin_seconds,
    "vetoes.veto": opt_out.opt_out_reason,
    "vetoes.was_uncordoned": opt_out.was_uncordoned,
}
"""Pure functions with recorded calls, by the name in the corpus. The name stays when a function is renamed."""


# ---------------------------------------------------------------- values as JSON and back


class CannotEncodeError(TypeError):
    """A value has no JSON form here, for example a function."""


_SHIPPED = "shipped"
"""The id of the shipped fault catalogue."""


def _encode_catalogue(catalogue: FaultCatalogue) -> Json:
    if catalogue.hash != default_catalogue().hash:
        raise CannotEncodeError("a fault catalogue with changes of a site")
    return _SHIPPED


def _unchanged(value: Json) -> Json:
    return value


_ENCODINGS: Mapping[type, Callable[[Any], Json]] = {
    Enum: lambda value: value.value,  # first: a `StrEnum` is also a string
    bool: _unchanged,
    int: _unchanged,
    float: _unchanged,
    str: _unchanged,
    datetime: rfc3339,
    timedelta: timedelta.total_seconds,
    Decimal: str,
    bytes: bytes.decode,
    BaseModel: lambda value: value.model_dump(mode="json", by_alias=True),
    FaultCatalogue: _encode_catalogue,
}
"""The JSON form of each type without nested values to encode."""


def encode(value: Any) -> Json:
    """Return the JSON form of a value, the same on each run: sets are sorted."""
    if value is None:
        return None
    for kind, encoding in _ENCODINGS.items():
        if isinstance(value, kind):
            return encoding(value)
    match value:
        case Mapping():
            if all(isinstance(key, str) for key in value):
                return {encode(key): encode(item) for key, item in value.items()}
            return [[encode(key), encode(item)] for key, item in value.items()]
        case tuple() if hasattr(value, "_fields"):
            return {to_camel(name): encode(item) for name, item in zip(value._fields, value, strict=True)}
        case tuple() | list():
            return [encode(item) for item in value]
        case AbstractSet():
            return sorted((encode(item) for item in value), key=json.dumps)
    if dataclasses.is_dataclass(value):
        return {to_camel(field.name): encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise CannotEncodeError(type(value).__name__)


def decode(hint: Any, document: Json) -> Any:
    """Return the argument of this type for a JSON form."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is FaultCatalogue:
        return default_catalogue()
    if hint is bytes:
        return document.encode()
    if origin is Annotated:
        return _adapter(hint).validate_python(document)
    if origin in (Union, types.UnionType):
        if document is None:
            return None
        kinds = [part for part in parts if part is not type(None)]
        return decode(kinds[0], document) if len(kinds) == 1 else _adapter(hint).validate_python(document)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        fields = {name: to_camel(name) for name in hint._fields}
        return hint(**{name: decode(hints[name], document[key]) for name, key in fields.items() if key in document})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = document.items() if isinstance(document, dict) else document
        return {decode(parts[0], key): decode(parts[1], item) for key, item in pairs}
    if isinstance(origin, type) and issubclass(origin, AbstractSet):
        return frozenset(decode(parts[0], item) for item in document)
    if origin is tuple and parts[-1] is not ...:
        return tuple(decode(part, item) for part, item in zip(parts, document, strict=True))
    if origin is not None and isinstance(document, list):
        return tuple(decode(parts[0], item) for item in document)
    return document if hint is Any else _adapter(hint).validate_python(document)


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


@functools.cache
def hints_of(name: str) -> Mapping[str, Any]:
    """Return the parameters of a recorded function, with their types."""
    return {key: hint for key, hint in get_type_hints(FUNCTIONS[name], include_extras=True).items() if key != "return"}


POLICY_REFERENCE = "$policy"
"""The id of a policy section in the file of policies, in place of the section."""


def arguments_of(name: str, arguments: Mapping[str, Json], policies: Mapping[str, Json]) -> dict[str, Any]:
    """Return the arguments of a recorded call.

    Raises:
        DifferenceError: a recorded argument or field is not read any more.
    """
    hints = {to_camel(key): (key, hint) for key, hint in hints_of(name).items()}
    given = {}
    for camel, document in arguments.items():
        if camel not in hints:
            raise DifferenceError(f"arguments.{camel}", "is not a parameter any more")
        key, hint = hints[camel]
        is_policy = isinstance(document, dict) and document.keys() == {POLICY_REFERENCE}
        recorded = policies[document[POLICY_REFERENCE]] if is_policy else document
        given[key] = decode(hint, recorded)
        check_all_read(recorded, encode(given[key]), f"arguments.{camel}")
    return given


# ---------------------------------------------------------------- comparing


class DifferenceError(AssertionError):
    """A recorded value differs from the value that the code reads or returns now."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")


_MISSING = object()

SENTENCES = frozenset(
    [
        *(
            "reason",
            "whyNot",
            "option",
            "answer",
            "sameShapeReason",
            "minRungReason",
            "exclusionReason",
            "blockerWaitsFor",
        ),
        *("detail", "differences", "explanation", "quantity"),
    ]
)
"""Fields of answers with text for people, which may change. A text without a space is a name or a code, and is compared
in these fields, too. `answer` is a function's own answer if it is a text.
"""


TEXTS_FROM_INPUT = frozenset(
    [
        *("by", "unschedulableReason", "eksAgent", "hyperpod", "name", "note", "nvidiaInvestigate", "nvidiaNow"),
        *("nvsentinel", "outcome", "pool"),
    ]
)
"""Fields of answers with a space in them that repeat an argument or the fault catalogue: they are always compared."""


def texts_with_spaces(document: Json, key: str = "answer") -> Iterator[str]:
    """Yield the field of each text in an answer that may be a sentence."""
    if isinstance(document, dict):
        for name, item in document.items():
            yield from texts_with_spaces(item, name)
    elif isinstance(document, list):
        for nested in document:
            yield from texts_with_spaces(nested, key)
    elif isinstance(document, str) and " " in document:
        yield key


KEPT_IF_TEXT_CHANGED = frozenset({"quota"})
"""Fields that an answer has only if its reason differs from the reason of the previous cycle. A recorded cycle has the
old wording as its previous reason, so such a field may appear without being in the record. It is compared if the record
has it.
"""


def without_sentences(document: Json, key: str = "answer") -> Json:
    """Return an answer with each sentence replaced by the fact that there is one.

    The names and numbers of an option are kept, because they identify it. A key that is a sentence, such as why
    nodes are closed, is replaced as well.
    """
    if isinstance(document, dict):
        inner = "" if key == "answer" else key
        kept = {name: item for name, item in document.items() if name not in KEPT_IF_TEXT_CHANGED or item is not None}
        plain = {
            name: without_sentences(item, name if name in SENTENCES else inner)
            for name, item in kept.items()
            if " " not in name
        }
        below = sorted((without_sentences(item, inner) for name, item in kept.items() if " " in name), key=repr)
        return {**plain, "(sentences)": below} if below else plain
    if isinstance(document, list):
        return [without_sentences(item, key) for item in document]
    if key not in SENTENCES or not isinstance(document, str) or " " not in document:
        return document
    names = [word.strip("().,:;") for word in document.split() if any(map(str.isdigit, word))]
    return " ".join(["(a sentence)", *(names if key == "option" else ())])


def check_same_answer(recorded: Json, current: Json, path: str = "answer") -> None:
    """Compare an answer with the recorded one.

    Raises:
        DifferenceError: at the first place where they differ. A field that the record does not have is no difference.
    """
    difference = next(_differences(recorded, current, path), None)
    if difference:
        raise difference


def check_all_read(recorded: Json, facts_read: Json, path: str) -> None:
    """Compare recorded facts with what the code read of them: unknown keys are ignored when a value is read.

    Raises:
        DifferenceError: at the first place that was not read as it was recorded.
    """
    difference = next(_differences(recorded, facts_read, path), None)
    if difference:
        raise difference


def _differences(recorded: Json, current: Json, path: str) -> Iterator[DifferenceError]:
    if isinstance(recorded, dict) and isinstance(current, dict):
        for key, item in recorded.items():
            yield from _differences(item, current.get(key, _MISSING), f"{path}.{key}")
    elif isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        for index, (recorded_item, other) in enumerate(zip(recorded, current, strict=True)):
            yield from _differences(recorded_item, other, f"{path}.{index}")
    elif current is _MISSING:
        yield DifferenceError(path, f"was recorded as {_short(recorded)} and is unknown now")
    elif recorded != current or isinstance(recorded, bool) is not isinstance(current, bool):
        yield DifferenceError(path, f"was {_short(recorded)} and is now {_short(current)}")


def _short(document: Json) -> str:
    text = repr(document)
    return text if len(text) <= 300 else f"{text[:300]}…"


# ---------------------------------------------------------------- translating


class Rename(NamedTuple):
    """Renames for some records, or for some fields in them."""

    kind: str
    path: str
    keys: Mapping[str, str]
    values: Mapping[str, str]


class Translation:
    """Translates recorded names to the current ones by the rules of `translation.json`; see README.md there."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        unknown = table.keys() - {"sentences", "keys", "values", "scoped"}
        if unknown:
            raise ValueError(f"translation.json: unknown {', '.join(sorted(unknown))}")
        self.compares_sentences = {"compared": True, "left out": False}[table.get("sentences", "compared")]
        self._renames = [
            *(self._scoped(**names) for names in table.get("scoped", ())),
            Rename("*", "*", table.get("keys", {}), table.get("values", {})),
        ]
        self._renames = [rename for rename in self._renames if rename.keys or rename.values]

    @staticmethod
    def _scoped(
        *,
        kind: str = "*",
        path: str = "*",
        keys: Mapping[str, str] | None = None,
        values: Mapping[str, str] | None = None,
    ) -> Rename:
        return Rename(kind, path, keys or {}, values or {})

    def of(self, kind: str, document: Json, path: str = "") -> Json:
        """Return a recorded document under the present names.

        Args:
            kind: The recorded kind of decision, name of a function, or `policy`.
            document: The document.
            path: Its path in the record.
        """
        renames = [rename for rename in self._renames if fnmatchcase(kind, rename.kind)]
        return _translated(renames, document, path) if renames else document


def _translated(renames: list[Rename], document: Json, path: str) -> Json:
    if isinstance(document, dict):
        below = {key: f"{path}.{key}" if path else key for key in document}
        return _reshaped(
            {
                _renamed(renames, key, below[key], of_keys=True): _translated(renames, item, below[key])
                for key, item in document.items()
            }
        )
    if isinstance(document, list):
        return [_translated(renames, item, f"{path}.{index}") for index, item in enumerate(document)]
    if not isinstance(document, str):
        return document
    if document[:1] in ("{", "["):
        with_json = _translated_json(renames, document, path)
        if with_json is not None:
            return with_json
    return _renamed(renames, document, path, of_keys=False)


def _reshaped(document: dict[str, Json]) -> dict[str, Json]:
    """Return an object in its current shape, if renames alone cannot translate its recorded shape."""
    document.pop("invoiceMicrosPerNodeHour", None)
    if document.get("action") == "HELD":
        is_limit = document["reason"].startswith("Waits, whatever is free")
        return {**document, "action": "LIMIT_REACHED" if is_limit else "EXCLUDED"}
    if "mayMove" in document:
        is_allowed = document.pop("mayMove")
        return {**document, "consent": "ALLOWED" if is_allowed else "UNSET"}
    return _with_resources(document)


def _with_resources(document: dict[str, Json]) -> dict[str, Json]:
    """Return the capacity of a node in its present shape: the corpus is older than the amounts of CPU and memory."""
    if not {"life", "nodeName", "accelerators", "free"} <= document.keys():
        return document
    allocatable, free = document.pop("accelerators"), document.pop("free")
    return {**document, "allocatable": {"accelerators": allocatable}, "free": {"accelerators": free}}


def _translated_json(renames: list[Rename], text: str, path: str) -> str | None:
    """Translate a text that is JSON itself; return None for other texts."""
    try:
        inner = json.loads(text)
    except ValueError:
        return None
    return json.dumps(_translated(renames, inner, path), separators=(",", ":"))


_SLOT_HISTORY = "seat/"
"""Prefix of the history key of a node slot in the corpus."""


def _renamed(renames: list[Rename], name: str, path: str, *, of_keys: bool) -> str:
    if name.startswith(_SLOT_HISTORY):
        return slot_history_key(name.removeprefix(_SLOT_HISTORY))
    for rename in renames:
        table = rename.keys if of_keys else rename.values
        if name in table and fnmatchcase(path, rename.path):
            return table[name]
    return name


# ---------------------------------------------------------------- files


def read_lines(name: str) -> list[Json]:
    """Return the records of one file of the corpus."""
    with gzip.open(FOLDER / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_lines(name: str, documents: list[Json]) -> None:
    """Write one file of the corpus: the same bytes for the same records."""
    text = "".join(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n" for document in documents)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def is_section(value: Any) -> bool:
    """Whether a value is a part of the policy, which is kept once for all records."""
    return isinstance(value, Section)
