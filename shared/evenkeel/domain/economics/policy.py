"""Section of the policy for prices and costs."""

from pydantic import Field

from evenkeel.domain.policy_base import Seconds, Section, Usd
from evenkeel.domain.values import Word


class EconomyPolicy(Section):
    """What an accelerator's time is worth, and how long things take where nothing measured says better."""

    usd_per_accelerator_hour: dict[Word, Usd] = {}
    """By instance type, as the site pays for it."""
    other_usd_per_accelerator_hour: Usd = 5.0
    """For every type not listed: a round figure by which options can be compared, nobody's price."""
    expected_reboot_seconds: Seconds = 300
    expected_launch_seconds: Seconds = 60
    """From admission until every pod runs."""
    expected_capacity_seconds: Seconds = 3600
    """Until the queue finds room by itself."""
    expected_checkpoint_seconds: Seconds = 900
    """Usual time between two checkpoints; half of it is lost on average."""
    least_samples: int = Field(default=5, ge=1, le=1000)
    """Measured cases from which on their median counts instead of the figures here."""

    def price_of(self, instance_type: str) -> float:
        """Return dollars an accelerator-hour."""
        return self.usd_per_accelerator_hour.get(instance_type, self.other_usd_per_accelerator_hour)
