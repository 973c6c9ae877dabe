"""Write a running training for TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from evergram.data.sampling import Batch
from evergram.encoders.features import SIDES
from evergram.errors import TrainingError
from evergram.evaluation.gramian_error import score_histograms
from evergram.training.callbacks import Callback, Point
from evergram.training.monitors.gramian_tracking import Tracking

# Steps between two values of the objective.
EVERY = 20


class TensorBoard(Callback):
    """Writes the objective, metrics, errors of the Gramians and scores of pairs to a folder.

    Args:
        folder: one a run; `tensorboard --logdir` shows all the folders below the one it names.
        pairs: the observed pairs, int64 [n] rows of queries and of candidates.
        tracking: a callback that runs before this one; its errors are written too.
    Raises: TrainingError: the extra is not installed.
    """

    def __init__(
        self, folder: Path, pairs: tuple[Tensor, Tensor], tracking: Tracking | None = None
    ) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise TrainingError(
                "TensorBoard is not installed; pip install 'evergram[tensorboard]'."
            ) from None
        self.writer: SummaryWriter = SummaryWriter(str(folder))
        self.pairs = pairs
        self.tracking = tracking
        self.written: int = 0

    def on_step(self, at: Point, batch: Batch, objective: Tensor) -> None:
        if at.step % EVERY == 0:
            self._scalar("objective", float(objective), at.step)
        tracking = self.tracking
        if tracking is None:
            return
        for place in range(self.written, len(tracking.steps)):
            for title, errors in (
                ("Gramian error", tracking.gramian_errors),
                ("gradient error", tracking.gradient_errors),
            ):
                for name, values in errors.items():
                    self._scalar(f"{title}/{name}", values[place], tracking.steps[place])
        self.written = len(tracking.steps)

    def on_evaluation(self, at: Point, record: Mapping[str, float]) -> None:
        for name, value in record.items():
            if name not in ("epoch", "seconds", "objective"):
                self._scalar(name, value, at.step)
        run = at.training
        now = run.encoder.embed_all(run.scene)
        query, candidate = (now[side].cpu() for side in SIDES)
        scores = score_histograms(query, candidate, self.pairs)
        ends, middles = scores.edges[1:], (scores.edges[1:] + scores.edges[:-1]) / 2
        for name, density in (("observed", scores.observed), ("random", scores.random)):
            shares = density * scores.edges.diff()
            self.writer.add_histogram_raw(
                f"scores/{name}",
                min=float(scores.edges[0]),
                max=float(ends[-1]),
                num=1,
                sum=float(shares @ middles),
                sum_squares=float(shares @ middles.square()),
                bucket_limits=ends.tolist(),
                bucket_counts=shares.tolist(),
                global_step=at.step,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"written": self.written}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.written = state["written"]

    def on_end(self, at: Point) -> None:
        self.writer.close()

    def _scalar(self, name: str, value: float, step: int) -> None:
        self.writer.add_scalar(name, value, step)
