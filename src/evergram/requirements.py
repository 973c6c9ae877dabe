"""What a key of a recipe needs of the rest of it, declared with the key and compared in one place.

A class of settings says what it has (`traits`), a key what it needs (`Needs`), and `unmet` compares
the two and writes the error. No pair of settings is forbidden by a rule of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evergram.validation import shown


class Trait(Enum):
    """What a recipe or a run can have; the text says it, and which settings have it."""

    # Of [data] and [split].
    TEST_FILE = "a file of test pairs (data.test)"
    GIVEN_SPLIT = "test pairs of a file (split.kind = 'given')"
    SEPARATE_SELECTION = "pairs that select and do not test"
    # Of [model].
    SIZED = "an encoder that the recipe makes (model.kind other than 'module')"
    FREE_VECTORS = "a free vector for each entity (model.kind = 'factorization')"
    OWN_ROWS = "a row for each id (model.kind = 'factorization' without model.hash_rows)"
    RANDOM_START = "tables that start at random (model.start = 'random')"
    MADE_START = "tables that start from vectors (model.start = 'svd', 'smooth' or 'als')"
    UNIT_ROWS = "rows of unit norm (model.normalize = true)"
    FREE_NORMS = "rows of any norm (model.normalize = false)"
    PLAIN_VECTORS = "vectors that are published as they were trained (model.popularity = 0)"
    ID_TABLES = "tables of ids (model.kind = 'factorization', for example)"
    FEATURE_TABLES = "tables of features (model.kind = 'two_tower', for example)"
    LAYERS = (
        "layers (model.kind = 'two_tower', for example) or a trained task (task.temperature = "
        "'learned')"
    )
    BATCH_PRODUCTS = (
        "products of a batch (model.kind = 'two_tower' or 'module', or task.kind = 'softmax_all')"
    )
    MAPPABLE = "tables of which a step reads a part (model.kind = 'factorization' or 'two_tower')"
    # Of [task].
    PENALTY = "a penalty (a task.penalty above 0, or task.sparse)"
    GRAMIANS = (
        "a term with Gramians (a task.penalty above 0, or task.kind = 'second_order' or "
        "'spherical')"
    )
    MEASURES = "a term with measures (one with Gramians, or task.l2_measure = 'penalty')"
    NORMS = "a weight of norms (task.l2 above 0)"
    SQUARED_LOSS = "squares (task.kind = 'pointwise' with task.loss = 'squared')"
    SINGLE_PAIRS = "batches of single pairs (task.kind other than 'softmax_all')"
    SOME_CANDIDATES = (
        "steps that read a batch's candidates (task.kind other than 'softmax_all', such as "
        "'pointwise')"
    )
    # Of [gramian].
    DRAWN_APART = "an estimator with entities of its own (gramian.sampler)"
    NO_ROWS = "an estimator without rows (gramian.kind = 'sogram', 'storm' or 'sampled')"
    # Of [training].
    STEPS = "an optimizer that takes steps (training.optimizer other than 'als')"
    SOME_ROWS = "an optimizer that moves some rows (training.optimizer = 'adaptive' or 'sgd')"
    EPOCHS = "training (training.epochs above 0)"
    # Of [upgrade].
    NEW_MODEL = "a model that does not go on from another (upgrade.start other than 'previous')"
    FITTED_AFTERWARDS = "a transform that is fitted afterwards (upgrade.method = 'post-closed')"
    # Of a run.
    FIRST_VERSION = "version 0 of a lineage, trained by itself"
    NO_JOINT_TRANSFORM = (
        "a transform that is not trained with the model (upgrade.method = 'post-closed')"
    )
    ONE_PROCESS = "one process"
    CPU = "a CPU (--device cpu)"


# Traits of a run, which a recipe alone does not decide.
OF_A_RUN = frozenset({Trait.FIRST_VERSION, Trait.NO_JOINT_TRANSFORM, Trait.ONE_PROCESS, Trait.CPU})


class Needs:
    """Metadata of a key: the traits without which it would change nothing, or could not be.

    Args:
        traits: all that are needed.
        values: only these values need them; None: whatever is written, and all but the default.
        free: values that need nothing.
    """

    def __init__(
        self, *traits: Trait, values: tuple[Any, ...] | None = None, free: tuple[Any, ...] = ()
    ) -> None:
        self.traits = traits
        self.values = values
        self.free = free

    def of(self, value: Any) -> tuple[Trait, ...]:
        """Return the traits that a value needs."""
        is_free = value is None or value in self.free
        is_free = is_free or (self.values is not None and value not in self.values)
        return () if is_free else self.traits


def unmet(
    tables: Mapping[str, BaseModel], has: Collection[Trait], written: Collection[str]
) -> dict[str, str]:
    """Return each key whose needs are not met, "table.key", with a sentence that says so.

    Args:
        tables: of a recipe, by name; a class of settings may have `needs` for all of its keys.
        has: the traits of the recipe and the run.
        written: keys that were written, "table.key"; they are checked even if they say the default.
    """
    found = {}
    for name, table in tables.items():
        for key, field in type(table).model_fields.items():
            path, value = f"{name}.{key}", getattr(table, key)
            wanted = list(_wanted(table, field, value, is_written=path in written))
            lacking = [trait for trait in wanted if trait not in has]
            if lacking:
                found[path] = (
                    f"{path} is {shown(value)}, which needs {lacking[0].value}; change that, or "
                    f"leave {path} out."
                )
    return found


def _wanted(table: BaseModel, field: FieldInfo, value: Any, *, is_written: bool) -> Iterator[Trait]:
    """Yield the traits that a key of a table needs."""
    if is_written:
        yield from getattr(table, "needs", ())
    is_said = is_written or value != field.get_default(call_default_factory=True)
    for each in field.metadata:
        if isinstance(each, Needs) and (is_said or each.values is not None):
            yield from each.of(value)
