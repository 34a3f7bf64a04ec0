"""Cordons that people set through Evenkeel, with author and reason. Kubernetes stores neither."""

from pydantic import Field

from evenkeel.domain.values import Instant, Value


class ManualCordon(Value):
    """A cordon that a person set through Evenkeel. The node object itself does not record the person."""

    life_key: str = Field(alias="life")
    """Key of the node life."""
    by: str
    reason: str
    at: Instant


class ManualCordons(Value):
    """Every cordon that a person set through Evenkeel and that is still in place, in one row."""

    cordons: tuple[ManualCordon, ...] = ()

    @property
    def by_life(self) -> dict[str, ManualCordon]:
        """The cordons, by the key of the node life."""
        return {cordon.life_key: cordon for cordon in self.cordons}

    def with_cordon(self, cordon: ManualCordon) -> "ManualCordons":
        """Return the cordons with a new one added. At most `MAX_MANUAL_CORDONS` are kept; the oldest is dropped."""
        manual_cordons = tuple(
            manual_cordon for manual_cordon in self.cordons if manual_cordon.life_key != cordon.life_key
        )
        return self.replace(cordons=(*manual_cordons, cordon)[-MAX_MANUAL_CORDONS:])

    def without(self, *removed: ManualCordon) -> "ManualCordons":
        """Return the cordons without some of them. A later cordon of the same node life stays."""
        return self.replace(cordons=tuple(cordon for cordon in self.cordons if cordon not in removed))


MAX_MANUAL_CORDONS = 200
"""Maximum number of cordons in the row. A row has at most 400 kB, and a reason up to 300 characters of four bytes."""
