"""What a process counts of itself for Prometheus, in a registry of its own, and the page that serves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias, final

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

from trainwright.errors import InputError

Outcome: TypeAlias = Literal["uploaded", "failed", "skipped"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("uploaded", "failed", "skipped")
SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
ADDRESS: Final = "127.0.0.1"


@final
class Telemetry:
    """The numbers of one process. Uploads: `skipped` are checkpoints that retention removed on their way up.

    `failed` are tries, each of which brings up all that is not there yet.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._uploads = Counter(
            "trainwright_checkpoint_uploads",
            "Checkpoints that were uploaded or skipped, and tries that failed",
            ["outcome"],
            registry=self.registry,
        )
        self._bytes = Counter(
            "trainwright_checkpoint_upload_bytes", "Bytes of the checkpoints that were uploaded", registry=self.registry
        )
        self._seconds = Histogram(
            "trainwright_checkpoint_upload_seconds",
            "Seconds from a checkpoint's first byte to its manifest in the store",
            buckets=SECONDS,
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self._uploads.labels(outcome)  # a count that is 0 is told, too

    def uploaded(self, size_bytes: int, seconds: float) -> None:
        """Count a checkpoint whose manifest is in the store."""
        self._uploads.labels("uploaded").inc()
        self._bytes.inc(size_bytes)
        self._seconds.observe(seconds)

    def not_uploaded(self, outcome: Literal["failed", "skipped"]) -> None:
        self._uploads.labels(outcome).inc()

    def uploads(self, outcome: Outcome) -> int:
        value = self.registry.get_sample_value("trainwright_checkpoint_uploads_total", {"outcome": outcome})
        return int(value or 0)

    @contextmanager
    def served(self, port: int) -> Iterator[int]:
        """Serve the numbers on this machine alone, at /metrics, while in the block; give the port (0: a free one).

        Errors: InputError when the port cannot be had.
        """
        try:
            server, thread = start_http_server(port, addr=ADDRESS, registry=self.registry)
        except (OSError, OverflowError) as error:
            raise InputError(f"--metrics-port {port}: cannot be served on {ADDRESS}: {error}; give another") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
