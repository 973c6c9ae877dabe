"""The table [training]: the loop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from evergram.kinds import Positive, Rate, Weight
from evergram.training.recipe.table import Metric, RecipeTable


class TrainingRecipe(RecipeTable):
    """The loop.

    `optimizer` "auto" is "als" where pilots chose a first version's λ or l2 by it, else "adaptive".
    `table_rate` is Adagrad's on tables of ids and `feature_rate` on those of features, whose rows
    many entities share; `layer_rate` is Adam's on the rest. With "sgd" they are the rates of plain
    SGD, [G2]'s Algorithms 1 and 2; with "adam" tables learn by Adam, too. "als" has no rates: it
    solves for the rows of tables, side by side.
    """

    # At most; training ends when so many evaluations in a row were no better (0: never).
    # 0 publishes the start as it is, see `model.start`.
    epochs: Annotated[int, Field(ge=0)] = 100
    patience: Annotated[int, Field(ge=0)] = 10
    # At last train on all that is not test, for as many steps as selection found best; "auto" does
    # where split.kind is "given", for published figures are of such models.
    refit: bool | Literal["auto"] = "auto"
    # Pairs a step; "auto" makes about 32 steps an epoch of small data.
    batch_size: Positive | Literal["auto"] = "auto"
    # Also train on the pairs of an epoch that do not fill a batch, in a last, smaller one.
    short_batch: bool = False
    optimizer: Literal["auto", "adaptive", "adam", "sgd", "als"] = "auto"
    # Whether pilots search longer: more settings, each trained to its end by the recipe's steps.
    thorough: bool = False
    # "auto" is 0.1 (0.01 of Adam), or what pilots choose.
    table_rate: Rate | Literal["auto"] = "auto"
    feature_rate: Rate = 0.005
    layer_rate: Rate = 2e-4
    # Each epoch's rates are so many times those of the epoch before.
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    # Of unit rows: set tables' rows to norm 1 before each epoch; rows that have grown would learn
    # ever more slowly.
    rescale_rows: bool = False
    # ρ of the inverse Gramians that gradients are multiplied by; 0 leaves them as they are.
    precondition: Weight = 0.1
    # Of the layers' products in a step; parameters, Gramians and evaluations are float32.
    precision: Literal["float32", "bfloat16"] = "float32"
    # Where tables of ids and features are while they are trained: "mapped" is in files, "auto" is
    # in files where memory cannot hold them; "sharded" is divided by rows among all processes.
    tables: Literal["auto", "memory", "mapped", "sharded"] = "auto"
    # Epochs between evaluations, and the metric that keeps the best.
    evaluate_every: Positive = 1
    metric: Metric = "recall@20"
    # The share of training's work, in multiply-adds, that evaluations may take: they rank a sample
    # of queries where all would take more. "auto" is 0.25 where an evaluation takes more than
    # seconds; "full" ranks all queries, whatever it takes.
    evaluate_share: Rate | Literal["auto", "full"] = "auto"
    # The published metrics: "auto" holds them to the share, too, of all of training.
    final_metrics: Literal["auto", "full"] = "auto"
    # Seconds of training (evaluation not counted) after which the last epoch ends.
    budget: Rate | None = None
    # The papers' metric while training goes on: MAP@10 on training and validation, every so many
    # minutes, against this many candidates.
    watch_minutes: Rate | None = None
    watch_candidates: Positive = 50_000
    # A value of `metric`: how long it took to reach it is reported.
    reach: Rate | None = None

    @property
    def sweeps(self) -> bool:
        """Whether an epoch is one sweep over all rows, in place of steps over batches of pairs."""
        return self.optimizer == "als"

    @property
    def may_sweep(self) -> bool:
        """Whether nothing here says that training takes steps."""
        fields = type(self).model_fields
        of_steps = ("batch_size", "short_batch", "table_rate", "decay", "precondition")
        return self.optimizer in ("auto", "als") and all(
            getattr(self, name) == fields[name].default for name in of_steps
        )
