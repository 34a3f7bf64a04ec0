"""Queue `events`, without a service behind it: each event starts the workflow."""

import json
import os
from typing import Any

import libraries  # type: ignore[import-not-found]  # a sibling in the folder of the functions

from evenkeel.adapters import aws

libraries.load()
STATES = aws.client("stepfunctions")


def handler(batch: dict[str, Any], _context: object) -> dict[str, Any]:
    for record in batch["Records"]:
        envelope = json.loads(record["body"])
        # The workflow passes its incident id to every state, so here the node's name is the id.
        document = {"schemaVersion": 1, "incidentId": envelope["detail"]["NodeName"], "run": 1}
        STATES.start_execution(
            stateMachineArn=os.environ["RECOVER_NODE_ARN"], name=envelope["id"], input=json.dumps(document)
        )
    print(json.dumps({"message": "EventDone"}))
    return {"batchItemFailures": []}
