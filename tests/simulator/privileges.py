"""What the roles of the template let functions do with the tables: more than that fails only once it is deployed."""

import functools
import json
from typing import NamedTuple

from evenkeel.ports import Add, ConditionCheck, Delete, Put, Table, Write
from tests.template.statements import FUNCTIONS, of_roles

_WRITES = {Put: "PutItem", Delete: "DeleteItem", ConditionCheck: "ConditionCheckItem", Add: "UpdateItem"}


class TableRequest(NamedTuple):
    """One kind of call to DynamoDB."""

    action: str
    table: Table
    is_of_index: bool = False

    def __str__(self) -> str:
        return f"dynamodb:{self.action} on {self.table}{' by state' if self.is_of_index else ''}"


def ask_of(write: Write) -> TableRequest:
    """Return what a member of a commit needs."""
    return TableRequest(_WRITES[type(write)], write.row.key.table if isinstance(write, Put) else write.key.table)


@functools.cache
def granted(function: str) -> frozenset[TableRequest]:
    """Return what a function's role lets it ask of the tables."""
    return frozenset(
        TableRequest(action.removeprefix("dynamodb:"), table, "/index/" in written)
        for statement in of_roles()
        if FUNCTIONS.get(statement.owner) == function
        for written in map(json.dumps, statement.resources)
        for table in Table
        if f"{table.capitalize()}Table" in written
        for action in statement.actions
    )
