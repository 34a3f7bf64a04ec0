"""A new stack adopts the tables of a deleted one, on the engine's CloudFormation."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_local import PROJECT
from evenkeel_local.deployment import deploy
from evenkeel_local.engine import Engine
from evenkeel_local.identities import create_deployer
from tools import adoption

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]
PARAMETERS = {"FleetName": "local", "KubernetesClusters": "research-eks", "LocalEngine": "true"}
TABLES = ("JobsTable", "IncidentsTable", "FleetTable", "QuotasTable")


def restore(dynamodb: Any, source: str, target: str) -> None:
    """Restore a table, and enable the settings that a restored table lacks (docs/backup.md)."""
    dynamodb.restore_table_to_point_in_time(
        SourceTableName=source, TargetTableName=target, UseLatestRestorableTime=True
    )
    dynamodb.get_waiter("table_exists").wait(TableName=target)
    dynamodb.update_time_to_live(TableName=target, TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"})
    dynamodb.update_continuous_backups(
        TableName=target, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
    )
    dynamodb.update_table(
        TableName=target, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    )


@pytest.mark.parametrize("is_restored", [False, True], ids=["retained", "restored"])
def test_new_stack_imports_retained_tables_of_a_deleted_stack(is_restored: bool, tmp_path: Path) -> None:
    with Engine.start(tmp_path / "engine") as engine:
        deployer = create_deployer(engine)
        cloudformation, dynamodb = deployer.client("cloudformation"), deployer.client("dynamodb")
        first = deploy(engine, deployer, PARAMETERS)
        names = [first[f"{table}Name"] for table in TABLES]
        row = {"pk": {"S": "JOB#1"}, "sk": {"S": "META"}, "note": {"S": "kept"}}
        dynamodb.put_item(TableName=names[0], Item=row)
        if is_restored:
            for table, source in zip(TABLES, names, strict=True):
                restore(dynamodb, source, f"evenkeel-{table}-restored")
            names = [f"evenkeel-{table}-restored" for table in TABLES]
            later = {"pk": {"S": "JOB#2"}, "sk": {"S": "META"}}
            dynamodb.put_item(TableName=first["JobsTableName"], Item=later)
        cloudformation.delete_stack(StackName="evenkeel")
        cloudformation.get_waiter("stack_delete_complete").wait(StackName="evenkeel")

        # The import, as tools/adoption.py writes it and its commands run it.
        planned = read_planned_stack(PROJECT, "local")
        listed = adoption.resources_to_import([*names, first["RawEventsBucketName"]])
        cloudformation.create_change_set(
            StackName="evenkeel",
            ChangeSetName="adopt",
            ChangeSetType="IMPORT",
            TemplateBody=json.dumps(adoption.import_template(planned)),
            ResourcesToImport=listed,
        )
        cloudformation.get_waiter("change_set_create_complete").wait(StackName="evenkeel", ChangeSetName="adopt")
        change = cloudformation.describe_change_set(StackName="evenkeel", ChangeSetName="adopt")
        assert change["ExecutionStatus"] == "AVAILABLE", change.get("StatusReason")
        cloudformation.execute_change_set(StackName="evenkeel", ChangeSetName="adopt")
        cloudformation.get_waiter("stack_import_complete").wait(StackName="evenkeel")
        second = deploy(engine, deployer, PARAMETERS)

        assert [second[f"{table}Name"] for table in TABLES] == names
        assert second["RawEventsBucketName"] == first["RawEventsBucketName"]
        key = {"pk": row["pk"], "sk": row["sk"]}
        assert dynamodb.get_item(TableName=names[0], Key=key)["Item"] == row
        assert second["ApiId"] != first["ApiId"], "create each resource that holds no data anew"
        streams = {table: dynamodb.describe_table(TableName=table)["Table"]["LatestStreamArn"] for table in names}
        mapped = deployer.client("lambda").list_event_source_mappings()["EventSourceMappings"]
        sources = {mapping["EventSourceArn"] for mapping in mapped if ":dynamodb:" in mapping["EventSourceArn"]}
        assert sources
        assert sources <= set(streams.values()), "the publisher reads the streams of the adopted tables"
        if is_restored:
            key = {name: later[name] for name in ("pk", "sk")}
            assert "Item" not in dynamodb.get_item(TableName=names[0], Key=key), (
                "restore the tables as they were before this row was written"
            )
