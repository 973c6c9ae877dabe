"""Storage elsewhere: a bucket in memory, one that processes share, and a connection that breaks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from evergram.lineage.remote import cache_folder

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


def bucket_files() -> dict[str, bytes]:
    """The contents of the lineage's files in the bucket, by their paths in it."""
    return {
        k.removeprefix("/bucket/shop/"): bytes(v.getbuffer())
        for k, v in MemoryFileSystem.store.items()
    }


def forget_mirror() -> None:
    """Remove all mirrors, so that the next opening is as on another machine."""
    shutil.rmtree(cache_folder())


class Refusing:
    """Lets `allowed` writes through and fails at every later one, as a broken connection does."""

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
