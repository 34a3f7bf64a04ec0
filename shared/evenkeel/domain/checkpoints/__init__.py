"""Checkpoints: manifest, fence, proof, and the choice of the resume point of an attempt.

A service calls `choose_resume_point` in a loop, which reads each checkpoint at most once:

    evidence = {}
    while isinstance(answer := choose_resume_point(attempt, fence, found, evidence), ContentsNeeded):
        evidence[answer.ref] = ...  # its manifest, and size and checksum of each file from the store
    store.next_fence(uri, raised(fence, attempt, answer).to_json(), tag)
"""

from evenkeel.domain.checkpoints.fence import (
    Fence,
    FenceStatus,
    FenceUnreadableError,
    Grade,
    Pin,
    Rejection,
    RejectionCode,
    ResumeChoice,
    fence_rejection,
    fence_status,
    next_fence,
    parse_fence,
)
from evenkeel.domain.checkpoints.layout import (
    MANIFEST_NAME,
    CheckpointRef,
    ref_of_folder,
    ref_of_key,
)
from evenkeel.domain.checkpoints.manifest import Manifest, ManifestUnreadableError, Shard, parse_manifest
from evenkeel.domain.checkpoints.proof import CheckpointContents, Distrust, Proof, StoredObject, prove, verify
from evenkeel.domain.checkpoints.resume_point import CheckpointRules, ContentsNeeded, choose_resume_point
from evenkeel.domain.jobs.attempt import ResumePoint
from evenkeel.domain.jobs.job import CheckpointRequirement

__all__ = [
    "MANIFEST_NAME",
    "CheckpointContents",
    "CheckpointRef",
    "CheckpointRequirement",
    "CheckpointRules",
    "ContentsNeeded",
    "Distrust",
    "Fence",
    "FenceStatus",
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
    "StoredObject",
    "choose_resume_point",
    "fence_rejection",
    "fence_status",
    "next_fence",
    "parse_fence",
    "parse_manifest",
    "prove",
    "ref_of_folder",
    "ref_of_key",
    "verify",
]
