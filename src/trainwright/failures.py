"""What went wrong in code that is not ours, or for want of memory, told in one line."""

import resource
import traceback
from pathlib import Path

import torch

MIB = 1 << 20
ADVICE = "lower train.batch_size and raise train.accumulate by the same factor, or choose train.precision bf16"


def told(error: Exception) -> str:
    """Tell an error and where it is from: the innermost line that is neither this package's nor an installed one's."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(here)]
    frame = (own or frames)[-1]
    return f"{type(error).__name__}: {error} (at {frame.filename}:{frame.lineno}, in {frame.name})"


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def out_of_memory(error: Exception) -> str:
    """Tell it with the peak of the memory that ran out, the device's or this process's, and what to change."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"out of memory: {reason}; {_peak(error)}; {ADVICE}"


def _peak(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
        peak = max(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
        return f"peak of this process on the device {peak // MIB} MiB"
    return f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // MIB} MiB"
