"""Write and read an aligner as one safetensors file.

Its metadata has one key, `KEY`: the JSON of an `AlignerRecord`. (safetensors writes several keys in
changing order, and equal aligners should be equal files.) Tensors: `moments.GROUP.sum` and `.dims`
of each group and `moments.held.hashes`, if rows can still be added; `map.weight` (and `map.offset`)
in float64 and `transform.*` in float32, if a map has been fitted. The file holds no code. `sha256`
in the record is the hash of all the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from evergram.atomic_files import replacing
from evergram.compatibility.aligner.solution import (
    AlignerReport,
    AlignerSettings,
    GroupedMoments,
    Solution,
)
from evergram.compatibility.closed_form_fit import KINDS, ClosedForm
from evergram.compatibility.kinds import build_transform
from evergram.errors import DataError, IntegrityError, ShapeError, reason_and_remedy
from evergram.validation import sentence_of

KEY = "evergram.aligner"
FORMAT_VERSION: Literal[1] = 1


@dataclass(frozen=True)
class AlignerState:
    """The state of an aligner for D_old and D_new; without moments if it was saved so, and without
    a solution if it has not been fitted yet."""

    settings: AlignerSettings
    dims: tuple[int, int]
    moments: GroupedMoments | None
    solution: Solution | None


class _MapRecord(BaseModel):
    """The map's transform and its report."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: str
    options: dict[str, Any]
    has_offset: bool
    report: AlignerReport


class AlignerRecord(BaseModel):
    """The JSON metadata of an aligner file."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format_version: Literal[1] = FORMAT_VERSION
    settings: AlignerSettings
    dims: tuple[int, int]
    zeros: tuple[int, int] | None
    map: _MapRecord | None
    sha256: str = ""


def write_aligner(path: Path, state: AlignerState) -> None:
    """Write a file, whole or not at all, over an existing one. Raises: DataError: it cannot be
    written."""
    tensors: dict[str, Tensor] = {}
    zeros = record = None
    if state.moments is not None:
        zeros = state.moments.zeros
        tensors |= {f"moments.{k}": v for k, v in state.moments.state_dict().items()}
    if state.solution is not None:
        fitted = state.solution.fitted
        tensors["map.weight"] = fitted.weight
        if fitted.offset is not None:
            tensors["map.offset"] = fitted.offset
        tensors |= {f"transform.{k}": v for k, v in fitted.transform.state_dict().items()}
        record = _MapRecord(
            kind=fitted.transform.kind,
            options=fitted.transform.options,
            has_offset=fitted.offset is not None,
            report=state.solution.report,
        )
    tensors = {k: v.detach().cpu().contiguous() for k, v in tensors.items()}
    whole = AlignerRecord(settings=state.settings, dims=state.dims, zeros=zeros, map=record)
    whole.sha256 = content_digest(json.loads(whole.model_dump_json()), tensors)
    metadata = {KEY: whole.model_dump_json()}
    if not path.parent.is_dir():
        raise DataError(f"{path} cannot be written: {path.parent} is not a folder; make it first.")
    try:
        with replacing(path, owner=f".{os.getpid()}") as file:
            file.write(save(tensors, metadata))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason_and_remedy(error)}.") from error


def read_aligner(path: Path) -> AlignerState:
    """Read what `write_aligner` wrote.

    Raises: IntegrityError: the content differs from what was saved. DataError: the file is missing,
        cannot be read, is no aligner file or has a later format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError(f"{path} is not there; give a file that Aligner.save wrote.") from None
    except (OSError, SafetensorError) as error:
        raise _refusal(path, f"it cannot be read ({str(error).rstrip('.')})") from error
    if KEY not in metadata:
        raise _refusal(path, f"its metadata has no key {KEY}")
    try:
        content = json.loads(metadata[KEY])
        version = content["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise _refusal(path, f"its metadata {KEY} is damaged") from error
    if version != FORMAT_VERSION:
        raise DataError(
            f"{path} has the format version {version}, and this Evergram reads version "
            f"{FORMAT_VERSION}; read it with the Evergram that wrote it, or a later one."
        )
    if content.get("sha256") != content_digest(content, tensors):
        raise IntegrityError(
            f"{path} is damaged: its content differs from what Aligner.save wrote; save it "
            "again, or take another copy."
        )
    try:
        record = AlignerRecord.model_validate_json(metadata[KEY])
    except ValidationError as error:
        raise _refusal(path, sentence_of(error, AlignerRecord).rstrip(".")) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise _refusal(path, f"its tensor {name} is not finite")
    try:
        return _restored(record, tensors)
    except (DataError, ShapeError, KeyError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200].rstrip(".")
        raise _refusal(path, f"its parts do not fit together ({why})") from error


def content_digest(content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of a record's JSON, but for its own hash, and of all tensors."""
    record = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _restored(record: AlignerRecord, tensors: dict[str, Tensor]) -> AlignerState:
    """Return the state of a file.

    Raises: KeyError, ShapeError, DataError, RuntimeError: the tensors do not fit the record.
    """
    old_dim, new_dim = record.dims
    if min(record.dims) < 1 or (record.zeros is None and record.map is None):
        raise ShapeError(f"There is nothing in it for dims {old_dim} and {new_dim}.")
    moments = solution = None
    if record.zeros is not None:
        moments = GroupedMoments(old_dim, new_dim, record.settings.held_out)
        moments.load_state_dict(_under("moments.", tensors))
        moments.zeros = record.zeros
    if record.map is not None:
        if record.map.kind not in KINDS:
            raise ShapeError(f"The kind {record.map.kind!r} has no closed form.")
        transform = build_transform(record.map.kind, old_dim, new_dim, record.map.options)
        transform.load_state_dict(_under("transform.", tensors))
        weight = tensors["map.weight"]
        offset = tensors["map.offset"] if record.map.has_offset else None
        if weight.shape != (old_dim, new_dim) or (
            offset is not None and offset.shape != (old_dim,)
        ):
            raise ShapeError(f"The map is {list(weight.shape)}.")
        report = record.map.report
        solution = Solution(ClosedForm(transform, report.ridge, weight, offset), report)
    return AlignerState(record.settings, record.dims, moments, solution)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _refusal(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is not an aligner that this Evergram can read: {reason}; give a file that "
        "Aligner.save wrote."
    )
