"""The permissions in docs/iam.md that neither the engine nor the local GPU cluster enforces."""

import re
from collections.abc import Iterator

from tests.template.documents import ROOT, resources
from tests.template.statements import Permission, Statement, of_callers, of_document, of_roles, permissions

_ROW = re.compile(r"^\| `(?P<sid>[A-Z]\w+)` \| (?P<why>.+\.) \|$", re.MULTILINE)


def unproven() -> dict[str, str]:
    """Return each documented Sid with the reason why no local test proves it."""
    text = (ROOT / "docs" / "iam.md").read_text(encoding="utf-8")
    section = text.partition("\n## What is tested, and what is not\n")[2]
    return {row["sid"]: row["why"] for row in _ROW.finditer(section)}


def of_resources() -> Iterator[Statement]:
    """Yield the statements of the policies that resources carry: queues, the topic, its key, the bucket."""
    for kind, field in (
        ("AWS::SQS::QueuePolicy", "PolicyDocument"),
        ("AWS::SNS::TopicPolicy", "PolicyDocument"),
        ("AWS::S3::BucketPolicy", "PolicyDocument"),
        ("AWS::KMS::Key", "KeyPolicy"),
    ):
        for name, properties in resources(kind).items():
            yield from of_document(name, properties[field])


def proved_of_roles() -> list[Permission]:
    """Return the permissions of roles that a test removes."""
    return [permission for permission in permissions(of_roles()) if permission.sid not in unproven()]


def unproven_of_roles(owner: str) -> list[Permission]:
    """Return the deployed permissions of a role that no test proves."""
    conditions = {"HasVpc", "HasCheckpointEncryption"}
    undeployed = {statement.sid for statement in of_roles() if statement.condition in conditions}
    listed = (
        permission
        for permission in permissions(of_roles())
        if permission.owner == owner and permission.sid in unproven()
    )
    return [permission for permission in listed if permission.sid not in undeployed]


def every_sid() -> set[str]:
    """Return every Sid of the template."""
    return {statement.sid for statement in (*of_roles(), *of_callers(), *of_resources())}


def sids_with_a_test() -> set[str]:
    """Return the Sids that the removal tests are generated for."""
    return {permission.sid for permission in proved_of_roles()} | {statement.sid for statement in of_callers()}
