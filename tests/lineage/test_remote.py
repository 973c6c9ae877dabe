"""A lineage elsewhere: brought once, uploaded whole or not at all, and never a wrong vector."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.buckets import PLACE, Bucket, Refusing, bucket_files, forget_mirror
from tests.support.dying import is_alone
from tests.support.forging import resealed
from tests.support.publishing import publish_next

from evergram.errors import IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.consumers import ConsumerRegistry, Probe
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote import Remote, local_folder


@pytest.fixture(autouse=True)
def _empty_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVERGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]
    yield
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def lineage() -> Lineage:
    """Versions 0 and 1, of dims 2 and 3."""
    shop = Lineage.create(PLACE, "shop")
    publish_next(shop, artefact(2))
    publish_next(shop, artefact(3, 2, seed=1))
    return shop


def test_a_published_version_is_read_on_another_machine(lineage: Lineage) -> None:
    assert (lineage.address, str(lineage)) == (PLACE, PLACE)
    expected = lineage.view(0).embeddings("candidate")
    forget_mirror()
    opened = Lineage.open(PLACE + "/")
    assert [m.name for m in opened.versions] == ["shop@v0", "shop@v1"]
    ids, vectors = opened.view(0).embeddings("candidate")
    assert ids.equals(expected[0])
    assert torch.equal(vectors, expected[1])
    assert opened.reader(1).encoder()[0].kind == "factorization"
    opened.check()
    assert Lineage.exists(PLACE)
    assert not Lineage.exists("memory://bucket/other")
    with pytest.raises(LineageError, match="memory://bucket/other is not a lineage"):
        Lineage.open("memory://bucket/other")
    with pytest.raises(LineageError, match="already holds a lineage"):
        Lineage.create(PLACE)


def test_embeddings_that_no_label_keeps_are_removed_from_the_storage(lineage: Lineage) -> None:
    assert {k.split("/")[1] for k in bucket_files() if k.startswith("embeddings/")} == {"1"}
    publish_next(lineage, artefact(4, 3, seed=2), promote=False)
    forget_mirror()
    opened = Lineage.open(PLACE)
    assert (opened.versions_with_embeddings, opened.production) == ([1, 2], 1)
    assert {k.split("/")[1] for k in bucket_files() if k.startswith("embeddings/")} == {"1", "2"}
    assert opened.embeddings("query", 1)[1].shape[1] == 3
    opened.label("stable", 2)
    publish_next(opened, artefact(2, 4, seed=3))
    assert {k.split("/")[1] for k in bucket_files() if k.startswith("embeddings/")} == {"3"}
    assert Lineage.open(PLACE).labels == {"stable": 3}
    assert not any("publishing.lock" in k for k in bucket_files())


def test_a_large_file_is_downloaded_once_when_it_is_first_read(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_mirror()
    fetched: list[str] = []
    real = MemoryFileSystem.get_file

    def fetch(files: Any, place: str, *args: Any, **options: Any) -> None:
        fetched.append(place)
        real(files, place, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", fetch)
    opened = Lineage.open(PLACE)
    assert opened.newest == lineage.newest
    assert opened.metrics(1)["metrics"]
    assert fetched == []
    for _ in range(2):
        again = Lineage.open(PLACE)
        again.view(0).embeddings("query")
        again.reader(0).encoder()
    assert sorted(path.removeprefix("/bucket/shop/") for path in fetched) == [
        "embeddings/1/query.parquet",
        "versions/0/encoder.safetensors",
        "versions/0/vocabularies.parquet",
    ]


@pytest.mark.parametrize("name", ["embeddings/1/query.parquet", "versions/1/transform.safetensors"])
def test_a_damaged_file_is_noticed_here_and_there(lineage: Lineage, name: str) -> None:
    mirror = lineage.path / name
    good = mirror.read_bytes()
    # Here: it is brought again.
    mirror.write_bytes(good[:-1] + b"?")
    expected = Lineage.open(PLACE).view(0).embeddings("query")[1]
    assert mirror.read_bytes() == good
    # There: a sentence, and nothing is kept of it.
    forget_mirror()
    file = MemoryFileSystem.store[f"/bucket/shop/{name}"]
    file.seek(0)
    file.write(b"?")
    with pytest.raises(IntegrityError, match=rf"{PLACE}/{name} .*differs from the published file"):
        Lineage.open(PLACE).view(0).embeddings("query")
    file.seek(0)
    file.write(good[:1])
    assert torch.equal(Lineage.open(PLACE).view(0).embeddings("query")[1], expected)
    forget_mirror()
    MemoryFileSystem.store.pop(f"/bucket/shop/{name}")
    with pytest.raises(IntegrityError, match=f"{name}.* is missing|cannot be read"):
        Lineage.open(PLACE).view(0).embeddings("query")


def test_names_that_lead_out_of_the_mirror_are_refused(lineage: Lineage, tmp_path: Path) -> None:
    """A bucket may hold what somebody else wrote."""
    name, files = "/bucket/shop/versions/1/manifest.json", MemoryFileSystem()
    for table in ("files", "embeddings"):
        manifest = json.loads(files.cat_file(name))
        manifest[table]["../../../../outside.json"] = "0" * 64
        forget_mirror()
        files.pipe_file(name, resealed(manifest).encode())
        files.pipe_file("/outside.json", b"x")
        with pytest.raises(IntegrityError, match=r"outside\.json' cannot be a name"):
            Lineage.open(PLACE)
        assert not list(tmp_path.rglob("outside.json"))


def test_a_publication_that_breaks_off_leaves_it_as_it_was(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every number of uploads, the lock's being the first; then the next one succeeds."""
    before = bucket_files()
    n = 0
    while True:
        with monkeypatch.context() as patch:
            Refusing(patch, n, ConnectionError("the line is dead"))
            message = ""
            try:
                publish_next(lineage, artefact(4, 3, seed=2))
            except LineageError as error:
                message = str(error)
        if not message:
            break
        assert "the line is dead; the lineage is unchanged" in message
        # Every reader has what there was, and so does the object itself.
        after = bucket_files()
        assert {name: after[name] for name in before} == before
        assert lineage.newest == 1
        assert Lineage.open(PLACE).newest == 1
        assert Lineage.open(PLACE).view(0).embeddings("query")[1].shape == (3, 2)
        n += 1
    # The lock, the files of two folders, and lineage.json.
    assert n >= 10
    forget_mirror()
    reopened = Lineage.open(PLACE)
    assert reopened.newest == 2
    reopened.check()


@pytest.mark.long
def test_a_killed_publisher(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each upload in turn. Its lock stays, and says whose it was to other machines; its
    own takes it back."""
    if not is_alone(request):
        return
    place = "bucket://shop"
    publish_next(Lineage.create(place), artefact(2))
    lock = tmp_path / "bucket" / "shop" / "publishing.lock"
    context = multiprocessing.get_context("fork")
    killed = 0
    while True:
        worker = context.Process(target=_publish_and_die, args=(place, killed))
        worker.start()
        worker.join()
        shop = Lineage.open(place)
        if worker.exitcode == 0:
            break
        assert worker.exitcode == -signal.SIGKILL
        assert shop.newest == 0
        assert lock.exists()
        with monkeypatch.context() as patch:
            patch.setenv("EVERGRAM_CACHE", str(tmp_path / "other"))
            with pytest.raises(LineageError, match=r"publishing to bucket://shop: .* on .*delete"):
                publish_next(Lineage.open(place), artefact(3, 2))
        killed += 1
    # The files of two folders, and lineage.json.
    assert killed >= 9
    assert not lock.exists()
    forget_mirror()
    again = Lineage.open(place)
    assert again.newest == 1
    again.check()


def _publish_and_die(place: str, uploads: int) -> None:
    left = [uploads]
    for name in ("put_file", "pipe_file"):
        real = getattr(Bucket, name)

        def put(files: Any, path: str, *args: Any, real: Any = real, **options: Any) -> Any:
            if "publishing.lock" not in str((path, *args)):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return real(files, path, *args, **options)

        setattr(Bucket, name, put)
    publish_next(Lineage.open(place), artefact(3, 2))


def test_the_first_of_two_publishers_wins(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, and, later, on this one."""
    reader = Lineage.open(PLACE)
    shutil.rmtree(reader.path / "embeddings" / "1")
    (reader.path / "embeddings" / "1").mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(tmp_path / "other"))
        publish_next(Lineage.open(PLACE), artefact(4, 3, seed=2))
    with pytest.raises(LineageError, match=f"{PLACE} has changed since it was opened"):
        publish_next(lineage, artefact(4, 3, seed=3))
    # And who still reads what is gone by now is told so.
    with pytest.raises(LineageError, match=f"{PLACE} has changed since it was opened"):
        reader.embeddings("query")
    expected = artefact(4, 3, seed=2).block("query")[1]
    assert torch.equal(Lineage.open(PLACE).embeddings("query")[1], expected)
    assert not (reader.path / "embeddings" / "1").exists()


def test_a_lineage_made_anew_is_not_mixed_with_the_mirror_of_the_old(lineage: Lineage) -> None:
    """The mirror has files of the same names."""
    MemoryFileSystem.store.clear()
    again = Lineage.create(PLACE, "shop")
    publish_next(again, artefact(2, seed=7))
    publish_next(again, artefact(3, 2, seed=8))
    expected = again.view(0).embeddings("query")[1]
    mirror = lineage.path
    shutil.rmtree(mirror)
    # As the mirror was before.
    content = bucket_files()
    MemoryFileSystem.store.clear()
    first = Lineage.create(PLACE, "shop")
    publish_next(first, artefact(2))
    publish_next(first, artefact(3, 2, seed=1))
    files = fsspec.filesystem("memory")
    for name, value in content.items():
        files.pipe_file(f"/bucket/shop/{name}", value)
    assert torch.equal(Lineage.open(PLACE).view(0).embeddings("query")[1], expected)
    with pytest.raises(LineageError):
        first.reader(9).encoder()


def test_consumers_and_their_probes_are_kept_in_the_storage(
    lineage: Lineage, tmp_path: Path
) -> None:
    files = {}
    for name in ("m.safetensors", "d.parquet"):
        (tmp_path / name).write_bytes(name.encode())
        files[name] = str(tmp_path / name)
    probe = Probe(model=files["m.safetensors"], data=files["d.parquet"], side="query", metric="auc")
    registry = ConsumerRegistry.open(PLACE)
    registry.add("ads", "v0", lineage.resolve, probe=probe)
    token = registry.issue_token("ads")
    forget_mirror()
    again = ConsumerRegistry.open(PLACE)
    known = again.authenticate(token)
    assert known is not None
    assert known.probe is not None
    assert [p.read_bytes() for p in again.probe_files(known.probe)] == [
        b"m.safetensors",
        b"d.parquet",
    ]
    with pytest.raises(LineageError, match="pinned"):
        Lineage.open(PLACE).retire(0)
    again.remove("ads")
    assert not any(k.startswith("probes/") for k in bucket_files())
    forget_mirror()
    assert ConsumerRegistry.open(PLACE).list() == ()
    Lineage.open(PLACE).retire(0)
    with pytest.raises(UnknownVersionError):
        Lineage.open(PLACE).resolve("nightly")


def test_consumers_that_cannot_be_uploaded_are_as_they_were(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConsumerRegistry.open(PLACE).add("a", "v0", lineage.resolve)
    registry = ConsumerRegistry.open(PLACE)
    with monkeypatch.context() as patch:
        Refusing(patch, 1, ConnectionError("the line is dead"))
        with pytest.raises(LineageError, match="the line is dead"):
            registry.add("b", "v0", lineage.resolve)
    assert [c.name for c in registry.list()] == ["a"]
    assert [c.name for c in ConsumerRegistry.open(PLACE).list()] == ["a"]
    registry.add("b", "v0", lineage.resolve)
    assert [c.name for c in ConsumerRegistry.open(PLACE).list()] == ["a", "b"]


def test_what_is_stale_is_removed_while_nobody_else_can_write(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be removed by a list of before another's version, or another's probe."""
    locked = []
    keep_only = Remote.keep_only

    def removed(storage: Remote, folder: str, kept: Iterable[str]) -> None:
        locked.append((folder.split("/")[0], "publishing.lock" in bucket_files()))
        keep_only(storage, folder, kept)

    monkeypatch.setattr(Remote, "keep_only", removed)
    publish_next(lineage, artefact(2, 3, seed=2))
    model, data = tmp_path / "model.onnx", tmp_path / "data.parquet"
    model.write_bytes(b"model")
    data.write_bytes(b"data")
    probe = Probe(model=str(model), data=str(data), side="query", metric="auc")
    ConsumerRegistry.open(PLACE).add("ads", "v1", lineage.resolve, probe=probe)
    assert locked == [("embeddings", True), ("versions", True), ("probes", True)]
    assert "publishing.lock" not in bucket_files()


def test_a_record_that_arrived_counts_though_the_answer_was_lost(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.pipe_file

    def lose(files: Any, path: str, value: bytes, **options: Any) -> None:
        real(files, path, value, **options)
        if path.endswith("lineage.json"):
            raise TimeoutError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose)
    assert publish_next(lineage, artefact(4, 3, seed=2)) == 2
    assert Lineage.open(PLACE).newest == 2


def test_a_storage_that_cannot_be_reached_is_an_error(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(LineageError, match=f"{PLACE} cannot be read: no route; the lineage is un"):
        Lineage.open(PLACE)
    with pytest.raises(LineageError, match="cannot be written: no route"):
        publish_next(lineage, artefact(4, 3))
    for address, message in (("nothing://x", "Protocol not known"), ("gs://x/y", "gcsfs")):
        with pytest.raises(LineageError, match=message):
            Lineage.open(address)


def test_an_upload_removes_the_files_of_a_killed_one() -> None:
    storage = Remote(PLACE)
    storage.write("versions/1/left.json", b"half")
    folder = storage.folder / "versions" / "1"
    folder.mkdir(parents=True)
    (folder / "whole.json").write_bytes(b"whole")
    storage.upload("versions/1")
    assert bucket_files() == {"versions/1/whole.json": b"whole"}


def test_a_lost_connection_says_that_the_upload_may_have_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("the line is dead.")

    storage = Remote(PLACE)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", refuse)
        with pytest.raises(LineageError, match="cannot be written: the line is dead; the lineage"):
            storage.replace("lineage.json", b"new", None)
        real = MemoryFileSystem.cat_file
        answers = iter([real, refuse])
        patch.setattr(MemoryFileSystem, "cat_file", lambda *a, **o: next(answers)(*a, **o))
        with pytest.raises(LineageError, match=r"\(the line is dead\), so it is unknown whether"):
            storage.replace("lineage.json", b"new", None)


@pytest.mark.parametrize("error", [FileExistsError(), OSError(22, "precondition failed")])
def test_the_lock_of_another_is_never_taken(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """Not where it is there, not where it comes in between, whatever a driver calls that."""
    place = "/bucket/shop/publishing.lock"
    other = json.dumps({"owner": "eve", "host": "h", "process": 1, "since": "now"}).encode()
    real = MemoryFileSystem.pipe_file

    def between(files: Any, path: str, value: bytes, **options: Any) -> None:
        if path == place:
            real(files, place, other)
            raise error
        real(files, path, value, **options)

    message = r"publishing to memory://bucket/shop: eve on h \(process 1\) since now\. Wait"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "pipe_file", between)
        with pytest.raises(LineageError, match=message):
            publish_next(lineage, artefact(4, 3))
    assert bucket_files()["publishing.lock"] == other
    with pytest.raises(LineageError, match=message):
        ConsumerRegistry.open(PLACE).add("a", "v0", lineage.resolve)
    assert bucket_files()["publishing.lock"] == other
    fsspec.filesystem("memory").rm(place)
    assert publish_next(lineage, artefact(4, 3)) == 2


def test_a_lock_that_cannot_be_removed_is_a_warning(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.rm_file

    def refuse(files: Any, path: str) -> None:
        if path.endswith("publishing.lock"):
            raise PermissionError("no deleting here")
        real(files, path)

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    with pytest.warns(RuntimeWarning, match="publishing.lock could not be removed"):
        assert publish_next(lineage, artefact(4, 3)) == 2
    assert Lineage.open(PLACE).newest == 2


def test_a_lock_that_cannot_be_read_back_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left behind, and refused every later publisher."""
    storage, reads = Remote(PLACE), []
    storage.pull()
    real = MemoryFileSystem.cat_file

    def dropping(files: Any, path: str, **options: Any) -> Any:
        reads.append(path)
        if len(reads) in (2, 3):
            raise OSError("connection reset")
        return real(files, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", dropping)
    with (
        pytest.raises(LineageError, match="connection reset"),
        storage.locked(),
    ):
        raise AssertionError("it is not known to be held")
    assert "publishing.lock" not in bucket_files()
    with storage.locked():
        pass


def test_without_fsspec_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LineageError, match=r"pip install 'evergram\[remote\]'"):
        Lineage.open(PLACE)


def test_paths_and_file_addresses_are_folders_of_this_machine() -> None:
    folders: dict[str | Path, str | None] = {
        "lineages/shop": "lineages/shop",
        "C:/x": "C:/x",
        "file:///data/a%20b": "/data/a b",
        "local://localhost/data": "/data",
        "FILE:///data": "/data",
        "s3://bucket/shop": None,
        "filecache::s3://bucket/shop": None,
        Path("s3://bucket"): "s3:/bucket",
    }
    for place, folder in folders.items():
        assert local_folder(place) == (None if folder is None else Path(folder))
    with pytest.raises(LineageError, match="names the host 'x'"):
        local_folder("file://x/y")


def test_what_is_no_address_of_one_lineage_is_refused() -> None:
    for address in ("memory://team[eu]/shop", "s3://[/shop"):
        with pytest.raises(LineageError, match="is not a valid address"):
            Lineage.open(address)
    for address in ("memory://teams/shop*", "memory://teams/a?b"):
        with pytest.raises(LineageError, match="are wildcards"):
            Lineage.open(address)


@pytest.fixture
def conditional(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage in memory takes the conditions of S3."""
    info = MemoryFileSystem.info

    def tagged(files: Any, path: str, **options: Any) -> dict[str, Any]:
        facts: dict[str, Any] = info(files, path, **options)
        if facts["type"] == "file":
            facts["ETag"] = hashlib.md5(files.cat_file(path)).hexdigest()
        return facts

    monkeypatch.setattr(MemoryFileSystem, "info", tagged)
    for name in ("pipe_file", "put_file"):
        real = getattr(MemoryFileSystem, name)

        def put(
            files: Any, one: str, two: Any, *, real: Any = real, name: str = name, **options: Any
        ) -> None:
            path = one if name == "pipe_file" else two
            options.pop("chunksize", None)
            if (tag := options.pop("IfMatch", None)) is not None and tag != tagged(files, path)[
                "ETag"
            ]:
                raise OSError(22, "At least one of the pre-conditions did not hold")
            real(files, one, two, **options)

        monkeypatch.setattr(MemoryFileSystem, name, put)


def asleep(
    monkeypatch: pytest.MonkeyPatch, operation: int, meanwhile: Callable[[], None]
) -> Callable[[], bool]:
    """Call `meanwhile` before the n-th operation that changes the storage or looks at the lock.

    Returns: whether it was called.
    """
    left = [operation]

    def before(path: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            meanwhile()

    for name in ("put_file", "pipe_file", "rm", "cat_file"):
        real = getattr(MemoryFileSystem, name)

        def act(files: Any, one: str, *args: Any, real: Any = real, **options: Any) -> Any:
            before(one)
            return real(files, one, *args, **options)

        monkeypatch.setattr(MemoryFileSystem, name, act)
    return lambda: left[0] < 0


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], Any]) -> None:
    """Delete the lock, as docs/lineage.md says, and act from another machine."""
    bucket = MemoryFileSystem()
    if bucket.exists("/bucket/shop/publishing.lock"):
        bucket.rm_file("/bucket/shop/publishing.lock")
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(folder))
        act()


@pytest.mark.usefixtures("conditional")
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 9])
def test_a_publisher_that_slept_changes_nothing_that_another_published(
    step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It sleeps before an operation, later each time, until it is done before it would sleep."""
    mine, theirs, after = artefact(3, 2, seed=1), artefact(3, 2, seed=7), artefact(4, 3, seed=9)
    slept = 0
    for operation in range(0, 1000, step):
        publish_next(Lineage.create(PLACE, "shop"), artefact(2))
        first = Lineage.open(PLACE)

        def other() -> None:
            line = Lineage.open(PLACE)
            publish_next(line, after if line.newest else theirs)

        published = True
        with monkeypatch.context() as patch:
            act = partial(elsewhere, patch, tmp_path / str(operation), other)
            called = asleep(patch, operation, act)
            try:
                publish_next(first, mine)
            except LineageError:
                published = False
            if not called():
                break
        slept += 1
        forget_mirror()
        line = Lineage.open(PLACE)
        line.check()
        # The other is published whole; the first was published before it, or was refused.
        newest = after if published else theirs
        assert line.newest == (2 if published else 1)
        assert torch.equal(line.embeddings("query")[1], newest.block("query")[1])
        MemoryFileSystem().rm("/bucket/shop", recursive=True)
        forget_mirror()
    assert slept > 30 / step


@pytest.mark.usefixtures("conditional")
def test_consumers_of_another_machine_are_not_lost(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry, slept = ConsumerRegistry.open(PLACE), 0
    for operation in range(100):
        name = f"mine-{operation}"

        def other(number: int = operation) -> None:
            ConsumerRegistry.open(PLACE).add(f"theirs-{number}", "v0", lineage.resolve)

        added = True
        with monkeypatch.context() as patch:
            act = partial(elsewhere, patch, tmp_path / str(operation), other)
            called = asleep(patch, operation, act)
            try:
                registry.add(name, "v0", lineage.resolve)
            except LineageError:
                added = False
            if not called():
                break
        slept += 1
        names = [c.name for c in ConsumerRegistry.open(PLACE).list()]
        assert f"theirs-{operation}" in names
        assert (name in names) == added
    assert slept > 4


@pytest.mark.usefixtures("conditional")
def test_a_lock_that_a_lost_connection_left_is_taken_back_by_its_own_machine(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", lost)
        patch.setattr(MemoryFileSystem, "rm_file", lost)
        with (
            pytest.warns(RuntimeWarning, match="publishing.lock"),
            pytest.raises(LineageError, match="route"),
        ):
            publish_next(lineage, artefact(4, 3))
    assert "publishing.lock" in bucket_files()
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(tmp_path / "other"))
        with pytest.raises(LineageError, match="Another process is publishing"):
            publish_next(Lineage.open(PLACE), artefact(4, 3))
    assert publish_next(lineage, artefact(4, 3)) == 2
    assert "publishing.lock" not in bucket_files()
