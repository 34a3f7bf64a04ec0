"""The last step of every lane: PATCH the node with the product's own client."""

import json
import os
from typing import Any

import libraries  # type: ignore[import-not-found]  # a sibling in the folder of the functions

from evenkeel.adapters.eks import EksConnections

libraries.load()
CONNECTIONS = EksConnections(os.environ["AWS_REGION"])


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    _cordon(event["incidentId"])
    return {"outcome": "CORDONED", "reason": "Patched."}


def at_once(event: dict[str, Any], _context: object) -> None:
    _cordon(event["detail"]["NodeName"])


def _cordon(node: str) -> None:
    api = CONNECTIONS.api(os.environ["KUBERNETES_CLUSTER"])
    api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    print(json.dumps({"message": "TaskDone", "node": node}))
