"""What the nets of language models share. Shapes in names: b sequences, t positions, v vocabulary."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn


class TokenShape(Protocol):
    """A frozen dataclass with all that determines the net's tensors; these are what every net has of it."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def width(self) -> int: ...
    @property
    def context(self) -> int:
        """Give the tokens of a window of training."""

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def tied(self) -> bool:
        """Tell whether one matrix embeds and predicts."""


class TokenNet(nn.Module):
    """A net that gives logits_btv of tokens_bt, and reads a text that grows."""

    shape: TokenShape

    def reader(self) -> Callable[[Sequence[int]], Tensor]:
        """Give a function that is called with a text, longer each time, and gives logits_v of what follows it."""
        raise NotImplementedError
