"""The fault catalogue: one row per fault code. A new fault is a new row.

Columns `f_…` hold public facts about a code. Columns `p_…` hold Evenkeel's defaults, which a site can override.

faults.csv ─▶ check each row ─▶ FaultCatalogue ─▶ apply the site's overrides, check again ─▶ FaultCatalogue of the site
"""

import csv
import difflib
import functools
import hashlib
import importlib.resources
import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from evenkeel.domain.values import StrictValue, Value


class CheckpointTrust(StrEnum):
    """Which checkpoints stay trusted after a fault. The strictest value is the last."""

    TRUSTED = "trusted"
    SUSPECT_SINCE_FIRST_SIGNAL = "suspect_since_first_signal"
    NONE = "none"

    @property
    def strictness(self) -> int:
        """Position in the order: 0 if every checkpoint is trusted."""
        return list(CheckpointTrust).index(self)


class Severity(StrEnum):
    """How severe a fault is. The worst value is the last."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info, 3 for critical."""
        return list(Severity).index(self)


class FaultClass(StrEnum):
    """The likely cause of a fault, as far as its code shows it."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    SOFTWARE = "software"
    NETWORK = "network"
    CAPACITY = "capacity"
    MIXED = "mixed"
    INFO = "info"


class CanSave(StrEnum):
    """Whether jobs on the node can still save a checkpoint before they stop."""

    YES = "yes"
    TRY = "try"
    """Unknown. The jobs get the same time as for `yes`, but the plan does not rely on a fresh checkpoint."""
    NO = "no"
    """The node's pods are stopped at once."""


class Validation(StrEnum):
    """How a node is checked before it takes work again."""

    NONE = "none"
    BASIC = "basic"
    DEEP = "deep"


class RecurKey(StrEnum):
    """The scope in which repetitions of a fault are counted."""

    NONE = "none"
    GPU = "gpu"
    """The device if the signal names it, else the node life."""
    GPU_ACROSS_JOBS = "gpu_across_jobs"
    """The device, counted once for each job that ran on it."""
    LINK = "link"
    """The link if the signal names it, else the device or the node life."""
    NODE = "node"
    """The node life."""
    SLOT = "slot"
    """The node slot, whichever node is in it."""
    JOB = "job"
    """The job, on whichever node it runs; the node life if no job is known."""
    GROUP = "group"
    """The instance group."""


class Rung(StrEnum):
    """A step of a repair ladder. After the last step a person takes over."""

    IGNORE = "ignore"
    WATCH = "watch"
    FOLLOW_PRIMARY = "follow_primary"
    FOLLOW_XID_154 = "follow_xid_154"
    STAND_DOWN = "stand_down"
    ASK_PERSON = "ask_person"
    RESTART_JOB = "restart_job"
    ROLLBACK_JOB = "rollback_job"
    STOP_JOB = "stop_job"
    CORDON = "cordon"
    CHECKPOINT_DRAIN = "checkpoint_drain"
    RESTART_FABRIC_MANAGER = "restart_fabric_manager"
    REBIND_DRIVER = "rebind_driver"
    DIAGNOSE = "diagnose"
    REBOOT = "reboot"
    REPLACE = "replace"

    @property
    def strength(self) -> int:
        """How much the rung affects the job and the node: from 0 for no effect to 6 for a replacement."""
        return _STRENGTH.get(self, 0)


_STRENGTH = {
    Rung.RESTART_JOB: 1,
    Rung.ROLLBACK_JOB: 1,
    Rung.STOP_JOB: 1,
    Rung.CORDON: 2,
    Rung.CHECKPOINT_DRAIN: 3,
    Rung.RESTART_FABRIC_MANAGER: 4,
    Rung.REBIND_DRIVER: 4,
    Rung.DIAGNOSE: 4,
    Rung.REBOOT: 5,
    Rung.REPLACE: 6,
}

NODE_RUNGS = (Rung.DIAGNOSE, Rung.REBOOT, Rung.REPLACE)

DRAIN_CLASSES = {"none": -1, "now": 0, "notice": 120, "short": 300, "standard": 900, "long": 3600, "job_end": 86_400}
"""Longest drain of each class, in seconds; -1 = no drain."""


class FaultReferences(Value):
    """Public facts about a fault code. No policy can change them."""

    nvidia_now: str = ""
    """The immediate action that NVIDIA recommends; `blank` if NVIDIA lists the code without one."""
    nvidia_investigate: str = ""
    """The action that NVIDIA recommends for the later investigation."""
    gpus: tuple[str, ...] = ()
    """GPU generations for which NVIDIA documents the code."""
    xid154_from: str = ""
    """First driver branch that also raises Xid 154 for the code; empty if none does."""
    eks_agent: str = ""
    """How the EKS node monitoring agent reports the code: as an event or as a node condition."""
    gpud: str = ""
    """The severity that gpud gives the code, and the actions that it suggests."""
    nvsentinel: str = ""
    """The action that NVSentinel takes or recommends."""
    hyperpod: str = ""
    """HyperPod's own reaction, as far as it is public; empty if it is not."""
    references: tuple[str, ...] = ()
    """Keys of `fault_references.csv`."""


class Fault(Value):
    """The meaning of one fault code, and the recovery that it requires."""

    key: str
    """Unique key of the row: `xid:79`, `hp:NvidiaErrorReboot`, `node:not_ready`, …"""
    family: str = ""
    """Family of the fault, by which the option `--family` of `evenkeel faults ls` selects."""
    code: str = ""
    """The code as its source writes it."""
    name: str
    """The fault in words for people."""
    alias_of: str = ""
    """Key of the fault that this row is another name for; empty if none. Both rows have the same recovery."""
    fault_class: FaultClass
    """The part that fails: `hardware`, `software`, `application`, …"""
    severity: Severity
    """How urgent the fault is."""
    checkpoint_trust: CheckpointTrust
    """Whether checkpoints from the time of the fault may be resumed from."""
    can_save: CanSave = CanSave.TRY
    """Whether a job on the node can still save a checkpoint."""
    drain_seconds: int = Field(ge=-1, le=86_400)
    """Time that the pods on the node get to end, in seconds; -1 = no drain."""
    ladder: tuple[Rung, ...] = Field(min_length=1)
    """Rungs in order. After the last one a person takes over."""
    recur_key: RecurKey = RecurKey.NONE
    """The scope in which occurrences are counted."""
    recur_count: int = Field(default=0, ge=0)
    """The N-th occurrence in the same scope and window starts on the second rung; 0 = not counted."""
    recur_window_hours: int = Field(default=0, ge=0, le=720)
    """Window in which occurrences are counted, in hours: at most 30 days, as long as they are kept."""
    acts_alone: bool
    """Whether a signal from one source alone may start the first rung."""
    evidence_wait_seconds: int = Field(ge=0, le=3600, alias="settleSeconds")
    """Time to wait for more evidence before the first rung, in seconds."""
    validate_with: Validation
    """The check that a repaired node must pass."""
    facts: FaultReferences = FaultReferences()
    note: str = ""
    """Note for people. No decision reads it."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if len(set(self.ladder)) != len(self.ladder):
            raise ValueError("ladder: a rung occurs twice")
        if (self.recur_key is RecurKey.NONE) != (self.recur_count == 0):
            raise ValueError("recurCount: must be 0 if recurKey is none, and 2 or more otherwise")
        if self.recur_count == 1:
            raise ValueError("recurCount: must be 2 or more, or 0: the first occurrence is not a recurrence")
        if (self.recur_count == 0) != (self.recur_window_hours == 0):
            raise ValueError("recurWindowHours: must be 0 if recurCount is 0, and 1 or more otherwise")
        if self.repairs_node and self.validate_with is Validation.NONE:
            raise ValueError("validateWith: must not be none, because the ladder repairs the node")
        return self

    @property
    def repairs_node(self) -> bool:
        """Whether any rung acts on the node itself."""
        return any(rung in NODE_RUNGS for rung in self.ladder)

    @property
    def is_evidence(self) -> bool:
        """Whether the fault says something about the node by itself.

        A fault that only follows another fault, or planned work, does not.
        """
        return self.ladder[0] not in (Rung.IGNORE, Rung.FOLLOW_PRIMARY)

    @property
    def drain_class(self) -> str:
        """The class of the drain: `none`, `now`, `notice`, `short`, `standard`, `long` or `job_end`."""
        return next(name for name, max_seconds in DRAIN_CLASSES.items() if self.drain_seconds <= max_seconds)


class FaultOverride(StrictValue):
    """A site's changes to one fault. Public facts cannot be changed."""

    severity: Severity | None = None
    fault_class: FaultClass | None = None
    checkpoint_trust: CheckpointTrust | None = None
    can_save: CanSave | None = None
    drain_seconds: int | None = None
    ladder: tuple[Rung, ...] | None = None
    recur_key: RecurKey | None = None
    recur_count: int | None = None
    recur_window_hours: int | None = None
    acts_alone: bool | None = None
    evidence_wait_seconds: int | None = Field(default=None, alias="settleSeconds")
    validate_with: Validation | None = None


UNKNOWN_FAULT = "hp:unknown_fault_type"
_REQUIRED_KEYS = (UNKNOWN_FAULT, "xid:*", "sxid:*")


class CatalogueError(ValueError):
    """The catalogue, or a site's changes to it, are not valid. The message names the row and the problem."""


class FaultCatalogue(Mapping[str, Fault]):
    """The faults that a site knows, by key."""

    def __init__(self, faults: Mapping[str, Fault], text: str) -> None:
        self._faults = faults
        self._text = text
        self.hash = hashlib.sha256(text.encode()).hexdigest()[:12]
        """First 12 hex digits of the SHA-256 of the catalogue's text. Decision records name the catalogue by it."""

    def __getitem__(self, key: str) -> Fault:
        return self._faults[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def look_up(self, key: str) -> Fault:
        """Return the fault of this key. If it is not listed, return the nearest fallback row or the unknown fault."""
        family = key.partition(":")[0]
        for candidate in (key, key.partition("/")[0], f"{family}:*"):
            if candidate in self._faults:
                return self._faults[candidate]
        return self._faults[UNKNOWN_FAULT]

    def find(self, code: str) -> Fault | None:
        """Return the fault for a code that a person typed; None if no fault, or more than one, matches.

        Accepts `xid:79`, `79`, `XID 79` and `NvidiaErrorReboot`. A bare number is an Xid.
        """
        code_text = code.strip()
        if code_text in self._faults:
            return self._faults[code_text]
        number_match = _NUMBERED_CODE.fullmatch(code_text)
        if number_match:
            key = (
                f"{(number_match['family'] or 'xid').lower()}:{int(number_match['number'])}{number_match['kind'] or ''}"
            )
            return self._faults.get(key)
        by_code = [
            fault
            for key, fault in self._faults.items()
            if _normalise_code(code_text) in (_normalise_code(key), _normalise_code(fault.code))
        ]
        return by_code[0] if len(by_code) == 1 else None

    def nearest_keys(self, code: str, at_most: int = 5) -> tuple[str, ...]:
        """Return the keys most similar to a code, best match first."""
        normalised_code = _normalise_code(code)
        key_by_name = {_normalise_code(key): key for key in self._faults} | {
            _normalise_code(key.partition(":")[2]): key for key in self._faults
        }
        matching_keys = [key for name, key in key_by_name.items() if normalised_code and normalised_code in name]
        similar = [
            key_by_name[name] for name in difflib.get_close_matches(normalised_code, key_by_name, n=at_most, cutoff=0.5)
        ]
        return tuple(dict.fromkeys((*similar, *matching_keys)))[:at_most]

    def with_overrides(self, overrides: Mapping[str, FaultOverride]) -> "FaultCatalogue":
        """Return this catalogue with a site's changes. A change to a fault also changes its aliases.

        Raises:
            CatalogueError: a fault is not listed, is an alias, or is not valid after the change.
        """
        if not overrides:
            return self
        faults = dict(self._faults)
        for key, override in overrides.items():
            if key not in self._faults:
                similar = ", ".join(self.nearest_keys(key, 3))
                raise CatalogueError(f"there is no fault {key!r}" + (f"; did you mean {similar}?" if similar else ""))
            if self._faults[key].alias_of:
                raise CatalogueError(f"{key} is an alias of {self._faults[key].alias_of}: change that fault instead")
            changes = override.model_dump(exclude_none=True)
            for alias in (key, *(other for other, fault in self._faults.items() if fault.alias_of == key)):
                try:
                    faults[alias] = self._faults[alias].replace(**changes)
                except ValidationError as error:
                    raise CatalogueError(f"{key}: {_first_error(error)}") from error
        override_fields = {key: overrides[key].model_dump(mode="json", exclude_none=True) for key in sorted(overrides)}
        return FaultCatalogue(faults, f"{self._text}\n{json.dumps(override_fields, sort_keys=True)}")


_NUMBERED_CODE = re.compile(
    r"(?:(?:nvidia)?(?P<family>s?xid)[ :_-]*)?(?P<number>[0-9]{1,6})(?:error|warning)?(?P<kind>/[a-z0-9_]+)?",
    re.ASCII | re.IGNORECASE,
)
"""Matches `79`, `Xid 79`, `sxid:12028`, `xid:154/none`, and the EKS agent's `NvidiaXID79Error`."""


def _normalise_code(text: str) -> str:
    return re.sub(r"[^a-z0-9*/]", "", text.lower())


FAULT_COLUMNS = {
    "key": "key",
    "family": "family",
    "code": "code",
    "name": "name",
    "alias_of": "alias_of",
    "p_class": "fault_class",
    "p_severity": "severity",
    "p_checkpoint_trust": "checkpoint_trust",
    "p_can_save": "can_save",
    "p_drain_s": "drain_seconds",
    "p_ladder": "ladder",
    "p_recur_key": "recur_key",
    "p_recur_count": "recur_count",
    "p_recur_window_h": "recur_window_hours",
    "p_acts_alone": "acts_alone",
    "p_settle_s": "evidence_wait_seconds",
    "p_validate": "validate_with",
    "note": "note",
}
"""Column of `faults.csv` → field of `Fault`."""
REFERENCE_COLUMNS = {
    "f_nvidia_now": "nvidia_now",
    "f_nvidia_investigate": "nvidia_investigate",
    "f_gpus": "gpus",
    "f_xid154_from": "xid154_from",
    "f_eks_agent": "eks_agent",
    "f_gpud": "gpud",
    "f_nvsentinel": "nvsentinel",
    "f_hyperpod": "hyperpod",
    "f_reference": "references",
}
"""Column of `faults.csv` → field of `FaultReferences`."""
DRAIN_CLASS_COLUMN = "p_drain_class"
"""The only column without a field: it repeats `p_drain_s` as a word for people. Reading checks that both agree."""
SEPARATORS = {"p_ladder": ">", "f_gpus": "|", "f_reference": ";"}
"""Column with several values → the character between them."""
_COLUMN_OF = {to_camel(field): column for column, field in FAULT_COLUMNS.items()} | {
    field: column for column, field in FAULT_COLUMNS.items()
}


def read_catalogue(text: str) -> FaultCatalogue:
    """Read a catalogue from text in the format of `faults.csv`.

    Raises:
        CatalogueError: a row is not valid. The message names the line, the key and the column.
    """
    reader = csv.DictReader(text.splitlines(), strict=True)
    columns = set(reader.fieldnames or ())
    mismatched_columns = columns ^ {*FAULT_COLUMNS, *REFERENCE_COLUMNS, DRAIN_CLASS_COLUMN}
    if mismatched_columns:
        raise CatalogueError(f"line 1: columns missing or unknown: {', '.join(sorted(mismatched_columns))}")
    faults: dict[str, Fault] = {}
    for row in reader:
        row_label = f"line {reader.line_num} ({row['key']})"
        if None in row or None in row.values():
            raise CatalogueError(f"{row_label}: it has more or fewer fields than the header")
        if row["key"] in faults:
            raise CatalogueError(f"{row_label}, column key: this key occurs twice")
        faults[row["key"]] = _read_fault(row, row_label)
    _check_fallbacks_and_aliases(faults)
    return FaultCatalogue(faults, text)


def _read_fault(row: dict[str, str], row_label: str) -> Fault:
    def value(column: str) -> Any:
        separator = SEPARATORS.get(column)
        return tuple(filter(None, row[column].split(separator))) if separator else row[column]

    if row["p_acts_alone"] not in ("yes", "no"):
        raise CatalogueError(f"{row_label}, column p_acts_alone: must be yes or no, not {row['p_acts_alone']!r}")
    fields = {field: value(column) for column, field in FAULT_COLUMNS.items()}
    facts = FaultReferences.model_validate({field: value(column) for column, field in REFERENCE_COLUMNS.items()})
    try:
        fault = Fault.model_validate({**fields, "facts": facts})
    except ValidationError as error:
        first_error = _first_error(error)
        field, _, problem = first_error.partition(": ")
        raise CatalogueError(
            f"{row_label}, column {_COLUMN_OF.get(field.partition('.')[0], field)}: {problem}"
        ) from error
    if fault.drain_class != row[DRAIN_CLASS_COLUMN] or fault.drain_seconds != DRAIN_CLASSES[fault.drain_class]:
        raise CatalogueError(
            f"{row_label}, column {DRAIN_CLASS_COLUMN}: {row[DRAIN_CLASS_COLUMN]} is not {fault.drain_seconds} s"
        )
    return fault


def _check_fallbacks_and_aliases(faults: Mapping[str, Fault]) -> None:
    """Check that the fallback rows exist, and that each alias exists and has the values of its fault."""
    missing_keys = [key for key in _REQUIRED_KEYS if key not in faults]
    if missing_keys:
        raise CatalogueError(f"the fallback rows {', '.join(missing_keys)} are missing")
    own_fields = {"key", "family", "code", "name", "alias_of", "facts", "note"}
    for fault in faults.values():
        if not fault.alias_of:
            continue
        target = faults.get(fault.alias_of)
        if target is None or target.alias_of:
            raise CatalogueError(f"{fault.key}, column alias_of: {fault.alias_of} does not exist or is itself an alias")
        differing_keys = [
            name
            for name in Fault.model_fields
            if name not in own_fields and getattr(fault, name) != getattr(target, name)
        ]
        if differing_keys:
            columns = ", ".join(_COLUMN_OF[name] for name in differing_keys)
            raise CatalogueError(f"{fault.key}, column {columns}: differs from {target.key}, although it is its alias")


def _first_error(error: ValidationError) -> str:
    """Return the first error of a validation as `field: problem`."""
    first_problem = error.errors(include_url=False)[0]
    message = first_problem["msg"].removeprefix("Value error, ")
    field_path = ".".join(str(part) for part in first_problem["loc"])
    received_value = (
        f", not {first_problem['input']!r}" if field_path and isinstance(first_problem["input"], str | int) else ""
    )
    return f"{field_path}: {message}{received_value}" if field_path else message


@functools.cache
def default_catalogue() -> FaultCatalogue:
    """Return the catalogue of this release, without a site's changes.

    Raises:
        CatalogueError: a row is not valid. Tests read the whole catalogue, so this means a broken build.
    """
    return read_catalogue(importlib.resources.files(__package__).joinpath("faults.csv").read_text(encoding="utf-8"))
