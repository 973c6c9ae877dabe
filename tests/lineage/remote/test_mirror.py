"""A lineage elsewhere: brought once, uploaded whole or not at all, and never a wrong vector."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.artefacts import artefact
from tests.support.dying import is_alone
from tests.support.forging import resealed

from evergram.errors import IntegrityError, LineageError, UnknownVersionError
from evergram.lineage.consumers.record import Probe
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.lineage.remote.addresses import cache_folder, local_folder, mirror_of

PLACE = "memory://bucket/shop"


class Bucket(DirFileSystem):  # type: ignore[misc]
    """Objects that several processes share: a put is whole or not there, and one can be refused."""

    protocol = "bucket"
    cachable = False

    def __init__(self, **options: Any) -> None:
        files = LocalFileSystem(auto_mkdir=True)
        super().__init__(path=os.environ["BUCKET"], fs=files, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("bucket://")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        place = Path(self._join(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        if mode == "create":
            with place.open("xb") as file:
                file.write(value)
            return
        part = place.with_name(f"{place.name}.put{os.getpid()}")
        part.write_bytes(value)
        part.replace(place)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVERGRAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUCKET", str(tmp_path / "bucket"))
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    MemoryFileSystem.store.clear()
    yield
    MemoryFileSystem.store.clear()


@pytest.fixture
def lineage() -> Lineage:
    """Versions 0 and 1, of dims 2 and 3."""
    found = Lineage.create(PLACE, "shop")
    found.publish(artefact(2))
    found.publish(artefact(3, 2, seed=1))
    return found


def there() -> dict[str, bytes]:
    """What is in the bucket."""
    return {
        k.removeprefix("/bucket/shop/"): bytes(v.getbuffer())
        for k, v in MemoryFileSystem.store.items()
    }


def elsewhere() -> None:
    """Go on as on another machine."""
    shutil.rmtree(cache_folder())


class Refusing:
    """Lets n writes through, and fails at every later one, as a connection that goes away does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int, error: Exception) -> None:
        self.left = allowed
        for name in ("put_file", "pipe_file"):
            real = getattr(MemoryFileSystem, name)

            def refuse(files: Any, *args: Any, real: Any = real, **options: Any) -> Any:
                if self.left <= 0:
                    raise error
                self.left -= 1
                return real(files, *args, **options)

            monkeypatch.setattr(MemoryFileSystem, name, refuse)


def test_what_is_published_is_read_on_another_machine(lineage: Lineage) -> None:
    assert (lineage.address, str(lineage)) == (PLACE, PLACE)
    expected = lineage.view(0).embeddings("candidate")
    elsewhere()
    found = Lineage.open(PLACE + "/")
    assert [m.name for m in found.versions] == ["shop@v0", "shop@v1"]
    ids, vectors = found.view(0).embeddings("candidate")
    assert ids.equals(expected[0])
    assert torch.equal(vectors, expected[1])
    assert found.encoder_parts(1)[0].kind == "factorization"
    found.check()
    assert Lineage.exists(PLACE)
    assert not Lineage.exists("memory://bucket/other")
    with pytest.raises(LineageError, match="memory://bucket/other is not a lineage"):
        Lineage.open("memory://bucket/other")
    with pytest.raises(LineageError, match="already holds a lineage"):
        Lineage.create(PLACE)


def test_only_what_is_held_is_kept_there(lineage: Lineage) -> None:
    assert {k.split("/")[1] for k in there() if k.startswith("embeddings/")} == {"1"}
    lineage.publish(artefact(4, 3, seed=2), promote=False)
    elsewhere()
    found = Lineage.open(PLACE)
    assert (found.versions_with_embeddings, found.production) == ([1, 2], 1)
    assert {k.split("/")[1] for k in there() if k.startswith("embeddings/")} == {"1", "2"}
    assert found.embeddings("query", 1)[1].shape[1] == 3
    found.label("stable", 2)
    found.publish(artefact(2, 4, seed=3))
    assert {k.split("/")[1] for k in there() if k.startswith("embeddings/")} == {"3"}
    assert Lineage.open(PLACE).labels == {"stable": 3}
    assert not any("publishing.lock" in k for k in there())


def test_a_withdrawn_version_goes_from_there(lineage: Lineage) -> None:
    lineage.publish(artefact(4, 3, seed=2), promote=False)
    lineage.withdraw(2, "a bad one")
    elsewhere()
    assert Lineage.open(PLACE).newest == 1
    assert not any(k.startswith(("versions/2", "embeddings/2")) for k in there())


def test_a_file_is_brought_when_it_is_read_and_once(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere()
    fetched: list[str] = []
    real = MemoryFileSystem.get_file

    def fetch(files: Any, place: str, *args: Any, **options: Any) -> None:
        fetched.append(place)
        real(files, place, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "get_file", fetch)
    found = Lineage.open(PLACE)
    assert found.newest == lineage.newest
    assert found.metrics(1)["metrics"]
    assert fetched == []
    for _ in range(2):
        again = Lineage.open(PLACE)
        again.view(0).embeddings("query")
        again.encoder_parts(0)
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
    elsewhere()
    file = MemoryFileSystem.store[f"/bucket/shop/{name}"]
    file.seek(0)
    file.write(b"?")
    with pytest.raises(IntegrityError, match=rf"{PLACE}/{name} is not the file that was published"):
        Lineage.open(PLACE).view(0).embeddings("query")
    file.seek(0)
    file.write(good[:1])
    assert torch.equal(Lineage.open(PLACE).view(0).embeddings("query")[1], expected)
    elsewhere()
    MemoryFileSystem.store.pop(f"/bucket/shop/{name}")
    with pytest.raises(IntegrityError, match=f"{name}.* is missing|cannot be read"):
        Lineage.open(PLACE).view(0).embeddings("query")


def test_a_publication_that_breaks_off_leaves_it_as_it_was(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every number of uploads, the lock's being the first; then the next one succeeds."""
    before = there()
    n = 0
    while True:
        with monkeypatch.context() as patch:
            Refusing(patch, n, ConnectionError("the line is dead"))
            said = ""
            try:
                lineage.publish(artefact(4, 3, seed=2))
            except LineageError as error:
                said = str(error)
        if not said:
            break
        assert "the line is dead; the lineage is as it was" in said
        # Every reader has what there was, and so does the object itself.
        found = there()
        assert {k: found[k] for k in before} == before
        assert lineage.newest == 1
        assert Lineage.open(PLACE).newest == 1
        assert Lineage.open(PLACE).view(0).embeddings("query")[1].shape == (3, 2)
        n += 1
    # The lock, the files of two folders, and lineage.json.
    assert n >= 10
    elsewhere()
    found_again = Lineage.open(PLACE)
    assert found_again.newest == 2
    found_again.check()


def test_a_record_that_arrived_counts_though_the_answer_was_lost(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.pipe_file

    def lose(files: Any, path: str, value: bytes, **options: Any) -> None:
        real(files, path, value, **options)
        if path.endswith("lineage.json"):
            raise TimeoutError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose)
    assert lineage.publish(artefact(4, 3, seed=2)) == 2
    assert Lineage.open(PLACE).newest == 2


@pytest.mark.long
def test_a_killed_publisher(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Killed at each upload in turn. Its lock stays, and says whose it was; then all goes on."""
    if not is_alone(request):
        return
    place = "bucket://shop"
    Lineage.create(place).publish(artefact(2))
    lock = tmp_path / "bucket" / "shop" / "publishing.lock"
    context = multiprocessing.get_context("fork")
    killed = 0
    while True:
        worker = context.Process(target=_publish_and_die, args=(place, killed))
        worker.start()
        worker.join()
        found = Lineage.open(place)
        if worker.exitcode == 0:
            break
        assert worker.exitcode == -signal.SIGKILL
        assert found.newest == 0
        with pytest.raises(LineageError, match=r"is publishing to bucket://shop: .* on .*delete"):
            found.publish(artefact(3, 2))
        lock.unlink()
        killed += 1
    # The files of two folders, and lineage.json.
    assert killed >= 9
    assert not lock.exists()
    elsewhere()
    again = Lineage.open(place)
    assert again.newest == 1
    again.check()


def _publish_and_die(place: str, uploads: int) -> None:
    left = [uploads]
    for name in ("put_file", "pipe_file"):
        real = getattr(Bucket, name)

        def put(files: Any, path: str, *args: Any, real: Any = real, **options: Any) -> Any:
            if options.get("mode") != "create":
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return real(files, path, *args, **options)

        setattr(Bucket, name, put)
    Lineage.open(place).publish(artefact(3, 2))


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
            lineage.publish(artefact(4, 3))
    assert there()["publishing.lock"] == other
    with pytest.raises(LineageError, match=message):
        ConsumerRegistry.open(PLACE).add("a", "v0", lineage.resolve)
    assert there()["publishing.lock"] == other
    fsspec.filesystem("memory").rm(place)
    assert lineage.publish(artefact(4, 3)) == 2


def test_a_lock_that_cannot_be_removed_is_said(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryFileSystem.rm_file

    def refuse(files: Any, path: str) -> None:
        if path.endswith("publishing.lock"):
            raise PermissionError("no deleting here")
        real(files, path)

    monkeypatch.setattr(MemoryFileSystem, "rm_file", refuse)
    with pytest.warns(RuntimeWarning, match="publishing.lock could not be removed"):
        assert lineage.publish(artefact(4, 3)) == 2
    assert Lineage.open(PLACE).newest == 2


def test_who_has_published_meanwhile_wins(
    lineage: Lineage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, and, later, on this one."""
    reader = Lineage.open(PLACE)
    shutil.rmtree(reader.path / "embeddings" / "1")
    (reader.path / "embeddings" / "1").mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("EVERGRAM_CACHE", str(tmp_path / "other"))
        Lineage.open(PLACE).publish(artefact(4, 3, seed=2))
    with pytest.raises(LineageError, match=f"{PLACE} has changed since it was opened"):
        lineage.publish(artefact(4, 3, seed=3))
    # And who still reads what is gone by now is told so.
    with pytest.raises(LineageError, match=f"{PLACE} has changed since it was opened"):
        reader.embeddings("query")
    expected = artefact(4, 3, seed=2).block("query")[1]
    assert torch.equal(Lineage.open(PLACE).embeddings("query")[1], expected)
    assert not (reader.path / "embeddings" / "1").exists()


def test_a_lineage_that_was_made_anew_is_not_mixed_with_the_old(lineage: Lineage) -> None:
    """The mirror has files of the same names."""
    MemoryFileSystem.store.clear()
    again = Lineage.create(PLACE, "shop")
    again.publish(artefact(2, seed=7))
    again.publish(artefact(3, 2, seed=8))
    expected = again.view(0).embeddings("query")[1]
    mirror = lineage.path
    shutil.rmtree(mirror)
    # As the mirror was before.
    content = there()
    MemoryFileSystem.store.clear()
    first = Lineage.create(PLACE, "shop")
    first.publish(artefact(2))
    first.publish(artefact(3, 2, seed=1))
    files = fsspec.filesystem("memory")
    for name, value in content.items():
        files.pipe_file(f"/bucket/shop/{name}", value)
    assert torch.equal(Lineage.open(PLACE).view(0).embeddings("query")[1], expected)
    with pytest.raises(LineageError):
        first.encoder_parts(9)


def test_a_lineage_that_cannot_be_reached(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", refuse)
    with pytest.raises(LineageError, match=f"{PLACE} cannot be read: no route; the lineage is as"):
        Lineage.open(PLACE)
    with pytest.raises(LineageError, match="cannot be written: no route"):
        lineage.publish(artefact(4, 3))
    for address, message in (("nothing://x", "Protocol not known"), ("s3://x/y", "s3fs")):
        with pytest.raises(LineageError, match=message):
            Lineage.open(address)


def test_names_that_lead_out_of_the_mirror_are_refused(lineage: Lineage) -> None:
    """A bucket may hold what somebody else wrote."""
    name = "/bucket/shop/versions/1/manifest.json"
    manifest = json.loads(there()["versions/1/manifest.json"])
    manifest["files"]["../../../../outside.json"] = "0" * 64
    fsspec.filesystem("memory").pipe_file(name, resealed(manifest).encode())
    fsspec.filesystem("memory").pipe_file("/outside.json", b"x")
    with pytest.raises(IntegrityError, match=r"outside.json' cannot be the name of a file"):
        Lineage.open(PLACE)
    assert not list(cache_folder().rglob("outside.json"))


def test_consumers_are_kept_there(lineage: Lineage, tmp_path: Path) -> None:
    files = {}
    for name in ("m.safetensors", "d.parquet"):
        (tmp_path / name).write_bytes(name.encode())
        files[name] = str(tmp_path / name)
    probe = Probe(model=files["m.safetensors"], data=files["d.parquet"], side="query", metric="auc")
    found = ConsumerRegistry.open(PLACE)
    found.add("ads", "v0", lineage.resolve, probe=probe)
    token = found.issue_token("ads")
    elsewhere()
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
    assert not any(k.startswith("probes/") for k in there())
    elsewhere()
    assert ConsumerRegistry.open(PLACE).list() == ()
    Lineage.open(PLACE).retire(0)
    with pytest.raises(UnknownVersionError):
        Lineage.open(PLACE).resolve("nightly")


def test_consumers_that_cannot_be_uploaded_are_as_they_were(
    lineage: Lineage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ConsumerRegistry.open(PLACE).add("a", "v0", lineage.resolve)
    found = ConsumerRegistry.open(PLACE)
    with monkeypatch.context() as patch:
        Refusing(patch, 1, ConnectionError("the line is dead"))
        with pytest.raises(LineageError, match="the line is dead"):
            found.add("b", "v0", lineage.resolve)
    assert [c.name for c in found.list()] == ["a"]
    assert [c.name for c in ConsumerRegistry.open(PLACE).list()] == ["a"]
    found.add("b", "v0", lineage.resolve)
    assert [c.name for c in ConsumerRegistry.open(PLACE).list()] == ["a", "b"]


def test_a_file_address_is_a_folder(tmp_path: Path) -> None:
    found = Lineage.create(f"file://{tmp_path}/a%20b")
    found.publish(artefact(2))
    assert found.path == tmp_path / "a b"
    assert Lineage.open(tmp_path / "a b").newest == Lineage.open(f"file://{tmp_path}/a b").newest
    assert not cache_folder().exists()
    with pytest.raises(LineageError, match="names the host 'x'"):
        local_folder("file://x/y")
    # What is no address is a folder, whatever is in its name.
    assert local_folder("C:/x") == Path("C:/x")
    assert mirror_of("s3://a") != mirror_of("s3://b")


def test_without_fsspec_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(LineageError, match=r"pip install 'evergram\[remote\]'"):
        Lineage.open(PLACE)
