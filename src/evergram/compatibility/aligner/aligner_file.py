"""Write and read a fitted aligner as one safetensors file.

Its metadata has one key, `KEY`: the JSON of an `AlignerRecord`. (safetensors does not write several
keys in a stable order, and equal aligners should give equal files.) Tensors: `map.weight` (and
`map.offset`) and `error.sigma` in float64, `transform.*` in float32. The file contains no code and
no vectors. `sha256` in the record is the hash of everything else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.aligner.solution import AlignerReport, AlignerSettings, Solution
from evergram.compatibility.certificate import StepError
from evergram.compatibility.closed_forms import ClosedForm
from evergram.compatibility.kinds import build_transform
from evergram.errors import DataError, IntegrityError, ShapeError, reason_and_remedy
from evergram.validation import sentence_of

KEY = "evergram.aligner"
FORMAT_VERSION: Literal[1] = 1


class AlignerRecord(BaseModel):
    """The JSON metadata of an aligner file: its settings, its transform and its report."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format_version: Literal[1] = FORMAT_VERSION
    settings: AlignerSettings
    kind: str
    options: dict[str, Any]
    report: AlignerReport
    # `StepError.objects` and `.power`; None if no row was held out.
    error: tuple[int, float] | None
    sha256: str = ""


def write_aligner(path: Path, settings: AlignerSettings, solution: Solution) -> None:
    """Write the file atomically, replacing an existing one. Raises: DataError: writing failed."""
    fitted, error = solution.fitted, solution.error
    tensors = {f"transform.{k}": v for k, v in fitted.transform.state_dict().items()}
    tensors["map.weight"] = fitted.weight
    if fitted.offset is not None:
        tensors["map.offset"] = fitted.offset
    if error is not None:
        tensors["error.sigma"] = error.sigma
    tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    record = AlignerRecord(
        settings=settings,
        kind=fitted.transform.kind,
        options=fitted.transform.options,
        report=solution.report,
        error=None if error is None else (error.objects, error.power),
    )
    record.sha256 = content_digest(json.loads(record.model_dump_json()), tensors)
    metadata = {KEY: record.model_dump_json()}
    if not path.parent.is_dir():
        raise DataError(
            f"{path} cannot be written: {path.parent} is not a folder; create it first."
        )
    try:
        with replacing(path, owner=f".{os.getpid()}") as file:
            file.write(save(tensors, metadata))
    except OSError as failed:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(failed)}.") from failed


def read_aligner(path: Path) -> tuple[AlignerSettings, Solution]:
    """Read a file that `write_aligner` wrote. Raises: IntegrityError: the content differs from what
    was saved. DataError: the file is missing, unreadable, not an aligner, or has a later format."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        content = json.loads(metadata[KEY])
        version = content["format_version"]
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; give a file that Aligner.save wrote.") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _refusal(path, f"it cannot be read ({str(error).rstrip('.')})") from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version}, but this Evergram reads version "
            f"{FORMAT_VERSION}; read it with the Evergram that wrote it, or a later one."
        )
    if content.get("sha256") != content_digest(content, tensors):
        raise IntegrityError(
            f"{path} is damaged: its content differs from what Aligner.save wrote; save it again, "
            "or use another copy."
        )
    try:
        record = AlignerRecord.model_validate_json(metadata[KEY])
        return record.settings, _restored(record, tensors)
    except ValidationError as error:
        raise _refusal(path, sentence_of(error, AlignerRecord).rstrip(".")) from error
    except (ShapeError, KeyError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise _refusal(path, f"its contents are inconsistent ({why})") from error


def content_digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a record's JSON, without its own hash, and of all tensors."""
    record = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _restored(record: AlignerRecord, tensors: dict[str, Tensor]) -> Solution:
    """Rebuild the solution from a file's record and tensors. Raises: KeyError, ShapeError,
    RuntimeError: the tensors do not match the record."""
    if any(not bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ShapeError("A number is not finite.")
    dims = record.report.old_dim, record.report.new_dim
    transform = build_transform(record.kind, *dims, record.options)
    prefix = "transform."
    transform.load_state_dict(
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    )
    error = None
    if record.error is not None:
        error = StepError(tensors["error.sigma"], *record.error)
    weight, offset = tensors["map.weight"], tensors.get("map.offset")
    fitted = ClosedForm(transform, record.report.ridge, weight, offset)
    return Solution(fitted, record.report, error)


def _refusal(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is not an aligner that this Evergram can read: {reason}; give a file that "
        "Aligner.save wrote."
    )
