"""The settings of a values file that job types do not keep, each with the reason. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from evenkeel.domain.jobs.template_findings import hides_gpus
from evenkeel.domain.jobs.templates import CLUSTER_SECTIONS, Json

Path = tuple[str, ...]
ANY = "*"
_REQUESTED = ("nvidia.com/gpu", "cpu", "memory")

KEPT: frozenset[Path] = frozenset(
    {
        *((name,) for name in ("jobType", "backoffLimit", "graceSeconds", "dataPvcName", "checkpointPvcName")),
        *(("image", name) for name in ("repository", "tag")),
        *((name, ANY) for name in ("command", "args", "env", "imagePullSecrets")),
        ("imagePullSecrets", ANY, "name"),
        ("nodeSelectors", ANY, "enabled"),
        ("nodeSelectors", ANY, "labels", ANY),
        *(("priorityClasses", ANY, name) for name in ("value", "description")),
        ("jobTemplates", ANY, "priorityClassName"),
        ("jobTemplates", ANY, "nodeSelector", ANY),
        *(("jobTemplates", ANY, "tolerations", ANY, name) for name in ("key", "operator", "value", "effect")),
        *(("jobTemplates", ANY, "resources", "requests", name) for name in _REQUESTED),
        ("jobTemplates", ANY, "resources", "limits", "nvidia.com/gpu"),
    }
)
"""Settings whose values are in the imported documents."""

REASONS: Mapping[Path, str] = {
    ("global", ANY): "a value of the chart's own templates; no pod reads it",
    ("nameOverride",): "Evenkeel names the objects of an attempt after the job",
    ("fullnameOverride",): "Evenkeel names the objects of an attempt after the job",
    ("modelType",): "a value of the chart's own templates; give the job an argument or a variable",
    (
        "image",
        "pullPolicy",
    ): "the image pull policy is Kubernetes' default: a node pulls an image that it does not have",
    (
        "serviceAccount",
        "create",
    ): "Evenkeel creates none; `serviceAccount` of a team names an existing one",
    ("serviceAccount", "name"): "set `serviceAccount` of the team, or the stack's parameter",
    ("serviceAccount", "annotations", ANY): "annotate the service account itself",
    ("ttlSecondsAfterFinished",): "the policy decides how long ended pods stay (jobs.keepWorkloadSeconds)",
    ("checkpointSeconds",): "the program decides when it saves; `evenkeel plan` takes it from the file",
    ("jobTemplates", ANY, "resources", "limits", "cpu"): "pods request CPU without a limit",
    ("jobTemplates", ANY, "resources", "limits", "memory"): "pods request memory without a limit",
    ("jobTemplates", ANY, "tolerations", ANY, "tolerationSeconds"): "Evenkeel moves a job as soon as its node is lost",
    ("priorityClasses", ANY, "preemptionPolicy"): "the imported classes have no preemption policy",
    ("priorityClasses", "preemptionPolicy"): "this is not a class; the imported classes have no preemption policy",
}
"""Settings that the imported documents cannot express."""

_DEFAULTS: Mapping[Path, Any] = {
    ("image", "pullPolicy"): "IfNotPresent",
    ("priorityClasses", ANY, "preemptionPolicy"): "PreemptLowerPriority",
    ("priorityClasses", "preemptionPolicy"): "PreemptLowerPriority",
}
"""Values that Kubernetes has without the setting. An import does not lose these settings."""


def find_dropped_values(document: Json) -> Iterator[str]:
    """Yield a line for each setting that the imported documents do not keep: its path and the reason.

    Each leaf of the file is kept, has a reason in `REASONS`, or is reported as unknown. An empty value is no setting.
    """
    for path, value in _leaf_values(document):
        field = ".".join(path)
        if path[0] in CLUSTER_SECTIONS or value in (None, "") or _entry_of(path, _DEFAULTS, None) == value:
            continue
        if path[0] == "env" and hides_gpus(path[-1], str(value)):
            yield f"{field}: no device has the name {value!r}; the device plugin sets the variable"
        elif path[0] == "nodeSelectors" and document["nodeSelectors"][path[1]].get("enabled") is False:
            if path[2] == "enabled":
                yield f"nodeSelectors.{path[1]}: the pool is switched off"
        elif _entry_of(path, dict.fromkeys(KEPT, True), False) is not True:
            yield f"{field}: {_entry_of(path, REASONS, 'no known setting')}"


def _leaf_values(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield path and value of each text, number and boolean in a document."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaf_values(item, (*path, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaf_values(item, (*path, str(index)))
    else:
        yield path, value


def _entry_of(path: Path, table: Mapping[Path, Any], default: Any) -> Any:
    """Return the entry whose path is equal; `ANY` matches any name."""
    for pattern, value in table.items():
        if len(pattern) == len(path) and all(a in (ANY, b) for a, b in zip(pattern, path, strict=True)):
            return value
    return default
