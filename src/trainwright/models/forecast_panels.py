"""A forecast as a report draws it: the target before and after the present, the median, and the outermost band."""

from collections.abc import Sequence

from torch import Tensor

from trainwright.data.series import Window
from trainwright.illustrations import Band, Line, Lines
from trainwright.models.forecast_scores import MEDIAN


def forecast_panel(
    window: Window, observed_c: Tensor, predicted_hq: Tensor, quantiles: Sequence[float], *, title: str
) -> Lines:
    """Show the first of some windows and the forecast of it. Step 0 is the first that is forecast.

    `observed_c` is 0 where the target was missing; there the line has a gap.
    """
    past = _gappy(window.observed_reals[0, :, 0], observed_c)
    future = _gappy(window.target[0], window.weight[0])
    ahead = [float(step) for step in range(len(future))]
    low, median, high = (predicted_hq[:, place].tolist() for place in (0, list(quantiles).index(MEDIAN), -1))
    return Lines(
        title=title,
        about="a window of the validation rows",
        x_unit="steps ahead",
        y_unit="deviations",
        lines=[
            Line("target", [float(step) for step in range(-len(past), len(future))], [*past, *future]),
            Line("median", ahead, median),
        ],
        bands=[Band(f"{quantiles[0]:g} to {quantiles[-1]:g}", ahead, low, high)],
    )


def _gappy(values: Tensor, observed: Tensor) -> list[float | None]:
    return [value if there else None for value, there in zip(values.tolist(), observed.tolist(), strict=True)]
