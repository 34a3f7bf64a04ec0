"""A new stack adopts the tables of an earlier one: the files of the import agree with the template."""

import json
import shlex
from pathlib import Path

import pytest
from cfnlint.api import lint
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from evenkeel_cli.offline.planned_stack import PlannedStack, read_planned_stack
from tests.template.documents import resources, template
from tools import adoption

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("JobsTable", "IncidentsTable", "FleetTable", "QuotasTable")
NAMES = [*(f"evenkeel-{table}-1A2B" for table in TABLES), "evenkeel-raweventsbucket-1a2b"]


def a_planned_stack(**changes: str) -> PlannedStack:
    read = read_planned_stack(ROOT, "prod")
    return read._replace(parameters={**read.parameters, **changes})


def test_import_includes_every_table_and_the_archive_bucket() -> None:
    imported_resources = {document["LogicalResourceId"]: document for document in adoption.resources_to_import(NAMES)}
    retained_resources = {
        name for name, resource in template()["Resources"].items() if "Retain" in resource.get("DeletionPolicy", "")
    }

    assert set(imported_resources) == {*TABLES, "RawEventsBucket"}
    # The log role of API Gateway belongs to the account, so a new stack does not import it.
    assert retained_resources == {*imported_resources, "ApiLogAccount", "ApiLogAccountRole"}
    assert imported_resources["JobsTable"]["ResourceIdentifier"] == {"TableName": "evenkeel-JobsTable-1A2B"}
    assert imported_resources["RawEventsBucket"]["ResourceIdentifier"] == {
        "BucketName": "evenkeel-raweventsbucket-1a2b"
    }


@pytest.mark.parametrize("kind", sorted(adoption.IDENTIFIERS))
def test_import_uses_the_identifier_that_cloudformation_expects_of_each_type(kind: str) -> None:
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema

    assert schema["primaryIdentifier"] == [f"/properties/{adoption.IDENTIFIERS[kind]}"]


@pytest.mark.parametrize(("schedules", "protects"), [("off", False), ("on", True)])
def test_import_template_has_the_same_resources_as_the_template(schedules: str, protects: bool) -> None:
    document = adoption.import_template(a_planned_stack(Schedules=schedules))
    template_resources = template()["Resources"]

    assert set(document) == {"AWSTemplateFormatVersion", "Resources"}, "an import adds no output and no transform"
    assert set(document["Resources"]) == {
        document["LogicalResourceId"] for document in adoption.resources_to_import(NAMES)
    }
    for name, imported_resource in document["Resources"].items():
        original = json.loads(json.dumps(template_resources[name]))
        if name in TABLES:
            original["Properties"]["DeletionProtectionEnabled"] = protects
        assert imported_resource == original, "a difference would change or replace the resource after the import"
        assert imported_resource["DeletionPolicy"] == "RetainExceptOnCreate", (
            "set a DeletionPolicy: CloudFormation refuses an import without it"
        )
    assert "Fn::" not in json.dumps(document)
    assert [str(match) for match in lint(json.dumps(document), regions=["us-west-2"])] == []


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (NAMES[1:], "exactly one resource for JobsTable"),
        ([*NAMES, "evenkeel-JobsTable-2C"], "exactly one resource for JobsTable"),
        ([*NAMES[:4], "other-bucket"], "other-bucket belongs to no retained resource"),
    ],
    ids=["missing", "twice", "foreign"],
)
def test_adoption_refuses_missing_duplicate_or_unrelated_names(names: list[str], says: str) -> None:
    with pytest.raises(adoption.BadNames, match=says):
        adoption.resources_to_import(names)


def test_tables_restored_under_the_documented_names_can_be_adopted() -> None:
    restored = [f"evenkeel-{table}-restored" for table in TABLES]

    assert len(adoption.resources_to_import([*restored, "evenkeel-raweventsbucket-1e"])) == 5


def test_template_sets_no_table_name() -> None:
    for table in resources("AWS::DynamoDB::Table").values():
        assert "TableName" not in table, "a fixed name would keep a restored table from being adopted"


def test_adoption_commands_end_with_the_deployment(tmp_path: Path) -> None:
    commands = adoption.commands(a_planned_stack(), tmp_path)

    assert "--change-set-type IMPORT" in commands[0]
    assert shlex.split(commands[-1]) == ["make", "deploy", "ENV=prod"]
