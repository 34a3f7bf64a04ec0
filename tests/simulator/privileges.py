"""The table permissions of the functions' roles in the template. On AWS, a call beyond them fails only after
deployment.
"""

import functools
import json
from typing import NamedTuple

from evenkeel.ports import Add, ConditionCheck, Delete, Put, Table, Write
from tests.template.statements import FUNCTIONS, of_roles

_WRITES = {Put: "PutItem", Delete: "DeleteItem", ConditionCheck: "ConditionCheckItem", Add: "UpdateItem"}


class TableRequest(NamedTuple):
    """A kind of call to DynamoDB."""

    action: str
    table: Table
    is_of_index: bool = False

    def __str__(self) -> str:
        return f"dynamodb:{self.action} on {self.table}{' by state' if self.is_of_index else ''}"


def request_of_write(write: Write) -> TableRequest:
    """Return the permissions that a write of a commit needs."""
    return TableRequest(_WRITES[type(write)], write.row.key.table if isinstance(write, Put) else write.key.table)


@functools.cache
def granted_requests(function: str) -> frozenset[TableRequest]:
    """Return the permissions of a function's role on the tables."""
    return frozenset(
        TableRequest(action.removeprefix("dynamodb:"), table, "/index/" in written)
        for statement in of_roles()
        if FUNCTIONS.get(statement.owner) == function
        for written in map(json.dumps, statement.resources)
        for table in Table
        if f"{table.capitalize()}Table" in written
        for action in statement.actions
    )
