"""The port CapacityReservations on EC2."""

from collections.abc import Mapping
from typing import Any

from evenkeel.adapters import aws
from evenkeel.domain.capacity.capacity_blocks import CapacityReservation
from evenkeel.domain.capacity.pools import Reservation
from evenkeel.ports import EvenkeelError, NotAllowed, NotFound

_CAPACITY_BLOCK = "capacity-block"
_ERRORS: Mapping[str, type[EvenkeelError]] = {
    "InvalidCapacityReservationId.NotFound": NotFound,
    "InvalidCapacityReservationId.Malformed": NotFound,
    "UnauthorizedOperation": NotAllowed,
}
"""Codes that only EC2 uses."""


class Ec2CapacityReservations:
    """Reads capacity reservations, in one account and region."""

    def __init__(self, client: Any = None) -> None:
        self._client = client or aws.client("ec2")

    def describe(self, reservation_id: str) -> CapacityReservation:
        with aws.translate_errors(f"describe capacity reservation {reservation_id}", _ERRORS):
            answer = self._client.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
        listed = answer.get("CapacityReservations", ())
        described = next((item for item in listed if item["CapacityReservationId"] == reservation_id), None)
        if described is None:
            raise NotFound(f"capacity reservation {reservation_id} does not exist")
        starts_at, ends_at = described.get("StartDate") or described.get("CreateDate"), described.get("EndDate")
        has_end = described.get("ReservationType") == _CAPACITY_BLOCK and starts_at and ends_at
        return CapacityReservation(
            reservation_id=reservation_id,
            period=Reservation(starts_at=starts_at, ends_at=ends_at) if has_end else None,
        )
