"""Canaries show the true error of reading a past version, and limits are held to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.exact_versions import exact_lineage, exact_version
from tests.support.publishing import publish_next

from evergram.compatibility.certificate import StepError
from evergram.compatibility.transforms import LinearTransform
from evergram.errors import DataError, IntegrityError
from evergram.lineage import publication
from evergram.lineage.artefact import Artefact
from evergram.lineage.canary_check import CompatibilityLimits, diagnose_lineage, past_limits
from evergram.lineage.lineage import Lineage

DIMS = (2, 3, 4)


@pytest.fixture
def vectors() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(20, d, generator=draw) for d in DIMS]


@pytest.fixture
def lineage(tmp_path: Path, vectors: list[torch.Tensor]) -> Lineage:
    """Three versions of twenty objects from files; version 2 keeps fewer canaries."""
    line = Lineage.create(tmp_path / "lineage")
    ids = pa.array([f"object {i}" for i in range(20)])
    for n, z in enumerate(vectors):
        transform = LinearTransform(DIMS[n - 1], DIMS[n]) if n else None
        error = None
        if transform is not None:
            with torch.no_grad():
                error = StepError.of(transform(z), vectors[n - 1])
        kept = 20 if n < 2 else 15
        canaries = {"object": (ids[:kept], z[:kept])}
        publish_next(line, version({"object": (ids, z)}, transform, canaries, error))
    return Lineage.open(line.path)


def version(
    sides: dict[str, Any],
    transform: LinearTransform | None,
    canaries: dict[str, Any],
    error: StepError | None = None,
) -> Artefact:
    dim = next(iter(sides.values()))[1].shape[1]
    facts: tuple[dict[str, Any], dict[str, Any]] = ({"metrics": {}}, {})
    return Artefact(dim, sides, transform, *facts, canaries=canaries, error=error)


def rms(delta: torch.Tensor) -> float:
    return math.sqrt(float(delta.double().square().sum(1).mean()))


def test_canaries_show_the_true_error(lineage: Lineage, vectors: list[torch.Tensor]) -> None:
    readings = diagnose_lineage(lineage)
    assert [r.version for r in readings] == [0, 1]
    first = readings[0]
    assert first.measured is not None
    assert first.measured.objects == 15
    back = lineage.chain.apply(vectors[2], 2, 0)[:15]
    error = rms(back - vectors[0][:15])
    assert first.measured.error == pytest.approx(error, rel=1e-5)
    assert first.measured.relative == pytest.approx(error / rms(vectors[0][:15]), rel=1e-5)
    # At version 1 all twenty were kept; version 0 reads itself without error.
    one = lineage.chain.apply(vectors[1], 1, 0)
    expected = {0: 0.0, 1: rms(one - vectors[0]) / rms(vectors[0])}
    for k, value in expected.items():
        assert first.history[k] == pytest.approx(value, rel=1e-5)
    # Eq. (9) on the same objects: what each step contributes.
    z = [v[:15] for v in vectors]
    chain = lineage.chain
    delta = {i: chain.apply(z[i], i, i - 1) - z[i - 1] for i in (1, 2)}
    assert first.measured.terms[1] == pytest.approx(rms(delta[1]), rel=1e-5)
    assert first.measured.terms[2] == pytest.approx(rms(chain.apply(delta[2], 1, 0)), rel=1e-5)


def test_the_certificate_is_made_of_the_stored_errors(
    lineage: Lineage, vectors: list[torch.Tensor]
) -> None:
    for reading in diagnose_lineage(lineage):
        assert reading.certificate is not None
        back = lineage.chain.apply(vectors[2], 2, reading.version)
        true = rms(back - vectors[reading.version])
        assert true <= reading.certificate.bound * (1 + 1e-6)


def test_a_value_past_its_limit_is_a_sentence(lineage: Lineage) -> None:
    readings = diagnose_lineage(lineage)
    assert past_limits(readings, CompatibilityLimits()) == []
    assert past_limits(readings, CompatibilityLimits(1e9, 1e9, 1e9)) == []
    sentences = past_limits(readings, CompatibilityLimits(error=1e-9, amplification=1e-9))
    assert len(sentences) == 4
    assert "Version 0: its error is" in sentences[0]
    assert "past the limit of 1e-09" in sentences[0]
    with pytest.raises(DataError, match="limit of the bound is nan"):
        past_limits(readings, CompatibilityLimits(bound=math.nan))


@pytest.mark.parametrize("size", [50, 8])
def test_a_certificate_of_another_transform_is_belied_by_seen_canaries(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says which of them alignment never saw; a limit reads what they show in any case."""
    # As it was published before publication tried transforms on canaries itself.
    monkeypatch.setattr(publication, "check_transform_on_canaries", lambda *_: None)
    lineage = Lineage.create(tmp_path / "lineage")
    ids, draw = pa.array(range(size)), torch.Generator().manual_seed(0)
    past, now = (torch.randn(size, 3, generator=draw) for _ in range(2))
    block = {"object": (ids, past)}
    publish_next(lineage, version(block, None, block))
    exact = StepError.of(past.repeat(10, 1), past.repeat(10, 1))
    block = {"object": (ids, now)}
    publish_next(lineage, version(block, LinearTransform(3, 3), block, exact))
    readings = diagnose_lineage(lineage)
    assert readings[0].unseen is None
    limited = past_limits(readings, CompatibilityLimits(error=0.1))
    assert any("its error is" in sentence for sentence in limited)
    belied = past_limits(readings, CompatibilityLimits(bound=0.1))
    assert (len(belied) == 1 and "on 50 canaries it is" in belied[0]) == (size == 50)


def test_a_value_that_is_not_known_is_past_any_limit(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    ids = pa.array(["a", "b"])
    for n in (0, 1):
        transform = LinearTransform(2, 2) if n else None
        publish_next(lineage, version({"object": (ids, torch.eye(2))}, transform, {}))
    readings = diagnose_lineage(lineage)
    assert (readings[0].measured, readings[0].certificate) == (None, None)
    assert (
        "nothing is known of its bound" in past_limits(readings, CompatibilityLimits(bound=9.0))[0]
    )


def test_files_are_checked_first(lineage: Lineage) -> None:
    path = lineage.path / "versions" / "0" / "metrics.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(IntegrityError, match="SHA-256"):
        diagnose_lineage(lineage)


def test_the_diagnosis_goes_over_gaps(tmp_path: Path) -> None:
    lineage = exact_lineage(tmp_path / "exact")
    publish_next(lineage, exact_version(2, 1), promote=False)
    lineage.withdraw(2, "a fault")
    publish_next(lineage, exact_version(3, 1))
    publish_next(lineage, exact_version(4, 3))
    readings = {r.version: r for r in diagnose_lineage(lineage)}
    assert list(readings) == [0, 1, 3]
    for reading in readings.values():
        assert reading.measured is not None
        assert reading.certificate is not None
        assert reading.measured.relative < 1e-4
        # A length to be relative to, even where the next number is that of the gap.
        assert 0 <= reading.certificate.relative < 1e-4
        assert reading.measured.objects == 5
    assert readings[0].certificate is not None
    assert readings[0].measured is not None
    assert readings[0].certificate.terms[2] == 0
    assert set(readings[0].measured.terms) == {1, 3, 4}
    assert set(readings[1].history) == {1, 3, 4}
    lineage.label("keep", 3)
    lineage.label("stable", 4)
    lineage.retire(1)
    assert [r.version for r in diagnose_lineage(lineage)] == [0, 3]


def test_a_side_of_which_nothing_is_in_common_is_not_known(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "lineage")
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(30, 2, generator=draw)
    queries = pa.array([f"query {i}" for i in range(30)])
    for n in (0, 1):
        candidates = pa.array([f"candidate {i + 1000 * n}" for i in range(30)])
        both = {"query": (queries, z), "candidate": (candidates, z)}
        error = StepError.of(z, z) if n else None
        transform = LinearTransform.from_matrix(torch.eye(2)) if n else None
        publish_next(lineage, version(both, transform, both, error))
    readings = diagnose_lineage(lineage)
    assert list(readings[0].unknown) == ["error", "side candidate"]
    assert past_limits(readings, CompatibilityLimits()) == []
    (said,) = past_limits(readings, CompatibilityLimits(bound=1.0))
    assert "nothing is known of its side candidate, and there are limits" in said
