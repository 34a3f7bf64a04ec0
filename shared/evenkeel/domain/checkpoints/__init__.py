"""Checkpoints: manifest, fence, proof, and the choice of what an attempt resumes from.

A service asks in a loop that ends after at most one look at each checkpoint:

    evidence = {}
    while isinstance(answer := choose_resume_point(attempt, fence, found, evidence), EvidenceNeeded):
        evidence[answer.ref] = ...  # its manifest, and what the store says of each file
    store.raise_fence(uri, raised(fence, attempt, answer).to_json(), tag)
"""

from evenkeel.domain.checkpoints.fence import (
    Fence,
    FenceUnreadableError,
    Grade,
    Pin,
    Rejection,
    RejectionCode,
    ResumeChoice,
    Standing,
    fence_of,
    raised,
    refusal,
    standing,
)
from evenkeel.domain.checkpoints.layout import (
    FENCE_KEY,
    MANIFEST_NAME,
    CheckpointRef,
    ref_of_folder,
    ref_of_key,
)
from evenkeel.domain.checkpoints.manifest import Manifest, ManifestUnreadableError, Shard, parse_manifest
from evenkeel.domain.checkpoints.proof import Distrust, Evidence, Proof, StoredObject, prove, weigh
from evenkeel.domain.checkpoints.resume import EvidenceNeeded, choose_resume_point
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.jobs.job import Demand

__all__ = [
    "FENCE_KEY",
    "MANIFEST_NAME",
    "CheckpointRef",
    "Demand",
    "Distrust",
    "Evidence",
    "EvidenceNeeded",
    "Fence",
    "FenceUnreadableError",
    "Grade",
    "Manifest",
    "ManifestUnreadableError",
    "Pin",
    "Proof",
    "Rejection",
    "RejectionCode",
    "ResumeChoice",
    "ResumePoint",
    "Shard",
    "Standing",
    "StoredObject",
    "choose_resume_point",
    "fence_of",
    "parse_manifest",
    "prove",
    "raised",
    "ref_of_folder",
    "ref_of_key",
    "refusal",
    "standing",
    "weigh",
]
