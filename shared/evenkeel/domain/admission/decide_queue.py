"""Apply the admission rules to the queue: in order of arrival without teams, by quota with teams."""

from datetime import datetime

from evenkeel.domain.admission.admission_input import AdmissionInput
from evenkeel.domain.admission.decide_job import AdmissionDecision
from evenkeel.domain.admission.queue_with_teams import decide_with_teams
from evenkeel.domain.admission.queue_without_teams import decide_in_queue_order
from evenkeel.domain.policy import Policy


def decide_queue(admission_input: AdmissionInput, policy: Policy, now: datetime) -> tuple[AdmissionDecision, ...]:
    """Decide about every pending job, each at the size that its request names."""
    if not admission_input.setup.has_teams:
        return decide_in_queue_order(admission_input, policy.scheduling, now)
    return decide_with_teams(admission_input, policy.scheduling, policy.economy, now)
