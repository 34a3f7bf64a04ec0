"""The system that decides which jobs start."""

from enum import StrEnum


class AdmissionAuthority(StrEnum):
    """The system that decides which jobs start."""

    EVENKEEL = "evenkeel"
    KUEUE = "kueue"
    """Kueue decides. Evenkeel hands each job over and follows its state."""
