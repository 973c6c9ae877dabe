"""The walk of docs/migrate.md and old-readers.md: for files, pgvector and Qdrant."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import numpy as np
import pytest
from tests.support.command import run_in_shell, shell_environment
from tests.support.postgres_server import postgres
from tests.support.several_processes import free_port
from tests.support.text_encoders import ADDRESSES, sentences, word_vectors

from evergram.lineage.lineage import Lineage
from evergram.stores.open_store import open_store
from evergram.vector_files.open_embeddings import open_embeddings

ROOT = Path(__file__).parents[2]
PAGES = ("migrate.md", "old-readers.md")
PAGE = "".join((ROOT / "docs" / name).read_text() for name in PAGES)
BLOCKS = dict(re.findall(r"<!-- run: ([\w-]+) -->\n```bash\n(.*?)```", PAGE, re.DOTALL))
SAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
TEXTS, QUERIES = 2600, 30
# Seconds in which a service must answer.
PATIENCE = 120.0


class Walker:
    """A folder with texts, queries and judgements, in which blocks of the page run.

    Args:
        old, new: addresses of the stores; "" for files.
    """

    def __init__(self, folder: Path, old: str = "", new: str = "") -> None:
        self.folder, self.lineage = folder, folder / "line"
        self.texts = sentences(TEXTS)
        rows = [("id", "text"), *enumerate(self.texts)]
        queries = [("id", "text"), *((f"q{i}", self.texts[i * 7]) for i in range(QUERIES))]
        for name, table in (("texts.csv", rows), ("queries.csv", queries)):
            with (folder / name).open("w", newline="") as file:
                csv.writer(file).writerows(table)
        judged = [f"q{i}\t{i * 7}\t1" for i in range(QUERIES)]
        (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
        self.ports = {"PORT": free_port(), "NEW_PORT": free_port()}
        self._environment = {
            **shell_environment(folder),
            **{"TEXTS": "texts.csv", "QUERIES": "queries.csv", "QRELS": "qrels.tsv"},
            **{"LINEAGE": "line", "OLD": ADDRESSES[0], "NEW": ADDRESSES[1]},
            **{name: str(port) for name, port in self.ports.items()},
            "OLD_STORE": f"--store object={old}" if old else "",
            "NEW_STORE": f"--store object={new}" if new else "",
        }

    def run(self, name: str) -> str:
        return run_in_shell(BLOCKS[name], self._environment, self.folder)

    @contextmanager
    def serving(self, name: str, port: str) -> Iterator[None]:
        """Run a block that serves, until it is asked to end as a system would."""
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-euc", f"exec {BLOCKS[name]}"],
                cwd=self.folder,
                env=self._environment,
                stdout=file,
                stderr=file,
            )
        try:
            until = time.monotonic() + PATIENCE
            while not self._is_ready(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.2)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)

    def hits(self, port: str, version: int | None, text: str) -> list[tuple[int, int]]:
        """Return the ids of a search's hits, and the version that each was computed from."""
        body = {"input": [text], "k": 10, "metric": "cosine"}
        if version is not None:
            body["version"] = version
        answer = self._post(port, body)
        return [(hit["id"], hit["computed_from"]) for hit in answer["data"][0]["hits"]]

    def until_production(self, port: str, version: int) -> None:
        """Wait until a service serves a version."""
        until = time.monotonic() + PATIENCE
        while self._post(port, {"input": ["word1"], "k": 1})["evergram"]["version"] != version:
            assert time.monotonic() < until
            time.sleep(0.2)

    def _post(self, port: str, body: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{self.ports[port]}/v1/search"
        return httpx.post(url, json=body, timeout=60).raise_for_status().json()

    def _is_ready(self, port: str) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports[port]}/readyz").is_success
        except httpx.TransportError:
            return False


def stores(kind: str, folder: Path) -> tuple[str, str]:
    if kind == "pgvector":
        names = (f"w{crc32(str(folder).encode())}_{version}" for version in ("old", "new"))
        old, new = map(postgres().address, names)
        return old, new
    if kind == "qdrant":
        return f"qdrant:{folder}/qdrant-old#texts_v0", f"qdrant:{folder}/qdrant-new#texts_v2"
    return "", ""


def test_every_block_of_bash_is_run_here() -> None:
    source = Path(__file__).read_text()
    assert len(BLOCKS) == PAGE.count("```bash")
    assert all(f'run("{name}")' in source or f'serving("{name}"' in source for name in BLOCKS)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["files", "pgvector", "qdrant"])
def test_a_migration_is_walked_to_its_end_and_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = stores(kind, tmp_path)
    walker = Walker(tmp_path, old, new)
    asked = walker.texts[5]
    walker.run("version-0")
    if old:
        walker.run("fill-old")
    monkeypatch.chdir(tmp_path)
    exec(compile(SAMPLE, "migrate.md", "exec"), {})
    assert "Verdict: " in walker.run("plan")
    walker.run("align-sample")
    with walker.serving("serve-old", "PORT"):
        before = walker.hits("PORT", 0, asked)
        assert {version for _, version in before} == {0}
        answer = json.loads(walker.run("rerank"))
        assert answer["evergram"]["version"] == 1
        assert len(answer["data"][0]["hits"]) == 10
    assert list((tmp_path / "kept").glob("*.parquet"))
    counts = walker.run("finish")
    assert f"texts: {TEXTS}\nkept: 2" in counts  # thousands; others were never asked for
    finished_as_if_all_were_encoded(walker)
    walker.run("publish")
    assert [m.version for m in Lineage.open(walker.lineage).versions] == [0, 2]
    if new:
        walker.run("fill-new")
        with open_store(new) as store:
            assert store.count() == {2: TEXTS}
    assert "Verdict: " in walker.run("verify")
    with walker.serving("serve-new", "NEW_PORT"):
        # Production is version 0 still, read from the new store's rows where there is one.
        source = 2 if new else 0
        assert {version for _, version in walker.hits("NEW_PORT", 0, asked)} == {source}
        walker.run("promote")
        walker.until_production("NEW_PORT", 2)
        pinned, newest = walker.hits("NEW_PORT", 0, asked), walker.hits("NEW_PORT", None, asked)
        assert {version for _, version in [*pinned, *newest]} == {2}
        # Sums of words' vectors, which a linear map carries back without an error.
        assert pinned[0][0] == newest[0][0] == 5
        assert [id_ for id_, _ in pinned] == [id_ for id_, _ in before]
    assert f"objects: {TEXTS}\n" in walker.run("make-sidecar")
    with walker.serving("serve-sidecar", "NEW_PORT"):
        assert [id_ for id_, _ in walker.hits("NEW_PORT", 0, asked)] == [id_ for id_, _ in before]
    walker.run("roll-back")
    with walker.serving("serve-old", "PORT"):
        assert walker.hits("PORT", None, asked) == before


def finished_as_if_all_were_encoded(walker: Walker) -> None:
    blocks = list(open_embeddings(walker.folder / "new.parquet").blocks())
    assert [i for ids, _ in blocks for i in ids.to_pylist()] == list(range(TEXTS))
    vectors = np.concatenate([part.numpy() for _, part in blocks])
    np.testing.assert_allclose(vectors, word_vectors(walker.texts, 1, 12), rtol=1e-5, atol=1e-5)
