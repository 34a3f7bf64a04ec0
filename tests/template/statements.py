"""Every permission of the template, as input of the removal tests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.template.documents import Json, as_list, resources

_NOTHING = {"Ref": "AWS::NoValue"}
FUNCTIONS: Final = {
    f"{name}Role": str(spec["FunctionName"]["Fn::Sub"]).removeprefix("${AWS::StackName}-")
    for name, spec in resources("AWS::Serverless::Function").items()
}
"""Role's logical id → function."""


@dataclass(frozen=True)
class Statement:
    """A statement of a role or managed policy."""

    owner: str
    """Logical id of the role or the managed policy."""
    sid: str
    actions: tuple[str, ...]
    resources: tuple[Any, ...]
    """As written, intrinsic functions included."""
    condition: str = ""
    """The template condition under which the statement exists; empty if it always exists."""

    def __str__(self) -> str:
        return f"{self.owner}.{self.sid}"


@dataclass(frozen=True, order=True)
class Permission:
    """An action of a statement: the smallest removable permission."""

    owner: str
    sid: str
    action: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.sid}:{self.action}"


def of_document(owner: str, document: Json) -> Iterator[Statement]:
    """Yield the statements of a policy document, including those under a condition."""
    for written in document["Statement"]:
        condition, statement = "", written
        if "Fn::If" in written:
            condition, statement, otherwise = written["Fn::If"]
            assert otherwise == _NOTHING, f"{owner}: end the Fn::If of the statement with AWS::NoValue, not {otherwise}"
        yield Statement(
            owner,
            statement["Sid"],
            tuple(as_list(statement["Action"])),
            tuple(as_list(statement["Resource"])),
            condition,
        )


def of_roles() -> tuple[Statement, ...]:
    """Return the statements of every role, and of its attached managed policies."""
    inline = (
        statement
        for role, properties in resources("AWS::IAM::Role").items()
        for policy in properties["Policies"]
        for statement in of_document(role, policy["PolicyDocument"])
    )
    managed = resources("AWS::IAM::ManagedPolicy")
    attached = (
        replace(statement, condition=condition)
        for role, policy, condition in attachments()
        for statement in of_document(role, managed[policy]["PolicyDocument"])
    )
    return (*inline, *attached)


def attachments() -> tuple[tuple[str, str, str], ...]:
    """Return (role, managed policy of the template, template condition) for each policy that a role attaches."""
    policies_found = []
    for role, properties in resources("AWS::IAM::Role").items():
        if "ManagedPolicyArns" in properties:
            condition, policies, otherwise = properties["ManagedPolicyArns"]["Fn::If"]
            assert otherwise == _NOTHING, f"{role}: end the Fn::If of the policies with AWS::NoValue, not {otherwise}"
            policies_found += [(role, policy["Ref"], condition) for policy in policies]
    return tuple(policies_found)


ON_CALL: Final = "EvenkeelOnCall"


def of_callers() -> tuple[Statement, ...]:
    """Return the statements of the managed policies with which people may call routes of the API."""
    return tuple(statement for statement in _managed() if statement.owner != ON_CALL)


def of_on_call() -> tuple[Statement, ...]:
    """Return the statements of the managed policy for `evenkeel doctor` and the runbooks."""
    return tuple(statement for statement in _managed() if statement.owner == ON_CALL)


def people_policies() -> dict[str, Json]:
    """Return the managed policies for people's identities, by logical id."""
    of_functions = {policy for _, policy, _ in attachments()}
    return {name: policy for name, policy in resources("AWS::IAM::ManagedPolicy").items() if name not in of_functions}


def _managed() -> Iterator[Statement]:
    for policy, properties in people_policies().items():
        yield from of_document(policy, properties["PolicyDocument"])


def permissions(statements: tuple[Statement, ...]) -> tuple[Permission, ...]:
    """Return each action of each statement, in the template's order."""
    return tuple(
        Permission(statement.owner, statement.sid, action) for statement in statements for action in statement.actions
    )


def without(document: Json, permission: Permission) -> Json:
    """Return a deployed policy document without one action, and without the statement if that was its last."""
    kept = []
    for statement in document["Statement"]:
        actions = as_list(statement["Action"])
        if statement.get("Sid") == permission.sid:
            actions = [action for action in actions if action != permission.action]
        if actions:
            kept.append({**statement, "Action": actions})
    return {**document, "Statement": kept}
