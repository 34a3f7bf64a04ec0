"""The port CapacityReservations in memory."""

from evenkeel.domain.capacity.capacity_blocks import CapacityReservation
from evenkeel.ports import NotFound


class InMemoryCapacityReservations:
    """Reservations by id."""

    def __init__(self) -> None:
        self.reservations: dict[str, CapacityReservation] = {}

    def describe(self, reservation_id: str) -> CapacityReservation:
        if reservation_id not in self.reservations:
            raise NotFound(f"capacity reservation {reservation_id} does not exist")
        return self.reservations[reservation_id]
