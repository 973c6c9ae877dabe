"""Checkpoints: what they hold, whose they are, and runs that end as if they had not been killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from tests.support.fits import (
    Copies,
    assert_same,
    changed,
    killed_and_resumed,
    split_of,
    trainer_of,
    watch_epochs,
)
from torch import Tensor, nn

from evergram.data.corpus import Corpus
from evergram.errors import IntegrityError, RecipeError, TrainingError
from evergram.lineage.artefact import Artefact
from evergram.lineage.lineage import Lineage
from evergram.releasing.upgrade import train, upgrade
from evergram.training.build import Companions, load_corpus
from evergram.training.recipe import Recipe
from evergram.training.resuming import (
    PATIENCE,
    SECONDS,
    Checkpoints,
    CheckpointSettings,
    TrainingState,
    corpus_digest,
    difference,
    files_digest,
    modules_digest,
    read_state,
    run_identity,
    write_state,
)

RUN = {"recipe": '{"seed": 1}', "version": "1", "corpus": "corpus"}
# Before a kill at a batch, the last checkpoint may be some batches ago.
OFTEN = CheckpointSettings(every=2)


def opened(folder: Path | None) -> Checkpoints:
    return Checkpoints(folder, "version 1", RUN, CheckpointSettings(every=10))


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name.split(".")[1]) for path in folder.iterdir())


def test_the_newest_whole_checkpoints_are_kept_and_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def save(folder: Checkpoints, number: int, steps: int) -> None:
        state = TrainingState({"a": torch.full((2,), float(number))}, {"number": number})
        folder.save(state, steps)

    def loaded() -> Any:
        state = opened(tmp_path).load()
        assert state is not None
        assert float(state.tensors["a"][0]) == state.facts["number"]
        return state.facts["number"]

    folder = opened(tmp_path)
    assert folder.load() is None
    for number in range(1, 8):
        save(folder, number, number)
    assert numbers(tmp_path) == [6, 7]
    # The same step again, after its epoch, replaces what was saved before.
    save(folder, 8, 7)
    assert (loaded(), numbers(tmp_path)) == (8, [6, 7])
    cut, flipped = (tmp_path / f"version-1.{n:012d}.safetensors" for n in (7, 6))
    cut.write_bytes(cut.read_bytes()[:-3])
    folder = opened(tmp_path)
    assert loaded() == 6
    assert folder.load() is not None
    save(folder, 9, 8)
    assert (loaded(), numbers(tmp_path)) == (9, [6, 8])
    cut = tmp_path / "version-1.000000000008.safetensors"
    cut.write_bytes(cut.read_bytes()[:-3])
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    caplog.clear()
    assert opened(tmp_path).load() is None
    assert [m.split(":")[0] for m in caplog.messages] == [
        f"{path.name} is damaged" for path in (cut, flipped)
    ]


def test_a_checkpoint_is_due_by_steps_by_seconds_or_by_what_writing_costs(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    folder.save(TrainingState({}, {}), 12)
    assert [folder.due(21), folder.due(22), opened(None).due(100)] == [False, True, False]
    automatic = CheckpointSettings()
    for chosen, since, due in (
        (automatic, (SECONDS - 1, 10**9, 0.0), False),
        (automatic, (SECONDS, 0, 0.0), True),
        (automatic, (SECONDS, 0, 10.0), False),
        (automatic, (10.0 * PATIENCE, 0, 10.0), True),
        # What is asked for is done, whatever it costs.
        (CheckpointSettings("5s"), (5, 0, 100.0), True),
        (CheckpointSettings(every=7), (0.0, 7, 100.0), True),
        (CheckpointSettings(every=7), (1e9, 6, 0.0), False),
    ):
        assert chosen.due(*since) == due, (chosen, since)


def test_a_time_or_a_number_of_steps_is_read_and_anything_else_is_refused() -> None:
    for every, seconds, steps in (
        ("0.5m", 30.0, None),
        (" 2h ", 7200.0, None),
        ("1000", None, 1000),
        (1000, None, 1000),
        (None, None, None),
    ):
        assert CheckpointSettings(every).interval == (seconds, steps)
    for wrong in ("", "0", "-1", "1.5", "60 s", "60d", "nans", "1e9s", 0, -1):
        with pytest.raises(RecipeError, match="60s"):
            CheckpointSettings(wrong)
    with pytest.raises(RecipeError, match="always"):
        CheckpointSettings(resume="always")  # type: ignore[arg-type]


def module_of(parameter: float, buffer: float) -> nn.Module:
    """A parameter, which is trained, and a buffer, which is the past."""
    module = nn.Module()
    module.parameter = nn.Parameter(torch.tensor(parameter))
    module.register_buffer("past", torch.tensor(buffer), persistent=False)
    return module


def test_every_column_id_feature_module_and_file_of_a_run_counts(tmp_path: Path) -> None:
    def corpus(pairs: Any = None, **features: Any) -> str:
        plain = {"query": ["a", "b", "b"], "candidate": ["x", "y", "x"], "value": [1.0, 2.0, 3.0]}
        of_queries = {"id": ["a", "b"], "city": ["u", "v"], **features}
        table = pa.table({**plain, **(pairs or {})})
        return corpus_digest(Corpus.of(table, query_features=pa.table(of_queries)))

    def modules(**companions: Any) -> str:
        return modules_digest(Companions(**companions))

    corpora = [
        corpus(),
        corpus({"candidate": ["x", "y", "y"]}),
        corpus({"query": ["a", "c", "c"]}),
        corpus({"value": [1.0, 2.0, 4.0]}),
        corpus({"weight": [1.0, 2.0, 4.0]}),
        corpus(city=["u", "w"]),
        corpus(city=["u", "u"]),
        corpus({"query": [1, 2, 2]}, id=[1, 2]),
    ]
    beside = [
        modules(),
        modules(joint=module_of(1.0, 2.0)),
        modules(joint=module_of(1.0, 3.0)),
        modules(start=module_of(1.0, 2.0)),
        modules(own=module_of(1.0, 2.0)),
    ]
    query, weights = tmp_path / "query.parquet", tmp_path / "weights.csv"
    recipe = {
        "prior": {"kind": "files", "query": str(query), "candidate": str(query)},
        "task": {"query_measure": [0.5, str(weights)], "candidate_measure": 1.0},
    }
    files = [files_digest({"prior": {"kind": "zero"}})]
    for path, text in ((query, "one"), (weights, "id,weight"), (query, "two")):
        path.write_text(text)
        files.append(files_digest(recipe))
    for digests in (corpora, beside, files):
        assert len(set(digests)) == len(digests)
    assert corpus() == corpora[0]
    assert modules(joint=module_of(5.0, 2.0)) == beside[1]


def test_what_two_runs_differ_in_is_named(small: Recipe) -> None:
    identity = run_identity(small.model_dump_json(), 0, split_of(small), Companions())
    for change, named in (
        ({"torch": "1.0"}, "torch (1.0"),
        ({"version": "3"}, "version (3, here 0)"),
        ({"recipe": "no JSON"}, "another recipe"),
        *(({name: "x"}, name) for name in identity),
    ):
        assert named in difference(identity, {**identity, **change})
    assert difference(identity, identity) == ""
    assert difference(identity, {}) == "another recipe"


@pytest.mark.parametrize(
    "overrides",
    [
        "gramian.kind=sogram gramian.rate=auto",
        "gramian.kind=sampled gramian.sampler=adaptive",
        "task.kind=bpr task.penalty=1",
    ],
)
def test_a_run_goes_on_from_after_any_step(small: Recipe, overrides: str) -> None:
    recipe = changed(small, "training.batch_size=900", *overrides.split())
    copies = Copies()
    whole = trainer_of(recipe, copies)
    whole.fit(epochs=2)
    assert len(copies.states) == whole.steps == 2 * len(whole.sampler)
    for place, state in [*enumerate(copies.states)][::3]:
        torch.rand(place)
        before = {name: value.clone() for name, value in state.tensors.items()}
        again = Copies()
        run = trainer_of(recipe, again)
        run.load_state(state)
        assert run.steps == place + 1
        assert run.fit(epochs=2) == "epochs"
        assert again.objectives == copies.objectives
        end, same = whole.state(), run.state()
        assert end.tensors.keys() == same.tensors.keys()
        assert all(torch.equal(end.tensors[k], same.tensors[k]) for k in end.tensors)
        # What is restored shares no memory with the state.
        assert all(torch.equal(before[k], state.tensors[k]) for k in before)


def state_of(**tensors: Tensor) -> TrainingState:
    return TrainingState(tensors, {"epoch": 3, "seconds": 0.1 + 0.2, "history": [{"a": 1e-300}]})


def test_tensors_of_every_type_and_facts_come_back(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    written = state_of(
        a=torch.randn(3, 4).T,
        empty=torch.zeros(0, 3),
        scalar=torch.tensor(2.5, dtype=torch.float64),
        flag=torch.tensor(True),
        half=torch.randn(3).bfloat16(),
        generator=torch.get_rng_state(),
        nan=torch.tensor([float("nan"), float("inf")]),
        shared=shared,
        part=shared[2:],
        again=shared,
    )
    path = tmp_path / "made" / "state.safetensors"
    write_state(path, RUN, written)
    state = read_state(path, RUN)
    assert state.facts == written.facts
    with pytest.raises(IntegrityError, match="another version"):
        read_state(path, {**RUN, "version": "2"})
    assert state.tensors.keys() == written.tensors.keys()
    for name, value in written.tensors.items():
        assert state.tensors[name].dtype == value.dtype
        torch.testing.assert_close(state.tensors[name], value, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_damaged_byte_and_no_cut_goes_unseen(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("state") / "s.safetensors"
    write_state(path, RUN, state_of(a=torch.arange(20.0), b=torch.arange(5)))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    with pytest.raises(IntegrityError):
        read_state(path, RUN)


def test_a_state_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "work" / "run.safetensors"
    write_state(path, RUN, state_of(a=torch.ones(3)))

    def full(_: object, path: Path, **__: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("evergram.training.resuming.save_file", full)
    with pytest.raises(TrainingError, match=r"20 bytes .*: I/O error: No space"):
        write_state(path, RUN, state_of(a=torch.ones(5)))
    assert [p.name for p in path.parent.iterdir()] == ["run.safetensors"]
    assert torch.equal(read_state(path, RUN).tensors["a"], torch.ones(3))


APART = "gramian.sampler=linear"
ADAPTIVE = "gramian.sampler=adaptive"
ALL = "task.kind=softmax_all task.penalty=0 task.l2=0"
SETTINGS = [
    "model.kind=factorization training.tables=mapped",
    "model.kind=two_tower training.tables=mapped",
    "model.kind=two_tower gramian.rate=0.1",
    "model.kind=graphsage training.layer_rate=0.01",
    "model.kind=graphsage task.kind=bpr task.penalty=0 training.layer_rate=0.01",
    "model.kind=graphsage gramian.kind=exact training.batch_size=400 model.layers=3",
    "model.kind=lightgcn",
    "model.kind=mean_of_candidates",
    "gramian.kind=exact",
    f"gramian.rate=auto {APART}",
    "gramian.kind=sagram",
    f"gramian.kind=sagram gramian.beta=1 {APART}",
    f"gramian.kind=sagram {ADAPTIVE} gramian.batch_size=20",
    "gramian.kind=sampled gramian.sampler=sqrt",
    f"gramian.kind=sampled {APART} gramian.batch_size=6",
    f"gramian.kind=sampled {ADAPTIVE} gramian.gradient=sampled",
    ADAPTIVE,
    f"model.kind=two_tower {ADAPTIVE}",
    "gramian.rate=auto",
    "task.query_measure=0.3 task.candidate_measure=0.2",
    "task.penalty=[4,1] task.query_measure=[0,1] task.candidate_measure=[0,0.5]",
    "task.sparse=exclude",
    "prior.kind=constant prior.value=-0.05",
    "prior.kind=svd",
    "task.kind=bpr task.penalty=0",
    "task.kind=bpr task.penalty=1",
    "task.kind=softmax task.penalty=0",
    "task.kind=softmax task.penalty=1",
    f"{ALL} training.optimizer=adam training.decay=0.8 training.table_rate=0.02",
    f"{ALL} task.temperature=0.2 model.normalize=true",
    "task.kind=softmax_all task.penalty=1 model.kind=two_tower",
]


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_learns_more_than_popularity_and_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    recipe = changed(small, "training.epochs=8", *setting.split())

    def run(**kept: Any) -> Artefact:
        return train(recipe, progress=False, **kept)

    again, begun = killed_and_resumed(monkeypatch, run, (3, 7), tmp_path, OFTEN)
    (first, start), *rest = begun
    assert (first, rest) == (3, [(n, 0) for n in range(4, 8)])
    assert start > 0
    assert_same(again, run())
    metrics = again.metrics["metrics"]
    assert metrics["model"]["recall@20"] > 1.2 * metrics["popularity"]["recall@20"]


def test_a_refit_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(small, "training.epochs=3", "training.refit=true")
    whole = train(recipe)
    # Epochs are counted from 0 in each of the two trainings: kill in the second one's last.
    last = whole.metrics["training"]["best_epoch"] - 1
    with monkeypatch.context() as patch:
        seen = watch_epochs(patch, lambda epoch, batch: (len(seen), batch) == (4 + last, 3))
        with pytest.raises(KeyboardInterrupt):
            train(recipe, folder=tmp_path, checkpoints=CheckpointSettings(every=1))
    begun = watch_epochs(monkeypatch)
    again = train(recipe, folder=tmp_path)
    assert begun == [(last, 3)]
    assert_same(again, whole)
    refits = [m["training"]["refit"] for m in (whole.metrics, again.metrics)]
    assert refits[0]["steps"] == refits[1]["steps"] > 0


def test_upgrade_resumes_bit_for_bit(
    small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = load_corpus(small)
    lineage = Lineage.create(tmp_path / "lineage")
    lineage.publish(train(small, corpus))

    def run(**kept: Any) -> Artefact:
        return upgrade(small, lineage, corpus, **kept)

    again, _ = killed_and_resumed(monkeypatch, run, (2, 7), lineage.work_dir, OFTEN)
    whole = run()
    assert whole.transform is not None
    assert again.transform is not None
    for name, value in whole.transform.state_dict().items():
        assert torch.equal(value, again.transform.state_dict()[name])
    assert_same(again, whole)
    lineage.publish(again)
    assert not lineage.work_dir.exists()


def test_another_recipe_a_damaged_file_or_never_starts_anew(
    small: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    train(small, folder=tmp_path)
    begun = watch_epochs(monkeypatch)
    train(small, folder=tmp_path)
    assert begun == []
    train(changed(small, "task.penalty=6.0"), folder=tmp_path)
    anew = [(0, 0), (1, 0), (2, 0)]
    assert begun == anew
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"cut")
    train(small, folder=tmp_path)
    assert begun == 2 * anew
    train(small, folder=tmp_path, checkpoints=CheckpointSettings(resume="never"))
    assert begun == 3 * anew
    for named in ("is of another recipe", f"{path.name} is damaged", "--resume never"):
        assert named in caplog.text
