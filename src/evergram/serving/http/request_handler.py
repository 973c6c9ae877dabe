"""The steps that every request passes: token, body, worker, time limit, counting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evergram.errors import LineageError, UnknownVersionError
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import DashboardData
from evergram.serving.dashboard.traffic import TrafficLog
from evergram.serving.http.answers.arrow_answers import MEDIA as ARROW
from evergram.serving.http.answers.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.http.call import JSON, Answer, Call, EncoderWaitError
from evergram.serving.http.connections import Connections
from evergram.serving.http.fast_paths.inline_answers import is_quick
from evergram.serving.http.refresher import Refresher
from evergram.serving.http.requests.auth import Access, authenticate
from evergram.serving.http.requests.body import BodyBudget, HeldBody, is_arrow
from evergram.serving.http.vector_routes import embeddings
from evergram.serving.http.workers import Workers
from evergram.serving.monitoring.metrics import Metrics
from evergram.serving.served_state import ServedState
from evergram.serving.service import Service
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
        started = time.perf_counter()
        caller = _Caller()
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._operate(request, operation, caller)
        except Exception as error:
            return self._refuse(route, caller, started, error)
        headers = {
            "x-evergram-version": str(answer.version),
            "x-evergram-computed-from": ",".join(str(v) for v in sorted(answer.sources)),
            "x-evergram-fingerprint": answer.fingerprint,
        }
        # Counted after it is sent, so that the client does not wait for it.
        seconds = time.perf_counter() - started
        counting = BackgroundTask(self._count_answer, route, caller, answer, seconds)
        return Response(answer.body, 200, headers, answer.media, counting)

    async def list(self, request: Request, route: str, listing: Listing) -> Response:
        """Return the answer of a listing, or the refusal of the request."""
        started = time.perf_counter()
        caller = _Caller()
        try:
            async with asyncio.timeout(self.settings.timeout):
                state, access = self._enter(request, caller)
                answer = await self.workers.run(lambda: listing(state, access), state.leave)
        except Exception as error:
            return self._refuse(route, caller, started, error)
        self._count(route, caller, None, 200, time.perf_counter() - started)
        return Response(answer.model_dump_json(), media_type=JSON)

    async def _operate(self, request: Request, operation: Operation, caller: _Caller) -> Answer:
        # The token is checked before anything else of the request is read.
        state, access = self._enter(request, caller)
        body = HeldBody(self.bodies)
        try:
            try:
                arrow_in = is_arrow(request)
                await body.read(request, self.settings.max_body, self.settings.silence)
            except BaseException:
                state.leave()
                raise
            call = self._call(request, state, access, body, arrow_in)
            quick = is_quick(call.size, state.shared.in_memory, call.content)
            if operation is embeddings and quick:
                run = self._inline(call, operation)
            else:
                run = self._in_worker(call, operation, body)
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
                state, access = self._enter(request, caller)
                call = self._call(request, state, access, body, arrow_in)
                run = self._in_worker(replace(call, may_wait=may_wait), operation, body)
        finally:
            body.leave()

    def _call(
        self,
        request: Request,
        state: ServedState,
        access: Access,
        body: HeldBody,
        arrow_in: bool,
    ) -> Call:
        return Call(
            state,
            access,
            self.settings,
            self.metrics.drift,
            body.size,
            body.content,
            arrow_in,
            ARROW in request.headers.get("accept", ""),
            request.headers.get("x-evergram-fingerprint"),
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

    def _enter(self, request: Request, caller: _Caller) -> tuple[ServedState, Access]:
        """Authenticate a request. Raises: RefusedError: its token is missing or unknown."""
        state = self.service.enter()
        try:
            headers = request.headers.getlist("authorization")
            access = authenticate(self.settings, state.consumers, state.tokens, headers)
        except BaseException:
            state.leave()
            raise
        caller.consumer = access.name
        return state, access

    async def dashboard(self, request: Request) -> DashboardData:
        """Return the dashboard's data, to the administrator: it names consumers.

        Raises: EvergramError.
        """
        state, access = self._enter(request, _Caller())
        try:
            return await self._dashboard_data(state, access)
        except LineageError:
            # A publication since then has removed files of the version before.
            if not await self.refresher.reloaded(state.shared):
                raise
        state, access = self._enter(request, _Caller())
        return await self._dashboard_data(state, access)

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

        It names consumers. It is made beside the event loop: what it counts may be locked while
        a file of texts is read.
        """
        started = time.perf_counter()
        caller = _Caller()
        try:
            async with asyncio.timeout(self.settings.timeout):
                state, access = self._enter(request, caller)
                page = await self._pages.run(lambda: self._metrics_page(access), state.leave)
        except Exception as error:
            return self._refuse("/metrics", caller, started, error)
        return Response(page, media_type="text/plain; version=0.0.4")

    def _metrics_page(self, access: Access) -> bytes:
        access.require_admin("The page of metrics")
        self.metrics.version.set(self.service.production)
        self.metrics.stale.set(self.service.problem is not None)
        self.metrics.sidecar_problems.set(self.service.sidecar_problem_count)
        texts = self.service.texts
        self.metrics.text_problem.set(texts is not None and texts.problem is not None)
        if texts is not None and texts.documents is not None:
            for version, count in texts.documents.counts().items():
                self.metrics.kept.labels(str(version)).set(count)
        self.metrics.working.set(self.workers.busy + self.text_workers.busy)
        self.metrics.connections.set(len(self.connections.open))
        self.metrics.buffered.set(self.bodies.held)
        return self.metrics.page()

    def close(self) -> None:
        """Wait for the requests under way, and close the service."""
        self.workers.close()
        self.text_workers.close()
        self._pages.close()
        self.refresher.close()
        self.service.close()

    def _refuse(self, route: str, caller: _Caller, started: float, error: Exception) -> Response:
        if isinstance(error, TimeoutError):
            error = RefusedError(
                504,
                "timeout",
                f"No answer within {self.settings.timeout:g} seconds; ask for less at a time. A "
                "search with 'rerank' keeps what it encoded, and goes further when it is sent "
                "again.",
            )
        elif isinstance(error, ClientDisconnect):
            error = RefusedError(400, "disconnected", "The request ended before its body did.")
        refusal = error_response(error)
        self._count(route, caller, None, refusal.status, time.perf_counter() - started)
        self.count_refusal(refusal)
        return Response(refusal.body, refusal.status, refusal.headers, JSON)

    def count_refusal(self, refusal: ErrorResponse) -> None:
        self.metrics.errors.labels(refusal.code).inc()

    async def _count_answer(
        self, route: str, caller: _Caller, answer: Answer, seconds: float
    ) -> None:
        self._count(route, caller, answer.version, 200, seconds)
        self.metrics.served(answer.version, answer.sources)
        for vector, count in answer.reranked.items():
            self.metrics.reranked.labels(str(answer.version), vector).inc(count)

    def _count(
        self, route: str, caller: _Caller, version: int | None, status: int, seconds: float
    ) -> None:
        self.metrics.answered(route, caller.consumer, version, status, seconds)
        if route in VECTORS:
            self.traffic.answered(caller.consumer, version, status, seconds)


class _Caller:
    """The consumer of a request; "" until it is authenticated."""

    consumer = ""
