"""The steps common to all requests: token, body, worker thread, time limit, metrics."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evergram.errors import LineageError, UnknownVersionError
from evergram.serving.access import Access, authenticate, refusal_response
from evergram.serving.answers import Answer, Call
from evergram.serving.connections import Connections
from evergram.serving.dashboard import DashboardData, TrafficLog, dashboard_data
from evergram.serving.errors import ARROW, JSON, RefusedError, error_response, log
from evergram.serving.metrics import MEDIA, Metrics
from evergram.serving.service import ServedState, Service, SharedReader
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import LOOK, EncoderWaitError
from evergram.serving.vector_routes import embeddings
from evergram.tracing import annotate

# Bytes of each body that the budget does not count, so that a full budget refuses only large
# requests.
FREE = 1 << 16
CHUNK_OVERHEAD = 64  # memory overhead in bytes of each chunk of a body
QUICK = 4096  # maximum bytes of a body that is answered in the event loop's thread


class BodyBudget:
    """A limit on the total bytes of all request bodies in memory; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held: int = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Take bytes from the budget, or refuse the request; a negative size returns bytes."""
        with self._lock:
            if size > 0 and self.held + size > self._most:
                busy = "Too many large requests are being read already; try again."
                raise RefusedError(503, "busy", busy)
            self.held += size


class HeldBody:
    """The body of one request, which counts toward the budget until its last holder leaves."""

    def __init__(self, budget: BodyBudget) -> None:
        self.content: bytes = b""
        self._budget, self._taken, self._holders = budget, 0, 1
        self._lock = threading.Lock()

    def hold(self) -> None:
        with self._lock:
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self._budget.take(-self._taken)

    async def read(self, request: Request, limit: int, patience: float) -> None:
        """Receive a body of at most `limit` bytes, waiting `patience` seconds for each chunk.
        Counts the bytes received, because the Content-Length header may be wrong or missing."""
        clock = asyncio.get_running_loop()
        size, chunks = 0, list[bytes]()
        try:
            async with asyncio.timeout(patience) as waiting:
                async for chunk in request.stream():
                    waiting.reschedule(clock.time() + patience)
                    size += len(chunk)
                    if size > limit:
                        long = f"The body is longer than {limit} bytes; send fewer rows at a time."
                        raise RefusedError(413, "limit", long)
                    more = max(0, size + CHUNK_OVERHEAD * len(chunks) - FREE) - self._taken
                    if more > 0:
                        self._budget.take(more)
                        self._taken += more
                    chunks += [chunk] if chunk else []
        except TimeoutError:
            late = f"No more of the body arrived for {patience:g} seconds; send it again."
            raise RefusedError(408, "slow", late) from None
        self.content = b"".join(chunks)


def is_arrow(request: Request) -> bool:
    """Return True if the `Content-Type` is Arrow, False if it is JSON; refuse all others. A web
    page of another origin can send text and forms without a CORS preflight, but not these two."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if coding == "identity" and kind in (JSON, ARROW):
        return kind == ARROW
    problem = f"The body has the type {kind[:80]!r} and the encoding {coding[:80]!r}"
    todo = f"send it with 'Content-Type: {JSON}' or '{ARROW}', and without 'Content-Encoding'"
    raise RefusedError(415, "media_type", f"{problem}; {todo}.")


T = TypeVar("T")

PATIENCE = 2.0  # seconds that a request for an unknown version waits for the service to load it


class Workers:
    """A thread pool with a limit on waiting requests. `busy` counts running and waiting ones."""

    def __init__(self, size: int, waiting: int) -> None:
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="evergram-worker")
        self._most = size + waiting
        self.busy: int = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T], *held: HeldBody | ServedState) -> T:
        """Run `work` in a worker thread and return its result. Each of `held` is left exactly once:
        when the work has ended, was cancelled before it started, or was refused."""
        with self._lock:
            full = self.busy >= self._most
            self.busy += not full

        def ended(_: Future[T] | None, counted: int = 1) -> None:
            with self._lock:
                self.busy -= counted
            for each in held:
                each.leave()

        if full:
            ended(None, 0)
            raise RefusedError(503, "busy", "Too many requests are waiting; try again.")
        try:
            # In the request's context, which has its trace span.
            future = self._pool.submit(contextvars.copy_context().run, work)
        except RuntimeError as error:  # closed, or the system has no more threads
            ended(None)
            stopping = "The service is stopping, or cannot start a thread; try again."
            raise RefusedError(503, "busy", stopping) from error
        future.add_done_callback(ended)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def is_quick(call: Call) -> bool:
    """Return whether to answer a request for embeddings in the event loop's thread: handing it to a
    worker costs about a sixth of the whole request."""
    return len(call.body) <= QUICK and call.state.shared.in_memory


def run_here(work: Callable[[], T], *held: HeldBody | ServedState) -> T:
    """Like `Workers.run`, in this thread."""
    try:
        return work()
    finally:
        for each in held:
            each.leave()


async def _repeat(
    work: Callable[[], object], pause: float, what: str, thread: ThreadPoolExecutor | None = None
) -> None:
    """Run `work` in a thread every `pause` seconds, until cancelled; log its failures."""
    while True:
        await asyncio.sleep(pause)
        try:
            await asyncio.get_running_loop().run_in_executor(thread, work)
        except Exception:
            log.exception("%s failed; it will be retried.", what)


Operation = Callable[[Call], Answer]
Listing = Callable[[ServedState, Access], BaseModel | bytes]
# Routes that the dashboard counts as traffic.
VECTORS = ("/v1/embeddings", "/v1/search", "/v1/transform", "/v1/fold-in")
# Refusals that are retried after loading a new version. A forbidden version is among them so that
# its refusal takes the same time whether or not the version exists.
_RELOADABLE = ("taking_up", "forbidden_version")
PAGES = 8  # requests for the metrics page that may wait for another one


@dataclass
class _RequestContext:
    """A request in progress; `consumer` is "" until it is authenticated."""

    request: Request
    route: str
    consumer: str = ""
    started: float = field(default_factory=time.perf_counter)


class RequestHandler:
    """Answers requests from a service, and reloads it when its lineage changes."""

    def __init__(self, service: Service, settings: ServiceSettings) -> None:
        self.service, self.settings = service, settings
        self.metrics, self.traffic = Metrics(), TrafficLog()
        self.workers = Workers(settings.workers, settings.max_waiting)
        # A separate pool, because requests may wait long for a text encoder and must not block the
        # threads and connections of all others.
        waiting = min(settings.max_waiting, settings.max_connections // 2)
        self.text_workers = Workers(settings.workers, waiting)
        self.bodies = BodyBudget(max(settings.max_buffered, settings.max_body))
        self.connections = Connections(
            settings.max_connections,
            settings.silence,
            settings.keep_alive,
            lambda why: self.metrics.ended.labels(why).inc(),
        )
        self._pages = Workers(1, PAGES)
        # Loading a new version may take long, so it has its own thread.
        self._refreshing = ThreadPoolExecutor(1, thread_name_prefix="evergram-refresh")
        self._refresh: Future[bool] | None = None

    async def watch(self) -> None:
        """Poll the lineage, its consumers and text encoders for changes until cancelled."""
        service = self.service
        pause = max(self.settings.poll, service.least_poll)

        def look() -> None:
            if service.refresh():
                self.metrics.reloads.inc()
            service.check_stores()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_repeat(look, pause, "Refreshing the service", self._refreshing))
            # The refresh may be filling stores, and revoking a token must not wait for that.
            consumers = _repeat(service.refresh_consumers, pause, "Refreshing consumers")
            tasks.create_task(consumers)
            if service.texts is not None:
                what = "Checking the text encoders"
                tasks.create_task(_repeat(service.texts.check_if_due, LOOK, what))

    async def _reloaded(self, before: SharedReader) -> bool:
        """Refresh the service, wait up to `PATIENCE`, and return whether its reader changed."""
        if self.service.least_poll:
            return False
        # All waiting requests share one refresh that has not started yet, so that they do not pile
        # up behind a long one that fills stores.
        refresh = self._refresh
        if refresh is None or refresh.running() or refresh.done():
            refresh = self._refresh = self._refreshing.submit(self.service.refresh)
        end = time.monotonic() + PATIENCE
        while self.service.shared is before and time.monotonic() < end:
            if refresh.done() and self.service.problem is None:
                break
            await asyncio.sleep(0.01)
        return self.service.shared is not before

    async def answer(self, request: Request, route: str, operation: Operation) -> Response:
        """Return the response of an operation on vectors, or the refusal of the request."""
        context = _RequestContext(request, route)
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await self._operate(context, operation)
        except Exception as error:
            return self._refuse(context, error)
        annotate(version=answer.version)
        headers = {
            "x-evergram-version": str(answer.version),
            "x-evergram-computed-from": ",".join(str(v) for v in sorted(answer.sources)),
            "x-evergram-fingerprint": answer.fingerprint,
        }
        self._count(context, answer.version, 200)
        self.metrics.served(answer.version, answer.sources)
        return Response(answer.body, 200, headers, answer.media)

    async def list(
        self, request: Request, route: str, listing: Listing, *, metrics: bool = False
    ) -> Response:
        """Return the response of a listing, or the refusal of the request. The `metrics` page has a
        separate thread, for when the workers are busy: only one, as all pages set the gauges."""
        context = _RequestContext(request, route)
        workers = self._pages if metrics else self.workers

        async def listed() -> BaseModel | bytes:
            state, access = self._enter(context)
            return await workers.run(lambda: listing(state, access), state)

        try:
            async with asyncio.timeout(self.settings.timeout):
                before = self.service.shared
                try:
                    answer = await listed()
                except LineageError:
                    # A new publication may have removed files of the previous version.
                    if not await self._reloaded(before):
                        raise
                    answer = await listed()
        except Exception as error:
            return self._refuse(context, error)
        if isinstance(answer, bytes):
            return Response(answer, media_type=MEDIA)
        self._count(context, None, 200)
        headers = {"Cache-Control": "no-store"}
        return Response(answer.model_dump_json(), 200, headers, JSON)

    async def _operate(self, context: _RequestContext, operation: Operation) -> Answer:
        # Check the token before reading the body.
        self._enter(context)[0].leave()
        headers, body = context.request.headers, HeldBody(self.bodies)
        try:
            arrow_in = is_arrow(context.request)
            await body.read(context.request, self.settings.max_body, self.settings.silence)
            may_wait = reloaded = False
            while True:
                before = self.service.shared
                state, access = self._enter(context)
                call = Call(
                    state,
                    access,
                    self.settings,
                    body.content,
                    arrow_in,
                    arrow_out=ARROW in headers.get("accept", ""),
                    fingerprint=headers.get("x-evergram-fingerprint"),
                    may_wait=may_wait,
                )
                work = partial(operation, call)
                # The worker uses the body until it ends, even if the request has timed out.
                body.hold()
                workers = self.text_workers if may_wait else self.workers
                try:
                    if operation is embeddings and not may_wait and is_quick(call):
                        return run_here(work, body, state)
                    return await workers.run(work, body, state)
                except EncoderWaitError:
                    may_wait = True
                except (UnknownVersionError, RefusedError) as error:
                    final = isinstance(error, RefusedError) and error.code not in _RELOADABLE
                    if final or reloaded or not await self._reloaded(before):
                        raise
                    reloaded = True
        finally:
            body.leave()

    def _enter(self, context: _RequestContext) -> tuple[ServedState, Access]:
        """Authenticate a request."""
        state = self.service.enter()
        try:
            headers = context.request.headers.getlist("authorization")
            access = authenticate(self.settings, state.consumers, state.tokens, headers)
        except BaseException:
            state.leave()
            raise
        context.consumer = access.name
        return state, access

    def dashboard(self, state: ServedState, access: Access) -> DashboardData:
        """Return the dashboard's data. Only for the administrator, because it names consumers."""
        access.require_admin("The dashboard")
        live = self.traffic.live(state.reader, self.service.problems)
        facts = state.shared.published_facts
        return dashboard_data(state.reader.lineage, list(state.consumers.list()), live, facts)

    def metrics_page(self, _: ServedState, access: Access) -> bytes:
        """Return the metrics page. Only for the administrator, because it names consumers."""
        access.require_admin("The metrics page")
        metrics, service, texts = self.metrics, self.service, self.service.texts
        documents = None if texts is None else texts.documents
        metrics.version.set(service.production)
        metrics.stale.set(service.problem is not None)
        metrics.sidecar_problems.set(service.sidecar_problem_count)
        metrics.text_problem.set(texts is not None and texts.problem is not None)
        for version, count in {} if documents is None else documents.counts().items():
            metrics.kept.labels(str(version)).set(count)
        metrics.working.set(self.workers.busy + self.text_workers.busy)
        metrics.connections.set(len(self.connections.open))
        metrics.buffered.set(self.bodies.held)
        return metrics.page()

    def close(self) -> None:
        """Wait for running requests, and close the service."""
        for workers in (self.workers, self.text_workers, self._pages):
            workers.close()
        self._refreshing.shutdown(cancel_futures=True)
        self.service.close()

    def _refuse(self, context: _RequestContext, error: Exception) -> Response:
        if isinstance(error, TimeoutError):
            late = f"No answer within {self.settings.timeout:g} seconds; send smaller requests."
            error = RefusedError(504, "timeout", late)
        elif isinstance(error, ClientDisconnect):
            error = RefusedError(400, "disconnected", "The client closed the connection early.")
        refusal = error_response(error)
        self._count(context, None, refusal.status)
        self.metrics.errors.labels(refusal.code).inc()
        return refusal_response(refusal)

    def _count(self, context: _RequestContext, version: int | None, status: int) -> None:
        seconds = time.perf_counter() - context.started
        self.metrics.answered(context.route, context.consumer, version, status, seconds)
        if context.route in VECTORS:
            self.traffic.answered(context.consumer, version, status, seconds)
