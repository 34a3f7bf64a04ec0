"""Job templates from a Helm values file: what it says, and what in it will not do what it seems to.

The file is that of a chart with priority classes, node pools and a template for each kind of job. It imports as it is:
a selector that nails a template to one pool becomes its first preference, with the other pools behind it, and each
reading that changes or doubts something is told as a `TemplateFinding`.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from evenkeel.domain.capacity.instance_types import GPU, shipped
from evenkeel.domain.kueue import quantities
from evenkeel.domain.values import Value

Json = Mapping[str, Any]

LEAST_NOTICE_SECONDS = 120
_GIB = 2**30
_MOST_WEIGHT = 100
_PER_GPU = "ml.p4d.24xlarge"
"""The node whose proportions serve where the file names no type: eight A100, as its own labels say."""
_KEYS = frozenset(
    {
        *("global", "nameOverride", "fullnameOverride", "jobType", "image", "imagePullSecrets", "serviceAccount"),
        *("backoffLimit", "ttlSecondsAfterFinished", "command", "args", "modelType", "env", "dataPvcName"),
        *("checkpointPvcName", "nodeSelectors", "priorityClasses", "jobTemplates", "checkpointSeconds", "graceSeconds"),
    }
)


class ValuesError(ValueError):
    """A values file cannot be read: names the field."""


class FindingSeverity(StrEnum):
    """How much a finding matters."""

    REFUSED = "refused"
    """It cannot work as it stands."""
    CHANGED = "changed"
    """The import reads it otherwise than it stands."""
    WARNING = "warning"
    """It will do something else than it seems to."""
    NOTE = "note"


class TemplateFinding(Value):
    """One thing in the file that an operator should know."""

    trap: str
    """`T0-1` … `T0-14`; empty for what is no trap of the list."""
    weight: FindingSeverity
    field: str
    """Where: `jobTemplates.production.nodeSelector`."""
    message: str


class TemplatePool(Value):
    """One node pool, by the labels of its nodes."""

    name: str
    is_enabled: bool
    labels: dict[str, str]

    @property
    def is_spot(self) -> bool:
        """Whether its nodes may be taken back."""
        return "spot" in self.labels.get("node-type", self.name).lower()

    @property
    def accelerator_memory_gib(self) -> int:
        """Of one accelerator, as its label ends: `a100-80gb`; 0 where it does not say."""
        tail = self.labels.get("gpu-type", "").lower().rpartition("-")[2]
        return int(tail.removesuffix("gb")) if tail.endswith("gb") and tail.removesuffix("gb").isdigit() else 0


class PriorityClass(Value):
    """One priority class, and its weight on HyperPod's scale."""

    name: str
    value: int
    weight: int
    """0 to 100, in the order of the values: equal ones stay equal."""
    description: str = ""
    is_interruptible: bool
    """Whether a job of a higher class may take its place. A fault may end any job."""


class JobTemplate(Value):
    """One kind of job."""

    name: str
    priority_class: str
    pools: tuple[str, ...]
    """In the order in which they are to be tried; the first is the one that its selector names."""
    accelerators: int
    cpu_millis: int
    memory_bytes: int
    proposed_cpu_millis: int = 0
    """Its accelerators' share of a node's; 0 where it asks for no less."""
    proposed_memory_bytes: int = 0
    tolerations: tuple[dict[str, str], ...] = ()


class JobTemplates(Value):
    """What a values file says."""

    default: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]
    """Without what no program can use."""
    retries: int
    """For the application's own faults only."""
    keep_seconds: int
    checkpoint_seconds: int | None = None
    claims: dict[str, str]
    pools: tuple[TemplatePool, ...]
    classes: tuple[PriorityClass, ...]
    templates: tuple[JobTemplate, ...]
    findings: tuple[TemplateFinding, ...]

    def of(self, job_type: str = "") -> JobTemplate | None:
        """Return the template of a job type; the default one where none is given."""
        return next((each for each in self.templates if each.name == (job_type or self.default)), None)


def read_values(document: Any) -> JobTemplates:
    """Read a values file.

    Args:
        document: As parsed from YAML.

    Raises:
        ValuesError: a part is missing or is not what it should be.
    """
    if not isinstance(document, Mapping):
        raise ValuesError("the file is not one object")
    pools = tuple(_pools(_object(document, "nodeSelectors")))
    classes = _classes(_object(document, "priorityClasses"))
    templates = tuple(_templates(_object(document, "jobTemplates"), pools, classes))
    image = _object(document, "image")
    env = {str(name): str(value) for name, value in _object(document, "env", {}).items()}
    read = JobTemplates(
        default=str(document.get("jobType") or "development"),
        image=f"{_text(image, 'repository', 'image')}:{_text(image, 'tag', 'image')}",
        command=tuple(map(str, document.get("command") or ())),
        args=tuple(map(str, document.get("args") or ())),
        env={name: value for name, value in env.items() if not _hides_gpus(name, value)},
        retries=_number(document, "backoffLimit", 6),
        keep_seconds=_number(document, "ttlSecondsAfterFinished", 0),
        checkpoint_seconds=_number(document, "checkpointSeconds", 0) or None,
        claims={
            use: str(document[key])
            for use, key in (("data", "dataPvcName"), ("checkpoints", "checkpointPvcName"))
            if document.get(key)
        },
        pools=pools,
        classes=classes,
        templates=templates,
        findings=(),
    )
    if read.of() is None:
        raise ValuesError(f"jobType: there is no template {read.default!r}")
    return read.but(findings=tuple(_findings(document, read)))


def _pools(found: Json) -> Iterator[TemplatePool]:
    for name, pool in found.items():
        labels = _object(pool, "labels", {}, f"nodeSelectors.{name}.")
        yield TemplatePool(
            name=str(name),
            is_enabled=bool(pool.get("enabled", True)),
            labels={str(key): str(value) for key, value in labels.items()},
        )


def _classes(found: Json) -> tuple[PriorityClass, ...]:
    rows = {}
    for name, row in found.items():
        if not isinstance(row, Mapping):
            # A policy that lost its indentation stands beside the classes; it is none of them.
            continue
        rows[str(name)] = (_number(row, "value", None, f"priorityClasses.{name}."), str(row.get("description", "")))
    ranks = sorted({value for value, _ in rows.values()})
    highest = max(ranks, default=0)
    return tuple(
        PriorityClass(
            name=name,
            value=value,
            weight=round(_MOST_WEIGHT * (ranks.index(value) + 1) / len(ranks)),
            description=description,
            is_interruptible=value < highest,
        )
        for name, (value, description) in rows.items()
    )


def _templates(
    found: Json, pools: tuple[TemplatePool, ...], classes: tuple[PriorityClass, ...]
) -> Iterator[JobTemplate]:
    known = {each.name for each in classes}
    node = shipped().types[_PER_GPU]
    for name, row in found.items():
        path = f"jobTemplates.{name}."
        if not isinstance(row, Mapping):
            raise ValuesError(f"{path[:-1]}: is not an object")
        priority = _text(row, "priorityClassName", path[:-1])
        if priority not in known:
            raise ValuesError(f"{path}priorityClassName: there is no class {priority!r}")
        resources = _object(row, "resources", {}, path)
        limits, requests = (_object(resources, key, {}, f"{path}resources.") for key in ("limits", "requests"))
        asked = {**limits, **requests}
        gpus = _amount(asked, GPU, path)
        cpu, memory = _amount(asked, "cpu", path), _amount(asked, "memory", path)
        share_cpu, share_memory = (
            gpus * node.vcpu * 1000 // node.gpus,
            int(gpus * node.memory_gib * _GIB // node.gpus),
        )
        yield JobTemplate(
            name=str(name),
            priority_class=priority,
            pools=_preferred(row, pools, path),
            accelerators=gpus,
            cpu_millis=cpu,
            memory_bytes=memory,
            proposed_cpu_millis=share_cpu if cpu < share_cpu else 0,
            proposed_memory_bytes=share_memory if memory < share_memory else 0,
            tolerations=tuple(
                {str(key): str(value) for key, value in each.items()} for each in row.get("tolerations") or ()
            ),
        )


def _preferred(row: Json, pools: tuple[TemplatePool, ...], path: str) -> tuple[str, ...]:
    selector = {str(key): str(value) for key, value in _object(row, "nodeSelector", {}, path).items()}
    first = [pool for pool in pools if selector and selector.items() <= pool.labels.items()]
    if selector and not first:
        raise ValuesError(f"{path}nodeSelector: no pool has the labels {selector}")
    # What is committed before what is rented, as the file lists them; spot is for those who chose it.
    rest = [pool for pool in pools if pool not in first and not pool.is_spot]
    return tuple(pool.name for pool in (*first, *rest) if pool.is_enabled)


def _findings(document: Json, read: JobTemplates) -> Iterator[TemplateFinding]:
    yield from _findings_of_templates(document, read)
    yield from _findings_of_jobs(document, read)
    yield from _findings_of_pools(read)
    yield from _findings_of_classes(document, read)
    for key in sorted(set(map(str, document)) - _KEYS):
        yield _finding("", FindingSeverity.NOTE, key, "This field is not known and decides nothing.")


def _findings_of_templates(document: Json, read: JobTemplates) -> Iterator[TemplateFinding]:
    labels = {key for pool in read.pools for key in pool.labels}
    selected: set[str] = set()
    for each in read.templates:
        row, path = document["jobTemplates"][each.name], f"jobTemplates.{each.name}"
        selector = row.get("nodeSelector") or {}
        selected |= set(map(str, selector))
        if selector:
            behind = ", then ".join(each.pools[1:]) or "none: every other pool is off or spot"
            yield _finding(
                "T0-1",
                FindingSeverity.CHANGED if each.pools else FindingSeverity.REFUSED,
                f"{path}.nodeSelector",
                f"A hard selector keeps it off every other pool, idle or not. Read as: first {each.pools[0]}, then "
                f"{behind}."
                if each.pools
                else "Its pool is switched off and no other is left.",
            )
        for proposed, asked, unit, what in (
            (each.proposed_memory_bytes, each.memory_bytes, _GIB, "GiB of memory"),
            (each.proposed_cpu_millis, each.cpu_millis, 1000, "cores"),
        ):
            if proposed:
                yield _finding(
                    "T0-3",
                    FindingSeverity.WARNING,
                    f"{path}.resources",
                    f"{asked / unit:g} {what} beside {each.accelerators} accelerators; their share of a node is "
                    f"{proposed / unit:g}. Loaders and checkpoints in memory will fail first.",
                )
    unused = labels - selected
    if selected and unused:
        yield _finding(
            "T0-5",
            FindingSeverity.NOTE,
            "nodeSelectors",
            f"No template selects by {', '.join(sorted(unused))}; the label stays with its pool.",
        )


def _findings_of_jobs(document: Json, read: JobTemplates) -> Iterator[TemplateFinding]:
    for name, value in _object(document, "env", {}).items():
        if _hides_gpus(str(name), str(value)):
            yield _finding(
                "T0-2",
                FindingSeverity.REFUSED,
                f"env.{name}",
                f"{value!r} is no device: CUDA would see none at all. It is left out; the device plugin says which.",
            )
    if "backoffLimit" in document:
        yield _finding(
            "T0-7",
            FindingSeverity.CHANGED,
            "backoffLimit",
            f"{read.retries} retries are counted for the application's own faults; a faulty machine uses up none.",
        )
    if read.keep_seconds:
        yield _finding(
            "T0-8",
            FindingSeverity.NOTE,
            "ttlSecondsAfterFinished",
            f"The Kubernetes object goes after {read.keep_seconds / 3600:g} h; the record of each attempt stays.",
        )
    on_spot = [each.name for each in read.templates if _first_is_spot(each, read)]
    lacking = [key for key in ("checkpointSeconds", "graceSeconds") if not document.get(key)]
    if on_spot and lacking:
        yield _finding(
            "T0-9",
            FindingSeverity.WARNING,
            f"jobTemplates.{on_spot[0]}",
            f"It runs on spot nodes, which go {LEAST_NOTICE_SECONDS} s after a notice, and the file says nothing of "
            f"{' or '.join(lacking)}: until it does, it is placed on demand.",
        )
    if read.claims and len(read.pools) > 1:
        yield _finding(
            "T0-10",
            FindingSeverity.WARNING,
            "dataPvcName" if "data" in read.claims else "checkpointPvcName",
            "A claim is a claim of one cluster: the same name on another is another volume, unless both are bound to "
            "one shared file system. A job is not moved where that is not known.",
        )


def _findings_of_pools(read: JobTemplates) -> Iterator[TemplateFinding]:
    sizes = {pool.name: pool.accelerator_memory_gib for pool in read.pools if pool.accelerator_memory_gib}
    if len(set(sizes.values())) > 1:
        text = ", ".join(f"{name} {size} GB" for name, size in sizes.items())
        yield _finding(
            "T0-4",
            FindingSeverity.WARNING,
            "nodeSelectors",
            f"Accelerators differ ({text}): a job that needs the larger cannot run the same on the smaller.",
        )
    custom = sorted({key for pool in read.pools for key in pool.labels if "/" not in key})
    if custom:
        yield _finding(
            "T0-13",
            FindingSeverity.WARNING,
            "nodeSelectors",
            f"Nothing sets {', '.join(custom)} by itself: give them to the instance group and to each NodePool.",
        )


def _findings_of_classes(document: Json, read: JobTemplates) -> Iterator[TemplateFinding]:
    rows = _object(document, "priorityClasses")
    uninterrupted = [each.name for each in read.classes if not each.is_interruptible]
    if uninterrupted:
        yield _finding(
            "T0-6",
            FindingSeverity.NOTE,
            f"priorityClasses.{uninterrupted[0]}",
            "No other job takes its place. Its machines fail as any others do, so it needs checkpoints all the same.",
        )
    used = {each.priority_class for each in read.templates}
    unused = [each.name for each in read.classes if each.name not in used]
    if unused:
        yield _finding("T0-11", FindingSeverity.NOTE, "priorityClasses", f"No template uses {' or '.join(unused)}.")
    places = [f"priorityClasses.{name}" for name, row in rows.items() if _preempts(row)]
    if "preemptionPolicy" in rows:
        places.append("priorityClasses.preemptionPolicy")
    for place in places:
        yield _finding(
            "T0-12",
            FindingSeverity.NOTE,
            place,
            "PreemptLowerPriority is what Kubernetes does anyhow: it changes nothing, and is kept.",
        )
    if any(each.value > _MOST_WEIGHT for each in read.classes):
        text = ", ".join(f"{each.name} {each.weight}" for each in read.classes)
        yield _finding(
            "T0-14",
            FindingSeverity.CHANGED,
            "priorityClasses",
            f"HyperPod weighs classes from 0 to {_MOST_WEIGHT}. In the same order: {text}.",
        )


def _preempts(row: Any) -> bool:
    return isinstance(row, Mapping) and row.get("preemptionPolicy") == "PreemptLowerPriority"


def _first_is_spot(template: JobTemplate, read: JobTemplates) -> bool:
    return any(pool.is_spot for pool in read.pools if template.pools and pool.name == template.pools[0])


def _hides_gpus(name: str, value: str) -> bool:
    """Say whether CUDA would find no device by it: it takes indices and UUIDs, and stops at what is neither."""
    if name != "CUDA_VISIBLE_DEVICES":
        return False
    first = value.split(",", maxsplit=1)[0].strip()
    return bool(value) and not (first.isdigit() or first.startswith(("GPU-", "MIG-")) or first in ("", "-1"))


def _finding(trap: str, weight: FindingSeverity, field: str, message: str) -> TemplateFinding:
    return TemplateFinding(trap=trap, weight=weight, field=field, message=message)


def _object(parent: Any, key: str, default: Json | None = None, path: str = "") -> Json:
    found = parent.get(key, default) if isinstance(parent, Mapping) else None
    found = default if found is None else found
    if not isinstance(found, Mapping):
        raise ValuesError(f"{path}{key}: is not an object")
    return found


def _text(parent: Json, key: str, path: str) -> str:
    found = parent.get(key)
    if not isinstance(found, str) or not found:
        raise ValuesError(f"{path}.{key}: is not a text")
    return found


def _number(parent: Json, key: str, default: int | None, path: str = "") -> int:
    found = parent.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ValuesError(f"{path}{key}: is not a whole number")
    return found


def _amount(parent: Json, key: str, path: str) -> int:
    try:
        return quantities.amount(key, parent.get(key, 0))
    except ValueError as error:
        raise ValuesError(f"{path}resources.{key}: {error}") from error
