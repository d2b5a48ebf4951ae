"""The scales of a forecaster's series as part of its weights, so that whoever loads a checkpoint has them."""

from typing import Final, final

import numpy as np
import torch
from torch import nn

from trainwright.data.series_scaling import Scales
from trainwright.errors import InputError
from trainwright.state import State, StateValue, require_tensor, with_prefix

ENTRY: Final = "model.scaler"  # of a checkpoint


@final
class ScaleBuffers(nn.Module):
    """Scales as buffers, in float64."""

    def __init__(self, scales: Scales) -> None:
        super().__init__()
        for name, values in scales._asdict().items():
            self.register_buffer(name, torch.from_numpy(np.array(values)))

    def instead_of_those_in(self, state: State) -> dict[str, StateValue]:
        """Give a checkpoint's state with these scales in place of its own."""
        others = {name: value for name, value in state.items() if not name.startswith(f"{ENTRY}.")}
        return {**others, **with_prefix(ENTRY, self.state_dict())}

    def load(self, state: State) -> Scales:
        """Take up the scales of a checkpoint, and give them.

        Errors: DamagedCheckpointError for an entry that is missing, InputError for scales of other data.
        """
        loaded = {name: require_tensor(state, f"{ENTRY}.{name}") for name in Scales._fields}
        wrong = [name for name, values in loaded.items() if values.shape != self.get_buffer(name).shape]
        if wrong:
            raise InputError(
                f"the checkpoint's scales ({wrong[0]}) are of other series or columns than the data; put those back, "
                "or take its weights alone, by train.init"
            )
        for name, values in loaded.items():
            self.get_buffer(name).copy_(values)
        return Scales(*(values.cpu().numpy().copy() for values in loaded.values()))
