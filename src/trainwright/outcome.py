"""How a run ends: expected ends are values, with the exit code and the final state of a job."""

from enum import Enum


class Outcome(Enum):
    """`label` stands in records, `exit_code` is what the command returns."""

    DONE = ("done", 0)
    GATE_FAILED = ("gate_failed", 3)
    ABORTED = ("aborted", 4)
    DATA_EXHAUSTED = ("data_exhausted", 6)
    DATA_FAILED = ("data_failed", 6)
    STORE_FAILED = ("store_failed", 7)
    OUT_OF_MEMORY = ("out_of_memory", 8)
    INTERRUPTED = ("interrupted", 130)
    TERMINATED = ("terminated", 143)

    def __init__(self, label: str, exit_code: int) -> None:
        self.label = label
        self.exit_code = exit_code

    @property
    def resumable(self) -> bool:
        """Tell whether the same run goes on at a resume, because nothing about it was decided."""
        return self in {Outcome.STORE_FAILED, Outcome.INTERRUPTED, Outcome.TERMINATED}

    @classmethod
    def of(cls, label: str) -> "Outcome":
        return next(outcome for outcome in cls if outcome.label == label)
