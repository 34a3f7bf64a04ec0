"""The JSON schemas in docs/schemas of the documents that `evenkeel plan` and `economics` read and write."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from evenkeel.domain.economics import failure_rates, fleet_request, goodput
from evenkeel.domain.outbound import events as outbound
from evenkeel.domain.queue_simulation import (
    configuration,
    hyperpod_cluster_policy,
    node_manifests,
    plan_events,
    plan_report,
    queue_manifests,
    setup,
    short_form,
    why,
    workload_manifests,
)
from tools.field_docs import DescribedSchema

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Json = dict[str, Any]

SCHEMAS: dict[str, tuple[type[BaseModel], ...]] = {
    "quota.kueue": (
        queue_manifests.ClusterQueue,
        queue_manifests.CohortManifest,
        queue_manifests.LocalQueue,
        queue_manifests.ResourceFlavor,
        queue_manifests.WorkloadPriorityClass,
        queue_manifests.Namespace,
        node_manifests.TopologyManifest,
        node_manifests.NodeManifest,
        node_manifests.PodManifest,
    ),
    "quota.hyperpod": (
        hyperpod_cluster_policy.ComputeQuota,
        hyperpod_cluster_policy.SchedulerConfig,
        hyperpod_cluster_policy.ClusterCapacity,
        hyperpod_cluster_policy.ComputeQuotas,
    ),
    "quota.evenkeel": (short_form.ShortQuotas,),
    "jobs": (setup.Jobs, short_form.ShortJob, workload_manifests.WorkloadManifest),
    "events": (plan_events.Events,),
    "configuration.kueue": (configuration.Configuration,),
    "plan": (plan_report.Plan,),
    "why": (why.Why,),
    "economics.forecast": (fleet_request.FleetRequest,),
    "economics.goodput": (goodput.TimeSpent,),
    "economics.rate": (failure_rates.Observations,),
}


def schemas() -> dict[str, Json]:
    """Return each file's schema: one document of these kinds."""
    return {name: _schema(name, kinds) for name, kinds in SCHEMAS.items()}


def _schema(name: str, kinds: tuple[type[BaseModel], ...]) -> Json:
    mode: Any = "serialization" if name in ("plan", "why") else "validation"
    title = f"evenkeel {name.replace('.', ' ')}" if name.startswith("economics.") else f"evenkeel plan: {name}"
    head = {"$schema": DIALECT, "title": title}
    documents = [kind.model_json_schema(by_alias=True, mode=mode, schema_generator=DescribedSchema) for kind in kinds]
    if len(documents) == 1:
        return {**documents[0], **head}
    shared: Json = {}
    for document in documents:
        shared |= document.pop("$defs", {})
    return {**head, "anyOf": documents, "$defs": dict(sorted(shared.items()))}


def outbound_events() -> Json:
    """Return the schema of the events that Evenkeel publishes, as EventBridge delivers them."""
    shared: Json = {}

    def part(kind: type[BaseModel]) -> Json:
        document = kind.model_json_schema(by_alias=True, mode="serialization", schema_generator=DescribedSchema)
        shared.update(document.pop("$defs", {}))
        return document

    common, metadata = part(outbound.CommonData), part(outbound.EventMetadata)
    kinds = []
    for kind, data_type in outbound.DATA_OF.items():
        own = part(data_type)
        data = {
            **own,
            "title": f"{kind} data",
            "properties": {**common["properties"], **own["properties"]},
            "required": [*common["required"], *own.get("required", ())],
        }
        detail = {
            "type": "object",
            "properties": {"metadata": metadata, "data": data},
            "required": ["metadata", "data"],
        }
        kinds.append(
            {
                "title": str(kind),
                "type": "object",
                "properties": {
                    "source": {"const": outbound.SOURCE},
                    "detail-type": {"const": str(kind)},
                    "detail": detail,
                },
                "required": ["source", "detail-type", "detail"],
            }
        )
    head = {"$schema": DIALECT, "title": f"Events of Evenkeel, version {outbound.SCHEMA_VERSION}"}
    return {**head, "oneOf": kinds, "$defs": dict(sorted(shared.items()))}


def files() -> dict[Path, str]:
    """Return each file with its content."""
    documents = {**schemas(), "outbound-events": outbound_events()}
    return {
        TARGET / f"{name}.schema.json": json.dumps(document, indent=1) + "\n" for name, document in documents.items()
    }
