"""The port CapacityReservations on EC2's answers."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, CredentialRetrievalError
from botocore.parsers import ResponseParserError

from evenkeel.adapters.capacity_reservations import Ec2CapacityReservations
from evenkeel.ports import NotAllowed, NotFound, Unreachable, Unreadable

BLOCK = "cr-0123456789abcdef0"
START, END = datetime(2026, 10, 1, 11, 30, tzinfo=UTC), datetime(2026, 10, 15, 11, 30, tzinfo=UTC)


class Ec2Stub:
    """Answers DescribeCapacityReservations."""

    def __init__(self, *reservations: dict[str, Any], error: str = "") -> None:
        self._reservations, self._error = reservations, error

    def describe_capacity_reservations(self, **request: Any) -> dict[str, Any]:
        assert request == {"CapacityReservationIds": [BLOCK]}
        if self._error:
            status = {"HTTPStatusCode": 400}
            response: Any = {"Error": {"Code": self._error, "Message": "no"}, "ResponseMetadata": status}
            raise ClientError(response, "DescribeCapacityReservations")
        return {"CapacityReservations": list(self._reservations)}


def reserved(**changes: Any) -> dict[str, Any]:
    times = {"StartDate": START, "EndDate": END, "EndDateType": "limited"}
    return {"CapacityReservationId": BLOCK, "ReservationType": "capacity-block", "State": "active", **times, **changes}


def test_capacity_block_has_a_period() -> None:
    period = Ec2CapacityReservations(Ec2Stub(reserved())).describe(BLOCK).period

    assert period is not None
    assert (period.starts_at, period.ends_at) == (START, END)


@pytest.mark.parametrize(
    "changes",
    [{"ReservationType": "default"}, {"ReservationType": None}, {"EndDate": None, "EndDateType": "unlimited"}],
    ids=["instances of a plain reservation keep running", "unknown type", "no end"],
)
def test_reservation_that_takes_no_instance_has_no_period(changes: dict[str, Any]) -> None:
    assert Ec2CapacityReservations(Ec2Stub(reserved(**changes))).describe(BLOCK).period is None


def test_missing_reservation_is_an_error() -> None:
    for stub in (Ec2Stub(), Ec2Stub(error="InvalidCapacityReservationId.NotFound")):
        with pytest.raises(NotFound, match=BLOCK):
            Ec2CapacityReservations(stub).describe(BLOCK)


def test_missing_permission_is_named() -> None:
    with pytest.raises(NotAllowed):
        Ec2CapacityReservations(Ec2Stub(error="UnauthorizedOperation")).describe(BLOCK)


@pytest.mark.parametrize(
    "answer",
    [
        reserved(EndDate=None),
        reserved(EndDate="soon"),
        reserved(StartDate=None),
        {"ReservationType": "capacity-block"},
    ],
    ids=["block without end", "end that is no time", "block without start", "no id"],
)
def test_malformed_answer_is_an_error_not_a_missing_end(answer: dict[str, Any]) -> None:
    with pytest.raises(Unreadable, match=BLOCK):
        Ec2CapacityReservations(Ec2Stub(answer)).describe(BLOCK)


@pytest.mark.parametrize(
    "failure",
    [ResponseParserError("no XML"), CredentialRetrievalError(provider="role", error_msg="expired")],
)
def test_unparseable_answer_is_an_error_of_the_port(failure: Exception) -> None:
    class FailingEc2:
        def describe_capacity_reservations(self, **_: Any) -> dict[str, Any]:
            raise failure

    with pytest.raises(Unreachable, match=type(failure).__name__):
        Ec2CapacityReservations(FailingEc2()).describe(BLOCK)
