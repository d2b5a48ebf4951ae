"""Write the handwritten digits that scikit-learn brings as labelled sequences.

An image of 8 × 8 pixels is read row by row: 8 positions of 8 reals, 0 (white) to 16. The first 898 images are to learn
from, the last 899 to be tested on, as in scikit-learn's own example; of the first the last 180 are held out.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

LEARNT, HELD_OUT = 718, 180


def main(folder: Path) -> None:
    """Write `digits.npz`, to train and validate on, and `test.npz`, for `trainwright evaluate --data`."""
    digits = load_digits()
    x, y = digits.images.astype(np.float32), digits.target
    end = LEARNT + HELD_OUT
    held_out = {"x_validation": x[LEARNT:end], "y_validation": y[LEARNT:end]}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "digits.npz", x=x[:LEARNT], y=y[:LEARNT], **held_out)
    np.savez(folder / "test.npz", x=x[end:], y=y[end:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
