"""Training steps per second of the Temporal Fusion Transformer: our network and pytorch-forecasting's, alternating.

    python benchmarks/tft_throughput.py --rounds 10 --steps 10 [--compiled]

Both forecast 24 steps from 96 for batches of 64 windows, with 4 heads and dropout 0.1, and take forward, quantile loss,
backward, clipping and fused AdamW in one bare loop over the same tensors: once with few variables (one static, three
known, the target) and vectors of width 16, once with many (one static, four known, the target and six others) and
vectors of width 8. The numbers of parameters are told: theirs interpolates where ours has a linear map, so ours has
more.
Needs `pip install 'pytorch-forecasting>=1.8,<2'`.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import product
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own convention

from trainwright.data.series import Inputs, Variable, Window
from trainwright.environment import keep_freed_memory
from trainwright.models.forecast_scores import quantile_losses
from trainwright.models.tft_network import Shape, TemporalFusionTransformer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pytorch_forecasting.metrics import QuantileLoss
    from pytorch_forecasting.models import TemporalFusionTransformer as TheirTransformer

WINDOWS, CONTEXT, HORIZON, HEADS, DROPOUT = 64, 96, 24, 4, 0.1
THEIRS = "pytorch-forecasting"
STATIC = ["static"]
QUANTILES = [0.1, 0.5, 0.9]
RATE, MAX_NORM, LEARNT_STEPS = 1e-2, 1.0, 20


class Sizes(NamedTuple):
    known: int
    observed: int  # the first one is the target
    width: int

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """Give the names of what is known and of what is observed."""
        known, observed = (
            [f"{kind}{index}" for index in range(count)]
            for kind, count in (("known", self.known), ("observed", self.observed))
        )
        return known, observed


CASES: Final = {"few variables": Sizes(3, 1, width=16), "many variables": Sizes(4, 7, width=8)}
Side: TypeAlias = Callable[[], float]  # takes a step and gives its loss


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the throughput of the TFT with pytorch-forecasting's")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="of each side in a round")
    parser.add_argument("--compiled", action="store_true", help="take ours compiled by torch.compile as well")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  as a run has it; untyped in torch
    keep_freed_memory()  # likewise; for both sides
    for threads, (case, sizes) in product(arguments.threads, CASES.items()):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        print(f"{case}, {torch.get_num_threads()} threads for both")
        window = wave(sizes)
        sides = {"ours": our_side(window, sizes), THEIRS: their_side(window, sizes)}
        if arguments.compiled:
            sides["ours, compiled"] = our_side(window, sizes, compiled=True)
        check_learning(sides)
        compare(sides, arguments.rounds, arguments.steps)


def wave(sizes: Sizes) -> Window:
    """Give windows of a wave whose phase is known and whose level is static; all other variables are noise."""
    phase_bt = torch.rand(WINDOWS, 1) * 6 + torch.arange(CONTEXT + HORIZON) / 4
    level_b1 = torch.randn(WINDOWS, 1)
    target_bt = level_b1 + phase_bt.sin() + torch.randn(WINDOWS, CONTEXT + HORIZON) * 0.1
    known_btm = torch.randn(WINDOWS, CONTEXT + HORIZON, sizes.known)
    known_btm[..., 0], known_btm[..., 1] = phase_bt.sin(), phase_bt.cos()
    observed_bcm = torch.randn(WINDOWS, CONTEXT, sizes.observed)
    observed_bcm[..., 0] = target_bt[:, :CONTEXT]
    none = [torch.zeros(WINDOWS, *steps, 0, dtype=torch.int64) for steps in ((), (CONTEXT + HORIZON,), (CONTEXT,))]
    future_bh = target_bt[:, CONTEXT:]
    return Window(level_b1, none[0], known_btm, none[1], observed_bcm, none[2], future_bh, torch.ones_like(future_bh))


def our_side(window: Window, sizes: Sizes, *, compiled: bool = False) -> Side:
    """Take steps under deterministic algorithms, as the loop has them."""
    static, known, observed = (tuple(map(Variable, names)) for names in (STATIC, *sizes.names))
    inputs = Inputs(static, known, observed)
    network = TemporalFusionTransformer(inputs, Shape(sizes.width, HEADS, dropout=DROPOUT), len(QUANTILES))
    forward = torch.compile(network) if compiled else network
    return stepping(network, lambda: forward(window).quantiles_bhq, window.target, deterministic=True)


def their_side(window: Window, sizes: Sizes) -> Side:
    known, observed = sizes.names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = TheirTransformer(
            hidden_size=sizes.width,
            hidden_continuous_size=sizes.width,
            attention_head_size=HEADS,
            dropout=DROPOUT,
            output_size=len(QUANTILES),
            loss=QuantileLoss(QUANTILES),
            max_encoder_length=CONTEXT,
            static_reals=STATIC,
            time_varying_reals_encoder=[*known, *observed],
            time_varying_reals_decoder=known,
            x_reals=[*STATIC, *known, *observed],
            x_categoricals=[],
            logging_metrics=nn.ModuleList(),
            output_transformer=lambda found: found["prediction"],
        )
    batch = their_batch(window)
    return stepping(network, lambda: network(batch)["prediction"], window.target, deterministic=False)


def their_batch(window: Window) -> dict[str, Tensor]:
    static_bt1 = window.static_reals[:, None].expand(-1, CONTEXT + HORIZON, -1)
    observed_btm = F.pad(window.observed_reals, (0, 0, 0, HORIZON))
    reals_btm = torch.cat((static_bt1, window.known_reals, observed_btm), 2)
    return {
        "encoder_cat": window.known_codes[:, :CONTEXT],
        "decoder_cat": window.known_codes[:, CONTEXT:],
        "encoder_cont": reals_btm[:, :CONTEXT].contiguous(),
        "decoder_cont": reals_btm[:, CONTEXT:].contiguous(),
        "encoder_lengths": torch.full((WINDOWS,), CONTEXT),
        "decoder_lengths": torch.full((WINDOWS,), HORIZON),
        "target_scale": torch.tensor([[0.0, 1.0]]).expand(WINDOWS, 2),
    }


def stepping(network: nn.Module, forward: Callable[[], Tensor], target_bh: Tensor, *, deterministic: bool) -> Side:
    print(f"{type(network).__module__.split('.')[0]}: {sum(p.numel() for p in network.parameters()):,} parameters")
    optimizer = torch.optim.AdamW(network.parameters(), RATE, fused=True)
    quantiles_q = torch.tensor(QUANTILES)

    def step() -> float:
        torch.use_deterministic_algorithms(deterministic)
        optimizer.zero_grad()
        loss = quantile_losses(forward(), target_bh, quantiles_q).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        torch.use_deterministic_algorithms(False)
        return loss.item()

    return step


def check_learning(sides: dict[str, Side]) -> None:
    """See that both learn the same batch alike, so that neither is fast by leaving something out."""
    for name, side in sides.items():
        losses = [side() for _ in range(LEARNT_STEPS)]
        print(f"{name}: loss {losses[0]:.3f} before the first step, {losses[-1]:.3f} after {LEARNT_STEPS - 1}")
        assert losses[-1] < losses[0] / 2, name


def compare(sides: dict[str, Side], rounds: int, steps: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds):
        for name, side in sorted(sides.items(), reverse=index % 2 == 1):
            began = time.perf_counter()
            for _ in range(steps):
                side()
            rates[name].append(steps / (time.perf_counter() - began))
        print(f"round {index}: " + ", ".join(f"{n} {found[-1]:.1f} steps/s" for n, found in rates.items()))
    for name in sides.keys() - {THEIRS}:
        ratios = [ours / theirs for ours, theirs in zip(rates[name], rates[THEIRS], strict=True)]
        print(
            f"{name}: median ratio over {rounds} rounds {statistics.median(ratios):.3f} "
            f"(lowest {min(ratios):.3f}, highest {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
