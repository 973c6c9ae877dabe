"""What every request goes through: who asks, how much, how long; and how it was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pydantic import BaseModel
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evergram.errors import LineageError, UnknownVersionError
from evergram.serving.dashboard.data import dashboard_data
from evergram.serving.dashboard.schemas import DashboardData
from evergram.serving.dashboard.traffic import Latest
from evergram.serving.http.auth import Access, authenticate
from evergram.serving.http.connections import Connections
from evergram.serving.http.errors import RefusedError, Said, log, say
from evergram.serving.http.requests.arrow_stream import MEDIA as ARROW
from evergram.serving.http.requests.body import BodyBudget, HeldBody, is_stream
from evergram.serving.http.vector_routes import JSON, Answer, Call, embeddings, is_quick
from evergram.serving.http.workers import Workers
from evergram.serving.monitoring.metrics import Metrics
from evergram.serving.service import Opened, Service, State
from evergram.serving.settings import Settings

Operation = Callable[[Call], Answer]
Listing = Callable[[State, Access], BaseModel]
# Routes that are traffic, as the dashboard shows it.
VECTORS = ("/v1/embeddings", "/v1/search", "/v1/transform")
# Refusals that a version which is only being taken up may end. Of a consumer that may not read one,
# it takes as long whether there is one or not.
_MAY_COME = ("taking_up", "forbidden_version")
# Seconds that a request for a version which is not known waits for it to be taken up.
PATIENCE = 2.0
# Seconds between two looks at what was served.
DRIFT_EVERY = 10.0


class Front:
    """Between HTTP and the service."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.service, self.settings = service, settings
        self.metrics = Metrics()
        self.latest = Latest()
        self.workers = Workers(settings.workers, settings.max_waiting)
        self.bodies = BodyBudget(max(settings.max_buffered, settings.max_body))
        self.connections = Connections(
            settings.max_connections, settings.silence, lambda why: self.metrics.ended(why)
        )
        # Opening a new version may take long, and must not wait for requests, nor they for it.
        self._next_drift = 0.0
        self._looking: Future[bool] | None = None
        self._refresher = ThreadPoolExecutor(1, thread_name_prefix="evergram-refresh")

    async def answer(self, request: Request, route: str, operation: Operation) -> Response:
        """The answer of an operation on vectors, whatever happens."""
        started = time.perf_counter()
        seen = _Seen()
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._operate(request, operation, seen)
        except Exception as error:
            return self._refused(route, seen, started, error)
        headers = {
            "x-evergram-version": str(answer.version),
            "x-evergram-computed-from": ",".join(str(v) for v in sorted(answer.sources)),
            "x-evergram-fingerprint": answer.fingerprint,
        }
        # Counted once it is sent: nobody waits for that.
        counted = BackgroundTask(self._counted, route, seen, answer, time.perf_counter() - started)
        return Response(answer.body, 200, headers, answer.media, counted)

    async def list(self, request: Request, route: str, listing: Listing) -> Response:
        """The answer of something that is listed."""
        started = time.perf_counter()
        seen = _Seen()
        try:
            async with asyncio.timeout(self.settings.timeout):
                state, access = self._enter(request, seen)
                found = await self.workers.run(lambda: listing(state, access), state.leave)
        except Exception as error:
            return self._refused(route, seen, started, error)
        self._count(route, seen, None, 200, time.perf_counter() - started)
        return Response(found.model_dump_json(), media_type=JSON)

    async def _operate(self, request: Request, operation: Operation, seen: _Seen) -> Answer:
        # Whose token it is counts before anything else is read.
        state, access = self._enter(request, seen)
        body = HeldBody(self.bodies)
        try:
            try:
                arrow_in = is_stream(request)
                await body.read(request, self.settings.max_body, self.settings.silence)
            except BaseException:
                state.leave()
                raise
            call = self._call(request, state, access, body, arrow_in)
            if operation is embeddings and is_quick(call):
                run = self._at_once(call, operation)
            else:
                run = self._in_a_worker(call, operation, body)
            try:
                return await run
            except (UnknownVersionError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code not in _MAY_COME:
                    raise
                if not await self._taken_up(call.state.opened):
                    raise
            state, access = self._enter(request, seen)
            call = self._call(request, state, access, body, arrow_in)
            return await self._in_a_worker(call, operation, body)
        finally:
            body.leave()

    def _call(
        self, request: Request, state: State, access: Access, body: HeldBody, arrow_in: bool
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

    async def _at_once(self, call: Call, operation: Operation) -> Answer:
        try:
            return operation(call)
        finally:
            call.state.leave()

    async def _in_a_worker(self, call: Call, operation: Operation, body: HeldBody) -> Answer:
        # A worker reads it to the end, also where nobody waits for the answer any more.
        body.hold()

        def done() -> None:
            body.leave()
            call.state.leave()

        return await self.workers.run(lambda: operation(call), done)

    def _enter(self, request: Request, seen: _Seen) -> tuple[State, Access]:
        """Raises: RefusedError: a token is needed, or is not known."""
        state = self.service.enter()
        try:
            headers = request.headers.getlist("authorization")
            access = authenticate(self.settings, state.roll, state.tokens, headers)
        except BaseException:
            state.leave()
            raise
        seen.consumer = access.name
        return state, access

    async def _taken_up(self, before: Opened) -> bool:
        """Whether something else than `before` is served, now or within a moment."""
        if self.service.least_poll:
            return False
        # One look that has not begun serves everybody who waits: behind a long one, that fills
        # stores, no queue of others gathers.
        looked = self._looking
        if looked is None or looked.running() or looked.done():
            looked = self._looking = self._refresher.submit(self.service.refresh)
        end = time.monotonic() + PATIENCE
        while self.service.opened is before and time.monotonic() < end:
            if looked.done() and self.service.problem is None:
                break
            await asyncio.sleep(0.01)
        return self.service.opened is not before

    async def watch(self) -> None:
        """Look again and again whether there is something new, and at what was served."""
        loop = asyncio.get_running_loop()
        pause = max(self.settings.poll, self.service.least_poll)
        while True:
            await asyncio.sleep(pause)
            look = loop.run_in_executor(self._refresher, self._look)
            # It may be filling stores; who may read is looked after all the same.
            while not (await asyncio.wait({look}, timeout=pause))[0]:
                await asyncio.to_thread(self.service.refresh_roll)
            try:
                look.result()
            except Exception:
                log.exception("Looking after the service failed; it is tried again.")

    def _look(self) -> None:
        if self.service.refresh():
            self.metrics.reloads.inc()
        self.service.check_stores()
        # Less often: it takes the interpreter from requests for some milliseconds.
        if time.monotonic() >= self._next_drift:
            self._next_drift = time.monotonic() + DRIFT_EVERY
            with self.service.entered() as state:
                self.metrics.drift.look(state.reader)

    async def dashboard(self, request: Request) -> DashboardData:
        """What the dashboard shows; it names consumers, so it is the administrator's.

        Raises: EvergramError.
        """
        state, access = self._enter(request, _Seen())
        try:
            return await self._shown(state, access)
        except LineageError:
            # Files of a version before are gone once another is published.
            if not await self._taken_up(state.opened):
                raise
        state, access = self._enter(request, _Seen())
        return await self._shown(state, access)

    async def _shown(self, state: State, access: Access) -> DashboardData:
        def made() -> DashboardData:
            access.require_admin("The dashboard")
            live = self.latest.live(state.reader, self.metrics, self.service.filling)
            lineage, diagnosis = state.reader.lineage, state.opened.diagnosis()
            return dashboard_data(lineage, list(state.roll.list()), live, diagnosis)

        return await self.workers.run(made, state.leave)

    def metrics_page(self, request: Request) -> Response:
        """For Prometheus; names consumers, so it is the administrator's where tokens are asked."""
        seen = _Seen()
        try:
            state, access = self._enter(request, seen)
            state.leave()
            access.require_admin("The page of metrics")
        except Exception as error:
            return self._refused("/metrics", seen, time.perf_counter(), error)
        self.metrics.version.set(self.service.production)
        self.metrics.stale.set(self.service.problem is not None)
        self.metrics.working.set(self.workers.busy)
        self.metrics.connections.set(len(self.connections.open))
        self.metrics.buffered.set(self.bodies.held)
        return Response(self.metrics.page(), media_type="text/plain; version=0.0.4")

    def close(self) -> None:
        self.workers.close()
        self._refresher.shutdown(wait=True, cancel_futures=True)
        self.service.close()

    def _refused(self, route: str, seen: _Seen, started: float, error: Exception) -> Response:
        if isinstance(error, TimeoutError):
            error = RefusedError(
                504,
                "timeout",
                f"No answer within {self.settings.timeout:g} seconds; ask for less at a time.",
            )
        elif isinstance(error, ClientDisconnect):
            error = RefusedError(400, "disconnected", "The request ended before its body did.")
        said = say(error)
        self._count(route, seen, None, said.status, time.perf_counter() - started)
        self.refused(said)
        return Response(said.body, said.status, said.headers, JSON)

    def refused(self, said: Said) -> None:
        """Count a refusal."""
        self.metrics.errors.labels(said.code).inc()

    async def _counted(self, route: str, seen: _Seen, answer: Answer, seconds: float) -> None:
        self._count(route, seen, answer.version, 200, seconds)
        self.metrics.served(answer.version, answer.sources)

    def _count(
        self, route: str, seen: _Seen, version: int | None, status: int, seconds: float
    ) -> None:
        self.metrics.answered(route, seen.consumer, version, status, seconds)
        if route in VECTORS:
            self.latest.answered(seen.consumer, version, status, seconds)


class _Seen:
    """Whose request it is, as far as is known."""

    consumer = ""
