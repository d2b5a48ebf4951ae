"""Upload and download of a large file through a store's put_file and get_file, beside plain obstore on the same server.

Ours hashes every byte on both ways, has the server check each part, and makes the downloaded file durable; plain
obstore puts a path and writes a stream to a file. Rounds alternate; every file must hash to what was sent. A real
SeaweedFS is started here and ended.

    python benchmarks/store_throughput.py [--rounds 3] [--megabytes 1000]
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import obstore
from obstore.store import S3Store

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import seaweed
from trainwright.checkpoints.base import Store
from trainwright.files import sha256_of_file

TARGET = 0.9
CHUNK = 8 * 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1000)
    options = parser.parse_args()
    volumes = 100 + 3 * (options.rounds + 1) * options.megabytes // 64
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = random_file(folder / "source", options.megabytes)
        with seaweed.running(folder / "weed", volumes) as server:
            compare(server, source, folder / "got", options.rounds)


def random_file(path: Path, megabytes: int) -> Path:
    random = np.random.default_rng(7)
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(random.bytes(1_000_000))
    return path


def compare(server: seaweed.Seaweed, source: Path, got: Path, rounds: int) -> None:
    sha256, megabytes = sha256_of_file(source), source.stat().st_size / 1e6
    sides = {"ours": ours(server.open("ours"), sha256), "obstore": plain(client(server))}
    seconds: dict[tuple[str, str], list[float]] = {(way, side): [] for way in ("upload", "download") for side in sides}
    for number in range(rounds + 1):  # the first, in which the server makes its volumes, does not count
        for side in sorted(sides, reverse=bool(number % 2)):
            for way, call, path in zip(("upload", "download"), sides[side], (source, got), strict=True):
                took = timed(call, path)
                if number:
                    seconds[way, side].append(took)
            if sha256_of_file(got) != sha256:
                raise SystemExit(f"{side}: the file that came back is another one")
            got.unlink()
    report(seconds, megabytes)


def ours(store: Store, sha256: str) -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    return (
        lambda path: store.put_file("file", path, sha256=sha256),
        lambda path: store.get_file("file", path, sha256=sha256),
    )


def plain(store: S3Store) -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    def download(path: Path) -> None:
        with path.open("wb") as file:
            for part in obstore.get(store, "file").stream(min_chunk_size=CHUNK):
                file.write(part)

    return lambda path: obstore.put(store, "file", path), download


def client(server: seaweed.Seaweed) -> S3Store:
    return S3Store(
        seaweed.BUCKET,
        prefix="plain",
        config={
            "endpoint": server.endpoint,
            "region": "us-east-1",
            "access_key_id": seaweed.OWNER.access,
            "secret_access_key": seaweed.OWNER.secret.reveal(),
        },
        client_options={"allow_http": True, "timeout": "10m"},
    )


def timed(call: Callable[[Path], object], path: Path) -> float:
    start = perf_counter()
    call(path)
    return perf_counter() - start


def report(seconds: dict[tuple[str, str], list[float]], megabytes: float) -> None:
    for way in ("upload", "download"):
        speeds = {side: megabytes / statistics.median(seconds[way, side]) for side in ("ours", "obstore")}
        ratio = speeds["ours"] / speeds["obstore"]
        rounds = {side: " ".join(f"{took:.2f}" for took in seconds[way, side]) for side in speeds}
        print(
            f"{way}: ours {speeds['ours']:.0f} MB/s ({rounds['ours']} s), "
            f"obstore {speeds['obstore']:.0f} MB/s ({rounds['obstore']} s), ratio {ratio:.3f} (asked: {TARGET})"
        )


if __name__ == "__main__":
    main()
