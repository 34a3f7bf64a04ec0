"""Job templates of a Helm values file, and the findings about it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from evenkeel.domain.values import Value

Json = Mapping[str, Any]

MAX_WEIGHT = 100
"""The highest weight of a class in HyperPod."""

CLUSTER_SECTIONS = frozenset({"access", "namespaces", "restartNamespaces", "nodeClasses", "nodePools", "kueue"})
"""Sections of the chart `charts/evenkeel` that helm applies to a cluster. These sections describe no job."""


class ValuesError(ValueError):
    """A values file cannot be read. The message names the field."""


class FindingSeverity(StrEnum):
    """How much a finding matters."""

    REFUSED = "refused"
    """The field cannot work as written."""
    CHANGED = "changed"
    """The import changes the field."""
    WARNING = "warning"
    """The effect of the field is not what a reader would expect."""
    NOTE = "note"


class TemplateFinding(Value):
    """A finding about a field of the file, for an operator."""

    trap: str
    """`T0-1` … `T0-14`; empty for a finding outside the list of traps."""
    weight: FindingSeverity
    field: str
    """The field: `jobTemplates.production.nodeSelector`."""
    message: str


class TemplatePool(Value):
    """A node pool, given by the labels of its nodes."""

    name: str
    is_enabled: bool
    labels: dict[str, str]

    @property
    def is_spot(self) -> bool:
        """Whether its nodes may be interrupted."""
        return "spot" in self.labels.get("node-type", self.name).lower()

    @property
    def accelerator_memory_gib(self) -> int:
        """Memory of one accelerator, from the end of its label `a100-80gb`; 0 if the label does not state it."""
        tail = self.labels.get("gpu-type", "").lower().rpartition("-")[2]
        return int(tail.removesuffix("gb")) if tail.endswith("gb") and tail.removesuffix("gb").isdigit() else 0


class TemplatePriorityClass(Value):
    """A priority class, and its weight on HyperPod's scale."""

    name: str
    value: int
    weight: int
    """0 to 100, in the order of the values. Equal values get equal weights."""
    description: str = ""
    is_interruptible: bool
    """Whether a job of a higher class may preempt it. A fault may end any job."""


class JobTemplate(Value):
    """The template of one kind of job."""

    name: str
    priority_class: str
    pools: tuple[str, ...]
    """In the order of preference. The first is the pool that its selector names."""
    accelerators: int
    cpu_millis: int
    memory_bytes: int
    proposed_cpu_millis: int = 0
    """The share of a node's CPU for its accelerators; 0 if the template requests at least that, or no CPU."""
    proposed_memory_bytes: int = 0
    tolerations: tuple[dict[str, str], ...] = ()


class JobTemplates(Value):
    """The contents of a values file."""

    default: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]
    """Unusable values are left out."""
    retries: int
    """Only for failures of the application."""
    keep_seconds: int
    checkpoint_seconds: int | None = None
    claims: dict[str, str]
    pools: tuple[TemplatePool, ...]
    classes: tuple[TemplatePriorityClass, ...]
    templates: tuple[JobTemplate, ...]
    findings: tuple[TemplateFinding, ...]
    image_pull_secrets: tuple[str, ...] = ()
    grace_seconds: int | None = None
    losses: tuple[str, ...] = ()
    """Settings that job types do not keep, each with its path and the reason."""

    def template_of(self, job_type: str = "") -> JobTemplate | None:
        """Return the template of a job type; without a type, the default template."""
        return next((template for template in self.templates if template.name == (job_type or self.default)), None)


def object_at(parent: Any, key: str, default: Json | None = None, path: str = "") -> Json:
    value = parent.get(key, default) if isinstance(parent, Mapping) else None
    value = default if value is None else value
    if not isinstance(value, Mapping):
        raise ValuesError(f"{path}{key}: is not an object")
    return value
