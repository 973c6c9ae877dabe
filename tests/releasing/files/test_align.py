"""Two files are aligned by what they have in common, and held-out objects stay out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from tests.support.embedding_files import file_of, id_names, randn
from tests.support.encoders import lineage_with_encoder
from tests.support.several_processes import ended, start
from tests.support.text_encoders import ADDRESSES, encoded, text_lineage
from tests.support.thread_processes import in_threads
from torch import Tensor

from evergram.compatibility.alignment_loss import history_metric
from evergram.compatibility.certificate import LEAST_OBJECTS
from evergram.compatibility.chance import LEAST_DEVIATIONS, MOST_OF_CHANCE, Chance
from evergram.compatibility.closed_form_fit import fit_closed_form
from evergram.compatibility.row_groups import Groups
from evergram.compatibility.second_moments import SecondMoments
from evergram.data.corpus import Side, Vocabulary
from evergram.errors import DataError, DegradationError, LineageError
from evergram.lineage.lineage import Lineage
from evergram.lineage.unseen_objects import id_hash
from evergram.releasing.files.align import (
    RANK,
    AlignSettings,
    align,
    far_means,
    refuse_degenerate,
    refuse_error,
)
from evergram.releasing.files.import_file import import_embeddings
from evergram.releasing.files.pair_moments import (
    id_hashes,
    pair_groups,
    read_pairs,
    refuse_few,
    sampled_rows,
)
from evergram.releasing.files.past_file import (
    SAME,
    SIDE,
    checked_past,
    text_encoder_of,
)
from evergram.training.checkpoint import held_out
from evergram.training.progress import Progress
from evergram.vector_files.base import TEXT_ENCODER
from evergram.vector_files.open_embeddings import open_embeddings
from evergram.vector_files.pairing import Pairing
from evergram.vector_files.writers import write_vectors

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
    held = pair_groups(id_hashes(IDS), 0.2).held
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
    groups = pair_groups(id_hashes(IDS), 0.1)
    seen = moments_of(versions[1], versions[2], groups.seen)
    chosen = moments_of(versions[1], versions[2], groups.chosen)
    multi = fit_closed_form("linear", seen, chosen, history_metric([first], 6))
    single = fit_closed_form("linear", seen, chosen)
    assert multi.ridge > 0
    matrix = lineage.chain.matrix(2, 1)
    torch.testing.assert_close(matrix, multi.weight, rtol=1e-5, atol=1e-5)
    assert float((matrix - single.weight).norm()) > 1e-3 * float(matrix.norm())


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
    held = pair_groups(id_hashes(IDS), 0.5).held
    both = held[: ROWS // 2] & held[ROWS // 2 :]
    assert metrics["overlap"]["held_out"] == 2 * int(both.sum()) < int(held.sum())
    assert metrics["alignment"]["held_out"]["transformed"]["relative_error"] > 0.9


def test_groups_are_apart_and_the_held_out_one_is_that_of_training() -> None:
    hashes = id_hashes(IDS, size=7)  # in parts
    vocabulary = Vocabulary(IDS)
    assert torch.equal(hashes, id_hash(vocabulary))
    groups = pair_groups(hashes, 0.2)
    assert torch.equal(groups.held, held_out(Side(vocabulary), 0.2))
    sizes = [int(g.sum()) for g in (groups.seen, groups.chosen, groups.held)]
    assert sum(sizes) == ROWS
    assert bool((groups.seen | groups.chosen | groups.held).all())
    assert 0.1 < sizes[2] / ROWS < 0.3
    assert 0.03 < sizes[1] / ROWS < 0.15


def test_queries_are_held_out_and_none_is_its_own_neighbour() -> None:
    hashes = id_hashes(IDS)
    held = pair_groups(hashes, 0.2).held
    queries, catalogue = sampled_rows(hashes, held, seed=3)
    assert bool(held[queries].all())
    assert len(queries) == int(held.sum())
    assert not bool(torch.isin(catalogue, queries).any())
    assert len(catalogue) == ROWS - len(queries)
    assert torch.equal(catalogue, sampled_rows(hashes, held, seed=3)[1])
    assert not torch.equal(catalogue, sampled_rows(hashes, held, seed=4)[1])


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
        ((10, 2, 60), {}, "12 common objects.*from 6 to 4 dims needs 18.*low_rank --rank 2"),
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
    with pytest.raises(DataError, match=r"new\.npy has .* their length is .*e"):
        refuse_degenerate(*NAMES, moments_of(good, bad), (0, 0))
    with pytest.raises(DataError, match=r"old\.npy has .* their length is .*e"):
        refuse_degenerate(*NAMES, moments_of(bad, good), (0, 0))


def test_a_mean_far_from_zero_is_named_where_the_map_has_no_offset() -> None:
    near, far = randn(0, 30, 4), randn(1, 30, 3) + 5
    assert far_means(*NAMES, moments_of(near, far), has_offset=False) == ["new.npy"]
    assert far_means(*NAMES, moments_of(far, near), has_offset=False) == ["old.npy"]
    assert far_means(*NAMES, moments_of(far, far), has_offset=True) == []
    with pytest.raises(DegradationError, match=r"of old\.npy is far from zero: try --transf"):
        refuse_error(0.1, Chance(1.4, 2.0, 0.0), 100, None, NAMES, far=["old.npy"])


@pytest.mark.parametrize(
    ("error", "chance", "held", "limit", "message"),
    [
        (0.51, GOOD, 100, 0.5, "on 100 held-out objects the relative error is 0.51"),
        (0.1, GOOD, LEAST_OBJECTS - 1, 0.5, f"and {LEAST_OBJECTS} are needed"),
        (math.nan, GOOD, 100, None, "on 100 objects"),
        (0.1, Chance(1.4, 0.96, 9.0), 100, None, r"new\.npy says next to nothing of old\.npy"),
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
        ({"held_out": 1.0}, r"held_out .*1\.0"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": 3}, "rank .*low_rank, not of linear"),
        ({"scaled": True}, "scaled .*orthogonal, not of linear"),
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
        (0, empty, "no version 0"),
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
        (reading.seen, reading.chosen, reading.held, reading.whole),
        (groups.seen, groups.chosen, groups.held, place >= 0),
        strict=True,
    ):
        a, b = old[rows[mask]].double(), new[rows[mask]].double()
        assert moments.count == len(a)
        for second, direct in zip(moments.second(), (b.T @ b, a.T @ b, a.T @ a), strict=True):
            torch.testing.assert_close(second, direct / len(a))
    assert torch.equal(reading.sample.rows, kept)
    pair = reading.sample.take(torch.tensor([33, 4]))
    assert torch.equal(pair.old, old[rows[[33, 4]]])
    assert torch.equal(pair.new, new[rows[[33, 4]]])
    assert reading.zeros == (0, int((rows == 7).sum()))


class SmallBlocks(Pairing):
    """A pairing that is read seven rows at a time."""

    def blocks(self, size: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
        return super().blocks(7)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_the_moments_and_the_sample_of_one(tmp_path: Path, size: int) -> None:
    files = [file_of(tmp_path / f"{i}.parquet", randn(i, 60, 3 + i)) for i in (0, 1)]
    place = torch.arange(60) % 3
    groups = Groups(place == 0, place == 1, place == 2)
    kept, quiet = torch.tensor([4, 9, 33]), Progress(quiet=True)
    alone = read_pairs(SmallBlocks(*files), (3, 4), groups, kept, quiet)
    results, processes = in_threads(
        size, lambda p: read_pairs(SmallBlocks(*files), (3, 4), groups, kept, quiet, p)
    )
    assert processes[0].kinds == ["moments"] * 3
    for reading in results:
        for mine, yours in zip(reading.whole.second(), alone.whole.second(), strict=True):
            torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-14)
        assert reading.held.count == 20
        assert torch.equal(reading.sample.new, alone.sample.new)
        assert reading.zeros == alone.zeros


# Several blocks of 16,384 pairs.
MANY = 40_000


def aligned(processes: int, *arguments: object) -> dict[str, Any]:
    """Return what `evergram vectors align … --json` prints in so many processes."""
    command = ("-m", "evergram", "align", *map(str, arguments), "--json")
    outputs = ended(start(processes, *command))
    assert [code for code, _ in outputs] == [0] * processes, outputs
    assert not any(output for _, output in outputs[1:])
    facts: dict[str, Any] = json.loads(outputs[0][1][outputs[0][1].index("{") :])
    return facts


@pytest.mark.long
def test_two_processes_align_files_as_one_does(tmp_path: Path) -> None:
    """A new lineage, and then its next version, by the number of the newest."""
    draw = torch.Generator().manual_seed(1)
    vectors = [torch.randn(MANY, 6, generator=draw) + 2]
    for dim in (8, 5):
        mixed = vectors[-1] @ torch.randn(vectors[-1].shape[1], dim, generator=draw)
        vectors.append(mixed + torch.randn(MANY, dim, generator=draw) / 4)
    for number, each in enumerate(vectors):
        file_of(tmp_path / f"{number}.parquet", each)
    facts: dict[int, list[dict[str, Any]]] = {}
    for count in (1, 2):
        place = ("--lineage", tmp_path / f"by{count}")
        files = [tmp_path / f"{number}.parquet" for number in range(3)]
        facts[count] = [aligned(count, *files[:2], *place), aligned(count, 1, files[2], *place)]
    alone, together = (Lineage.open(tmp_path / f"by{count}") for count in (1, 2))
    for version in (1, 2):
        matrices = [lineage.chain.matrix(version, version - 1) for lineage in (alone, together)]
        torch.testing.assert_close(*matrices, rtol=1e-6, atol=1e-7)  # published in float32
        errors = [lineage.step_errors[version] for lineage in (alone, together)]
        torch.testing.assert_close(errors[0].sigma, errors[1].sigma, rtol=1e-6, atol=1e-7)
        mine, yours = (facts[count][version - 1]["alignment"] for count in (1, 2))
        assert mine["pairs"] == yours["pairs"]
        for name, reading in mine["held_out"].items():
            assert reading == pytest.approx(yours["held_out"][name], rel=1e-6)


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


def test_each_version_records_its_encoder_in_its_manifest(tmp_path: Path) -> None:
    text_lineage(tmp_path)
    lineage = Lineage.open(tmp_path / "line")
    records = [manifest.text_encoder for manifest in lineage.versions]
    assert [record and (record.address, record.dim) for record in records] == [
        (ADDRESSES[0], 10),
        (ADDRESSES[1], 12),
    ]
    lineage.check()


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


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    damaged = plain(tmp_path / "v.parquet", {TEXT_ENCODER: '{"address": "x"}'})
    with pytest.raises(DataError, match=r"v\.parquet is damaged"):
        text_encoder_of(open_embeddings(damaged))


def test_a_lineage_that_has_versions_and_an_id_twice_are_refused(tmp_path: Path) -> None:
    lineage = Lineage.create(tmp_path / "l")
    twice = file_of(tmp_path / "t.parquet", randn(0, 3, 4), pa.array(["a", "b", "a"]))
    with pytest.raises(DataError, match="'a'"):
        import_embeddings(twice, lineage)
    assert not lineage.versions
    file = file_of(tmp_path / "v.npy", randn(0, 50, 4))
    import_embeddings(file, lineage)
    with pytest.raises(LineageError, match="vectors align"):
        import_embeddings(file, lineage)


def test_few_different_vectors_are_few_however_many_ids_they_have(tmp_path: Path) -> None:
    """Copies of three texts are three objects, also where a small overlap is allowed."""
    new, old = randn(0, 10, 8).repeat(40, 1), randn(1, 10, 5).repeat(40, 1)
    files = file_of(tmp_path / "old.parquet", old), file_of(tmp_path / "new.npy", new)
    with pytest.raises(DataError, match="10 different new vectors"):
        align(*files, Lineage.create(tmp_path / "none"), max_error=math.inf)
    held = pair_groups(id_hashes(IDS), 0.1).held
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
