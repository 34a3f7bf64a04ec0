"""Check a job against its team's rules for pods. Pure."""

from collections.abc import Iterable, Iterator

from evenkeel.domain.jobs.pod_rules import DEFAULT_ID, AccessMode, AllowedClaim, ClaimMode, PodRules
from evenkeel.domain.jobs.spec import JobSpec
from evenkeel.domain.jobs.validation import SpecError
from evenkeel.domain.jobs.volumes import Volume

_SHOWN = 10
"""Names that a message lists."""


def check_pod_rules(spec: JobSpec, rules: PodRules, subject: str) -> Iterator[SpecError]:
    """Yield an error for each field of a job that its team does not allow.

    Args:
        spec: The job.
        rules: The rules of the team, or of the policy if there are no teams.
        subject: First words of each message: `Team nlp` or `The site's policy (jobs.allowed)`.
    """
    yield from _claim_errors(spec, rules, subject)
    yield from _secret_errors(spec, rules, subject)
    for field, number, ranges in (
        ("securityContext.runAsUser", spec.run_as_user, rules.users),
        ("securityContext.runAsGroup", spec.run_as_group, rules.groups),
        ("securityContext.fsGroup", spec.fs_group, rules.fs_groups),
    ):
        if number is not None and number != DEFAULT_ID and not any(number in id_range for id_range in ranges):
            allowed_ids = ", ".join([str(DEFAULT_ID), *(id_range.text for id_range in ranges)])
            yield SpecError(field, f"{subject} allows these ids: {allowed_ids}.")
    scratch_gib = sum(folder.size_gib for folder in spec.scratch)
    if scratch_gib > rules.max_scratch_gib:
        yield SpecError(
            "scratch", f"{subject} allows {rules.max_scratch_gib} GiB of scratch folders in a pod, not {scratch_gib}."
        )
    if (pages := spec.huge_pages_mib_per_node or 0) > rules.max_huge_pages_mib:
        text = f"{subject} allows {rules.max_huge_pages_mib} MiB of huge pages in a pod, not {pages}."
        yield SpecError("hugePagesMibPerNode", text)


def _claim_errors(spec: JobSpec, rules: PodRules, subject: str) -> Iterator[SpecError]:
    claims_by_name = {claim.name: claim for claim in rules.claims}
    for index, volume in enumerate(spec.volumes):
        allowed_claim = claims_by_name.get(volume.claim)
        if allowed_claim is None:
            yield SpecError(f"volumes.{index}.claim", _unlisted_text("mounts", "claim", rules.claims, subject))
        else:
            yield from _mode_errors(spec, volume, allowed_claim, f"volumes.{index}", subject)
    # Without a list, checkpoints may be on any claim of the namespace, as in earlier releases.
    if spec.checkpoint_claim and rules.claims:
        allowed_claim = claims_by_name.get(spec.checkpoint_claim)
        checkpoint_volume = Volume(claim=spec.checkpoint_claim, mount_path="", read_only=False)
        if allowed_claim is None:
            yield SpecError("checkpoint.claim", _unlisted_text("mounts", "claim", rules.claims, subject))
        else:
            yield from _mode_errors(spec, checkpoint_volume, allowed_claim, "checkpoint", subject)


def _mode_errors(spec: JobSpec, volume: Volume, claim: AllowedClaim, field: str, subject: str) -> Iterator[SpecError]:
    where = f"{field}.claim" if field == "checkpoint" else f"{field}.readOnly"
    if not volume.read_only and claim.max_mode is ClaimMode.READ_ONLY:
        yield SpecError(where, f"{subject} mounts claim {volume.claim} read-only.")
    elif not volume.read_only and claim.access_mode is AccessMode.READ_ONLY_MANY:
        yield SpecError(where, f"Claim {volume.claim} is ReadOnlyMany: no pod can write to it.")
    nodes = max(spec.nodes, spec.elastic.max_nodes if spec.elastic else 1)
    if nodes > 1 and claim.access_mode in (AccessMode.READ_WRITE_ONCE, AccessMode.READ_WRITE_ONCE_POD):
        text = f"Claim {volume.claim} is {claim.access_mode}: only one node can use it, and the job has {nodes}."
        yield SpecError(f"{field}.claim", text)


def _secret_errors(spec: JobSpec, rules: PodRules, subject: str) -> Iterator[SpecError]:
    for index, name in enumerate(spec.image_pull_secrets):
        if name not in rules.image_pull_secrets:
            allowed_names = _comma_list(rules.image_pull_secrets)
            yield SpecError(f"imagePullSecrets.{index}", f"{subject} pulls images with {allowed_names or 'no Secret'}.")
    for name, source in spec.secret_env.items():
        if rules.env_secrets and source.secret not in rules.env_secrets:
            text = f"{subject} reads variables from these Secrets: {_comma_list(rules.env_secrets)}."
            yield SpecError(f"secretEnv.{name}.secret", text)


def _unlisted_text(verb: str, noun: str, claims: Iterable[AllowedClaim], subject: str) -> str:
    allowed_claims = _comma_list([f"{claim.name} ({claim.max_mode})" for claim in claims])
    return f"{subject} {verb} {f'these {noun}s: {allowed_claims}' if allowed_claims else f'no {noun}s'}."


def _comma_list(names: Iterable[str]) -> str:
    all_names = list(names)
    return ", ".join(all_names[:_SHOWN]) + (", …" if len(all_names) > _SHOWN else "")
