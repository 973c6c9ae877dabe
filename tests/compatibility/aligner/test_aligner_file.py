"""A saved aligner is read bit by bit, and a file that is not understood is not read at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from tests.support.planted_maps import planted_map

from evergram.compatibility import Aligner
from evergram.compatibility.aligner.aligner_file import KEY, content_digest
from evergram.compatibility.closed_form_fit import KINDS
from evergram.errors import DataError, IntegrityError

GOLDEN = Path(__file__).parents[2] / "golden" / "aligner-1"
Tensors = dict[str, torch.Tensor]
Spoil = Callable[[Tensors, dict[str, str]], object]


def parts_of(path: Path) -> tuple[Tensors, dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {n: file.get_tensor(n) for n in file.keys()}, file.metadata()  # noqa: SIM118


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(KINDS), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_a_loaded_aligner_is_the_saved_one_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory, kind: str, moments: bool, solved: bool, seed: int
) -> None:
    path = tmp_path_factory.mktemp("saved") / "back.safetensors"
    new, old, _ = planted_map(250, 3, 5, seed, noise=0.5)
    aligner = Aligner(kind).fit(new, old)
    if solved:
        aligner.report()
    aligner.save(path, moments=moments)
    loaded = Aligner.load(str(path))
    assert repr(loaded) == repr(aligner)
    assert loaded.report() == aligner.report()
    for dtype in ("f2", "f4", "f8"):
        assert np.array_equal(
            loaded.transform(new.astype(dtype)), aligner.transform(new.astype(dtype))
        )
    ours, theirs = aligner.as_transform(), loaded.as_transform()
    assert ours.kind == theirs.kind
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, theirs.state_dict()[name])
    again = path.with_name("again.safetensors")
    loaded.save(again, moments=moments)
    assert again.read_bytes() == path.read_bytes()


def test_a_loaded_aligner_goes_on(tmp_path: Path) -> None:
    new, old, _ = planted_map(300, 3, 5, noise=0.5)
    whole = Aligner().fit(new, old)
    paths = [tmp_path / f"{i}.safetensors" for i in range(2)]
    # The first part is too small for a map of its own.
    Aligner().fit(new[:2], old[:2]).save(paths[0])
    Aligner().fit(new[2:200], old[2:200]).save(paths[1])
    joined = Aligner.load(paths[0]).merge(Aligner.load(paths[1]))
    joined.partial_fit(new[200:], old[200:])
    np.testing.assert_allclose(joined.transform(new), whole.transform(new), rtol=1e-9, atol=1e-12)


def test_without_moments_the_file_is_small_and_can_only_be_applied(tmp_path: Path) -> None:
    new, old, _ = planted_map(300, 30, 50, noise=0.5)
    aligner = Aligner().fit(new, old)
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    aligner.save(small, moments=False)
    aligner.save(large)
    # 30 · 50 numbers of 8 and of 4 bytes; three times 81² of 8 bytes more.
    assert small.stat().st_size < 12 * 1500 + 3000
    assert large.stat().st_size > 24 * 81**2
    applied = Aligner.load(small)
    assert np.array_equal(applied.transform(new), aligner.transform(new))
    uses: list[Callable[[], object]] = [
        lambda: applied.partial_fit(new, old),
        lambda: Aligner().merge(applied),
        lambda: applied.merge(aligner),
        applied.step_error,
    ]
    for use in uses:
        with pytest.raises(DataError, match="saved without its moments"):
            use()
    assert applied.fit(new, old).report() == aligner.report()  # which forgets what was there


def test_a_failed_write_leaves_the_file_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old, _ = planted_map(200, 3, 5)
    path = tmp_path / "back.safetensors"
    Aligner().fit(new, old).save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"back.safetensors cannot be written: No space left"):
        Aligner("affine").fit(new, old).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(DataError, match="gone is not a folder; make it first"):
        Aligner().fit(new, old).save(tmp_path / "gone" / "back.safetensors")
    with pytest.raises(DataError, match="seen no rows"):
        Aligner().save(path)


def changed(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Return a change of the JSON beside the tensors."""

    def spoil(tensors: Tensors, metadata: dict[str, str]) -> None:
        record = json.loads(metadata[KEY])
        change(record)
        metadata[KEY] = json.dumps(record)

    return spoil


SPOILT: list[tuple[str, Spoil]] = [
    ("has no key evergram.aligner", lambda t, m: m.clear()),
    ("is damaged", lambda t, m: m.update({KEY: "{"})),
    ("is damaged", lambda t, m: m.update({KEY: "[]"})),
    ("is damaged", lambda t, m: m.update({KEY: "{}"})),
    ("format version 2, and this", changed(lambda r: r.update(format_version=2))),
    ("surprise is unknown", changed(lambda r: r.update(surprise=1))),
    ("settings.surprise is unknown", changed(lambda r: r["settings"].update(surprise=1))),
    ("map.report.surprise is unknown", changed(lambda r: r["map"]["report"].update(surprise=1))),
    ("'deep' has no closed form", changed(lambda r: r["settings"].update(transform="deep"))),
    ("'residual_mlp'", changed(lambda r: r["map"].update(kind="residual_mlp"))),
    ("zeros is missing", changed(lambda r: r.pop("zeros"))),
    ("do not fit together", changed(lambda r: r.update(dims=[4, 5]))),
    ("do not fit together", changed(lambda r: r.update(dims=[-3, 5]))),
    ("do not fit together", changed(lambda r: r.update(zeros=None, map=None))),
    ("do not fit together", changed(lambda r: r["map"].update(has_offset=True))),
    ("do not fit together", lambda t, m: t.pop("map.weight")),
    ("do not fit together", lambda t, m: t.pop("moments.held.sum")),
    ("do not fit together", lambda t, m: t.pop("transform.weight")),
    ("map.weight is not finite", lambda t, m: t["map.weight"].fill_(torch.nan)),
    ("moments.held.sum is not finite", lambda t, m: t["moments.held.sum"].fill_(torch.inf)),
]


@pytest.mark.parametrize(("message", "spoil"), SPOILT, ids=[f"{i}" for i in range(len(SPOILT))])
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, message: str, spoil: Spoil
) -> None:
    path = tmp_path / "back.safetensors"
    new, old, _ = planted_map(200, 3, 5)
    Aligner().fit(new, old).save(path)
    tensors, metadata = parts_of(path)
    spoil(tensors, metadata)
    record = json.loads(metadata[KEY]) if metadata.get(KEY, "{") != "{" else {}
    if record:
        record["sha256"] = content_digest(record, tensors)
        metadata[KEY] = json.dumps(record)
    save_file(tensors, path, metadata)
    with pytest.raises(DataError, match=message) as refused:
        Aligner.load(path)
    sentence = str(refused.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize("kind", ["linear", "affine"])
def test_one_bit_flipped_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "back.safetensors"
    new, old, _ = planted_map(200, 3, 5)
    Aligner(kind).fit(new, old).save(path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    text = whole.index(b'\\"rows\\":') + 9  # a digit of the report
    places = [text, *range(header, len(whole), 97), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"back.safetensors is damaged: its content") as e:
            Aligner.load(path)
        assert "\n" not in str(e.value)
    path.write_bytes(whole)
    assert np.array_equal(
        Aligner.load(path).transform(new), Aligner(kind).fit(new, old).transform(new)
    )


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "back.safetensors"
    with pytest.raises(DataError, match="is not there"):
        Aligner.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        Aligner.load(tmp_path)
    new, old, _ = planted_map(200, 3, 5)
    Aligner().fit(new, old).save(path)
    for content in (b"", b"no safetensors at all", path.read_bytes()[:-10]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            Aligner.load(path)


def test_files_that_were_written_earlier_are_read() -> None:
    """Made by `python tests/golden/make.py aligner`."""
    recorded = json.loads((GOLDEN / "expected.json").read_text())
    assert set(recorded) == {path.stem for path in GOLDEN.glob("*.safetensors")}
    for name, expected in recorded.items():
        loaded = Aligner.load(GOLDEN / f"{name}.safetensors")
        assert repr(loaded) == expected["aligner"]
        mapped = loaded.transform(np.array(expected["new"]))
        np.testing.assert_allclose(mapped, expected["mapped"], rtol=1e-12)
        assert loaded.report().held_out_rows == expected["held_out_rows"]
