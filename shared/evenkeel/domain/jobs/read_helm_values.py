"""Read the Helm values file of a chart with priority classes, node pools and a template for each kind of job.

The file imports unchanged. A selector that binds a template to one pool becomes its first preference, before the other
pools. Each reading that changes or doubts a field is reported as a `TemplateFinding`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from evenkeel.domain.capacity.instance_types import GPU, shipped_instance_types
from evenkeel.domain.jobs.dropped_helm_values import find_dropped_values
from evenkeel.domain.jobs.template_findings import find_traps, hides_gpus
from evenkeel.domain.jobs.templates import (
    MAX_WEIGHT,
    JobTemplate,
    JobTemplates,
    Json,
    TemplatePool,
    TemplatePriorityClass,
    ValuesError,
    object_at,
)
from evenkeel.domain.kueue import quantities

_GIB = 2**30
_REFERENCE_TYPE = "ml.p4d.24xlarge"
"""The instance type whose proportions apply if the file names none: eight A100, as its labels say."""


def read_helm_values(document: Any) -> JobTemplates:
    """Read a values file.

    Args:
        document: The file, as parsed from YAML.

    Raises:
        ValuesError: A field is missing or invalid.
    """
    if not isinstance(document, Mapping):
        raise ValuesError("the file is not one object")
    pools = tuple(_read_pools(object_at(document, "nodeSelectors")))
    classes = _read_priority_classes(object_at(document, "priorityClasses"))
    templates = tuple(_read_job_templates(object_at(document, "jobTemplates"), pools, classes))
    image = object_at(document, "image")
    env = {str(name): str(value) for name, value in object_at(document, "env", {}).items()}
    job_templates = JobTemplates(
        default=str(document.get("jobType") or "development"),
        image=f"{_text_at(image, 'repository', 'image')}:{_text_at(image, 'tag', 'image')}",
        command=tuple(map(str, document.get("command") or ())),
        args=tuple(map(str, document.get("args") or ())),
        env={name: value for name, value in env.items() if not hides_gpus(name, value)},
        retries=_number_at(document, "backoffLimit", 6),
        keep_seconds=_number_at(document, "ttlSecondsAfterFinished", 0),
        checkpoint_seconds=_number_at(document, "checkpointSeconds", 0) or None,
        claims={
            purpose: str(document[key])
            for purpose, key in (("data", "dataPvcName"), ("checkpoints", "checkpointPvcName"))
            if document.get(key)
        },
        pools=pools,
        classes=classes,
        templates=templates,
        findings=(),
        image_pull_secrets=tuple(_pull_secrets(document)),
        grace_seconds=_number_at(document, "graceSeconds", 0) or None,
        losses=tuple(find_dropped_values(document)),
    )
    if job_templates.template_of() is None:
        raise ValuesError(f"jobType: there is no template {job_templates.default!r}")
    return job_templates.replace(findings=tuple(find_traps(document, job_templates)))


def _pull_secrets(document: Json) -> Iterator[str]:
    """Yield the names of the Secrets, which Helm charts write as texts or as objects."""
    for index, secret in enumerate(document.get("imagePullSecrets") or ()):
        name = secret.get("name") if isinstance(secret, Mapping) else secret
        if not isinstance(name, str) or not name:
            raise ValuesError(f"imagePullSecrets.{index}: is not a name")
        yield name


def _read_pools(values: Json) -> Iterator[TemplatePool]:
    for name, pool in values.items():
        labels = object_at(pool, "labels", {}, f"nodeSelectors.{name}.")
        yield TemplatePool(
            name=str(name),
            is_enabled=bool(pool.get("enabled", True)),
            labels={str(key): str(value) for key, value in labels.items()},
        )


def _read_priority_classes(values: Json) -> tuple[TemplatePriorityClass, ...]:
    rows = {}
    for name, row in values.items():
        if not isinstance(row, Mapping):
            # A wrongly indented `preemptionPolicy` is a sibling of the classes.
            continue
        rows[str(name)] = (_number_at(row, "value", None, f"priorityClasses.{name}."), str(row.get("description", "")))
    ranks = sorted({value for value, _ in rows.values()})
    highest_rank = max(ranks, default=0)
    return tuple(
        TemplatePriorityClass(
            name=name,
            value=value,
            weight=round(MAX_WEIGHT * (ranks.index(value) + 1) / len(ranks)),
            description=description,
            is_interruptible=value < highest_rank,
        )
        for name, (value, description) in rows.items()
    )


def _read_job_templates(
    values: Json, pools: tuple[TemplatePool, ...], classes: tuple[TemplatePriorityClass, ...]
) -> Iterator[JobTemplate]:
    names = {priority_class.name for priority_class in classes}
    node = shipped_instance_types().types[_REFERENCE_TYPE]
    for name, row in values.items():
        path = f"jobTemplates.{name}."
        if not isinstance(row, Mapping):
            raise ValuesError(f"{path[:-1]}: is not an object")
        priority = _text_at(row, "priorityClassName", path[:-1])
        if priority not in names:
            raise ValuesError(f"{path}priorityClassName: there is no class {priority!r}")
        resources = object_at(row, "resources", {}, path)
        limits, requests = (object_at(resources, key, {}, f"{path}resources.") for key in ("limits", "requests"))
        requested_resources = {**limits, **requests}
        gpus = _amount_at(requested_resources, GPU, path)
        if GPU in limits and _amount_at(limits, GPU, path) != gpus:
            raise ValuesError(f"{path}resources: the limit of {GPU} must equal its request, as Kubernetes demands")
        cpu, memory = _amount_at(requested_resources, "cpu", path), _amount_at(requested_resources, "memory", path)
        share_cpu, share_memory = (
            gpus * node.vcpu * 1000 // node.gpus,
            int(gpus * node.memory_gib * _GIB // node.gpus),
        )
        yield JobTemplate(
            name=str(name),
            priority_class=priority,
            pools=_pools_in_order(row, pools, path),
            accelerators=gpus,
            cpu_millis=cpu,
            memory_bytes=memory,
            proposed_cpu_millis=share_cpu if 0 < cpu < share_cpu else 0,
            proposed_memory_bytes=share_memory if 0 < memory < share_memory else 0,
            tolerations=tuple(
                {str(key): str(value) for key, value in toleration.items()}
                for toleration in row.get("tolerations") or ()
            ),
        )


def _pools_in_order(row: Json, pools: tuple[TemplatePool, ...], path: str) -> tuple[str, ...]:
    selector = {str(key): str(value) for key, value in object_at(row, "nodeSelector", {}, path).items()}
    selected_pools = [pool for pool in pools if selector and selector.items() <= pool.labels.items()]
    if selector and not selected_pools:
        raise ValuesError(f"{path}nodeSelector: no pool has the labels {selector}")
    # Committed pools before rented pools, as the file lists them. Spot pools only for templates that select them.
    template_pools = [pool for pool in pools if pool not in selected_pools and not pool.is_spot]
    return tuple(pool.name for pool in (*selected_pools, *template_pools) if pool.is_enabled)


def _text_at(parent: Json, key: str, path: str) -> str:
    value = parent.get(key)
    if not isinstance(value, str) or not value:
        raise ValuesError(f"{path}.{key}: is not a text")
    return value


def _number_at(parent: Json, key: str, default: int | None, path: str = "") -> int:
    value = parent.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValuesError(f"{path}{key}: is not a whole number")
    return value


def _amount_at(parent: Json, key: str, path: str) -> int:
    try:
        return quantities.amount(key, parent.get(key, 0))
    except ValueError as error:
        raise ValuesError(f"{path}resources.{key}: {error}") from error
