"""The fault catalogue, one row per code: facts (`f_…`) beside our own defaults (`p_…`). A new fault is a new row.

faults.csv ─▶ read, each row checked ─▶ Catalogue ─▶ the site's overrides, checked likewise ─▶ Catalogue of that site
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

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from evenkeel.domain.values import Value


class CheckpointTrust(StrEnum):
    """Which checkpoints survive suspicion, strictest last."""

    TRUSTED = "trusted"
    SUSPECT_SINCE_FIRST_SIGNAL = "suspect_since_first_signal"
    NONE = "none"

    @property
    def strictness(self) -> int:
        """0 where every checkpoint is trusted."""
        return list(CheckpointTrust).index(self)


class Severity(StrEnum):
    """How bad, worst last."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info, 3 for critical."""
        return list(Severity).index(self)


class FaultClass(StrEnum):
    """What is at fault, as far as the code tells."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    SOFTWARE = "software"
    NETWORK = "network"
    CAPACITY = "capacity"
    MIXED = "mixed"
    INFO = "info"


class CanSave(StrEnum):
    """Whether a drain may ask this node for a fresh checkpoint."""

    YES = "yes"
    TRY = "try"
    """Nobody knows. It gets the same time, since a save that fails costs no more than that; it is hoped for, not
    counted on."""
    NO = "no"
    """Its own pods end at once."""


class Validation(StrEnum):
    """How a machine is judged before it takes work again."""

    NONE = "none"
    BASIC = "basic"
    DEEP = "deep"


class RecurKey(StrEnum):
    """On what a fault is counted when it comes again."""

    NONE = "none"
    GPU = "gpu"
    """The device, where the signal names it; else the machine's life."""
    GPU_ACROSS_JOBS = "gpu_across_jobs"
    """The device, once for each job that ran on it."""
    LINK = "link"
    """The link, where the signal names it; else the device or the life."""
    NODE = "node"
    """The machine's life."""
    SLOT = "slot"
    """The node slot, whichever node is in it."""
    JOB = "job"
    """The job on the machine, whichever machine it runs on; where none is known, the life."""
    GROUP = "group"
    """The instance group."""


class Rung(StrEnum):
    """One step of a ladder. After the last one comes a person."""

    IGNORE = "ignore"
    WATCH = "watch"
    FOLLOW_PRIMARY = "follow_primary"
    OBEY_154 = "obey_154"
    STAND_DOWN = "stand_down"
    PAGE_HUMAN = "page_human"
    BURST = "burst"
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
        """How much it does to job and machine: 0 for nothing, most for a replacement."""
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

_DRAIN_CLASSES = {"none": -1, "now": 0, "notice": 120, "short": 300, "standard": 900, "long": 3600, "job_end": 86_400}
"""The longest drain of each class, in seconds."""


class FaultReferences(Value):
    """What public sources say of a code. No policy changes them."""

    nvidia_now: str = ""
    nvidia_investigate: str = ""
    gpus: tuple[str, ...] = ()
    """Generations to which NVIDIA applies the code."""
    xid154_from: str = ""
    """First driver branch that also raises Xid 154 for it; empty = not linked."""
    eks_agent: str = ""
    gpud: str = ""
    nvsentinel: str = ""
    hyperpod: str = ""
    sources: tuple[str, ...] = ()
    """Keys of `fault_sources.csv`."""


class Fault(Value):
    """What one fault code means and calls for."""

    key: str
    """`xid:79`, `hp:NvidiaErrorReboot`, `node:not_ready`, …"""
    family: str = ""
    code: str = ""
    name: str
    alias_of: str = ""
    """The key that this is another name of: it calls for the same."""
    fault_class: FaultClass
    severity: Severity
    checkpoint_trust: CheckpointTrust
    can_save: CanSave = CanSave.TRY
    drain_seconds: int = Field(ge=-1, le=86_400)
    """Grace given to the pods on the node; -1 = no drain."""
    ladder: tuple[Rung, ...] = Field(min_length=1)
    """Rungs in order: `restart_job`, `reboot`, `replace`, `watch`, `ignore`, … After the last comes a person."""
    recur_key: RecurKey = RecurKey.NONE
    recur_count: int = Field(default=0, ge=0)
    """The N-th occurrence on the same key inside the window starts on the next rung; 0 = not counted."""
    recur_window_hours: int = Field(default=0, ge=0, le=720)
    """At most as long as occurrences are remembered."""
    acts_alone: bool
    """Whether this signal alone may start the first rung."""
    settle_seconds: int = Field(ge=0, le=3600)
    """Wait for more evidence before the first rung."""
    validate_with: Validation
    facts: FaultReferences = FaultReferences()
    note: str = ""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if len(set(self.ladder)) != len(self.ladder):
            raise ValueError("ladder: a rung stands twice")
        if (self.recur_key is RecurKey.NONE) != (self.recur_count == 0):
            raise ValueError("recurCount: is 0 where, and only where, recurKey is none")
        if self.recur_count == 1:
            raise ValueError("recurCount: the first occurrence cannot be a repeated one; give 2 or more, or 0")
        if (self.recur_count == 0) != (self.recur_window_hours == 0):
            raise ValueError("recurWindowHours: is 0 where, and only where, nothing is counted")
        if self.repairs_node and self.validate_with is Validation.NONE:
            raise ValueError("validateWith: a machine that is repaired must be validated before it takes work")
        return self

    @property
    def repairs_node(self) -> bool:
        """Whether any rung touches the machine."""
        return any(rung in NODE_RUNGS for rung in self.ladder)

    @property
    def node_rungs(self) -> tuple[str, ...]:
        """The rungs that touch the machine, in order."""
        return tuple(rung for rung in self.ladder if rung in NODE_RUNGS)

    @property
    def drain_class(self) -> str:
        """The class of its drain: `none`, `now`, `notice`, `short`, `standard`, `long` or `job_end`."""
        return next(name for name, longest in _DRAIN_CLASSES.items() if self.drain_seconds <= longest)


class FaultOverride(Value):
    """What a site has otherwise about one fault. Facts are not among it."""

    model_config = ConfigDict(extra="forbid")

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
    settle_seconds: int | None = None
    validate_with: Validation | None = None


UNKNOWN_FAULT = "hp:unknown_fault_type"
_REQUIRED_KEYS = (UNKNOWN_FAULT, "xid:*", "sxid:*")


class CatalogueError(ValueError):
    """The catalogue, or a site's changes to it, cannot be used. The message names the row and what is wrong in it."""


class FaultCatalogue(Mapping[str, Fault]):
    """The faults that a site knows, by key."""

    def __init__(self, faults: Mapping[str, Fault], text: str) -> None:
        self._faults = faults
        self._text = text
        self.hash = hashlib.sha256(text.encode()).hexdigest()[:12]
        """The first 12 hex digits of the SHA-256 of what it was read from: what a decision record names."""

    def __getitem__(self, key: str) -> Fault:
        return self._faults[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._faults)

    def __len__(self) -> int:
        return len(self._faults)

    def look_up(self, key: str) -> Fault:
        """Return the fault of this key; the nearest fallback row, at last the unknown fault, where it is not listed."""
        family = key.partition(":")[0]
        for found in (key, key.partition("/")[0], f"{family}:*"):
            if found in self._faults:
                return self._faults[found]
        return self._faults[UNKNOWN_FAULT]

    def find(self, code: str) -> Fault | None:
        """Return the fault that a person means by a code: `xid:79`, `79`, `XID 79`, `NvidiaErrorReboot`; None = none.

        A bare number is an Xid.
        """
        plain = code.strip()
        if plain in self._faults:
            return self._faults[plain]
        numbered = _NUMBERED.fullmatch(plain)
        if numbered:
            key = f"{(numbered['family'] or 'xid').lower()}:{int(numbered['number'])}{numbered['kind'] or ''}"
            return self._faults.get(key)
        by_code = [fault for key, fault in self._faults.items() if _plain(plain) in (_plain(key), _plain(fault.code))]
        return by_code[0] if len(by_code) == 1 else None

    def nearest(self, code: str, at_most: int = 5) -> tuple[str, ...]:
        """Return keys that look like a code, the likeliest first."""
        wanted = _plain(code)
        names = {_plain(key): key for key in self._faults} | {
            _plain(key.partition(":")[2]): key for key in self._faults
        }
        within = [key for name, key in names.items() if wanted and wanted in name]
        alike = [names[name] for name in difflib.get_close_matches(wanted, names, n=at_most, cutoff=0.5)]
        return tuple(dict.fromkeys((*alike, *within)))[:at_most]

    def overridden(self, overrides: Mapping[str, FaultOverride]) -> "FaultCatalogue":
        """Return this catalogue as a site has it. What another name of a fault calls for changes with the fault.

        Raises:
            CatalogueError: a fault is not listed, is another's name, or would no longer make sense.
        """
        if not overrides:
            return self
        faults = dict(self._faults)
        for key, override in overrides.items():
            if key not in self._faults:
                alike = ", ".join(self.nearest(key, 3))
                raise CatalogueError(f"there is no fault {key!r}" + (f"; did you mean {alike}?" if alike else ""))
            if self._faults[key].alias_of:
                raise CatalogueError(
                    f"{key} is another name of {self._faults[key].alias_of}: change that fault instead"
                )
            changes = override.model_dump(exclude_none=True)
            for each in (key, *(other for other, fault in self._faults.items() if fault.alias_of == key)):
                try:
                    faults[each] = self._faults[each].but(**changes)
                except ValidationError as error:
                    raise CatalogueError(f"{key}: {_first_error(error)}") from error
        changed = {key: overrides[key].model_dump(mode="json", exclude_none=True) for key in sorted(overrides)}
        return FaultCatalogue(faults, f"{self._text}\n{json.dumps(changed, sort_keys=True)}")


_NUMBERED = re.compile(
    r"(?:(?:nvidia)?(?P<family>s?xid)[ :_-]*)?(?P<number>[0-9]{1,6})(?:error|warning)?(?P<kind>/[a-z0-9_]+)?",
    re.ASCII | re.IGNORECASE,
)
"""`79`, `Xid 79`, `sxid:12028`, `xid:154/none`; the EKS agent's `NvidiaXID79Error` too."""


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9*/]", "", text.lower())


_COLUMNS = {
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
    "p_settle_s": "settle_seconds",
    "p_validate": "validate_with",
    "note": "note",
}
_FACTS = {
    "f_nvidia_now": "nvidia_now",
    "f_nvidia_investigate": "nvidia_investigate",
    "f_gpus": "gpus",
    "f_xid154_from": "xid154_from",
    "f_eks_agent": "eks_agent",
    "f_gpud": "gpud",
    "f_nvsentinel": "nvsentinel",
    "f_hyperpod": "hyperpod",
    "f_source": "sources",
}
_DERIVED = ("p_drain_class",)
"""Read only to be compared with what follows from another column."""
_SEPARATORS = {"p_ladder": ">", "f_gpus": "|", "f_source": ";"}
_COLUMN_OF = {to_camel(field): column for column, field in _COLUMNS.items()} | {
    field: column for column, field in _COLUMNS.items()
}


def read_catalogue(text: str) -> FaultCatalogue:
    """Read a catalogue in the form of `faults.csv`.

    Raises:
        CatalogueError: a row cannot be used; names its line, its key and the column.
    """
    reader = csv.DictReader(text.splitlines(), strict=True)
    columns = set(reader.fieldnames or ())
    wrong = columns ^ {*_COLUMNS, *_FACTS, *_DERIVED}
    if wrong:
        raise CatalogueError(f"line 1: columns missing or unknown: {', '.join(sorted(wrong))}")
    faults: dict[str, Fault] = {}
    for row in reader:
        where = f"line {reader.line_num} ({row['key']})"
        if None in row or None in row.values():
            raise CatalogueError(f"{where}: it has more or fewer fields than the header")
        if row["key"] in faults:
            raise CatalogueError(f"{where}, column key: this key occurs twice")
        faults[row["key"]] = _read(row, where)
    _check_names(faults)
    return FaultCatalogue(faults, text)


def _read(row: dict[str, str], where: str) -> Fault:
    def value(column: str) -> Any:
        separator = _SEPARATORS.get(column)
        return tuple(filter(None, row[column].split(separator))) if separator else row[column]

    if row["p_acts_alone"] not in ("yes", "no"):
        raise CatalogueError(f"{where}, column p_acts_alone: says {row['p_acts_alone']!r}, which is neither yes nor no")
    fields = {field: value(column) for column, field in _COLUMNS.items()}
    facts = FaultReferences.model_validate({field: value(column) for column, field in _FACTS.items()})
    try:
        fault = Fault.model_validate({**fields, "facts": facts})
    except ValidationError as error:
        text = _first_error(error)
        field, _, rest = text.partition(": ")
        raise CatalogueError(f"{where}, column {_COLUMN_OF.get(field.partition('.')[0], field)}: {rest}") from error
    if fault.drain_class != row["p_drain_class"] or fault.drain_seconds != _DRAIN_CLASSES[fault.drain_class]:
        raise CatalogueError(f"{where}, column p_drain_class: {row['p_drain_class']} is not {fault.drain_seconds} s")
    return fault


def _check_names(faults: Mapping[str, Fault]) -> None:
    """Check what one row says of another."""
    missing = [key for key in _REQUIRED_KEYS if key not in faults]
    if missing:
        raise CatalogueError(f"the fallback rows {', '.join(missing)} are missing")
    own = {"key", "family", "code", "name", "alias_of", "facts", "note"}
    for fault in faults.values():
        if not fault.alias_of:
            continue
        target = faults.get(fault.alias_of)
        if target is None or target.alias_of:
            raise CatalogueError(f"{fault.key}, column alias_of: {fault.alias_of} is itself an alias")
        differing = [
            name for name in Fault.model_fields if name not in own and getattr(fault, name) != getattr(target, name)
        ]
        if differing:
            columns = ", ".join(_COLUMN_OF[name] for name in differing)
            raise CatalogueError(f"{fault.key}, column {columns}: differs from {target.key}, of which it is an alias")


def _first_error(error: ValidationError) -> str:
    """Say the first fault of a validation as `field: what is wrong`."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"])
    given = f", not {first['input']!r}" if where and isinstance(first["input"], str | int) else ""
    return f"{where}: {message}{given}" if where else message


@functools.cache
def default_catalogue() -> FaultCatalogue:
    """Return the catalogue of this release, without any site's changes.

    Raises:
        CatalogueError: a row does not parse; the catalogue is tested, so this is a broken build.
    """
    return read_catalogue(importlib.resources.files(__package__).joinpath("faults.csv").read_text(encoding="utf-8"))
