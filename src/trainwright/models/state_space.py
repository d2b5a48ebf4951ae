"""The blocks of Mamba-2 (Dao and Gu 2024), and the decoder made of them: the nets alone.

Shapes in names: b sequences, t positions, d width, i inner width (heads × width of a head), h heads, p width of a
head, g groups, n size of the state, x channels of the convolution (i + 2·g·n), k its width, v vocabulary.
Names of modules are those of Hugging Face's Mamba2, so that weights map one to one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.errors import InputError
from trainwright.models.causal_conv import CausalConvolution
from trainwright.models.decoder import INIT_STD, RMSNorm
from trainwright.models.ssd import ssd, step
from trainwright.models.token_net import TokenNet

NORM_EPS: Final = 1e-5
A_RANGE: Final = (1.0, 16.0)
DT_RANGE: Final = (1e-3, 1e-1)
DT_LEAST: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Blocks:
    """All that determines the tensors and bits of a stack of blocks. Errors: InputError naming numbers that do not fit.

    `chunk`: positions that `ssd` takes at once.
    """

    layers: int
    width: int
    head_width: int
    state_size: int
    expand: int = field(default=2, kw_only=True)
    groups: int = field(default=1, kw_only=True)
    conv_width: int = field(default=4, kw_only=True)
    chunk: int = field(default=64, kw_only=True)

    def __post_init__(self) -> None:
        if self.inner_width % self.head_width:
            raise InputError(
                f"model.width {self.width} × model.expand {self.expand} does not split into heads of "
                f"model.head_width {self.head_width}; choose a head_width that divides {self.inner_width}"
            )
        if self.heads % self.groups:
            raise InputError(f"the {self.heads} heads are no multiple of model.groups {self.groups}")

    @property
    def inner_width(self) -> int:
        return self.expand * self.width

    @property
    def heads(self) -> int:
        return self.inner_width // self.head_width

    @property
    def channels(self) -> int:
        """Give the width of what is convolved: x, B and C."""
        return self.inner_width + 2 * self.groups * self.state_size


@dataclass(frozen=True, slots=True)
class Shape(Blocks):
    """That of a decoder. `context`: tokens of a window of training; the net itself has no limit."""

    context: int
    vocabulary_size: int
    tied: bool = field(default=True, kw_only=True)


class Memory(NamedTuple):
    """What a layer keeps of the positions before: inputs of the convolution, and the state, in fp32 where Δ is."""

    inputs_btx: Tensor  # the last k − 1
    state_bhpn: Tensor


class GatedRMSNorm(nn.Module):
    """The norm of y · silu(z), apart for each group (section 7.1)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, y_bti: Tensor, gate_bti: Tensor) -> Tensor:
        gated_bti = y_bti * F.silu(gate_bti)
        if self.groups == 1:
            return F.rms_norm(gated_bti, self.weight.shape, self.weight, NORM_EPS)
        parts_btgi = torch.unflatten(gated_bti, -1, (self.groups, -1))
        return F.rms_norm(parts_btgi, parts_btgi.shape[-1:], eps=NORM_EPS).flatten(-2) * self.weight


class Mixer(nn.Module):
    """One Mamba-2 block: projection, causal convolution, state-space mixing, gated norm, projection (section 7.1)."""

    def __init__(self, shape: Blocks) -> None:
        super().__init__()
        self.shape = shape
        self.in_proj = nn.Linear(shape.width, shape.inner_width + shape.channels + shape.heads, bias=False)
        self.conv1d = CausalConvolution(shape.channels, shape.conv_width)
        self.dt_bias = nn.Parameter(torch.empty(shape.heads))
        self.A_log = nn.Parameter(torch.empty(shape.heads))
        self.D = nn.Parameter(torch.ones(shape.heads))
        self.norm = GatedRMSNorm(shape.inner_width, shape.groups)
        self.out_proj = nn.Linear(shape.inner_width, shape.width, bias=False)

    def forward(self, x_btd: Tensor, memory: Memory | None) -> tuple[Tensor, Memory]:
        """Give the block's output and what the next position needs; `memory` None: nothing came before."""
        shape = self.shape
        sizes = (shape.inner_width, shape.channels, shape.heads)
        gate_bti, inputs_btx, dt_bth = torch.split_with_sizes(self.in_proj(x_btd), sizes, -1)
        mixed_btx, inputs_btx = self._convolve(inputs_btx, None if memory is None else memory.inputs_btx)
        y_bti, state_bhpn = self._mix(mixed_btx, dt_bth, None if memory is None else memory.state_bhpn)
        return self.out_proj(self.norm(y_bti, gate_bti)), Memory(inputs_btx, state_bhpn)

    def _convolve(self, inputs_btx: Tensor, before_btx: Tensor | None) -> tuple[Tensor, Tensor]:
        """Give silu of the convolution, and the last k − 1 inputs."""
        reach = self.shape.conv_width - 1
        if before_btx is None:
            inputs_btx = F.pad(inputs_btx, (0, 0, reach, 0))
        else:
            inputs_btx = torch.cat((before_btx, inputs_btx), 1)
        return F.silu(self.conv1d(inputs_btx)), inputs_btx[:, inputs_btx.shape[1] - reach :]

    def _mix(self, mixed_btx: Tensor, dt_bth: Tensor, state_bhpn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Give y_bti of x, B and C side by side, with D's way past the state, and the state after them."""
        shape = self.shape
        sizes = (shape.inner_width, *[shape.groups * shape.state_size] * 2)
        x_bti, b_btn, c_btn = torch.split_with_sizes(mixed_btx, sizes, -1)
        x_bthp = torch.unflatten(x_bti, -1, (shape.heads, -1))
        b_btgn, c_btgn = (torch.unflatten(each, -1, (shape.groups, -1)) for each in (b_btn, c_btn))
        dt_bth, a_h = F.softplus(dt_bth.float() + self.dt_bias), -self.A_log.exp()
        if state_bhpn is not None and mixed_btx.shape[1] == 1:
            of_first = (x_bthp[:, 0], dt_bth[:, 0], a_h, b_btgn[:, 0], c_btgn[:, 0])
            y_bhp, state_bhpn = step(*of_first, state_bhpn)
            y_bthp = y_bhp[:, None]
        else:
            y_bthp, state_bhpn = ssd(x_bthp, dt_bth, a_h, b_btgn, c_btgn, chunk=shape.chunk, state_bhpn=state_bhpn)
        return (y_bthp + x_bthp * self.D[:, None]).flatten(-2), state_bhpn


class Layer(nn.Module):
    """One pre-norm residual block."""

    def __init__(self, shape: Blocks) -> None:
        super().__init__()
        self.norm = RMSNorm(shape.width, NORM_EPS)
        self.mixer = Mixer(shape)

    def forward(self, x_btd: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        mixed_btd, memory = self.mixer(self.norm(x_btd), memory)
        return x_btd + mixed_btd, memory


@torch.no_grad()
def stack(shape: Blocks) -> nn.ModuleList:
    """Make the layers, their weights drawn from torch's stream as the paper's own code draws them.

    Linear layers and convolutions uniform in ±1/√inputs with `out_proj` scaled by 1/√layers, A uniform in 1 … 16, Δ at
    first log-uniform in 0.001 … 0.1, D and the norms' weights 1.
    """
    layers = [Layer(shape) for _ in range(shape.layers)]
    for mixer in (layer.mixer for layer in layers):
        mixer.out_proj.weight.div_(math.sqrt(shape.layers))
        mixer.A_log.uniform_(*A_RANGE).log_()
        dt_h = mixer.dt_bias.uniform_(*map(math.log, DT_RANGE)).exp_().clamp_(min=DT_LEAST)
        dt_h.add_(torch.log(-torch.expm1(-dt_h)))  # softplus gives back Δ
    return nn.ModuleList(layers)


class Mamba2Decoder(TokenNet):
    """Token ids in, logits out. Embeddings are normal with standard deviation 0.02 at first, as the paper's code's."""

    shape: Shape

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = nn.Embedding(shape.vocabulary_size, shape.width)
        self.layers = stack(shape)
        self.norm_f = RMSNorm(shape.width, NORM_EPS)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        nn.init.normal_(self.embeddings.weight, std=INIT_STD)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Give logits_btv, for any number of positions."""
        return self.predict(self.encode(tokens_bt))

    def encode(self, tokens_bt: Tensor) -> Tensor:
        """Give the normalised output of the last layer, x_btd."""
        return self.read(tokens_bt)[0]

    def read(self, tokens_bt: Tensor, memories: Sequence[Memory] | None = None) -> tuple[Tensor, Sequence[Memory]]:
        """Give x_btd of tokens that follow those of `memories` (None: that begin a text), and what follows is given."""
        x_btd, after = self.embeddings(tokens_bt), []
        for number, layer in enumerate(self.layers):
            x_btd, memory = layer(x_btd, memories[number] if memories else None)
            after.append(memory)
        return self.norm_f(x_btd), after

    def predict(self, x_btd: Tensor) -> Tensor:
        """Give logits_btv of encoded positions."""
        head = self.embeddings if self.lm_head is None else self.lm_head
        return F.linear(x_btd, head.weight)

    def reader(self) -> Callable[[Sequence[int]], Tensor]:
        """As `TokenNet`; it reads each token once, so a token costs the same however long the text is."""
        memories: Sequence[Memory] | None = None
        seen = 0

        def read(ids: Sequence[int]) -> Tensor:
            nonlocal memories, seen
            tokens_bt = torch.tensor([ids[seen:]], device=self.embeddings.weight.device)
            x_btd, memories = self.read(tokens_bt, memories)
            seen = len(ids)
            return self.predict(x_btd[:, -1])[0]

        return read
