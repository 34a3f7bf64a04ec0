"""The port CapacityReservations on EC2."""

from collections.abc import Mapping
from typing import Any

from evenkeel.adapters import aws
from evenkeel.domain.capacity.capacity_blocks import CapacityReservation
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.ports import EvenkeelError, NotFound

_CAPACITY_BLOCK = "capacity-block"
_ERRORS: Mapping[str, type[EvenkeelError]] = {
    "InvalidCapacityReservationId.NotFound": NotFound,
    "InvalidCapacityReservationId.Malformed": NotFound,
}
"""Codes that only EC2 uses."""


class Ec2CapacityReservations:
    """Reads capacity reservations, in one account and region."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or aws.client("ec2")

    def describe(self, reservation_id: str) -> CapacityReservation:
        attempt = f"describe capacity reservation {reservation_id}"
        with aws.translate_errors(attempt, _ERRORS):
            answer = self._client.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
        with aws.translate_malformed_answer(attempt):
            listed = answer.get("CapacityReservations") or ()
            described = next((item for item in listed if item["CapacityReservationId"] == reservation_id), None)
            if described is None:
                raise NotFound(f"capacity reservation {reservation_id} does not exist")
            return CapacityReservation(reservation_id=reservation_id, period=_period(described))


def _period(described: Mapping[str, Any]) -> Reservation | None:
    """Return the period of a Capacity Block; None if the instances keep running."""
    if described.get("ReservationType") != _CAPACITY_BLOCK or described.get("EndDateType") == "unlimited":
        return None
    # A block without an end is no block that runs for ever: the answer is incomplete.
    return Reservation(
        starts_at=described.get("StartDate") or described["CreateDate"], ends_at=described.get("EndDate")
    )
