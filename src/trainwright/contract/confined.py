"""Work on a contract from outside, in a child process with limits: no file takes this process with it.

The child is `python -m trainwright.contract.confined`: the name of a function and its arguments come as JSON on its
stdin, and what the function gives, or an error of ours, goes back as JSON.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from trainwright import children, errors
from trainwright.errors import InputError, TrainwrightError

ResultT = TypeVar("ResultT")

THREADS: Final = 2
OUT_OF_MEMORY: Final = 77  # the child's exit status when an allocation was refused
BOUNDED: Final = {  # libraries reserve addresses for each core, unless told how many they may use
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX"), str(THREADS)),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use. To validate takes under half of the addresses, a log of a million rows takes 3.1 GiB."""

    address_space_bytes: int = 4 << 30
    seconds: float = 60.0

    def __str__(self) -> str:
        return f"{self.address_space_bytes / (1 << 30):g} GiB of address space and {self.seconds:g} seconds"


LIMITS: Final = Limits()


def confined(work: Callable[..., ResultT], *arguments: Any, gives: Any, about: str, limits: Limits = LIMITS) -> ResultT:
    """Call a module's function in a child under `limits`; arguments and result go through JSON, as type `gives`.

    Errors: InputError naming `about` and the limits when the child was ended by one of them; any error of ours that
    `work` raises; RuntimeError with the child's traceback for any other.
    """
    import msgspec

    request = [f"{work.__module__}:{work.__qualname__}", list(arguments), limits.address_space_bytes, limits.seconds]
    answer = json.loads(_answer(json.dumps(request), about, limits))
    if "error" in answer:
        kind, text = answer["error"]
        raise getattr(errors, kind, TrainwrightError)(text)
    result: ResultT = msgspec.convert(answer["result"], gives)
    return result


def _answer(request: str, about: str, limits: Limits) -> str:
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter, no shell
            children.command(module=__name__),
            input=request,
            env=children.environment(**BOUNDED),
            capture_output=True,
            text=True,
            timeout=limits.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _ended(about, "took too long", limits) from error
    if done.returncode == OUT_OF_MEMORY:
        raise _ended(about, "took too much memory", limits)
    if done.returncode < 0:
        raise _ended(about, f"was ended by {signal.Signals(-done.returncode).name}", limits)
    if done.returncode:
        raise RuntimeError(f"{about}: work on it failed:\n{done.stderr}")
    return done.stdout


def _ended(about: str, how: str, limits: Limits) -> InputError:
    return InputError(f"{about}: work on it {how}; a contract from outside may use {limits}")


def main() -> None:
    """Answer one request of `confined`; what the work prints goes to stderr."""
    work, arguments, address_space_bytes, seconds = json.load(sys.stdin)
    _limit(resource.RLIMIT_AS, address_space_bytes)
    _limit(resource.RLIMIT_CPU, THREADS * int(seconds + 1))  # holds where nobody is left who watches the clock
    _limit(resource.RLIMIT_CORE, 0)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        try:
            out.write(json.dumps(_called(work, arguments)))
        except MemoryError:
            os._exit(OUT_OF_MEMORY)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))


def _called(work: str, arguments: list[Any]) -> dict[str, Any]:
    module, _, name = work.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(*arguments)
    except TrainwrightError as error:
        return {"error": [type(error).__name__, str(error)]}
    import msgspec

    return {"result": msgspec.to_builtins(result)}


if __name__ == "__main__":
    main()
