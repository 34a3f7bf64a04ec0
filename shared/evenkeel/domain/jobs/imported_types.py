"""Convert a values file to Evenkeel's documents: job types of the policy, priority classes and flavors of quotas."""

from collections.abc import Iterator
from typing import Any

from evenkeel.domain.capacity.pools import Market
from evenkeel.domain.jobs.job_types import JobTypes
from evenkeel.domain.jobs.templates import JobTemplate, JobTemplates, TemplatePool, ValuesError
from evenkeel.domain.values import Value

DATA_PATH = "/data"
"""Mount path of the claim `dataPvcName`. A values file names no path."""
_GIB = 2**30


class ImportedTypes(Value):
    """The documents of an imported values file."""

    policy: dict[str, Any]
    """Changes of the policy for `evenkeel policy apply`."""
    quotas: dict[str, Any]
    """Priority classes and flavors in the short form, for `evenkeel teams apply`."""
    priority_classes: dict[str, Any]
    """The priority classes as Kubernetes objects. The API server rejects pods of an unknown class."""
    losses: tuple[str, ...]
    """Properties of the file that the documents cannot express."""
    additions: tuple[str, ...]
    """Properties that the documents add."""


def import_values(job_templates: JobTemplates) -> ImportedTypes:
    """Return the documents of a values file.

    Raises:
        ValuesError: A template would run nowhere, or has a property that job types do not have; names the field.
    """
    for template in job_templates.templates:
        if not template.pools:
            raise ValuesError(
                f"jobTemplates.{template.name}.nodeSelector: every pool that it could use is switched off"
            )
    enabled_pools = [pool for pool in job_templates.pools if pool.is_enabled]
    document = {
        "default": job_templates.default,
        "types": {template.name: _job_type_fields(template, job_templates) for template in job_templates.templates},
        "pools": {pool.name: {"labels": pool.labels, "market": market_of(pool)} for pool in enabled_pools},
    }
    try:
        types = JobTypes.model_validate(document)
    except ValueError as error:
        raise ValuesError(f"jobTemplates: {error}") from error
    return ImportedTypes(
        policy={
            "jobTypes": types.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            **({"jobs": {"allowed": pod_rules}} if (pod_rules := _pod_rule_fields(job_templates)) else {}),
        },
        quotas={
            "priorityClasses": {priority_class.name: priority_class.value for priority_class in job_templates.classes},
            "flavors": [{"name": pool.name, "labels": pool.labels} for pool in enabled_pools],
        },
        priority_classes={
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": priority_class.name},
                    "value": priority_class.value,
                    "description": priority_class.description,
                }
                for priority_class in job_templates.classes
            ],
        },
        losses=tuple(_loss_texts(job_templates)),
        additions=tuple(_addition_texts(job_templates)),
    )


def market_of(pool: TemplatePool) -> Market:
    """Return the market of a pool, guessed from its labels and its name."""
    label_text = f"{pool.labels.get('node-type', '')} {pool.name}".lower()
    if pool.is_spot:
        return Market.SPOT
    return Market.ON_DEMAND if "demand" in label_text or label_text.startswith("eks") else Market.COMMITTED


def _job_type_fields(template: JobTemplate, job_templates: JobTemplates) -> dict[str, Any]:
    return {
        "priorityClass": template.priority_class,
        "image": job_templates.image,
        "command": job_templates.command,
        "args": job_templates.args,
        "env": job_templates.env,
        "acceleratorsPerNode": template.accelerators,
        "cpuPerNode": -(-template.cpu_millis // 1000) or None,
        "memoryGibPerNode": -(-template.memory_bytes // _GIB) or None,
        "maxRestarts": job_templates.retries,
        "graceSeconds": job_templates.grace_seconds,
        "imagePullSecrets": job_templates.image_pull_secrets,
        "volumes": [{"claim": claim, "mountPath": DATA_PATH} for claim in _data_claims(job_templates)],
        "checkpointClaim": job_templates.claims.get("checkpoints", ""),
        "pools": template.pools,
        "tolerations": [
            *map(_toleration_fields, template.tolerations),
            *_tolerations_of_later_pools(template, job_templates),
        ],
    }


def _data_claims(job_templates: JobTemplates) -> list[str]:
    return [claim for purpose, claim in job_templates.claims.items() if purpose == "data"]


def _pod_rule_fields(job_templates: JobTemplates) -> dict[str, Any]:
    """Return the entries that the types need in `jobs.allowed`, or in `allowed` of each team."""
    modes = [
        (claim, "read-write" if purpose == "checkpoints" else "") for purpose, claim in job_templates.claims.items()
    ]
    claims = [{"name": claim, **({"maxMode": mode} if mode else {})} for claim, mode in modes]
    secrets = list(job_templates.image_pull_secrets)
    return {**({"claims": claims} if claims else {}), **({"imagePullSecrets": secrets} if secrets else {})}


def _toleration_fields(toleration: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in toleration.items() if name in ("key", "operator", "value", "effect")}


def _tolerations_of_later_pools(template: JobTemplate, job_templates: JobTemplates) -> list[dict[str, str]]:
    """Return the tolerations for a template's later pools, from the templates that prefer these pools."""
    templates = (
        job_template
        for name in template.pools[1:]
        for job_template in job_templates.templates
        if job_template.pools[:1] == (name,)
    )
    tolerations = [_toleration_fields(toleration) for other in templates for toleration in other.tolerations]
    own_tolerations = [_toleration_fields(toleration) for toleration in template.tolerations]
    return [
        toleration
        for index, toleration in enumerate(tolerations)
        if toleration not in own_tolerations and toleration not in tolerations[:index]
    ]


def _addition_texts(job_templates: JobTemplates) -> Iterator[str]:
    """Yield what the imported job types have beyond the file, one sentence for each addition."""
    for claim in _data_claims(job_templates):
        yield f"{claim} is mounted read-only at {DATA_PATH}: the file names no path"
    if "checkpoints" in job_templates.claims:
        yield f"{job_templates.claims['checkpoints']} keeps the checkpoints of jobs whose checkpoint.uri is a folder"
    if _pod_rule_fields(job_templates):
        yield "jobs.allowed lists the claims and Secrets; with teams, copy it to `allowed` of each team"
    for template in job_templates.templates:
        for toleration in _tolerations_of_later_pools(template, job_templates):
            taint = f"{toleration.get('key', '')}={toleration.get('value', '')}"
            yield f"{template.name} tolerates {taint}: without it, the job could not use its later pools"


def _loss_texts(job_templates: JobTemplates) -> Iterator[str]:
    for template in job_templates.templates:
        if template.cpu_millis % 1000 or template.memory_bytes % _GIB:
            yield f"jobTemplates.{template.name}.resources: CPU and memory are rounded up to whole vCPU and GiB"
    yield from job_templates.losses
