"""Limits of a service, and who may use it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address

from evergram.errors import ServiceError

# Seconds that the system's timers take, of any unit.
LONGEST = 1_000_000
ADMIN_TOKEN = "EVERGRAM_ADMIN_TOKEN"
_HOST_PATTERN = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*", re.I)


@dataclass(frozen=True)
class ServiceSettings:
    """
    Args:
        host: address to listen on; without tokens, it must be one that only this machine reaches.
        no_auth: let everybody read everything, wherever the service listens.
        admin_token: token that reads every version, the dashboard's data and the metrics.
        max_batch: ids, objects or vectors in one request.
        max_k: results of one query.
        max_hits: results of all queries of one request.
        max_dim: coordinates of a vector in a request.
        max_body: bytes of a request.
        timeout: seconds from the request's start to its answer.
        workers: requests that are worked on at once; as many more may wait for an encoder of text.
        max_waiting: requests that may wait for a worker; the next is answered 503.
        poll: seconds between two looks at `lineage.json` and `consumers.json`.
        allowed_hosts: names that requests may address the service by, besides those of loopback:
            "shop.example", "*.example", or "*" for any.
        max_buffered: bytes of all requests that are held in memory at once; at least of one.
        max_connections: connections that are open at once.
        silence: seconds that a client may be silent within a request: in its headers, from one
            part of its body to the next, and while it should take an answer.
        keep_alive: seconds that a connection stays open between two requests.
        encoders: addresses of the encoders of text that may be opened, see docs/text.md; "recorded"
            stands for those that versions record. None are opened without one.
        max_text: characters of a text.
        text_cache: bytes of the vectors of recent texts.
        canary_every: seconds between two checks that encoders are still the recorded ones.
        texts: file of the ids and texts of stored objects, with which a search may re-rank.
        kept: folder where the vectors of these texts are saved; None forgets them at the end.
        sidecars: files, and folders of them, by which stored objects are read as the version
            before; sidecar_depth: hits of a query that a search reads by them.
    """

    host: str = "127.0.0.1"
    no_auth: bool = False
    admin_token: str | None = None
    max_batch: int = 2048
    max_k: int = 1000
    max_hits: int = 100_000
    max_dim: int = 16_384
    max_body: int = 16 * 2**20
    timeout: float = 30.0
    workers: int = 4
    max_waiting: int = 1000
    poll: float = 1.0
    allowed_hosts: tuple[str, ...] = ()
    max_buffered: int = 256 * 2**20
    max_connections: int = 1000
    silence: float = 10.0
    # Longer than clients and proxies keep theirs (httpx 5 s, nginx 60, Go 90): the side that closes
    # first must be the one that knows that no request is on its way.
    keep_alive: float = 120.0
    encoders: tuple[str, ...] = ()
    max_text: int = 32_768
    text_cache: int = 64 * 2**20
    canary_every: float = 300.0
    texts: str | None = None
    kept: str | None = None
    sidecars: tuple[str, ...] = ()
    sidecar_depth: int = 1000

    def is_open(self, tokens: bool) -> bool:
        """Return whether requests need no token; `tokens`: whether any consumer has one."""
        guarded = tokens or self.admin_token is not None
        return self.no_auth or (is_loopback(self.host) and not guarded)

    def check(self, tokens: bool) -> None:
        """Refuse settings that would let anybody in, that no request could match, or that need
        others; `tokens`: whether any consumer has one. Raises: ServiceError."""
        if not self.host:
            raise ServiceError("--host is empty; give an address of this machine, or 0.0.0.0.")
        for name in ("timeout", "silence", "keep_alive", "canary_every", "poll"):
            seconds = getattr(self, name)
            # Also false for NaN.
            if not seconds <= LONGEST:
                raise ServiceError(f"{name} is {seconds} seconds; it must be at most {LONGEST:,}.")
        if self.texts is not None and not self.encoders:
            raise ServiceError("--texts needs --encoder; add it, or leave --texts out.")
        if self.kept is not None and self.texts is None:
            raise ServiceError("--kept needs --texts; add it, or leave --kept out.")
        for pattern in self.allowed_hosts:
            if not _HOST_PATTERN.fullmatch(pattern):
                raise ServiceError(
                    f"--allowed-host {pattern} is not a host name such as shop.example, *.example, "
                    "or * for any, without http:// and without a port."
                )
        if not (self.no_auth or is_loopback(self.host) or tokens or self.admin_token is not None):
            raise ServiceError(
                f"Others can reach {self.host}, and no consumer has a token; add one ('evergram "
                f"consumer token'), set {ADMIN_TOKEN}, bind to 127.0.0.1, or say --no-auth."
            )


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def admin_token() -> str | None:
    """Return the administrator's token from the environment; None where it is not set."""
    token = os.environ.get(ADMIN_TOKEN) or None
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ServiceError(f"{ADMIN_TOKEN} must be printable ASCII without spaces.")
    return token
