"""The transactions of the bare loop of `bench.admissions`: a fixed work, whatever Evenkeel writes today.

They have the form of those that admitted 120 jobs at commit 9fbf760: 10 transactions with 12 admissions each, 640
items, 2.7 MB as JSON. An admission had five rows. Its record held every earlier admission, so records grew.

    tree ─ usage of three teams ─ 12 of (charge ─ job ─ attempt ─ record ─ entry of the timeline)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from evenkeel.domain.jobs.job import JobState
from evenkeel.ports import Key, Row, Table
from evenkeel.services.tables import quota_rows

ADMISSIONS: Final = 120
PER_TRANSACTION: Final = 12
_TEAMS: Final = ("red", "blue", "green")
_CHARGE, _JOB, _ATTEMPT, _ENTRY = 490, 1690, 900, 200
"""Characters of the documents."""
_FIRST_RECORD, _LAST_RECORD = 2_600, 27_500
"""Characters of the first and of the last record. Each admission made the list of holders longer."""
_DAY: Final = "2026-11-03T10:15:02.000000Z"
_EXPIRES: Final = {"ttl": {"N": "1828260902"}}
_NEW: Final = {"ConditionExpression": "attribute_not_exists(pk)"}
_HOLDER: Final = '{"name":"job-0000000008","queue":"blue","priority":10,"createdAt":1793700902.0,"podSets":[]}'
_FRAME: Final = '{{"holders":[{}],"rest":"{}"}}'


def transactions(job_ids: Sequence[str], prefix: str) -> list[list[dict[str, Any]]]:
    """Return the transactions that admit these jobs, whose rows have version 1, on the tables of a round.

    Raises:
        ValueError: There are not 120 jobs.
    """
    if len(job_ids) != ADMISSIONS:
        raise ValueError(f"{len(job_ids)} jobs, and the fixed transactions admit {ADMISSIONS}")
    numbered = enumerate(job_ids)
    return [
        [
            _update_tree(prefix),
            *(_update_usage(team, prefix) for team in _TEAMS),
            *itertools.chain.from_iterable(
                _admission_writes(job_id, number, prefix)
                for number, job_id in itertools.islice(numbered, PER_TRANSACTION)
            ),
        ]
        for _ in range(ADMISSIONS // PER_TRANSACTION)
    ]


def _admission_writes(job_id: str, number: int, prefix: str) -> Iterator[dict[str, Any]]:
    record = _FIRST_RECORD + (_LAST_RECORD - _FIRST_RECORD) * number // (ADMISSIONS - 1)
    partition = f"JOB#{job_id}"
    yield _put_row(prefix, Row(Key(Table.QUOTAS, quota_rows.tree_key().pk, f"CHARGE#{job_id}-a1"), {}), _CHARGE)
    yield _put_row(prefix, Row(Key(Table.JOBS, partition, "META"), {}, 1, (f"JOB#{JobState.STARTING}", job_id)), _JOB)
    live = ("ATTEMPT#LIVE", f"{_DAY}#{job_id}-a1")
    yield _put_row(prefix, Row(Key(Table.JOBS, partition, "ATTEMPT#00001"), {}, 0, live), _ATTEMPT)
    about = (f"DEC#{job_id}", _DAY)
    yield _put_row(prefix, Row(Key(Table.INCIDENTS, f"DEC#dec-{number:010d}", "META"), {}, 0, about), record)
    yield _put_row(prefix, Row(Key(Table.JOBS, partition, f"EVENT#{_DAY}#admitted-1"), {}), _ENTRY)


def _put_row(prefix: str, row: Row, characters: int) -> dict[str, Any]:
    item: dict[str, Any] = {
        "pk": {"S": row.key.pk},
        "sk": {"S": row.key.sk},
        "version": {"N": str(row.version + 1)},
        "doc": {"S": _document(characters)},
    }
    if row.state:
        item |= {"stateKey": {"S": row.state[0]}, "stateSort": {"S": row.state[1]}}
    if row.key.table is Table.INCIDENTS or row.key.sk.startswith("EVENT#"):
        item |= _EXPIRES
    return {
        "Put": {
            "TableName": _table_name(prefix, row.key.table),
            "Item": item,
            **(_with_version(1) if row.version else _NEW),
        }
    }


def _document(characters: int) -> str:
    """Return a document of this length, with as many quotes as a row has."""
    count = (characters - len(_FRAME)) // (len(_HOLDER) + 1)
    holders = ",".join([_HOLDER] * count)
    return _FRAME.format(holders, "x" * (characters - len(_FRAME.format(holders, ""))))


def _update_tree(prefix: str) -> dict[str, Any]:
    key = quota_rows.tree_key()
    item = {"pk": {"S": key.pk}, "sk": {"S": key.sk}, "version": {"N": "1"}, "doc": {"S": '{"setUps":4}'}}
    return {"Put": {"TableName": _table_name(prefix, key.table), "Item": item, **_with_version(0)}}


def _update_usage(team: str, prefix: str) -> dict[str, Any]:
    key = quota_rows.usage_key(team)
    return {
        "Update": {
            "TableName": _table_name(prefix, key.table),
            "Key": {"pk": {"S": key.pk}, "sk": {"S": key.sk}},
            "UpdateExpression": "ADD #version :one, #n0 :n0",
            "ExpressionAttributeNames": {"#version": "version", "#n0": "sum:accelerators"},
            "ExpressionAttributeValues": {":one": {"N": "1"}, ":n0": {"N": "48"}},
        }
    }


def _with_version(version: int) -> dict[str, Any]:
    return {
        "ConditionExpression": "#version = :version",
        "ExpressionAttributeNames": {"#version": "version"},
        "ExpressionAttributeValues": {":version": {"N": str(version)}},
    }


def _table_name(prefix: str, table: Table) -> str:
    return f"{prefix}-{table.lower()}"
