"""The decoder in the Llama shape: the net alone.

Shapes in names: b sequences, t positions, d width, h heads, g key-value heads, k width of a head, f width of the
MLP, v vocabulary. Names of modules are those of Hugging Face's Llama, so that weights map one to one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.errors import InputError
from trainwright.models.token_net import TokenNet

RMS_EPS: Final = 1e-6
ROPE_THETA: Final = 10_000.0
INIT_STD: Final = 0.02  # Radford et al. 2018, section 4.1


@dataclass(frozen=True, slots=True)
class Shape:
    """All that determines a decoder's tensors. Errors: InputError that names the two numbers that do not fit."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    context: int
    vocabulary_size: int
    tied: bool = True

    def __post_init__(self) -> None:
        if self.width % (2 * self.heads):
            raise InputError(
                f"model.width {self.width} does not split into {self.heads} heads of even width; "
                f"choose a multiple of {2 * self.heads}"
            )
        if self.heads % self.kv_heads:
            raise InputError(f"model.heads {self.heads} is no multiple of model.kv_heads {self.kv_heads}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    """Root mean square normalisation (Zhang and Sennrich 2019, equation 4) over the last dimension."""

    def __init__(self, width: int, eps: float = RMS_EPS) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x_btd: Tensor) -> Tensor:
        return F.rms_norm(x_btd, self.weight.shape, self.weight, self.eps)


def rotary_tables(context: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Give cos_tk and sin_tk of rotary position embedding (Su et al. 2021, equations 15 and 34), for `rotate`.

    Component i turns with component i + k/2 (Llama's order in Hugging Face's weights), by t · θ^(-2i/k). The
    sign of the rotation stands in the first half of the sines.
    """
    frequencies = ROPE_THETA ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies)
    cos_tk = torch.cat((angles.cos(), angles.cos()), dim=-1)
    sin_tk = torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return cos_tk.float(), sin_tk.float()


def rotate(x_bhtk: Tensor, cos_tk: Tensor, sin_tk: Tensor) -> Tensor:
    return torch.addcmul(x_bhtk * cos_tk, x_bhtk.roll(x_bhtk.shape[-1] // 2, dims=-1), sin_tk)


class Attention(nn.Module):
    """Causal self-attention (Vaswani et al. 2017, section 3.2) with grouped key-value heads (Ainslie et al. 2023)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.head_width
        self.grouped = shape.kv_heads < shape.heads
        kv_width = shape.kv_heads * shape.head_width
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.v_proj = nn.Linear(shape.width, kv_width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x_btd: Tensor, cos_tk: Tensor, sin_tk: Tensor) -> Tensor:
        q_bhtk = rotate(self._heads(self.q_proj(x_btd)), cos_tk, sin_tk)
        k_bgtk = rotate(self._heads(self.k_proj(x_btd)), cos_tk, sin_tk)
        v_bgtk = self._heads(self.v_proj(x_btd))
        y_bhtk = F.scaled_dot_product_attention(q_bhtk, k_bgtk, v_bgtk, is_causal=True, enable_gqa=self.grouped)
        return self.o_proj(y_bhtk.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # nn.Module gives Any

    def _heads(self, x_btd: Tensor) -> Tensor:
        return x_btd.view(*x_btd.shape[:2], -1, self.head_width).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU without biases (Shazeer 2020, equation 6)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down_proj = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x_btd: Tensor) -> Tensor:
        h_btf = F.silu(self.gate_proj(x_btd)) * self.up_proj(x_btd)
        return self.down_proj(h_btf)  # type: ignore[no-any-return]  # nn.Module gives Any


class Layer(nn.Module):
    """One pre-norm block (Touvron et al. 2023, section 2.2)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width)
        self.mlp = MLP(shape)

    def forward(self, x_btd: Tensor, cos_tk: Tensor, sin_tk: Tensor) -> Tensor:
        x_btd = x_btd + self.self_attn(self.input_layernorm(x_btd), cos_tk, sin_tk)
        return x_btd + self.mlp(self.post_attention_layernorm(x_btd))  # type: ignore[no-any-return]  # likewise


class Decoder(TokenNet):
    """The net alone: token ids in, logits out. Weights are drawn from torch's stream at construction.

    Normal with standard deviation 0.02; projections onto the residual stream are scaled by 1/√(2·layers), as
    there are two a layer (Radford et al. 2019, section 2.3).
    """

    shape: Shape
    cos_tk: Tensor
    sin_tk: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary_size, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)
        self.lm_head = None if shape.tied else nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        for name, table_tk in zip(("cos_tk", "sin_tk"), rotary_tables(shape.context, shape.head_width), strict=True):
            self.register_buffer(name, table_tk, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        residual_std = INIT_STD / math.sqrt(2 * self.shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                onto_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual_std if onto_residual else INIT_STD)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Give logits_btv. Errors: InputError beyond the context."""
        return self.predict(self.encode(tokens_bt))

    def encode(self, tokens_bt: Tensor) -> Tensor:
        """Give the normalised output of the last layer, x_btd."""
        length = tokens_bt.shape[1]
        if length > self.shape.context:
            raise InputError(
                f"{length} tokens were given to a model with a context of {self.shape.context}; give fewer"
            )
        cos_tk, sin_tk = self.cos_tk[:length], self.sin_tk[:length]
        x_btd = self.embed_tokens(tokens_bt)
        for layer in self.layers:
            x_btd = layer(x_btd, cos_tk, sin_tk)
        return self.norm(x_btd)  # type: ignore[no-any-return]  # nn.Module gives Any

    def predict(self, x_btd: Tensor) -> Tensor:
        """Give logits_btv of encoded positions."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(x_btd, head.weight)

    def reader(self) -> Callable[[Sequence[int]], Tensor]:
        """As `TokenNet`; past the context it sees the newest tokens alone."""

        def read(ids: Sequence[int]) -> Tensor:
            tokens_bt = torch.tensor([ids[-self.shape.context :]], device=self.embed_tokens.weight.device)
            return self.predict(self.encode(tokens_bt)[:, -1])[0]

        return read
