"""Write the files with which a new stack adopts the tables and the archive of an earlier one.

CloudFormation imports resources only with a template that creates nothing. So the new stack begins with a template
of the retained resources alone, and the next `make deploy` adds all other resources.

    python -m tools.adoption prod evenkeel-JobsTable-1A evenkeel-IncidentsTable-1B … evenkeel-raweventsbucket-1E
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from evenkeel_cli.offline.planned_stack import PlannedStack, read_planned_stack
from evenkeel_client.errors import CommandFailed
from tools.architecture import template

ROOT = Path(__file__).resolve().parents[1]
Json = dict[str, Any]
IDENTIFIERS = {"AWS::DynamoDB::Table": "TableName", "AWS::S3::Bucket": "BucketName"}
"""Types that the stack retains, with the property that identifies a resource in an import.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/resource-import-supported-resources.html
"""


class BadNames(ValueError):
    """The names do not identify each retained resource exactly once."""


def retained_resources() -> dict[str, Json]:
    """Return the resources that stay when the stack is deleted, by logical id, without resources of the account."""
    candidates: dict[str, Json] = {
        name: resource for name, resource in template().items() if resource["Type"] in IDENTIFIERS
    }
    return {name: resource for name, resource in candidates.items() if resource["DeletionPolicy"].startswith("Retain")}


def import_template(planned: PlannedStack) -> Json:
    """Return a template of the retained resources alone, with every condition resolved."""
    protects = planned.parameters["TableProtection"] == planned.parameters["Schedules"] == "on"
    resources: Json = json.loads(json.dumps(retained_resources()))
    for resource in resources.values():
        if "DeletionProtectionEnabled" in resource["Properties"]:
            resource["Properties"]["DeletionProtectionEnabled"] = protects
    return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}


def resources_to_import(names: list[str]) -> list[Json]:
    """Return the list that `create-change-set --resources-to-import` reads.

    Each name contains the logical id of its resource, as CloudFormation and `restored_name` make names.

    Raises:
        BadNames: a resource has no name or two, or a name belongs to no resource.
    """
    names_by_resource: dict[str, list[str]] = {logical: [] for logical in retained_resources()}
    for name in names:
        owners = [logical for logical in names_by_resource if f"-{logical}-".lower() in f"{name}-".lower()]
        if len(owners) != 1:
            raise BadNames(f"{name} belongs to no retained resource: {', '.join(names_by_resource)}")
        names_by_resource[owners[0]].append(name)
    if wrong := [logical for logical, given in names_by_resource.items() if len(given) != 1]:
        raise BadNames(f"name exactly one resource for {', '.join(wrong)}")
    kinds = {logical: resource["Type"] for logical, resource in retained_resources().items()}
    return [
        {
            "ResourceType": kinds[logical],
            "LogicalResourceId": logical,
            "ResourceIdentifier": {IDENTIFIERS[kinds[logical]]: name},
        }
        for logical, (name,) in names_by_resource.items()
    ]


def commands(planned: PlannedStack, folder: Path) -> list[str]:
    """Return the commands that import the resources and complete the stack."""
    stack = f"--stack-name {planned.name} --region {planned.region}"
    change = f"{stack} --change-set-name adopt"
    files = (
        f"--template-body file://{folder}/import-template.json"
        f" --resources-to-import file://{folder}/resources-to-import.json"
    )
    return [
        f"aws cloudformation create-change-set {change} --change-set-type IMPORT {files}",
        f"aws cloudformation wait change-set-create-complete {change}",
        f"aws cloudformation describe-change-set {change}",
        f"aws cloudformation execute-change-set {change}",
        f"aws cloudformation wait stack-import-complete {stack}",
        f"make deploy ENV={planned.environment}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("environment", help="an environment of samconfig.toml, whose stack does not exist")
    parser.add_argument("names", nargs="+", help="the names of the four tables and of the bucket")
    parser.add_argument("--folder", type=Path, default=Path(".aws-sam") / "adoption")
    args = parser.parse_args()
    try:
        planned = read_planned_stack(ROOT, args.environment)
        listed = resources_to_import(args.names)
    except (BadNames, CommandFailed) as error:
        sys.exit(f"adoption: {error}")
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("import-template", import_template(planned)), ("resources-to-import", listed)):
        (args.folder / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    print("Run these commands. Read the change set before you execute it.", *commands(planned, args.folder), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
