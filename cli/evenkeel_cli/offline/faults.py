"""The fault catalogue, and the recovery of each fault as the service would decide it."""

import csv
import importlib.resources
from typing import Any

from evenkeel.domain.fault_preview import FaultPreview, RungPreview, preview
from evenkeel.domain.health.faults import CheckpointTrust, Fault, FaultCatalogue, RecurKey, Rung
from evenkeel.domain.policy import Policy
from evenkeel_cli.render import Column, Printer, duration
from evenkeel_client.errors import CommandFailed, Exit

Json = dict[str, Any]


def list_faults(catalogue: FaultCatalogue, family: str) -> list[Json]:
    """Return a summary of each fault of a family; of all faults if no family is named.

    Raises:
        CommandFailed: there is no such family.
    """
    searched_text = family.lower()
    faults = [
        fault
        for fault in catalogue.values()
        if not searched_text or searched_text in (fault.family, fault.key.split(":")[0])
    ]
    if not faults:
        families = ", ".join(dict.fromkeys(fault.key.split(":")[0] for fault in catalogue.values()))
        raise CommandFailed(Exit.USAGE, f"There is no family {family!r}; there are {families}.", code="USAGE")
    return [_summary(fault) for fault in faults]


def _summary(fault: Fault) -> Json:
    return {
        "key": fault.key,
        "name": fault.name,
        "class": fault.fault_class,
        "severity": fault.severity,
        "ladder": list(fault.ladder),
        "actsAlone": fault.acts_alone,
        "checkpointTrust": fault.checkpoint_trust,
    }


FIELDS = ("key", "name", "class", "severity", "ladder", "actsAlone", "checkpointTrust")
COLUMNS = (
    Column("FAULT", "key"),
    Column("SEVERITY", "severity"),
    Column("CLASS", "class", is_wide=True),
    Column("ALONE", lambda fault: "yes" if fault["actsAlone"] else "no", is_wide=True),
    Column("CHECKPOINTS", "checkpointTrust", is_wide=True),
    Column("LADDER", lambda fault: " > ".join(fault["ladder"]), may_shrink=True),
    Column("NAME", "name", may_shrink=True),
)


def explain_fault(code: str, policy: Policy) -> FaultPreview:
    """Return the recovery of a fault.

    Raises:
        CommandFailed: the catalogue has no fault with this code; names similar codes.
    """
    fault = policy.catalogue.find(code)
    if fault is None:
        alike = policy.catalogue.nearest_keys(code)
        similar_text = f"\n  similar: {', '.join(alike)}" if alike else ""
        message = f"There is no fault {code!r}.{similar_text}"
        raise CommandFailed(Exit.NOT_FOUND, message, code="NO_SUCH_FAULT", hint="evenkeel faults ls")
    return preview(fault, policy)


def preview_document(preview: FaultPreview) -> Json:
    """Return the whole preview for a script. References contain their URLs."""
    return preview.to_json() | {"references": [_reference_entry(key) for key in preview.fault.facts.references]}


def draw_fault(out: Printer, preview: FaultPreview) -> None:
    """Draw a fault: its meaning, its recovery, and the sources of these facts."""
    fault = preview.fault
    sign = {"critical": "failed", "major": "warn", "minor": "next", "info": "idle"}[fault.severity]
    out.table([Column("", 0), Column("", 1, wraps=True)], [(out.with_glyph(sign, out.bold(fault.key)), fault.name)])
    changed_note = "changed by this policy" if preview.is_changed else ""
    kind = ", ".join(text for text in (fault.fault_class, fault.severity, changed_note) if text)
    out.line(f"  {kind}")
    out.line()
    out.pairs(
        [
            ("means", f"another name for {fault.alias_of}" if fault.alias_of else ""),
            ("plan", _outcome_text(preview)),
            ("confirmed by", _CONFIRMATION_TEXTS[fault.acts_alone]),
            ("two signals", _two_fault_note(preview)),
            (
                "waits",
                f"{duration(fault.evidence_wait_seconds)} for more evidence, then starts" if preview.steps else "",
            ),
            ("drain", _drain_text(fault)),
            ("checkpoints", _checkpoints_text(preview)),
            ("validation", _VALIDATION[fault.validate_with] if preview.steps else ""),
            ("if repeated", _recurrence_text(preview)),
        ],
        indent="  ",
    )
    _draw_ladder(out, preview)
    facts = fault.facts
    out.line()
    out.pairs(
        [
            ("NVIDIA", " then ".join(text for text in (facts.nvidia_now, facts.nvidia_investigate) if text)),
            ("GPUs", ", ".join(facts.gpus)),
            ("Xid 154", f"from driver {facts.xid154_from}" if facts.xid154_from else ""),
            ("HyperPod", facts.hyperpod),
            ("EKS agent", facts.eks_agent),
            ("NVSentinel", facts.nvsentinel),
            ("gpud", facts.gpud),
            ("note", fault.note),
        ],
        indent="  ",
    )
    references = map(_reference_entry, facts.references)
    out.pairs(
        [
            ("reference", f"{reference['title']}{': ' if reference['url'] else ''}{reference['url']}")
            for reference in references
        ],
        indent="  ",
    )
    out.line()
    out.line(f"{out.dim('policy')}  {preview.policy_hash}, catalogue {preview.catalogue_hash}")


_CONFIRMATION_TEXTS = {True: "one signal", False: "a second, independent signal, or a person"}
_VALIDATION = {
    "none": "none",
    "basic": "Running, Ready, all accelerators, no fault mark",
    "deep": "HyperPod's deep health check",
}
_RECURRENCE_KEY_TEXTS = {
    RecurKey.NONE: "",
    RecurKey.GPU: "on one device",
    RecurKey.GPU_ACROSS_JOBS: "on one device, in different jobs",
    RecurKey.LINK: "on one link",
    RecurKey.NODE: "on one node",
    RecurKey.SLOT: "in one node slot",
    RecurKey.JOB: "in one job",
    RecurKey.GROUP: "in one instance group",
}


def _outcome_text(preview: FaultPreview) -> str:
    if preview.plan:
        return preview.plan.reason
    reason = (
        "this fault is a consequence of another fault"
        if preview.fault.ladder[0] is Rung.FOLLOW_PRIMARY
        else "the catalogue ignores this fault"
    )
    return f"No incident: {reason}."


def _two_fault_note(preview: FaultPreview) -> str:
    alone, plan_with_second_source = preview.plan, preview.with_second_source
    return (
        plan_with_second_source.reason
        if alone and plan_with_second_source and plan_with_second_source.reason != alone.reason
        else ""
    )


def _drain_text(fault: Fault) -> str:
    if fault.drain_seconds < 0:
        return ""
    saving = {"yes": "requests a new checkpoint", "try": "tries to save a new checkpoint", "no": "the job cannot save"}
    drain_time = "at once" if fault.drain_seconds == 0 else f"{duration(fault.drain_seconds)}"
    return f"{fault.drain_class} ({drain_time}); {saving[fault.can_save]}"


def _checkpoints_text(preview: FaultPreview) -> str:
    if preview.distrusted_from_seconds is None:
        return f"trusted; {_CHECK_TEXTS[preview.requirement]}"
    margin_text = duration(preview.distrusted_from_seconds)
    since = f"distrusted if its write began less than {margin_text} before the first signal, or after it"
    requirement = f"{since}; {_CHECK_TEXTS[preview.requirement]}"
    none = preview.fault.checkpoint_trust is CheckpointTrust.NONE
    return f"{requirement}, because the time of the damage is unknown" if none else requirement


_CHECK_TEXTS = {
    "CONVENTION": "a checkpoint that DCP finished is enough, without a manifest",
    "PROOF": "needs a proven checkpoint",
    "EVIDENCE": "needs a checkpoint with its own evidence that it is good",
}


def _recurrence_text(preview: FaultPreview) -> str:
    repeated_preview = preview.repeated
    if repeated_preview is None:
        return ""
    ordinal = {2: "2nd", 3: "3rd"}.get(repeated_preview.count, f"{repeated_preview.count}th")
    scope_text = _RECURRENCE_KEY_TEXTS[repeated_preview.key]
    return (
        f"the {ordinal} time within {repeated_preview.window_hours} h {scope_text}, recovery starts with "
        f"{repeated_preview.rung}"
    )


def _draw_ladder(out: Printer, preview: FaultPreview) -> None:
    if not preview.steps:
        return
    out.line()
    out.line(f"  {out.bold('LADDER')}: each rung runs if the previous rung did not help")
    out.pairs([(_step_text(step), step.reason) for step in preview.steps], indent="  ")


def _step_text(step: RungPreview) -> str:
    waits = f", {duration(step.deadline_seconds)} at most" if step.deadline_seconds else ""
    return f"{step.rung} after {duration(step.after_seconds)}{waits}"


def _reference_entry(key: str) -> Json:
    text = importlib.resources.files("evenkeel.domain.health").joinpath("fault_references.csv").read_text("utf-8")
    row = next(row for row in csv.DictReader(text.splitlines()) if row["key"] == key)
    return {"title": row["title"], "url": row["url"]}
