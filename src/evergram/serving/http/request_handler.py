"""The steps that every request passes: token, body, worker, time limit, counting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evergram.errors import LineageError, UnknownVersionError
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import DashboardData
from evergram.serving.dashboard.traffic import TrafficLog
from evergram.serving.http.access import Access, authenticate, refusal_response
from evergram.serving.http.body import BodyBudget, HeldBody, is_arrow
from evergram.serving.http.call import ARROW, JSON, Answer, Call, EncoderWaitError
from evergram.serving.http.connections import Connections
from evergram.serving.http.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.http.vector_routes import embeddings
from evergram.serving.http.workers import Refresher, Workers
from evergram.serving.metrics import MEDIA, Metrics
from evergram.serving.service import ServedState, Service
from evergram.serving.settings import ServiceSettings

Operation = Callable[[Call], Answer]
Listing = Callable[[ServedState, Access], BaseModel]
# Routes that the dashboard counts as traffic.
VECTORS = ("/v1/embeddings", "/v1/search", "/v1/transform", "/v1/fold-in")
# Refusals that may end once the service has loaded a new version. A forbidden version is among
# them so that its refusal takes as long whether the version exists or not.
_MAY_END = ("taking_up", "forbidden_version")
# Pages of metrics that may wait for one that is being made.
PAGES = 8
# Bytes of a body that may be answered in the event loop's own thread.
QUICK = 4096


@dataclass
class _Asked:
    """A request on its way: its consumer is "" until it is authenticated."""

    request: Request
    route: str
    consumer: str = ""
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


class RequestHandler:
    """Answers requests from a service, which its `refresher` reloads when its lineage changes."""

    def __init__(self, service: Service, settings: ServiceSettings) -> None:
        self.service: Service = service
        self.settings: ServiceSettings = settings
        self.metrics: Metrics = Metrics(settings.process)
        self.traffic: TrafficLog = TrafficLog()
        self.workers: Workers = Workers(settings.workers, settings.max_waiting)
        # Apart, as an encoder of text may keep its requests waiting, which must hold neither the
        # threads nor the connections of all others.
        waiting = min(settings.max_waiting, settings.max_connections // 2)
        self.text_workers: Workers = Workers(settings.workers, waiting)
        self.bodies: BodyBudget = BodyBudget(max(settings.max_buffered, settings.max_body))
        self.connections: Connections = Connections(
            settings.max_connections, settings.silence, self.metrics.connection_ended
        )
        self.refresher: Refresher = Refresher(service, settings, self.metrics)
        # One at a time, as they set the same gauges; apart, as they are read most when all other
        # threads wait for a store.
        self._pages = Workers(1, PAGES)

    async def answer(self, request: Request, route: str, operation: Operation) -> Response:
        """Return the answer of an operation on vectors, or the refusal of the request."""
        asked = _Asked(request, route)
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._operate(asked, operation)
        except Exception as error:
            return self._refuse(asked, error)
        headers = {
            "x-evergram-version": str(answer.version),
            "x-evergram-computed-from": ",".join(str(v) for v in sorted(answer.sources)),
            "x-evergram-fingerprint": answer.fingerprint,
        }
        # Counted after it is sent, so that the client does not wait for it.
        counting = BackgroundTask(self._count_answer, asked, answer, asked.seconds)
        return Response(answer.body, 200, headers, answer.media, counting)

    async def list(self, request: Request, route: str, listing: Listing) -> Response:
        """Return the answer of a listing, or the refusal of the request."""
        asked = _Asked(request, route)
        try:
            async with asyncio.timeout(self.settings.timeout):
                state, access = self._enter(asked)
                answer = await self.workers.run(lambda: listing(state, access), state.leave)
        except Exception as error:
            return self._refuse(asked, error)
        self._count(asked, None, 200, asked.seconds)
        return Response(answer.model_dump_json(), media_type=JSON)

    async def _operate(self, asked: _Asked, operation: Operation) -> Answer:
        # The token is checked before anything else of the request is read.
        state, access = self._enter(asked)
        body = HeldBody(self.bodies)
        try:
            try:
                arrow_in = is_arrow(asked.request)
                await body.read(asked.request, self.settings.max_body, self.settings.silence)
            except BaseException:
                state.leave()
                raise
            call = self._call(asked, state, access, body, arrow_in)
            quick = operation is embeddings and is_quick(call)
            run = self._inline(call, operation) if quick else self._in_worker(call, operation, body)
            may_wait = reloaded = False
            while True:
                try:
                    return await run
                except EncoderWaitError:
                    may_wait = True
                except (UnknownVersionError, RefusedError) as error:
                    lasting = isinstance(error, RefusedError) and error.code not in _MAY_END
                    if lasting or reloaded or not await self.refresher.reloaded(call.state.shared):
                        raise
                    reloaded = True
                state, access = self._enter(asked)
                call = self._call(asked, state, access, body, arrow_in)
                run = self._in_worker(replace(call, may_wait=may_wait), operation, body)
        finally:
            body.leave()

    def _call(
        self, asked: _Asked, state: ServedState, access: Access, body: HeldBody, arrow_in: bool
    ) -> Call:
        headers = asked.request.headers
        return Call(
            *(state, access, self.settings, self.metrics.drift, body.size, body.content, arrow_in),
            arrow_out=ARROW in headers.get("accept", ""),
            fingerprint=headers.get("x-evergram-fingerprint"),
        )

    async def _inline(self, call: Call, operation: Operation) -> Answer:
        try:
            return operation(call)
        finally:
            call.state.leave()

    async def _in_worker(self, call: Call, operation: Operation, body: HeldBody) -> Answer:
        # A worker reads the body to the end, even after the request was given up.
        body.hold()

        def done() -> None:
            body.leave()
            call.state.leave()

        workers = self.text_workers if call.may_wait else self.workers
        return await workers.run(lambda: operation(call), done)

    def _enter(self, asked: _Asked) -> tuple[ServedState, Access]:
        """Authenticate a request. Raises: RefusedError: its token is missing or unknown."""
        state = self.service.enter()
        try:
            headers = asked.request.headers.getlist("authorization")
            access = authenticate(self.settings, state.consumers, state.tokens, headers)
        except BaseException:
            state.leave()
            raise
        asked.consumer = access.name
        return state, access

    async def dashboard(self, request: Request) -> DashboardData:
        """Return the dashboard's data, to the administrator: it names consumers.

        Raises: EvergramError.
        """
        asked = _Asked(request, "/v1/dashboard")
        state, access = self._enter(asked)
        try:
            return await self._dashboard_data(state, access)
        except LineageError:
            # A publication since then has removed files of the version before.
            if not await self.refresher.reloaded(state.shared):
                raise
        return await self._dashboard_data(*self._enter(asked))

    async def _dashboard_data(self, state: ServedState, access: Access) -> DashboardData:
        def collect() -> DashboardData:
            access.require_admin("The dashboard")
            live = self.traffic.live(state.reader, self.metrics, self.service.filling)
            live = live.model_copy(update={"problems": self.service.problems})
            facts = state.shared.published_facts()
            return dashboard_data(state.reader.lineage, list(state.consumers.list()), live, facts)

        return await self.workers.run(collect, state.leave)

    async def metrics_page(self, request: Request) -> Response:
        """Return the page for Prometheus, to the administrator where tokens are asked for.

        It names consumers. It is made outside of the event loop: what it counts may be locked while
        a file of texts is read.
        """
        asked = _Asked(request, "/metrics")
        try:
            async with asyncio.timeout(self.settings.timeout):
                state, access = self._enter(asked)
                page = await self._pages.run(lambda: self._metrics_page(access), state.leave)
        except Exception as error:
            return self._refuse(asked, error)
        return Response(page, media_type=MEDIA)

    def _metrics_page(self, access: Access) -> bytes:
        access.require_admin("The page of metrics")
        metrics, service, texts = self.metrics, self.service, self.service.texts
        metrics.version.set(service.production)
        metrics.stale.set(service.problem is not None)
        metrics.sidecar_problems.set(service.sidecar_problem_count)
        metrics.text_problem.set(texts is not None and texts.problem is not None)
        if texts is not None and texts.documents is not None:
            for version, count in texts.documents.counts().items():
                metrics.kept.labels(str(version)).set(count)
        metrics.working.set(self.workers.busy + self.text_workers.busy)
        metrics.connections.set(len(self.connections.open))
        metrics.buffered.set(self.bodies.held)
        return metrics.page()

    def close(self) -> None:
        """Wait for the requests under way, and close the service."""
        for part in (self.workers, self.text_workers, self._pages, self.refresher, self.service):
            part.close()

    def _refuse(self, asked: _Asked, error: Exception) -> Response:
        if isinstance(error, TimeoutError):
            late = (
                f"No answer within {self.settings.timeout:g} seconds; ask for less at a time. A "
                "search with 'rerank' keeps what it encoded, and goes further when sent again."
            )
            error = RefusedError(504, "timeout", late)
        elif isinstance(error, ClientDisconnect):
            error = RefusedError(400, "disconnected", "The request ended before its body did.")
        refusal = error_response(error)
        self._count(asked, None, refusal.status, asked.seconds)
        self.count_refusal(refusal)
        return refusal_response(refusal)

    def count_refusal(self, refusal: ErrorResponse) -> None:
        self.metrics.errors.labels(refusal.code).inc()

    async def _count_answer(self, asked: _Asked, answer: Answer, seconds: float) -> None:
        self._count(asked, answer.version, 200, seconds)
        self.metrics.served(answer.version, answer.sources)
        for vector, count in answer.reranked.items():
            self.metrics.reranked.labels(str(answer.version), vector).inc(count)

    def _count(self, asked: _Asked, version: int | None, status: int, seconds: float) -> None:
        self.metrics.answered(asked.route, asked.consumer, version, status, seconds)
        if asked.route in VECTORS:
            self.traffic.answered(asked.consumer, version, status, seconds)


def is_quick(call: Call) -> bool:
    """Return whether a request for embeddings is answered in the event loop's own thread.

    Looking up a few rows in this process's memory takes less time than handing them to a worker,
    and so does looking up the vectors of a few texts; those that must be encoded are then handed on
    once. Features are encoded, which takes longer. `benchmarks serving-fast-paths` measures it.
    """
    if call.size > QUICK or not call.state.shared.in_memory:
        return False
    body = call.content()
    # JSON may write the letters of "features" as \u0066, too.
    return b"features" not in body and b"\\u00" not in body
