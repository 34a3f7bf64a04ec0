"""A new stack adopts the tables of a deleted one, on the engine's CloudFormation."""

import json
from pathlib import Path

import pytest

from evenkeel_cli.offline.planned_stack import read_planned_stack
from evenkeel_local import PROJECT
from evenkeel_local.deployment import deploy
from evenkeel_local.engine import Engine
from evenkeel_local.identities import bootstrap
from tools import adoption

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]
PARAMETERS = {"FleetName": "local", "KubernetesClusters": "research-eks", "LocalEngine": "true"}
TABLES = ("JobsTable", "IncidentsTable", "FleetTable", "QuotasTable")


def test_new_stack_adopts_the_tables_of_a_deleted_one(tmp_path: Path) -> None:
    with Engine.start(tmp_path / "engine") as engine:
        deployer = bootstrap(engine)
        cloudformation, dynamodb = deployer.client("cloudformation"), deployer.client("dynamodb")
        first = deploy(engine, deployer, PARAMETERS)
        names = [first[f"{table}Name"] for table in TABLES]
        row = {"pk": {"S": "JOB#1"}, "sk": {"S": "META"}, "note": {"S": "kept"}}
        dynamodb.put_item(TableName=names[0], Item=row)
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
        assert second["ApiId"] != first["ApiId"], "all other resources are new"
