"""Each benchmark runs, in a short form: it checks that both sides give equal results, and prints its figure."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks"
SHORT = {
    "save_overhead.py": (["--rounds", "1", "--steps", "20", "--width", "16"], "blocked by a save"),
    "store_throughput.py": (["--rounds", "1", "--megabytes", "10"], "download: ours"),
    "registry.py": (["--versions", "200", "--rounds", "2"], "register "),
    "judge.py": (["--rows", "2000", "--rounds", "1"], "figures of both sides equal"),
    "lm_throughput.py": (["--rounds", "1", "--steps", "1"], "median ratio over 1 rounds"),
    "mamba2_throughput.py": (["--rounds", "1", "--steps", "1"], "median ratio over 1 rounds"),
    "loop_overhead.py": (["--rounds", "1", "--steps", "20"], "weights equal"),
    "dqn_throughput.py": (["--rounds", "1", "--turns", "1"], "median ratio over 1 rounds"),
    "ppo_throughput.py": (["--rounds", "1", "--rollouts", "1"], "median ratio over 1 rounds"),
    "tft_throughput.py": (["--rounds", "1", "--steps", "1", "--threads", "1"], "median ratio over 1 rounds"),
}
NEEDS = {  # of the extra `bench`
    **dict.fromkeys(("dqn_throughput.py", "ppo_throughput.py"), "stable_baselines3"),
    "tft_throughput.py": "pytorch_forecasting",
}


def test_every_benchmark_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_a_benchmark_prints_its_figure(name: str, child_environment: dict[str, str]) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    arguments, figure = SHORT[name]
    done = subprocess.run(
        [sys.executable, FOLDER / name, *arguments], capture_output=True, text=True, check=False, env=child_environment
    )
    assert done.returncode == 0, done.stderr
    assert figure in done.stdout
