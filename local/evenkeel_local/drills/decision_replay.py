"""Replay every decision that the data centre recorded."""

from collections.abc import Collection, Iterator
from typing import Any

from evenkeel.adapters.dynamo_ledger import DynamoLedger, document_of
from evenkeel.domain.decisions import Decision
from evenkeel.domain.policy import changed
from evenkeel.domain.replay import CannotReplayError, replay
from evenkeel.ports import Table
from evenkeel.runtime.wiring import load_policy
from evenkeel.services.storage.facts_of_decisions import with_facts
from evenkeel_local.data_centre import DataCentre


def replay_mismatches(centre: DataCentre, earlier_policies: Collection[str] = ()) -> list[str]:
    """Return the decisions that do not replay to their recorded answer, with the difference.

    Args:
        centre: The data centre.
        earlier_policies: Hashes of the policies of earlier releases. Only the code of these releases can load them, so
            their decisions are left out.
    """
    base = load_policy("local")
    changes_made = [doc["change"]["changes"] for _, doc in incident_rows(centre, "POLICY#") if "change" in doc]
    policies = {policy.hash: policy for policy in (base, *(changed(base, changes) for changes in changes_made))}
    mismatches = []
    for key, decision in recorded_decisions(centre):
        if decision.policy_hash in earlier_policies:
            continue
        try:
            differs = replay(decision, policies.get(decision.policy_hash, base)).differs_from(decision)
        except CannotReplayError as error:
            differs = str(error)
        if differs:
            mismatches.append(f"{key} ({decision.kind}): {differs}")
    return mismatches


def recorded_decisions(centre: DataCentre) -> Iterator[tuple[str, Decision]]:
    """Yield each record with its key and its facts."""
    tables = {Table.INCIDENTS: centre.outputs["IncidentsTableName"]}
    ledger = DynamoLedger(tables, centre.deployer.client("dynamodb"))
    for key, doc in incident_rows(centre, "DEC#"):
        (decision,) = with_facts((Decision.model_validate(doc),), ledger)
        yield key, decision


def incident_rows(centre: DataCentre, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents of the incidents table with their key, `partition/sort key`."""
    pages = centre.deployer.client("dynamodb").get_paginator("scan")
    for page in pages.paginate(TableName=centre.outputs["IncidentsTableName"]):
        for item in page["Items"]:
            key = f"{item['pk']['S']}/{item['sk']['S']}"
            if key.startswith(prefix):
                yield key, document_of(item)
