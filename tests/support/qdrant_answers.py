"""A server's answers of Qdrant, made of a collection of the client's local mode.

It answers the requests by which a collection is read, described and quantized, and remembers what
it was asked. It searches by whole vectors whatever the codes are, unless `misled`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from qdrant_client import QdrantClient, models


class QdrantAnswers:
    """What a server was asked: the path and the body of each request, and its URL."""

    def __init__(self, client: QdrantClient) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.url = ""
        self._client = client
        # The configurations of quantization, by collection; whether a server takes them.
        self.quantized: dict[str, Any] = {}
        self.takes = True
        # Whether a search by codes finds none of the best.
        self.misled = False
        # The keys that came with requests; whether to cut the next connection off.
        self.keys: set[str | None] = set()
        self.cut = False

    def answer(self, path: str, body: Any) -> Any:
        self.asked.append((path, body))
        parts = path.partition("?")[0].strip("/").split("/")
        if parts == ["collections"]:
            return self._client.get_collections().model_dump(mode="json")
        name, rest = parts[1], "/".join(parts[2:])
        if rest == "exists":
            return {"exists": self._client.collection_exists(name)}
        if not self._client.collection_exists(name):
            return None
        if not rest:
            return self._described(name, body)
        if rest == "points/payload":
            self._client.set_payload(name, body["payload"], body["points"])
            return {"operation_id": 1, "status": "completed"}
        if rest == "points":
            held = self._client.retrieve(name, body["ids"], with_vectors=body["with_vector"])
            return [point.model_dump(mode="json") for point in held]
        if rest == "points/count":
            count = models.CountRequest(**body)
            return self._client.count(name, count.filter).model_dump(mode="json")
        if rest == "points/scroll":
            page = models.ScrollRequest(**body)
            points, offset = self._client.scroll(
                name,
                page.filter,
                limit=page.limit or 10,
                offset=page.offset,
                with_payload=page.with_payload or False,
                with_vectors=page.with_vector or False,
            )
            shown = [point.model_dump(mode="json") for point in points]
            return {"points": shown, "next_page_offset": offset}
        assert rest == "points/query/batch"
        searches = models.QueryRequestBatch(**body).searches
        # The local mode warns of parameters.
        plain = [one.model_copy(update={"params": None}) for one in searches]
        found = self._client.query_batch_points(name, plain)
        for search, hits in zip(searches, found, strict=True):
            codes = search.params and search.params.quantization
            if self.misled and codes and not codes.ignore:
                hits.points = []
        return [hits.model_dump(mode="json") for hits in found]

    def _described(self, name: str, update: Any) -> Any:
        """Return what a collection is, or, of an update, that it is done."""
        if update is not None:
            if self.takes:
                self.quantized[name] = update["quantization_config"]
            return True
        described = self._client.get_collection(name).model_dump(mode="json")
        held = self.quantized.get(name)
        described["config"]["quantization_config"] = None if held == "Disabled" else held
        return described


@contextmanager
def qdrant_answers(folder: Path) -> Iterator[QdrantAnswers]:
    """Serve the collections of a folder at a URL of this machine."""
    with closing(QdrantClient(path=str(folder), force_disable_check_same_thread=True)) as client:
        answers = QdrantAnswers(client)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_PATCH(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                answers.keys.add(self.headers.get("api-key"))
                if answers.cut:
                    answers.cut, self.close_connection = False, True
                    return
                result = answers.answer(self.path, json.loads(raw) if raw else None)
                body = {"result": result, "status": "ok", "time": 0.0}
                if result is None:
                    body = {"status": {"error": "Not found: no such collection"}, "time": 0.0}
                sent = json.dumps(body).encode()
                self.send_response(404 if result is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: Any) -> None:
                """Not into the tests' output."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield answers
        finally:
            server.shutdown()
            server.server_close()
