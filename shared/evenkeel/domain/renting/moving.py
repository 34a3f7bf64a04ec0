"""Whether a job could run the same in a pool: asked before it is placed there, and shown before anything is spent."""

from collections.abc import Iterator

from evenkeel.domain.capacity import compatibility
from evenkeel.domain.capacity.compatibility import PoolEnvironment, Storage, differences, needs_of
from evenkeel.domain.capacity.instance_types import InstanceTypes, shipped
from evenkeel.domain.capacity.pools import Market, Pool
from evenkeel.domain.jobs.job import Job


def why_not_portable(job: Job, pool: Pool, storage: Storage) -> tuple[str, ...]:
    """Return why a job could not run the same in a pool, one sentence each; nothing where it could.

    Args:
        job: It waits, or runs elsewhere.
        pool: It need not have any machines yet.
        storage: What lies behind claims, by cluster, as the site says.
    """
    return tuple(_differences(job, pool, storage))


def environment_in(pool: Pool, storage: Storage, catalogue: InstanceTypes) -> PoolEnvironment:
    """Return what a job finds in a pool: as its instance type has it, and where the pool says otherwise, as that."""
    found = compatibility.environment_on(pool.instance_type, catalogue)
    given = {name: value for name in pool.place.model_fields_set if (value := getattr(pool.place, name))}
    return found.but(**{**given, "storage": {**storage.get(pool.cluster, {}), **pool.place.storage}})


def _differences(job: Job, pool: Pool, storage: Storage) -> Iterator[str]:
    spec = job.spec
    if spec.instance_types and pool.instance_type not in spec.instance_types:
        yield f"The job asks for {' or '.join(spec.instance_types)}."
    if spec.pools and not any(choice.matches_pool(pool) for choice in spec.pools):
        yield f"The job's type runs on {', then '.join(choice.name for choice in spec.pools)}."
    if pool.market is Market.COMMITTED and pool.cluster != job.cluster:
        yield f"The job belongs to cluster {job.cluster}."
    claim = spec.checkpoint_claim if pool.cluster != job.cluster else ""
    if claim and claim not in storage.get(job.cluster, {}):
        yield f"The job's checkpoints are on a volume that only {job.cluster} has."
        claim = ""
    needs = needs_of(spec.requires, claim, job.cluster, storage)
    yield from differences(needs, environment_in(pool, storage, shipped()))
