"""Files of vectors: aligned by what they have in common, imported, written as another version."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.command import evergram
from tests.support.embedding_files import file_of, id_names, randn
from tests.support.encoders import lineage_with_encoder
from tests.support.lineages import DIMS, lineage_of, read_as, vectors_of
from tests.support.publishing import publish_next
from tests.support.text_encoders import ADDRESSES, encoded
from torch import Tensor

from evergram.compatibility.aligner.solution import RANK
from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chance import LEAST_DEVIATIONS, MOST_OF_CHANCE, Chance
from evergram.compatibility.closed_forms import SecondMoments, degenerate_side, fit_closed_form
from evergram.compatibility.row_groups import Groups, pair_groups
from evergram.compatibility.transforms import LinearTransform
from evergram.data.corpus import Side, Vocabulary
from evergram.errors import DataError, DegradationError, LineageError
from evergram.ids import id_hashes
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.align import (
    AlignSettings,
    FileAlignment,
    align,
    read_pairs,
    refuse_error,
    refuse_few,
    sampled_rows,
)
from evergram.releasing.past_file import (
    SAME,
    SIDE,
    checked_past,
    import_embeddings,
    transform_file,
)
from evergram.training.checkpoint import held_out
from evergram.training.progress import Progress
from evergram.vector_files.open_embeddings import Pairing, open_embeddings, write_vectors

__all__ = ["evergram"]
ROWS = 400
IDS = id_names(ROWS)


def moments_of(old: Tensor, new: Tensor, mask: Tensor | slice = slice(None)) -> SecondMoments:
    moments = SecondMoments(old.shape[1], new.shape[1])
    moments.add(old[mask], new[mask])
    return moments


@pytest.mark.parametrize("kind", ["linear", "affine", "orthogonal", "low_rank"])
def test_held_out_objects_change_nothing_of_the_transform(tmp_path: Path, kind: str) -> None:
    """Their old vectors are made nonsense; the transform must not know."""
    new = randn(0, ROWS, 8)
    old = new @ randn(1, 8, 5) + randn(2, ROWS, 5)
    held = pair_groups(torch.from_numpy(id_hashes(IDS)), 0.2).held
    poisoned = torch.where(held[:, None], 1000 * randn(3, ROWS, 5), old)
    weights = []
    for name, vectors in (("a", old), ("b", poisoned)):
        lineage = Lineage.create(tmp_path / name)
        files = (
            file_of(tmp_path / f"{name}-old.parquet", vectors),
            file_of(tmp_path / "new.npy", new),
        )
        settings = AlignSettings(kind, rank=3 if kind == "low_rank" else None, held_out=0.2)
        report = align(*files, lineage, settings, max_error=math.inf)["alignment"]
        weights.append(lineage.chain.matrix(1, 0))
        assert (report["held_out"]["transformed"]["relative_error"] > 0.9) == (name == "b")
    assert torch.equal(*weights)


def test_from_version_2_on_the_error_counts_at_all_past_versions(tmp_path: Path) -> None:
    """S W C + ρ W = S C', ρ chosen under S: by the library's parts, from the vectors by hand."""
    versions = [100 * randn(0, ROWS, 6)]
    versions.append(versions[0] @ randn(1, 6, 20) / 100 + 3 * randn(2, ROWS, 20))
    versions.append(versions[1] @ randn(3, 20, 25) + 9 * randn(4, ROWS, 25))
    files = [file_of(tmp_path / f"{i}.parquet", v) for i, v in enumerate(versions)]
    lineage = Lineage.create(tmp_path / "l")
    align(files[0], files[1], lineage)
    first = lineage.chain.matrix(1, 0)
    align(files[1], files[2], lineage)
    groups = pair_groups(torch.from_numpy(id_hashes(IDS)), 0.1)
    seen = moments_of(versions[1], versions[2], groups.seen)
    chosen = moments_of(versions[1], versions[2], groups.chosen)
    multi = fit_closed_form("linear", seen, chosen, history_metric([first], 6))
    single = fit_closed_form("linear", seen, chosen)
    assert multi.ridge > 0
    matrix = lineage.chain.matrix(2, 1)
    torch.testing.assert_close(matrix, multi.weight, rtol=1e-5, atol=1e-5)
    assert float((matrix - single.weight).norm()) > 1e-3 * float(matrix.norm())


@pytest.mark.parametrize("name", ["old.parquet", "new.parquet"])
@pytest.mark.parametrize("rows", [slice(0, ROWS), slice(0, ROWS // 2)])
def test_a_file_that_is_changed_while_it_is_aligned_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rows: slice
) -> None:
    """Its error would be of other vectors; a little longer ones are near the map that was fitted,
    and half of them are on it."""
    new = randn(0, ROWS, 8)
    written = {"old.parquet": new @ randn(1, 8, 5) + randn(2, ROWS, 5), "new.parquet": new}
    old, newer = (file_of(tmp_path / each, vectors) for each, vectors in written.items())
    factor = 1.01 if rows.stop == ROWS else 1.0

    def aligned(*given: Any) -> None:
        measure(*given)
        file_of(tmp_path / name, factor * written[name][rows], IDS[rows])

    measure = FileAlignment.__init__
    monkeypatch.setattr(FileAlignment, "__init__", aligned)
    lineage = Lineage.create(tmp_path / "l")
    with pytest.raises(DataError, match=f"{name} was changed"):
        align(old, newer, lineage, max_error=math.inf)
    assert not Lineage.exists(tmp_path / "l") or not Lineage.open(tmp_path / "l").readable


def test_a_file_that_lost_the_seen_objects_goes_on_with_what_is_common(tmp_path: Path) -> None:
    new = randn(0, ROWS, 8)
    lineage = Lineage.create(tmp_path / "l")
    files = [
        file_of(tmp_path / "old.npy", new @ randn(1, 8, 5)),
        file_of(tmp_path / "new.npy", new),
    ]
    align(files[0], files[1], lineage)
    before = lineage.canaries(1)[SIDE][0].to_pylist()
    fewer = file_of(tmp_path / "fewer.npy", 2 * new[100:], IDS[100:])
    align(1, fewer, lineage)
    after = lineage.canaries(2)[SIDE][0].to_pylist()
    assert set(after) == {i for i in before if int(i[2:]) >= 100}


def test_objects_under_several_ids_do_not_measure_themselves(tmp_path: Path) -> None:
    """Without anything to learn, the error of what was not fitted to is about 1 and more."""
    new, old = randn(0, ROWS, 8), randn(1, ROWS, 5)
    new[ROWS // 2 :], old[ROWS // 2 :] = new[: ROWS // 2], old[: ROWS // 2]
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    lineage = Lineage.create(tmp_path / "l")
    settings = AlignSettings(held_out=0.5)
    metrics = align(*files, lineage, settings, max_error=math.inf)
    held = pair_groups(torch.from_numpy(id_hashes(IDS)), 0.5).held
    both = held[: ROWS // 2] & held[ROWS // 2 :]
    assert metrics["overlap"]["held_out"] == 2 * int(both.sum()) < int(held.sum())
    assert metrics["alignment"]["held_out"]["transformed"]["relative_error"] > 0.9


def test_groups_are_apart_and_the_held_out_one_is_that_of_training() -> None:
    hashes = torch.from_numpy(id_hashes(IDS, size=7))  # in parts
    vocabulary = Vocabulary(IDS)
    assert torch.equal(hashes, torch.from_numpy(id_hashes(vocabulary.keys)))
    groups = pair_groups(hashes, 0.2)
    assert torch.equal(groups.held, held_out(Side(vocabulary), 0.2))
    sizes = [int(g.sum()) for g in (groups.seen, groups.chosen, groups.held)]
    assert sum(sizes) == ROWS
    assert bool((groups.seen | groups.chosen | groups.held).all())
    assert 0.1 < sizes[2] / ROWS < 0.3
    assert 0.03 < sizes[1] / ROWS < 0.15


def test_queries_are_held_out_and_none_is_its_own_neighbour() -> None:
    hashes = torch.from_numpy(id_hashes(IDS))
    held = pair_groups(hashes, 0.2).held
    queries, catalogue = sampled_rows(hashes, held)
    assert bool(held[queries].all())
    assert len(queries) == int(held.sum())
    assert not bool(torch.isin(catalogue, queries).any())
    assert len(catalogue) == ROWS - len(queries)
    assert torch.equal(catalogue, sampled_rows(hashes, held)[1])


def groups_of(seen: int, chosen: int, held: int) -> Groups:
    """Groups of so many rows each."""
    place = torch.repeat_interleave(torch.arange(3), torch.tensor([seen, chosen, held]))
    return Groups(place == 0, place == 1, place == 2)


def test_few_pairs_are_refused_with_what_they_are_enough_for() -> None:
    def refuse(*sizes: int, **options: Any) -> bool:
        return refuse_few(groups_of(*sizes), (4, 6), "linear", 32, **options)

    assert refuse(50, 10, 60) is False
    assert refuse(10, 2, 3, allow_small=True) is True
    cases: list[tuple[tuple[int, ...], dict[str, Any], str]] = [
        ((10, 2, 60), {}, "12 common objects.*from 6 to 4 dims needs 18"),
        ((50, 10, 3), {}, "Only 3 of 63"),
        ((50, 10, 0), {"allow_small": True}, "Only 0 of 60"),
    ]
    for sizes, options, message in cases:
        with pytest.raises(DataError, match=message):
            refuse(*sizes, **options)


NAMES = Path("old.npy"), Path("new.npy")
GOOD = Chance(1.4, MOST_OF_CHANCE, LEAST_DEVIATIONS)


@pytest.mark.parametrize("scale", [1e-60, 1e-17, 1e20])
def test_lengths_whose_squares_float32_does_not_hold_are_refused(scale: float) -> None:
    good, bad = randn(0, 30, 4).double(), scale * randn(1, 30, 3).double()
    for side, moments in (("new", moments_of(good, bad)), ("old", moments_of(bad, good))):
        named, problem = degenerate_side(moments, (0, 0)) or ("", "")
        assert named == side
        assert "mean square length is" in problem


@pytest.mark.parametrize(
    ("error", "chance", "held", "limit", "message"),
    [
        (0.51, GOOD, 100, 0.5, "on 100 held-out objects the relative error is 0.51"),
        (0.1, GOOD, LEAST_OBJECTS - 1, 0.5, f"and {LEAST_OBJECTS} are needed"),
        (math.nan, GOOD, 100, None, "on 100 objects"),
        (0.1, Chance(1.4, 0.96, 9.0), 100, None, r"new\.npy hardly predicts old\.npy"),
        (0.1, Chance(1.4, 0.5, 4.9), 100, None, r"4\.9 standard deviations"),
        (0.1, Chance(math.nan, math.nan, 0.0), 100, 1.0, "the same id is the same object"),
    ],
)
def test_a_map_past_its_limit_or_no_better_than_chance_is_refused(
    error: float, chance: Chance, held: int, limit: float | None, message: str
) -> None:
    with pytest.raises(DegradationError, match=message):
        refuse_error(error, chance, held, limit, NAMES)


def test_a_map_at_its_limit_passes_and_a_limit_is_a_number_above_0() -> None:
    refuse_error(0.5, GOOD, LEAST_OBJECTS, 0.5, NAMES)
    refuse_error(9.0, GOOD, LEAST_OBJECTS, None, NAMES)
    refuse_error(math.nan, Chance(1.4, 2.0, 0.0), 0, math.inf, NAMES)
    for limit in (math.nan, -1.0):
        with pytest.raises(DataError, match=str(limit)):
            refuse_error(0.1, GOOD, 100, limit, NAMES)


def test_settings_that_cannot_be_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"transform": "truncate"}, "'truncate'"),
        ({"held_out": 0.0}, "held_out .*is 0"),
        ({"held_out": 1.0}, r"held_out .*1\.0"),
        ({"transform": "low_rank", "rank": 0}, "rank is 0"),
        ({"rank": 3}, "rank .*low_rank, not linear"),
        ({"scaled": True}, "scaled .*orthogonal, not linear"),
    ]
    for settings, message in cases:
        with pytest.raises(DataError, match=message):
            AlignSettings(**settings)
    ranks = [AlignSettings("low_rank").rank_of(*dims) for dims in ((64, 48), (8, 64))]
    assert ranks == [RANK, 8]
    assert AlignSettings("low_rank", rank=3).rank_of(8, 64) == 3


VECTORS = randn(0, 60, 4)


@pytest.fixture
def lineage(tmp_path: Path) -> Lineage:
    """A lineage whose version 0 has `VECTORS`, under the ids id0, id1, …"""
    new = Lineage.create(tmp_path / "line")
    import_embeddings(file_of(tmp_path / "first.parquet", VECTORS), new)
    return new


def test_the_newest_version_may_be_named_by_its_number(lineage: Lineage, tmp_path: Path) -> None:
    new = file_of(tmp_path / "new.npy", randn(1, 60, 3))
    past = checked_past(0, new, lineage)
    assert (past.rows, past.dim, past.has_ids) == (60, 4, True)
    empty = Lineage.create(tmp_path / "l")
    assert checked_past(new, new, empty) is new
    trained = lineage_with_encoder(tmp_path / "films")
    for number, other, named in (
        (1, lineage, "Version 1 is not the newest"),
        (0, empty, "it has none yet"),
        (0, trained, "a model that was trained"),
    ):
        with pytest.raises(LineageError, match=named):
            checked_past(number, new, other)


def test_another_files_vectors_or_dim_are_refused(lineage: Lineage, tmp_path: Path) -> None:
    new = file_of(tmp_path / "new.npy", randn(1, 60, 3))
    rounded = VECTORS * (1 + SAME / 2)
    assert checked_past(file_of(tmp_path / "same.npy", rounded), new, lineage).rows == 60
    moved = VECTORS.clone()
    moved[7] *= 1 + 10 * SAME
    with pytest.raises(LineageError, match="the vector of id 'id7' is another; give 0"):
        checked_past(file_of(tmp_path / "moved.npy", moved), new, lineage)
    with pytest.raises(LineageError, match="its dim is 3, not 4; give 0 in its place"):
        checked_past(file_of(tmp_path / "narrow.npy", VECTORS[:, :3]), new, lineage)


def test_a_file_of_other_objects_is_not_taken_for_the_version(
    lineage: Lineage, tmp_path: Path
) -> None:
    """One object of the version's proves nothing of a thousand that it never had."""
    new = file_of(tmp_path / "new.npy", randn(1, 200, 3))
    for others, fits in ((59, True), (60, True), (61, False)):
        ids = pa.array([*(f"id{i}" for i in range(60)), *(f"new{i}" for i in range(others))])
        vectors = torch.cat([VECTORS, randn(2, others, 4)])
        old = file_of(tmp_path / f"{others}.parquet", vectors, ids)
        if fits:
            assert checked_past(old, new, lineage).rows == 60 + others
            continue
        with pytest.raises(LineageError, match=r"has 60 of its 121 objects, .* cannot be compared"):
            checked_past(old, new, lineage)


def test_moments_are_those_of_the_pairs_of_a_group(tmp_path: Path) -> None:
    """By sums over the vectors in float64, for pairs in another order and with gaps."""
    old, new = randn(0, 60, 3), randn(1, 60, 5)
    new[7] = 0
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2))[:50]
    files = (
        file_of(tmp_path / "old.parquet", old),
        file_of(tmp_path / "new.npy", new[order], id_names(60).take(pa.array(order.numpy()))),
    )
    pairing = Pairing(*files)
    rows = torch.tensor([int(name[2:]) for name in pairing.ids.to_pylist()])
    place = torch.arange(len(rows)) % 3
    kept = torch.tensor([4, 9, 33])
    groups = Groups(place == 0, place == 1, place == 2)
    reading = read_pairs(pairing, (3, 5), groups, kept, Progress(quiet=True))
    for moments, mask in zip(
        (reading.seen, reading.chosen, reading.held),
        (groups.seen, groups.chosen, groups.held),
        strict=True,
    ):
        a, b = old[rows[mask]].double(), new[rows[mask]].double()
        assert moments.count == len(a)
        for second, direct in zip(moments.second(), (b.T @ b, a.T @ b, a.T @ a), strict=True):
            torch.testing.assert_close(second, direct / len(a))
    assert torch.equal(reading.rows, kept)
    pair = reading.take(torch.tensor([33, 4]))
    assert torch.equal(pair.old, old[rows[[33, 4]]])
    assert torch.equal(pair.new, new[rows[[33, 4]]])
    assert reading.zeros == (0, int((rows == 7).sum()))


def test_its_vectors_are_stored_and_up_to_a_thousand_are_canaries(tmp_path: Path) -> None:
    vectors = randn(0, 300, 4)
    lineage = Lineage.create(tmp_path / "l")
    report = import_embeddings(file_of(tmp_path / "v.parquet", vectors), lineage)
    assert (report["version"], report["rows"], report["dim"]) == (0, 300, 4)
    assert report["fingerprint"] == lineage.manifest(0).fingerprint
    ids, stored = lineage.embeddings(SIDE)
    rows = Vocabulary(id_names(300)).rows(ids)
    assert torch.equal(stored, vectors[rows])
    ids, kept = lineage.canaries(0)[SIDE]
    rows = Vocabulary(id_names(300)).rows(ids)
    assert torch.equal(kept, vectors[rows])
    assert sorted(rows.tolist()) == list(range(300))


def plain(path: Path, provenance: dict[str, str] | None = None) -> Path:
    ids = pa.array([f"text-{i}" for i in range(400)])
    draw = torch.Generator().manual_seed(0)
    write_vectors(path, [(ids, torch.randn(400, 12, generator=draw))], provenance)
    return path


def test_a_file_of_no_known_encoder_does_not_follow_one_of_a_known(tmp_path: Path) -> None:
    old = encoded(tmp_path, ADDRESSES[0])
    new = open_embeddings(plain(tmp_path / "plain.parquet"))
    lineage = Lineage.create(tmp_path / "line", "line")
    with pytest.raises(LineageError, match="Make the file by 'evergram vectors encode'"):
        align(old, new, lineage)
    align(new, old, lineage, max_error=float("inf"))
    assert [m.text_encoder is None for m in lineage.versions] == [True, False]
    with pytest.raises(LineageError, match="strings could not be encoded"):
        align(1, open_embeddings(plain(tmp_path / "again.parquet")), lineage)


def test_few_different_vectors_are_few_however_many_ids_they_have(tmp_path: Path) -> None:
    """Copies of three texts are three objects, also where a small overlap is allowed."""
    new, old = randn(0, 10, 8).repeat(40, 1), randn(1, 10, 5).repeat(40, 1)
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    with pytest.raises(DataError, match="10 different new vectors"):
        align(*files, Lineage.create(tmp_path / "none"), max_error=math.inf)
    held = pair_groups(torch.from_numpy(id_hashes(IDS)), 0.1).held
    new = randn(0, ROWS, 8)
    new[held] = randn(1, 3, 8)[torch.arange(int(held.sum())) % 3]
    old = new @ randn(2, 8, 5)
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    lineage = Lineage.create(tmp_path / "l")
    settings = AlignSettings(allow_small_overlap=True)
    with pytest.raises(DegradationError, match="on 3 objects, and 20"):
        align(*files, lineage, settings, max_error=0.5)
    metrics = align(*files, lineage, settings, max_error=math.inf)
    assert metrics["alignment"].get("certificate", {}) == {}
    error = lineage.step_errors[1]
    assert (error.objects, error.is_known) == (3, False)


OBJECTS = 300
NUMBERS = pa.array(range(OBJECTS))


@pytest.fixture
def line(tmp_path: Path) -> Lineage:
    return lineage_of(tmp_path / "line")


@pytest.mark.parametrize("suffix", [".parquet", ".npy"])
@pytest.mark.parametrize("source", [1, 2])
def test_vectors_are_read_through_the_chain_and_ids_stay(
    line: Lineage, tmp_path: Path, suffix: str, source: int
) -> None:
    file = file_of(tmp_path / f"new{suffix}", vectors_of(source), NUMBERS)
    out = tmp_path / f"back{suffix}"
    given: dict[str, Any] = {} if source == 2 else {"source": source}
    assert transform_file(file, line, 0, out, **given) == OBJECTS
    back = open_embeddings(out)
    parts = list(back.blocks())
    ids = [str(i) for chunk, _ in parts for i in chunk.to_pylist()]
    assert ids == [str(i) for i in range(OBJECTS)]
    torch.testing.assert_close(torch.cat([v for _, v in parts]).float(), read_as(source, 0))
    # The file says what it is: a wrong --from is noticed later.
    assert back.fingerprint == line.manifest(0).fingerprint


def test_a_vector_that_would_overflow_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    lineage = lineage_of(tmp_path / "line", versions=1)
    back = LinearTransform.from_matrix(10 * torch.eye(DIMS[0]))
    artefact = {"object": (NUMBERS, vectors_of(0))}
    facts: dict[str, Any] = {"metrics": {"model": {}}}
    publish_next(lineage, Artefact(DIMS[0], artefact, back, facts, {}))
    vectors = torch.ones(OBJECTS, DIMS[0])
    vectors[4, 1] = -3e38
    file, out = file_of(tmp_path / "new.parquet", vectors, NUMBERS), tmp_path / "out.parquet"
    message = r"row 5 \(id 4\): its vector \(column 'vector'\) has numbers as large as -3e\+38"
    with pytest.raises(DataError, match=message):
        transform_file(file, lineage, 0, out)
    assert not out.exists()


def test_an_earlier_version_is_read_as_a_later_one_by_the_forward_maps(
    line: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = file_of(tmp_path / "old.parquet", vectors_of(0), NUMBERS), tmp_path / "out.parquet"
    assert transform_file(file, line, 2, out, source=0) == OBJECTS
    forward = line.forward(0, 2)
    assert forward is not None
    weight, offset = (part.float() for part in forward)
    written = open_embeddings(out)
    (_, vectors), *_ = written.blocks()
    torch.testing.assert_close(vectors.float(), vectors_of(0) @ weight.T + offset)
    assert written.fingerprint == line.manifest(2).fingerprint
    monkeypatch.setattr(Lineage, "forward", lambda *_: None)
    with pytest.raises(LineageError, match="no forward map was published between them"):
        transform_file(file, line, 2, tmp_path / "none.parquet", source=0)
