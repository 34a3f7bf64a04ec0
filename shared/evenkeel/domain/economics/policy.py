"""Policy section for prices, costs and expected durations."""

from pydantic import Field

from evenkeel.domain.policy_base import Seconds, Section, Usd
from evenkeel.domain.values import Word


class EconomyPolicy(Section):
    """Prices of accelerator time, and durations to expect if there are too few measurements."""

    usd_per_accelerator_hour: dict[Word, Usd] = {}
    """The site's price, by instance type."""
    other_usd_per_accelerator_hour: Usd = 5.0
    """Price for all other types: a round figure to compare options with, not a real price."""
    expected_reboot_seconds: Seconds = 300
    expected_launch_seconds: Seconds = 60
    """From admission until every pod runs."""
    expected_capacity_seconds: Seconds = 3600
    """Until the scheduler finds capacity without a repair."""
    expected_checkpoint_seconds: Seconds = 900
    """Usual time between two checkpoints. On average, half of it is lost."""
    failures_per_node_hour: float = Field(default=0.0002, ge=0, le=1)
    """Faults that stop a job, per node-hour of any market. Published rates are 0.00016 to 0.0006; take your own from
    `evenkeel economics rate --fleet`."""
    min_samples: int = Field(default=5, ge=1, le=1000)
    """Number of measured cases from which their median replaces the figures here."""

    def price_of(self, instance_type: str) -> float:
        """Return the price of an instance type, in dollars per accelerator-hour."""
        return self.usd_per_accelerator_hour.get(instance_type, self.other_usd_per_accelerator_hour)
