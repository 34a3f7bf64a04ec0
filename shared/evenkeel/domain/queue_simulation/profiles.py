"""The scheduling rules of Kueue, HyperPod and Evenkeel."""

from enum import StrEnum

from evenkeel.domain.kueue.recent_use import Decay
from evenkeel.domain.kueue.snapshot import SchedulerRules


class Profile(StrEnum):
    """The system whose rules and defaults apply."""

    KUEUE = "kueue"
    HYPERPOD = "hyperpod"
    EVENKEEL = "evenkeel"


RULES = {
    Profile.KUEUE: SchedulerRules(),
    Profile.HYPERPOD: SchedulerRules(fair_sharing=True),
    Profile.EVENKEEL: SchedulerRules(
        fair_sharing=True, flap_guard_seconds=3600.0, never_overcommits=True, spares_work=True, decay=Decay()
    ),
}
"""The rules of each profile if no configuration changes them."""
