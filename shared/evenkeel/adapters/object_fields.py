"""Fields of Kubernetes objects that several modules read or write: labels, resource names, times and conditions."""

import functools
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

from evenkeel.domain.external.burst_check_protocol import RENTAL_NODE_LABEL
from evenkeel.domain.kueue.quantities import amount

Json: TypeAlias = dict[str, Any]

JOB_LABEL = "evenkeel.io/job"
ATTEMPT_LABEL = "evenkeel.io/attempt"
FLEET_LABEL = "evenkeel.io/fleet"
CHECK_LABEL = "evenkeel.io/check"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label of a Job that Kueue admits. Only the Job has it, because Kueue admits the Job and not each pod.
Source: Kueue's `pkg/controller/constants`."""
KUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
KUEUE_JOB_LABEL = "kueue.x-k8s.io/job-uid"
"""Label of a Workload: the UID of its Job."""
RENTAL_LABEL = RENTAL_NODE_LABEL
"""Label of capacity pods and their Job, and of nodes that were rented for a job in Kueue's queue."""
DECISION_NOTE = "evenkeel.io/decision"
"""Annotation: the decision that admitted the attempt. It identifies a Job until the Job's UID is recorded."""
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"

NVIDIA, NEURON = "nvidia.com/gpu", "aws.amazon.com/neuron"
HUGE_PAGES = "hugepages-2Mi"
MIB = 2**20
SAGEMAKER = "sagemaker.amazonaws.com"

NAME_LIMIT = 128
"""Maximum characters of a name from a kubelet, an agent or an annotation. The API server does not limit these."""
MESSAGE_LIMIT = 500
"""Maximum characters of a condition's message, because decision records contain it."""


def has_condition(item: Mapping[str, Any], *kinds: str) -> bool:
    """Whether any of these conditions is true."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(condition["type"] in kinds and condition["status"] == "True" for condition in conditions)


def parse_instant(text: str | None) -> datetime | None:
    """Parse a time from an agent; None if it is not valid. A bad time must not hide the whole node."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return at if at.tzinfo else None


def controller_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return kind and name of an object's controller; empty if it has none."""
    owners = item["metadata"].get("ownerReferences") or ()
    return next(((str(owner["kind"]), str(owner["name"])) for owner in owners if owner.get("controller")), ("", ""))


def accelerators_in(quantities: Mapping[str, Any]) -> tuple[str, int]:
    """Return the accelerator resource among the quantities, and its count; "" and 0 if there is none."""
    for resource in (NVIDIA, NEURON):
        if resource in quantities:
            return resource, parse_quantity(resource, quantities[resource])
    return "", 0


@functools.lru_cache(maxsize=4096, typed=True)  # the objects of a fleet repeat the same few amounts
def parse_quantity(resource: str, quantity: str | float) -> int:
    """Parse a Kubernetes quantity, such as `1k` for 1000. An invalid quantity counts as 0."""
    try:
        return amount(resource, quantity)
    except ValueError:
        return 0


def condition_of(status: Mapping[str, Any], kind: str, value: str) -> Mapping[str, Any] | None:
    conditions = status.get("conditions") or ()
    return next(
        (condition for condition in conditions if condition["type"] == kind and condition["status"] == value), None
    )
