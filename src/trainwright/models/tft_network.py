"""The Temporal Fusion Transformer (Lim et al. 2021): the net alone.

Shapes in names: b windows, c steps of context, h of the horizon, t of both, l places (steps × windows), m variables, d
width, q quantiles. Within the net features come first and windows last.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import torch
from torch import Tensor, nn

from trainwright.data.series import Inputs, Window
from trainwright.errors import InputError
from trainwright.models.tft_layers import (
    Embedding,
    GatedResidual,
    GatedSkip,
    InterpretableAttention,
    Linear,
    Selected,
    StackedGatedResiduals,
    VariableSelection,
)

CONTEXTS: Final = 4  # for the selections, the enrichment, and hidden and cell state


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a net besides its inputs and outputs. Errors: InputError where the heads do not divide the width."""

    width: int
    heads: int
    lstm_layers: int = 1
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InputError(f"model.width {self.width} is no multiple of model.heads {self.heads}")


class Forecast(NamedTuple):
    """Quantiles, and what they were made of: where each step of the horizon looked, and the shares of variables."""

    quantiles_bhq: Tensor
    attention_bht: Tensor  # the mean over heads; rows sum to 1
    static_bm: Tensor | None  # None: there are no static variables
    past_bcm: Tensor
    future_bhm: Tensor


class Static(NamedTuple):
    """The contexts that static variables give, and the variables' shares in them; None where there are none."""

    selection_db: Tensor | None = None
    enrichment_db: Tensor | None = None
    hidden_db: Tensor | None = None
    cell_db: Tensor | None = None
    shares_bm: Tensor | None = None


@final
class TemporalFusionTransformer(nn.Module):
    """Forecasts quantiles of a target from what is static, known and observed of its series.

    Past variables are the known, then the observed ones; future variables the known. Without static variables there
    are no contexts, and the recurrence begins at zero. Errors: InputError where nothing is known of the future.
    """

    def __init__(self, inputs: Inputs, shape: Shape, quantiles: int) -> None:
        super().__init__()
        if not inputs.known:
            raise InputError(
                "a Temporal Fusion Transformer needs a variable that is known over the horizon; name a column, or ask "
                "for data.calendar or data.time_index"
            )
        width, dropout = shape.width, shape.dropout
        context = width if inputs.static else None
        self.static = StaticEncoder(inputs, shape) if inputs.static else None
        self.known, self.observed = Embedding(inputs.known, width), Embedding(inputs.observed, width)
        past, future = len(inputs.known) + len(inputs.observed), len(inputs.known)
        self.past = VariableSelection(past, width, context=context, dropout=dropout)
        self.future = VariableSelection(future, width, context=context, dropout=dropout)
        self.recurrence = EncoderDecoder(shape)
        self.enrichment = GatedResidual(width, width, width, context=context, dropout=dropout)
        self.attention = InterpretableAttention(width, shape.heads, dropout)
        self.attended = GatedSkip(width, width, dropout)
        self.feed_forward = GatedResidual(width, width, width, context=None, dropout=dropout)
        self.last = GatedSkip(width, width, 0.0)
        self.head = Linear(width, quantiles)

    def forward(self, window: Window) -> Forecast:
        windows, context, _ = window.observed_reals.shape
        static = Static() if self.static is None else self.static(window)
        past, future = self._selected(window, static.selection_db)
        local_dtb = self.recurrence(*(steps(part.vector_dl, windows) for part in (past, future)), static)
        enriched_dl = self.enrichment(local_dtb.flatten(1), static.enrichment_db)
        asking_dl = enriched_dl[:, context * windows :]
        attended_dl, attention_bht = self.attention(asking_dl, enriched_dl, hiding(context, local_dtb))
        output_dl = self.feed_forward(self.attended(attended_dl, asking_dl))
        quantiles_ql = self.head(self.last(output_dl, local_dtb[:, context:].flatten(1)))
        quantiles_bhq, past_bcm, future_bhm = (
            steps(part, windows).permute(2, 1, 0) for part in (quantiles_ql, past.shares_ml, future.shares_ml)
        )
        return Forecast(quantiles_bhq, attention_bht, static.shares_bm, past_bcm, future_bhm)

    def _selected(self, window: Window, context_db: Tensor | None) -> tuple[Selected, Selected]:
        """Give what is selected of the past (d, c × b) and of the future (d, h × b)."""
        known_mdl = self.known(places(window.known_reals), places(window.known_codes))
        observed_mdl = self.observed(places(window.observed_reals), places(window.observed_codes))
        known_past_mdl, future_mdl = known_mdl.tensor_split([observed_mdl.shape[-1]], -1)
        return self.past(torch.cat((known_past_mdl, observed_mdl)), context_db), self.future(future_mdl, context_db)


def places(x_btm: Tensor) -> Tensor:
    """Give x_ml, windows last."""
    return x_btm.permute(2, 1, 0).flatten(1)


def steps(x_dl: Tensor, windows: int) -> Tensor:
    """Give x_dtb."""
    return x_dl.reshape(len(x_dl), -1, windows)


def hiding(context: int, local_dtb: Tensor) -> Tensor:
    """Give -inf where a step comes after the one of the horizon that asks, 0 elsewhere. Shape (1, h, t)."""
    both = local_dtb.shape[1]
    return local_dtb.new_full((1, both - context, both), -math.inf).triu(context + 1)


@final
class StaticEncoder(nn.Module):
    """Selects among static variables, and encodes four contexts from what is selected (section 4.3)."""

    def __init__(self, inputs: Inputs, shape: Shape) -> None:
        super().__init__()
        self.embedding = Embedding(inputs.static, shape.width)
        self.selection = VariableSelection(len(inputs.static), shape.width, context=None, dropout=shape.dropout)
        self.contexts = StackedGatedResiduals(CONTEXTS, shape.width, shape.dropout)

    def forward(self, window: Window) -> Static:
        selected: Selected = self.selection(self.embedding(window.static_reals.mT, window.static_codes.mT))
        contexts_4db: Tensor = self.contexts(selected.vector_dl.expand(CONTEXTS, -1, -1))
        selection_db, enrichment_db, hidden_db, cell_db = contexts_4db.unbind()
        return Static(selection_db, enrichment_db, hidden_db, cell_db, selected.shares_ml.mT)


@final
class EncoderDecoder(nn.Module):
    """A recurrent encoder of the past, whose state begins a decoder of the future; a gated skip around both: (17)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        between = shape.dropout if shape.lstm_layers > 1 else 0.0
        self.encoder, self.decoder = (
            nn.LSTM(shape.width, shape.width, shape.lstm_layers, dropout=between) for _ in range(2)
        )
        self.gated = GatedSkip(shape.width, shape.width, shape.dropout)

    def forward(self, past_dcb: Tensor, future_dhb: Tensor, static: Static) -> Tensor:
        """Give features_dtb; hidden and cell state begin at zero, or in every layer at the static contexts."""
        begin = None
        if static.hidden_db is not None and static.cell_db is not None:
            begin = tuple(
                state_db.mT.expand(self.encoder.num_layers, -1, -1).contiguous()
                for state_db in (static.hidden_db, static.cell_db)
            )
        encoded_cbd, state = self.encoder(past_dcb.permute(1, 2, 0), begin)
        decoded_hbd, _ = self.decoder(future_dhb.permute(1, 2, 0), state)
        decoded_dtb = torch.cat((encoded_cbd, decoded_hbd)).permute(2, 0, 1)
        features: Tensor = self.gated(decoded_dtb.flatten(1), torch.cat((past_dcb, future_dhb), 1).flatten(1))
        return features.view_as(decoded_dtb)
