"""Compares the IAM actions of the templates with the service authorization reference of AWS.

python -m tests.template.iam_reference        write tests/fixtures/iam_actions.json again
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cfnlint

from tests.template import policy_sizes, statements
from tests.template.documents import ROOT, Json
from tests.template.statements import Statement

FILE: Final = ROOT / "tests" / "fixtures" / "iam_actions.json"
REFERENCE: Final[Json] = json.loads(
    (Path(cfnlint.__file__).parent / "data" / "AdditionalSpecs" / "Policies.json").read_text(encoding="utf-8")
)
"""The service authorization reference of AWS, as cfn-lint ships it."""
_PUBLISHED: Final = "https://servicereference.us-east-1.amazonaws.com/v1/{service}/{service}.json"
"""Where AWS publishes it for programs:
https://docs.aws.amazon.com/service-authorization/latest/reference/service-reference.html."""


def all_statements() -> tuple[Statement, ...]:
    return (*statements.of_roles(), *statements.of_callers(), *statements.of_on_call())


def reference_entry(action: str) -> Json:
    """Return the entry of an action in the reference.

    Raises:
        KeyError: The reference has no such action.
    """
    service, _, name = action.partition(":")
    document: Json = REFERENCE[service]["Actions"][name.lower()]
    return document


def actions() -> Json:
    """Return each action of the templates with its reference and the resources on which it can be granted."""
    names = sorted({action for statement in all_statements() for action in statement.actions})
    return {
        name: {
            "reference": _PUBLISHED.format(service=name.partition(":")[0]),
            "resources": sorted(reference_entry(name).get("Resources", ())),
        }
        for name in names
    }


def arn_patterns(action: str) -> list[str]:
    """Return regular expressions of the ARNs on which an action can be granted; none if the reference has none."""
    types: Json = {name.lower(): kind for name, kind in REFERENCE[action.partition(":")[0]]["Resources"].items()}
    formats = [
        arn
        for resource in reference_entry(action).get("Resources", ())
        for arn in types.get(resource.lower(), {}).get("ARNFormats", ())
    ]
    return [re.sub(r"\$\{[^}]+\}", "[^:/]*", arn) for arn in formats]


def arns(statement: Statement) -> Iterator[str]:
    """Yield the resources of a statement as CloudFormation resolves them. A stream has the ARN of its table."""
    for resource in statement.resources:
        yield from _texts(policy_sizes.resolved(_with_table_streams(resource)))


def _with_table_streams(resource: Any) -> Any:
    match resource:
        case {"Fn::GetAtt": [table, "StreamArn"]}:
            return {"Fn::Sub": f"${{{table}.Arn}}/stream/2026-01-01T00:00:00.000"}
    return resource


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif value is not None:
        yield str(value)


def _main() -> int:
    FILE.write_text(json.dumps(actions(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
