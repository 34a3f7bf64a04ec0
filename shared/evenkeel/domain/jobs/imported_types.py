"""A values file as Evenkeel's own documents: job types for the policy, priority classes and flavors for the quotas."""

from collections.abc import Iterator
from typing import Any

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.templates import JobTemplate, JobTemplates, TemplatePool, ValuesError
from evenkeel.domain.jobs.types import JobTypes
from evenkeel.domain.values import Value


class ImportedTypes(Value):
    """What a values file becomes."""

    policy: dict[str, Any]
    """A site's changes to the policy, as `evenkeel policy apply` takes them."""
    quotas: dict[str, Any]
    """Priority classes and flavors in the short form, as `evenkeel teams apply` takes them."""
    priority_classes: dict[str, Any]
    """The same classes as Kubernetes objects: the API server takes no pod of a class that it does not know."""
    losses: tuple[str, ...]
    """What the file says and neither document can."""
    additions: tuple[str, ...]
    """What a document says that the file does not."""


def import_values(read: JobTemplates) -> ImportedTypes:
    """Return the documents that a values file stands for.

    Raises:
        ValuesError: a template would run nowhere, or has what a job type cannot have; names the field.
    """
    for template in read.templates:
        if not template.pools:
            raise ValuesError(
                f"jobTemplates.{template.name}.nodeSelector: every pool that it could use is switched off"
            )
    enabled = [pool for pool in read.pools if pool.is_enabled]
    document = {
        "default": read.default,
        "types": {template.name: _type(template, read) for template in read.templates},
        "pools": {pool.name: {"labels": pool.labels, "market": market_of(pool)} for pool in enabled},
    }
    try:
        types = JobTypes.model_validate(document)
    except ValueError as error:
        raise ValuesError(f"jobTemplates: {error}") from error
    return ImportedTypes(
        policy={"jobTypes": types.model_dump(mode="json", by_alias=True, exclude_defaults=True)},
        quotas={
            "priorityClasses": {each.name: each.value for each in read.classes},
            "flavors": [{"name": pool.name, "labels": pool.labels} for pool in enabled],
        },
        priority_classes={
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": each.name},
                    "value": each.value,
                    "description": each.description,
                }
                for each in read.classes
            ],
        },
        losses=tuple(_losses(read)),
        additions=tuple(_additions(read)),
    )


def market_of(pool: TemplatePool) -> Market:
    """Return how a pool's nodes are had, as far as its labels and its name tell."""
    label_text = f"{pool.labels.get('node-type', '')} {pool.name}".lower()
    if pool.is_spot:
        return Market.SPOT
    return Market.ON_DEMAND if "demand" in label_text or label_text.startswith("eks") else Market.COMMITTED


def _type(template: JobTemplate, read: JobTemplates) -> dict[str, Any]:
    return {
        "priorityClass": template.priority_class,
        "image": read.image,
        "command": read.command,
        "args": read.args,
        "env": read.env,
        "acceleratorsPerNode": template.accelerators,
        "maxRestarts": read.retries,
        "pools": template.pools,
        "tolerations": [*map(_written, template.tolerations), *_of_pools_behind(template, read)],
    }


def _written(toleration: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in toleration.items() if name in ("key", "operator", "value", "effect")}


def _of_pools_behind(template: JobTemplate, read: JobTemplates) -> list[dict[str, str]]:
    """Return what a template has to tolerate on the pools behind its first one: what those do whose first they are."""
    others = (each for name in template.pools[1:] for each in read.templates if each.pools[:1] == (name,))
    wanted = [_written(toleration) for other in others for toleration in other.tolerations]
    own = [_written(each) for each in template.tolerations]
    return [each for place, each in enumerate(wanted) if each not in own and each not in wanted[:place]]


def _additions(read: JobTemplates) -> Iterator[str]:
    for template in read.templates:
        for each in _of_pools_behind(template, read):
            taint = f"{each.get('key', '')}={each.get('value', '')}"
            yield f"{template.name} tolerates {taint}: without it the pools behind its first one would be closed to it"


def _losses(read: JobTemplates) -> Iterator[str]:
    if any(template.cpu_millis or template.memory_bytes for template in read.templates):
        yield "resources.cpu, resources.memory: pods ask for accelerators alone, and share what else the node has"
    if read.keep_seconds:
        yield "ttlSecondsAfterFinished: ended pods are kept as long as the policy says (jobs.keepWorkloadSeconds)"
    for use, claim in read.claims.items():
        if use == "checkpoints":
            yield f"{claim}: a job names its own path on the claim (checkpoint.uri, checkpoint.claim)"
        else:
            yield f"{claim}: no other claim than that of the checkpoints is mounted"
    for template in read.templates:
        if any("tolerationSeconds" in each for each in template.tolerations):
            yield f"jobTemplates.{template.name}.tolerations: tolerationSeconds"
