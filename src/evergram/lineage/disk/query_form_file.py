"""How a version folds in new queries, on disk: numbers as JSON, Gramians as safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from evergram.atomic_files import write_text
from evergram.errors import DataError, IntegrityError, ShapeError
from evergram.gramian.new_queries.query_form import Length, QueryForm, Rule
from evergram.lineage.disk.tensor_files import load_tensors, save_tensors

RECORD, TENSORS = "fold_in.json", "fold_in.safetensors"
_NAMES = ("strengths", "powers", "matrices", "centres")


class _Record(BaseModel):
    """The contents of `fold_in.json`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )

    rule: Rule
    squares: float
    pull: float
    length: Length
    values: bool


def write_query_form(form: QueryForm, folder: Path) -> None:
    """Write both files of a form into a version's folder."""
    record = {name: getattr(form, name) for name in _Record.model_fields}
    write_text(folder / RECORD, json.dumps(_Record(**record).model_dump(), indent=2))
    save_tensors({name: getattr(form, name) for name in _NAMES}, folder / TENSORS)


def read_query_form(folder: Path, dim: int) -> QueryForm:
    """Return the form in a version's folder, of vectors of `dim` dims.

    Raises: ValueError, IntegrityError: its files do not fit together.
    """
    record = _Record.model_validate_json((folder / RECORD).read_bytes())
    tensors = load_tensors(folder / TENSORS)
    numbers = record.model_dump(exclude={"rule"})
    try:
        form = QueryForm(
            record.rule,
            tensors["strengths"],
            tensors["powers"],
            tensors["matrices"],
            tensors["centres"],
            **numbers,
        )
    except (DataError, KeyError, ShapeError) as error:
        raise IntegrityError(f"{folder / TENSORS}: {error}") from error
    if form.dim != dim:
        raise IntegrityError(f"{folder / TENSORS} has dim {form.dim}, its version {dim}.")
    return form
