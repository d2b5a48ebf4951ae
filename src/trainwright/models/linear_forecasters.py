"""NLinear and DLinear (Zeng et al. 2023, "Are transformers effective for time series forecasting?", section 4).

One layer over the target's own past, the same for all series. Shapes in names: b windows, c steps of context, h of
horizon, q quantiles.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.series import Window
from trainwright.models.forecasters import Forecaster, ForecasterOptions
from trainwright.trainable import Setup

MOVING_AVERAGE = 25  # steps, as in the paper


class NLinearOptions(ForecasterOptions):
    """The section `model:` of NLinear."""

    type: Literal["nlinear"] = "nlinear"


class NLinear(Forecaster):
    """Forecasts the change from the last value of the context by one linear layer."""

    model_type = "nlinear"
    options: ClassVar[type[ForecasterOptions]] = NLinearOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.layer = nn.Linear(self.context, self.horizon * len(self.quantiles))

    def predict(self, scaled: Window) -> Tensor:
        past_bc = scaled.observed_reals[..., 0]
        last_b = past_bc[:, -1:]
        changes_bhq = self.layer(past_bc - last_b).unflatten(1, (self.horizon, -1))
        return changes_bhq + last_b[..., None]  # type: ignore[no-any-return]  # nn.Module gives Any


class DLinearOptions(ForecasterOptions):
    """The section `model:` of DLinear."""

    type: Literal["dlinear"] = "dlinear"
    moving_average: Annotated[int, Field(ge=1)] = MOVING_AVERAGE

    @field_validator("moving_average")
    @classmethod
    def _odd(cls, steps: int) -> int:
        if steps % 2 == 0:
            raise ValueError(f"moving_average is {steps}; expected an odd number, so that a step has a middle")
        return steps


class DLinear(Forecaster):
    """Forecasts the moving average of the context and what is left beside it by a linear layer each, and adds them."""

    model_type = "dlinear"
    options: ClassVar[type[ForecasterOptions]] = DLinearOptions

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.moving_average: int = setup.model.moving_average
        outputs = self.horizon * len(self.quantiles)
        self.trend, self.remainder = (nn.Linear(self.context, outputs) for _ in range(2))

    @property
    def architecture(self) -> Mapping[str, Any]:
        return {**super().architecture, "moving_average": self.moving_average}

    def predict(self, scaled: Window) -> Tensor:
        past_bc = scaled.observed_reals[..., 0]
        trend_bc = smoothed(past_bc, self.moving_average)
        found = self.trend(trend_bc) + self.remainder(past_bc - trend_bc)
        return found.unflatten(1, (self.horizon, -1))  # type: ignore[no-any-return]  # likewise


def smoothed(past_bc: Tensor, steps: int) -> Tensor:
    """Give the mean of an odd number of steps around each; beyond the ends stand their first and last values."""
    half = steps // 2
    padded = F.pad(past_bc[:, None], (half, half), mode="replicate")
    return F.avg_pool1d(padded, steps, stride=1).squeeze(1)
