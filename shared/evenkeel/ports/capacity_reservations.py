"""Capacity reservations of EC2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from evenkeel.domain.capacity.capacity_blocks import CapacityReservation


class CapacityReservations(Protocol):
    """The capacity reservations of this account and region, and those that other accounts share with it."""

    def describe(self, reservation_id: str) -> CapacityReservation:
        """Describe a reservation.

        Raises:
            NotFound: It does not exist, or EC2 has forgotten it.
        """
        ...
