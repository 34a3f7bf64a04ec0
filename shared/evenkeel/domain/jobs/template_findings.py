"""The traps of a values file: fields whose effect is not what a reader would expect."""

from collections.abc import Iterator, Mapping
from typing import Any

from evenkeel.domain.jobs.templates import (
    CLUSTER_SECTIONS,
    MAX_WEIGHT,
    FindingSeverity,
    JobTemplate,
    JobTemplates,
    Json,
    TemplateFinding,
    object_at,
)
from evenkeel.domain.plurals import count_of

MIN_NOTICE_SECONDS = 120
_GIB = 2**30
KNOWN_FIELDS = CLUSTER_SECTIONS | frozenset(
    {
        *("global", "nameOverride", "fullnameOverride", "jobType", "image", "imagePullSecrets", "serviceAccount"),
        *("backoffLimit", "ttlSecondsAfterFinished", "command", "args", "modelType", "env", "dataPvcName"),
        *("checkpointPvcName", "nodeSelectors", "priorityClasses", "jobTemplates", "checkpointSeconds", "graceSeconds"),
    }
)


def find_traps(document: Json, job_templates: JobTemplates) -> Iterator[TemplateFinding]:
    """Yield a finding for each trap of a values file, and for each unknown field.

    Args:
        document: The file, as parsed from YAML.
        job_templates: Its contents.
    """
    yield from _findings_of_templates(document, job_templates)
    yield from _findings_of_jobs(document, job_templates)
    yield from _findings_of_pools(job_templates)
    yield from _findings_of_classes(document, job_templates)
    for key in sorted(set(map(str, document)) - KNOWN_FIELDS):
        yield _finding("", FindingSeverity.NOTE, key, "This field is not known and is ignored.")


def _findings_of_templates(document: Json, job_templates: JobTemplates) -> Iterator[TemplateFinding]:
    labels = {key for pool in job_templates.pools for key in pool.labels}
    selected_labels: set[str] = set()
    for template in job_templates.templates:
        row, path = document["jobTemplates"][template.name], f"jobTemplates.{template.name}"
        selector = row.get("nodeSelector") or {}
        selected_labels |= set(map(str, selector))
        if selector:
            later = ", then ".join(template.pools[1:]) or "none, because every other pool is off or spot"
            yield _finding(
                "T0-1",
                FindingSeverity.CHANGED if template.pools else FindingSeverity.REFUSED,
                f"{path}.nodeSelector",
                f"A hard selector excludes all other pools, even idle pools. It is read as: first {template.pools[0]}, "
                f"then {later}."
                if template.pools
                else "Its only pool is switched off.",
            )
        for proposed_amount, requested_amount, unit, quantity in (
            (template.proposed_memory_bytes, template.memory_bytes, _GIB, "GiB of memory"),
            (template.proposed_cpu_millis, template.cpu_millis, 1000, "cores"),
        ):
            if proposed_amount:
                yield _finding(
                    "T0-3",
                    FindingSeverity.WARNING,
                    f"{path}.resources",
                    f"{requested_amount / unit:g} {quantity} for {count_of(template.accelerators, 'accelerator')}; "
                    f"the accelerators' share of a node would be {proposed_amount / unit:g}. "
                    "Data loaders and in-memory checkpoints fail first.",
                )
    unused_labels = labels - selected_labels
    if selected_labels and unused_labels:
        yield _finding(
            "T0-5",
            FindingSeverity.NOTE,
            "nodeSelectors",
            f"No template selects by {', '.join(sorted(unused_labels))}. The label stays with its pool.",
        )


def _findings_of_jobs(document: Json, job_templates: JobTemplates) -> Iterator[TemplateFinding]:
    for name, value in object_at(document, "env", {}).items():
        if hides_gpus(str(name), str(value)):
            yield _finding(
                "T0-2",
                FindingSeverity.REFUSED,
                f"env.{name}",
                f"{value!r} is not a device: CUDA would find none. The variable is removed; the device plugin sets it.",
            )
    if "backoffLimit" in document:
        yield _finding(
            "T0-7",
            FindingSeverity.CHANGED,
            "backoffLimit",
            f"The {job_templates.retries} retries count only failures of the application. A node fault uses no retry.",
        )
    if job_templates.keep_seconds:
        yield _finding(
            "T0-8",
            FindingSeverity.NOTE,
            "ttlSecondsAfterFinished",
            f"The Kubernetes object is deleted after {job_templates.keep_seconds / 3600:g} h. "
            "The record of each attempt stays.",
        )
    on_spot = [template.name for template in job_templates.templates if _first_is_spot(template, job_templates)]
    missing_keys = [key for key in ("checkpointSeconds", "graceSeconds") if not document.get(key)]
    if on_spot and missing_keys:
        yield _finding(
            "T0-9",
            FindingSeverity.WARNING,
            f"jobTemplates.{on_spot[0]}",
            f"Template {on_spot[0]} would use spot nodes, which end {MIN_NOTICE_SECONDS} s after a notice. "
            f"The file does not set {' or '.join(missing_keys)}; until it does, jobs run on demand.",
        )
    if job_templates.claims and len(job_templates.pools) > 1:
        yield _finding(
            "T0-10",
            FindingSeverity.WARNING,
            "dataPvcName" if "data" in job_templates.claims else "checkpointPvcName",
            "Each cluster has its own claims: the same name in another cluster is another volume, unless both use "
            "one shared file system. A job is not moved where this is unknown.",
        )


def _findings_of_pools(job_templates: JobTemplates) -> Iterator[TemplateFinding]:
    sizes = {pool.name: pool.accelerator_memory_gib for pool in job_templates.pools if pool.accelerator_memory_gib}
    if len(set(sizes.values())) > 1:
        text = ", ".join(f"{name} {size} GB" for name, size in sizes.items())
        yield _finding(
            "T0-4",
            FindingSeverity.WARNING,
            "nodeSelectors",
            f"Accelerators differ ({text}). A job that needs the larger memory cannot run on the smaller.",
        )
    custom = sorted({key for pool in job_templates.pools for key in pool.labels if "/" not in key})
    if custom:
        yield _finding(
            "T0-13",
            FindingSeverity.WARNING,
            "nodeSelectors",
            f"No component sets {', '.join(custom)}. Set it on the instance group and on each NodePool.",
        )


def _findings_of_classes(document: Json, job_templates: JobTemplates) -> Iterator[TemplateFinding]:
    rows = object_at(document, "priorityClasses")
    uninterruptible_classes = [
        priority_class.name for priority_class in job_templates.classes if not priority_class.is_interruptible
    ]
    if uninterruptible_classes:
        yield _finding(
            "T0-6",
            FindingSeverity.NOTE,
            f"priorityClasses.{uninterruptible_classes[0]}",
            "No other job preempts it. Its nodes can still fail, so it needs checkpoints.",
        )
    used_classes = {template.priority_class for template in job_templates.templates}
    unused_classes = [
        priority_class.name for priority_class in job_templates.classes if priority_class.name not in used_classes
    ]
    if unused_classes:
        yield _finding(
            "T0-11", FindingSeverity.NOTE, "priorityClasses", f"No template uses {' or '.join(unused_classes)}."
        )
    fields = [f"priorityClasses.{name}" for name, row in rows.items() if _may_preempt(row)]
    if "preemptionPolicy" in rows:
        fields.append("priorityClasses.preemptionPolicy")
    for field in fields:
        yield _finding(
            "T0-12",
            FindingSeverity.NOTE,
            field,
            "PreemptLowerPriority is the default of Kubernetes. It changes nothing, and is kept.",
        )
    if any(priority_class.value > MAX_WEIGHT for priority_class in job_templates.classes):
        text = ", ".join(f"{priority_class.name} {priority_class.weight}" for priority_class in job_templates.classes)
        yield _finding(
            "T0-14",
            FindingSeverity.CHANGED,
            "priorityClasses",
            f"HyperPod's classes have weights from 0 to {MAX_WEIGHT}. In the same order: {text}.",
        )


def _may_preempt(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("preemptionPolicy") == "PreemptLowerPriority"


def _first_is_spot(template: JobTemplate, job_templates: JobTemplates) -> bool:
    return any(pool.is_spot for pool in job_templates.pools if template.pools and pool.name == template.pools[0])


def hides_gpus(name: str, value: str) -> bool:
    """Whether CUDA would find no device with this value: it reads indices and UUIDs, and stops at anything else."""
    if name != "CUDA_VISIBLE_DEVICES":
        return False
    first_device = value.split(",", maxsplit=1)[0].strip()
    return bool(value) and not (
        first_device.isdigit() or first_device.startswith(("GPU-", "MIG-")) or first_device in ("", "-1")
    )


def _finding(trap: str, weight: FindingSeverity, field: str, message: str) -> TemplateFinding:
    return TemplateFinding(trap=trap, weight=weight, field=field, message=message)
