"""devices.csv of an attempt: what NVML says of the run's GPU, each second, one row a process that is on it."""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, final

import msgspec

from trainwright.errors import DataError
from trainwright.nvml import Nvml
from trainwright.rowfiles import RowWriter, whole_lines
from trainwright.rundir import RunDirectory, Start
from trainwright.timestamps import now

INTERVAL_SECONDS: Final = 1.0
WITHIN_SECONDS: Final = 5.0  # of its first step a run shows itself on the device
PATIENCE_SECONDS: Final = 5.0  # how long the end of an attempt waits for an answer of NVML
TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")
WHOLE: Final = re.compile(r"[0-9]{1,18}")
NUMBER: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?(e-[0-9]{1,3})?")


class DeviceSample(msgspec.Struct, frozen=True, kw_only=True):
    """One row of devices.csv. `time` is UTC, ISO 8601; None is what NVML did not tell; no pid: no process was there."""

    time: str
    uuid: str
    index: int
    pid: int | None = None
    process: str | None = None
    used_mib: float | None = None
    utilisation_pct: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None

    def encode(self) -> bytes:
        return _line(["" if cell is None else cell for cell in msgspec.structs.astuple(self)])


COLUMNS: Final = DeviceSample.__struct_fields__


def _line(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


# -- reading ---------------------------------------------------------------------------------------------------------


def read_devices(path: Path) -> list[DeviceSample]:
    """Read devices.csv; a missing file has no rows, and a torn last line is left out.

    Errors: DataError with file and line for a broken line that is not the torn last one.
    """
    rows: list[DeviceSample] = []
    for number, line in enumerate(whole_lines(path).lines, 1):
        try:
            [cells] = csv.reader([line.decode()], strict=True)
            if number > 1:
                rows.append(_row(cells))
            elif tuple(cells) != COLUMNS:
                raise ValueError(f"expected the header {','.join(COLUMNS)}")  # noqa: TRY301  told with its place below
        except (csv.Error, ValueError) as error:
            raise DataError(f"{path}:{number}: is not a valid row: {error}") from error
    return rows


def _row(cells: Sequence[str]) -> DeviceSample:
    if len(cells) != len(COLUMNS):
        raise ValueError(f"expected {len(COLUMNS)} cells, found {len(cells)}")
    time, uuid, index, pid, process, *numbers = cells
    if not TIME.fullmatch(time) or not uuid:
        raise ValueError(f"expected a time in UTC and a UUID, found {time!r} and {uuid!r}")
    measured = dict(zip(COLUMNS[5:], map(_number, numbers), strict=True))
    told_pid = _whole(pid) if pid else None
    return DeviceSample(time=time, uuid=uuid, index=_whole(index), pid=told_pid, process=process or None, **measured)


def _whole(cell: str) -> int:
    if not WHOLE.fullmatch(cell):
        raise ValueError(f"expected a whole number, found {cell!r}")
    return int(cell)


def _number(cell: str) -> float | None:
    if cell and not NUMBER.fullmatch(cell):
        raise ValueError(f"expected a number, found {cell!r}")
    return float(cell) if cell else None


def samples_of(run: RunDirectory) -> Iterator[tuple[Start, DeviceSample]]:
    """Give every sample of a run beside the start of its attempt; each was measured, so none is superseded."""
    for attempt in run.attempts():
        start = attempt.start()
        yield from ((start, row) for row in read_devices(attempt.devices))


def device_memory(run: RunDirectory) -> dict[str, Any] | None:
    """Give what the run's own process used of the device, in MiB; None where that was never measured."""
    own = [row.used_mib for start, row in samples_of(run) if row.pid == start.pid and row.used_mib is not None]
    if not own:
        return None
    return {"rows": len(own), "minimum": min(own), "median": float(median(own)), "maximum": max(own)}


def is_resident(own: Iterable[tuple[float, float | None]]) -> bool:
    """Tell whether a process held memory of the device within 5 s of its attempt's first step.

    `own`: each sample of that process as seconds since the step and MiB in use; None is not known, and shows nothing.
    """
    return any(mib is not None and mib > 0 and abs(seconds) <= WITHIN_SECONDS for seconds, mib in own)


def seconds_between(earlier: str, later: str) -> float:
    """Give the seconds between two times of records, negative when the second is before the first."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


# -- sampling --------------------------------------------------------------------------------------------------------


def sample(nvml: Nvml, uuid: str, time: str) -> Sequence[DeviceSample]:
    """Ask for one sample: a row for each process on the device, or one without a process. Errors: NvmlError."""
    of_device: dict[str, Any] = {
        "time": time,
        "uuid": uuid,
        "index": nvml.gpu(uuid).index,
        "utilisation_pct": nvml.utilisation_pct(uuid),
        "power_w": nvml.power_w(uuid),
        "temperature_c": nvml.temperature_c(uuid),
    }
    rows = [DeviceSample(pid=p.pid, process=p.name, used_mib=p.used_mib, **of_device) for p in nvml.processes(uuid)]
    return rows or [DeviceSample(**of_device)]


@final
class Sampler:
    """Samples a GPU into a file from a thread of its own: at once, each second, and at the end.

    `on_sample` is given each sample's rows when they are written, `on_lost` the reason, once, when NVML or the file
    fails; nothing is sampled after that. Both are called in the thread.
    """

    def __init__(
        self,
        path: Path,
        nvml: Nvml,
        uuid: str,
        *,
        on_sample: Callable[[Sequence[DeviceSample]], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
        interval_seconds: float = INTERVAL_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._path, self._nvml, self._uuid = path, nvml, uuid
        self._on_sample, self._on_lost = on_sample, on_lost
        self._interval, self._patience = interval_seconds, patience_seconds
        self._ending = Event()
        self._given_up = False
        self._thread = Thread(target=self._run, name="trainwright-nvml", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread with a last sample; where NVML does not answer, go on without it and say so."""
        self._ending.set()
        self._thread.join(self._patience)
        if self._thread.is_alive():
            self._given_up = True
            self._on_lost(f"NVML did not answer for {self._patience:g} s at the end")

    def _run(self) -> None:
        try:
            with closing(RowWriter(self._path)) as writer:
                writer.write(_line(COLUMNS))
                self._sample_until_the_end(writer)
                writer.sync()
        except Exception as error:  # noqa: BLE001  the thread is told by its reason; training goes on
            if not self._given_up:
                self._on_lost(str(error) or type(error).__name__)

    def _sample_until_the_end(self, writer: RowWriter) -> None:
        due, ending = monotonic(), False
        while not self._given_up:
            rows = sample(self._nvml, self._uuid, now())
            if self._given_up:
                return
            writer.write(b"".join(row.encode() for row in rows))
            self._on_sample(rows)
            if ending:
                return
            due += self._interval
            ending = self._ending.wait(max(0.0, due - monotonic()))
