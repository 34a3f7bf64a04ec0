"""Which pending jobs a resume plan weighs beside the interrupted one."""

from evenkeel.domain.quotas.teams import TeamSetup
from evenkeel.services.resume.find_resume_options import _queue_heads
from tests.fakes import a_context
from tests.unit.api.seeds import a_job, store
from tests.unit.services_recovery.recovery_scenario import QUICK, RecoveryScenario

POLICY = QUICK.replace(scheduling=QUICK.scheduling.replace(jobs_per_page=1))


def considered_job_ids(*kept: str, **changes: str) -> list[str]:
    """Return the jobs weighed for an interrupted job with three others in the queue, one to a page."""
    recovery = RecoveryScenario(policy=POLICY)
    ledger = recovery.world.ledger
    store(ledger, a_job(11), a_job(12), a_job(13, **changes))
    return [
        job.job_id for job in _queue_heads(recovery.job, TeamSetup(), kept, a_context(ledger=ledger, policy=POLICY))
    ]


def test_job_beyond_the_first_page_is_not_considered() -> None:
    assert considered_job_ids() == ["job-0000000011"]


def test_job_awaiting_evictions_is_considered_beyond_the_page() -> None:
    assert considered_job_ids("job-0000000013") == ["job-0000000011", "job-0000000013"]


def test_job_on_the_page_is_considered_once() -> None:
    assert considered_job_ids("job-0000000011") == ["job-0000000011"]


def test_job_that_is_no_longer_pending_is_not_considered() -> None:
    assert considered_job_ids("job-0000000013", state="RUNNING") == ["job-0000000011"]
