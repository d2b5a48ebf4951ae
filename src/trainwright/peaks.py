"""The most that a device can compute, as its maker states it: a step that claims more did not happen."""

import re
from collections.abc import Mapping
from typing import Final

TERA: Final = 1e12

# Dense bf16 (V100 and T4: fp16) tensor throughput in TFLOP/s, from NVIDIA's data sheets, without sparsity. A family of
# several boards stands with its fastest, so that no board is held to less than it can do.
TENSOR_TFLOPS: Final[Mapping[str, float]] = {
    "GB200": 2_500.0,
    "B200": 2_250.0,
    "GH200": 989.4,
    "H200": 989.4,
    "H100": 989.4,
    "A100": 312.0,
    "A40": 149.7,
    "A30": 165.0,
    "A10": 125.0,
    "L40S": 362.1,
    "L40": 181.1,
    "L4": 121.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "RTX A6000": 154.8,
    "V100S": 130.0,
    "V100": 125.0,
    "T4": 65.0,
}


def peak_flops(device_name: str) -> float | None:
    """Give the peak of a device in FLOP/s by the name that its driver gives; None for one that is not in the table."""
    words = "|".join(map(re.escape, TENSOR_TFLOPS))
    found = re.search(rf"(?<![A-Za-z0-9])({words})(?![A-Za-z0-9])", device_name)
    return TENSOR_TFLOPS[found[1]] * TERA if found else None
