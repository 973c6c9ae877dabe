"""Serve a lineage over HTTP, from this process or from several behind one port.

Several accept connections from one socket that listens, and map the same snapshots into memory, of
which the machine holds one copy. They share the lineage's folder, and nothing else: what that means
for tokens, new versions, limits and metrics is in docs/serving.md, *Several processes*.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from evergram.errors import EvergramError, ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.log_lines import LogFormat, log_format, log_to_stderr, set_log_format
from evergram.retrieval.sidecar_files import SidecarFiles
from evergram.serving.service import Service, has_tokens
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import Documents, ServedTexts
from evergram.stores.open_store import is_local_mode
from evergram.texts.addresses import check_encoder_address
from evergram.texts.record import RECORDED

if TYPE_CHECKING:
    import uvicorn

log: logging.Logger = logging.getLogger("evergram.serving")

# Files that a process needs besides its connections: stores, logs, modules.
FILES = 256


class Server:
    """A service that listens at an address, made by `listen`; `run` answers its requests.

    Clients may connect as soon as it is made; they wait until it runs.
    """

    def __init__(
        self, service: Service, settings: ServiceSettings, listening: socket.socket
    ) -> None:
        self.service: Service = service
        self.settings: ServiceSettings = settings
        self._listening = listening
        self._uvicorn = _uvicorn_server(service, settings)
        listening.listen(self._uvicorn.config.backlog)

    @property
    def url(self) -> str:
        return str(self.as_json()["url"])

    def as_json(self) -> dict[str, Any]:
        """Return the server's address and version, as `evergram serve --json`."""
        return _facts(self.service, self.settings, self._listening)

    def run(self) -> None:
        """Answer requests until the process is told to stop, or `stop` is called.

        In the main thread, SIGTERM and SIGINT stop it after the requests under way. Objects that
        exist when it starts are excluded from garbage collection until it ends: otherwise a request
        waits now and then while all imported modules are searched.
        """
        gc.collect()
        gc.freeze()
        try:
            self._uvicorn.run(sockets=[self._listening])
        finally:
            gc.unfreeze()

    def stop(self) -> None:
        """Let `run` return after the requests under way. Any thread may call it."""
        self._uvicorn.should_exit = True

    def close(self) -> None:
        """Release the address and the stores of a server that never ran."""
        self._listening.close()
        if not self._uvicorn.started:
            self.service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _facts(service: Service, settings: ServiceSettings, listening: socket.socket) -> dict[str, Any]:
    host = settings.host
    return {
        "url": f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}",
        "version": service.production,
        "open": settings.is_open(service.tokens),
    }


def listen(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
) -> Server:
    """Open a lineage as a service, and listen at an address.

    The address is bound before the stores are filled, which may take long.

    Args:
        place: folder or address of the lineage.
        port: 0 takes a free one.
        stores: side to address of a store; by default the lineage's own snapshots.
        settings: limits, and who may use it; `settings.host` is the address.
    Raises: ServiceError: the address is taken, a package of `evergram[serve]` is missing, or as
        `ServiceSettings.check`. EvergramError: the lineage, its consumers or a store cannot be
        opened.
    """
    settings = checked_settings(place, ServiceSettings() if settings is None else settings)
    listening = bound_socket(settings.host, port)
    try:
        service = Service(place, stores, texts_of(settings), sidecars_of(settings))
        return Server(service, settings, listening)
    except BaseException:
        listening.close()
        raise


def sidecars_of(settings: ServiceSettings, *, required: bool = True) -> SidecarFiles:
    """Return the sidecars that settings name."""
    return SidecarFiles(settings.sidecars, settings.sidecar_depth, required=required)


def texts_of(settings: ServiceSettings) -> ServedTexts | None:
    """Return the encoders of text that settings name; None if they name none."""
    if not settings.encoders:
        return None
    for address in settings.encoders:
        if address != RECORDED:
            check_encoder_address(address)
    documents = None
    if settings.texts is not None:
        folder = None if settings.kept is None else Path(settings.kept)
        documents = Documents(Path(settings.texts), folder)
    cache, every, limit = settings.text_cache, settings.canary_every, settings.timeout
    return ServedTexts(settings.encoders, cache, every, documents, limit)


def serve(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
) -> None:
    """Serve a lineage until the process is told to stop; `evergram serve` from Python.

    Args, Raises: as `listen`.
    """
    with listen(place, port=port, stores=stores, settings=settings) as server:
        server.run()


def checked_settings(place: str | Path, settings: ServiceSettings) -> ServiceSettings:
    """Return the settings with as many connections as this process may hold."""
    try:
        import evergram.serving.app
        import evergram.serving.connections  # noqa: F401
    except ModuleNotFoundError as error:
        raise ServiceError(f"Serving needs {error.name}: pip install 'evergram[serve]'.") from None
    settings.check(has_tokens(ConsumerRegistry.open(place)))
    allowed = allowed_connections(settings.max_connections)
    return replace(settings, max_connections=allowed)


def _uvicorn_server(service: Service, settings: ServiceSettings) -> uvicorn.Server:
    # Imported here, so that `checked_settings` names what is missing.
    from evergram.serving.app import create_app
    from evergram.serving.connections import uvicorn_server
    from evergram.serving.metrics import export_traces

    export_traces()
    app = create_app(service, settings)
    return uvicorn_server(app, settings, app.state.handler.connections)


def allowed_connections(wanted: int) -> int:
    """Return how many connections the process may hold, at most `wanted`; each takes a file.

    Its limit of open files is raised as far as the system allows. A process at that limit accepts
    no connection at all, and closes none.
    """
    try:
        import resource
    except ImportError:  # systems without such a limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + FILES
    if soft != resource.RLIM_INFINITY and soft < files:
        more = files if hard == resource.RLIM_INFINITY else min(files, hard)
        # Some systems enforce a limit below the one that they report.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = max(1, soft - FILES)
    log.warning(
        "This process may open %d files, so it takes %d connections at once, not %d; "
        "'ulimit -n %d' makes room for them.",
        *(soft, allowed, wanted, files),
    )
    return allowed


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. uvicorn would log a traceback of one in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio otherwise leaves Nagle's algorithm on, and an answer of
    # several packets waits 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        listening.close()
        number = error.errno if isinstance(error, OSError) else None
        todo = "choose another with --port"
        if number == errno.EACCES:
            todo = "choose one above 1023 with --port, which needs no right of its own"
        elif number == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror | UnicodeError):
            todo = "give --host a name or an address of this machine, such as 127.0.0.1, no port"
        reason = getattr(error, "strerror", None) or error
        raise ServiceError(f"{host}:{port} cannot be listened on: {reason}; {todo}.") from error
    return listening


# Seconds between the end of a process and the start of its successor.
PAUSE = 1.0
# Seconds beyond the timeout of requests after which a process that should end is killed.
GRACE = 10.0


@dataclass(frozen=True)
class _Running:
    """A process that serves. It sends None when it can answer, or why it cannot; the pipe tells it
    that this process lives."""

    process: SpawnProcess
    pipe: Connection

    def reason(self) -> str:
        """Return why a process that has ended could not serve, after a colon; "" if it did."""
        reason = None
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                reason = self.pipe.recv()
        return "" if reason is None else f": {reason.rstrip('.')}"


class ServerProcesses:
    """Several processes that serve one lineage at one address; `run` keeps them alive.

    Made by `listen_processes`. uvicorn's own supervisor neither waits until all can answer, nor
    says why one cannot start, nor numbers them.
    """

    def __init__(
        self,
        place: str | Path,
        stores: Mapping[str, str] | None,
        settings: ServiceSettings,
        count: int,
        listening: socket.socket,
    ) -> None:
        self._place, self._stores, self._settings = place, stores, settings
        self._listening = listening
        self._stopping = threading.Event()
        self._running: list[_Running] = []
        texts_of(settings)
        # The stores are filled here, and the processes find them filled.
        with closing(Service(place, stores, None, sidecars_of(settings))) as service:
            self._facts = {**_facts(service, settings, listening), "processes": count}
        try:
            self._running = [self._start(number) for number in range(count)]
            for running in self._running:
                self._await(running)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return str(self._facts["url"])

    def as_json(self) -> dict[str, Any]:
        """Return the facts of `Server.as_json`, and how many processes serve."""
        return dict(self._facts)

    def run(self) -> None:
        """Keep the processes alive until this one is told to stop, or `stop` is called.

        A process that ends is started again. In the main thread, SIGTERM and SIGINT stop all, each
        after its requests under way.
        """
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for stop in (signal.SIGTERM, signal.SIGINT):
                before[stop] = signal.signal(stop, lambda *_: self.stop())
        try:
            while not self._stopping.is_set():
                wait([r.process.sentinel for r in self._running], timeout=0.2)
                self._replace_ended()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.close()

    def stop(self) -> None:
        """Let `run` end all processes and return. Any thread may call it."""
        self._stopping.set()

    def close(self) -> None:
        """End all processes, each after its requests under way, and release the address."""
        self._listening.close()
        for running in self._running:
            running.process.terminate()
        until = time.monotonic() + self._settings.timeout + GRACE
        for running in self._running:
            running.process.join(max(0.0, until - time.monotonic()))
            if running.process.is_alive():
                running.process.kill()
                running.process.join()
            running.pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, number: int) -> _Running:
        spawn = get_context("spawn")
        ours, theirs = spawn.Pipe()
        settings = replace(self._settings, process=number)
        opened = self._place, self._stores, settings, log_format()
        process = spawn.Process(
            target=_serve, args=(*opened, self._listening, theirs), name=f"evergram-serve-{number}"
        )
        process.start()
        theirs.close()
        return _Running(process, ours)

    def _await(self, running: _Running) -> None:
        """Wait until a process can answer."""
        problem = None
        try:
            problem = running.pipe.recv()
        except (EOFError, ConnectionError):
            running.process.join()
            code = running.process.exitcode
            problem = (
                f"A process of the service ended with code {code} before it could answer; its log "
                "is above."
            )
        if problem is not None:
            raise ServiceError(problem)

    def _replace_ended(self) -> None:
        for number, ended in enumerate(self._running):
            if ended.process.is_alive() or self._stopping.is_set():
                continue
            log.error(
                "Process %d of the service (pid %s) ended with code %s%s; another is started.",
                *(number, ended.process.pid, ended.process.exitcode, ended.reason()),
            )
            if not self._stopping.wait(PAUSE):
                ended.pipe.close()
                self._running[number] = self._start(number)


def listen_processes(
    place: str | Path,
    count: int,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
) -> ServerProcesses:
    """Open a lineage as a service of `count` processes, and listen at an address.

    Returns when all of them answer.

    Args:
        place, port, stores, settings: as for `listen`; limits are those of each process.
    Raises: ServiceError: `count` is not positive; a store is one that several processes cannot
        open; or as `listen`. EvergramError: as `listen`.
    """
    if count < 1:
        raise ServiceError(f"A service of {count} processes was asked for; give at least 1.")
    for side, address in (stores or {}).items():
        if count > 1 and is_local_mode(address):
            raise ServiceError(
                f"The store of side {side!r} is a folder of Qdrant's local mode, which one process "
                f"alone can have open, and --processes asks for {count}: serve with --processes 1, "
                "or put the collection on a Qdrant server."
            )
    settings = checked_settings(place, ServiceSettings() if settings is None else settings)
    listening = bound_socket(settings.host, port)
    listening.listen(2048)
    try:
        return ServerProcesses(place, stores, settings, count, listening)
    except BaseException:
        listening.close()
        raise


def _serve(
    place: str | Path,
    stores: Mapping[str, str] | None,
    settings: ServiceSettings,
    lines: LogFormat,
    listening: socket.socket,
    pipe: Connection,
) -> None:
    """Serve in a process of its own until it is told to stop, or its parent is gone."""
    # A Ctrl-C in a terminal reaches the parent too, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_log_format(lines)
    log_to_stderr(settings.process)
    try:
        # The parent has found all sidecars; one that is gone by now must not end the service.
        sidecars = sidecars_of(settings, required=False)
        service = Service(place, stores, texts_of(settings), sidecars)
        server = Server(service, settings, listening)
    except EvergramError as error:
        # The first process logs it: a service that cannot start says one sentence.
        with suppress(OSError):
            pipe.send(str(error))
        sys.exit(1)
    with suppress(OSError):  # the parent may have ended meanwhile
        pipe.send(None)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    server.run()


def _end_with_parent(pipe: Connection) -> None:
    """End this process when its parent is gone, however it ended."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
