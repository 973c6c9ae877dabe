"""Serve a lineage over HTTP: from a lineage to a server that listens."""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Self

from evergram.errors import EvergramError, ServiceError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.log_lines import LogFormat, log_format, log_to_stderr, set_log_format
from evergram.retrieval.sidecar_files import SidecarFiles
from evergram.serving.service import Service, has_tokens
from evergram.serving.settings import ServiceSettings
from evergram.serving.texts import Documents, ServedTexts
from evergram.texts.addresses import check_encoder_address
from evergram.texts.record import RECORDED

log: logging.Logger = logging.getLogger("evergram.serving")

# Files that a process needs besides its connections: stores, logs, modules.
FILES = 256
# Seconds between the end of a process and the start of its successor.
PAUSE = 1.0
# Seconds beyond a request's time-out after which a process that was told to stop is killed.
GRACE = 10.0


class Server:
    """A service that listens at an address, made by `listen`; `run` answers its requests.

    Clients may connect as soon as it is made; they wait until it runs.
    """

    def __init__(
        self, service: Service, settings: ServiceSettings, listening: socket.socket
    ) -> None:
        # Imported here, so that `listen` can name a package that is missing.
        from evergram.serving.app import create_app
        from evergram.serving.connections import uvicorn_server
        from evergram.serving.metrics import export_traces

        self.service: Service = service
        self.settings: ServiceSettings = settings
        export_traces()
        app = create_app(service, settings)
        self._uvicorn = uvicorn_server(app, settings, app.state.handler.connections)
        self._listening = listening
        listening.listen(self._uvicorn.config.backlog)

    @property
    def url(self) -> str:
        host, port = self.settings.host, self._listening.getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def as_json(self) -> dict[str, Any]:
        """Return the server's address and version, as `evergram serve --json`."""
        is_open = self.settings.is_open(self.service.tokens)
        return {"url": self.url, "version": self.service.production, "open": is_open}

    def run(self) -> None:
        """Answer requests until the process is told to stop, or `stop` is called.

        In the main thread, SIGTERM and SIGINT stop it after the requests under way.
        """
        # Garbage collection leaves out what exists now: otherwise a request waits now and then
        # while all imported modules are searched.
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


class ServerProcesses(Server):
    """Several processes behind one port, each a `Server`; `run` replaces one that ends.

    uvicorn's own supervisor runs uvicorn's own server alone, which ends connections at once.

    Args:
        opened: the lineage and the stores that each process opens as a service.
    """

    def __init__(
        self,
        count: int,
        opened: tuple[str | Path, Mapping[str, str] | None],
        settings: ServiceSettings,
        listening: socket.socket,
    ) -> None:
        # It fills the stores and shows what can be opened; closed before the processes begin.
        service = _service_of(*opened, settings)
        super().__init__(service, settings, listening)
        service.close()
        self._count, self._opened = count, (*opened, settings, log_format(), listening)
        self._stopping = threading.Event()

    def run(self) -> None:
        """Keep the processes alive until this one is told to stop, as `Server.run`.

        Raises: ServiceError: one cannot serve from the start; the log says why.
        """
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                before[number] = signal.signal(number, lambda *_: self.stop())
        running: list[SpawnProcess] = []
        try:
            running += (self._started() for _ in range(self._count))
            first = tuple(running)
            while not self._stopping.wait(0.2):
                for place, ended in enumerate(running):
                    if ended.is_alive():
                        continue
                    code = ended.exitcode or 0
                    if ended in first and code > 0:
                        raise ServiceError("A process of the service cannot serve; see its log.")
                    log.error("Process %s ended with code %s; another is started.", ended.pid, code)
                    if not self._stopping.wait(PAUSE):
                        running[place] = self._started()
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.join(self.settings.timeout + GRACE)
                process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _started(self) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=self._opened)
        process.start()
        return process

    def stop(self) -> None:
        """Let `run` end all processes, each after its requests under way, and return."""
        self._stopping.set()

    def close(self) -> None:
        """Release the address."""
        self._listening.close()


def _serve(
    place: str | Path,
    stores: Mapping[str, str] | None,
    settings: ServiceSettings,
    lines: LogFormat,
    listening: socket.socket,
) -> None:
    """Serve in a process of its own until it is told to stop, or its parent is gone."""
    # Ctrl-C in a terminal reaches the parent, too, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_log_format(lines)
    log_to_stderr()

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        server = Server(_service_of(place, stores, settings), settings, listening)
    except EvergramError as error:
        log.error("%s", error)
        sys.exit(1)
    server.run()


def listen(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
    processes: int = 1,
) -> Server:
    """Open a lineage as a service, and listen at an address.

    The address is bound before the stores are filled, which may take long.

    Args:
        place: folder or address of the lineage.
        port: 0 takes a free one.
        stores: side to address of a store; by default the lineage's own snapshots.
        settings: limits, and who may use it; `settings.host` is the address.
        processes: how many answer; each is started anew from the program's main module, as by
            `multiprocessing`, and has the limits for itself.
    Raises: ServiceError: the address is taken, a package of `evergram[serve]` is missing, or as
        `ServiceSettings.check`. EvergramError: the lineage, its consumers or a store cannot be
        opened.
    """
    try:
        import evergram.serving.app
        import evergram.serving.connections  # noqa: F401
    except ModuleNotFoundError as error:
        raise ServiceError(f"Serving needs {error.name}: pip install 'evergram[serve]'.") from None
    settings = ServiceSettings() if settings is None else settings
    settings.check(has_tokens(ConsumerRegistry.open(place)))
    allowed = allowed_connections(settings.max_connections)
    settings = replace(settings, max_connections=allowed)
    listening = bound_socket(settings.host, port)
    try:
        if processes > 1:
            return ServerProcesses(processes, (place, stores), settings, listening)
        return Server(_service_of(place, stores, settings), settings, listening)
    except BaseException:
        listening.close()
        raise


def _service_of(
    place: str | Path, stores: Mapping[str, str] | None, settings: ServiceSettings
) -> Service:
    """Return the service of a lineage, with the sidecars and encoders that the settings name."""
    texts = documents = None
    for address in settings.encoders:
        if address != RECORDED:
            check_encoder_address(address)
    if settings.encoders:
        if settings.texts is not None:
            folder = None if settings.kept is None else Path(settings.kept)
            documents = Documents(Path(settings.texts), folder)
        cache, every = settings.text_cache, settings.canary_every
        texts = ServedTexts(settings.encoders, cache, every, documents, settings.timeout)
    sidecars = SidecarFiles(settings.sidecars, settings.sidecar_depth)
    return Service(place, stores, texts, sidecars)


def serve(
    place: str | Path,
    *,
    port: int = 8000,
    stores: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
    processes: int = 1,
) -> None:
    """Serve a lineage until the process is told to stop; `evergram serve` from Python.

    Args, Raises: as `listen`.
    """
    with listen(place, port=port, stores=stores, settings=settings, processes=processes) as server:
        server.run()


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
    files, endless = wanted + FILES, resource.RLIM_INFINITY
    if soft != endless and soft < files:
        more = files if hard == endless else min(files, hard)
        # Some systems enforce a limit below the one that they report.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == endless or soft >= files:
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
