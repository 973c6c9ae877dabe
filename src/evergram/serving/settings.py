"""Settings of a service: its limits, and who may use it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from ipaddress import ip_address

from evergram.errors import ServiceError

LONGEST = 1_000_000  # maximum seconds of a time-out: the system's timers accept it in any unit
ADMIN_TOKEN = "EVERGRAM_ADMIN_TOKEN"
_HOST_PATTERN = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*", re.I)


@dataclass(frozen=True)
class ServiceSettings:
    """
    Args:
        host: address to listen on; without tokens, it must be a loopback address.
        no_auth: let everybody read everything, wherever the service listens.
        admin_token: token that can read every version, the dashboard's data and the metrics.
        max_batch: maximum ids, objects or vectors in one request.
        max_k: maximum results of one query.
        max_hits: maximum results of all queries of one request.
        max_dim: maximum dimension of a vector in a request.
        max_body: maximum bytes of a request.
        timeout: seconds from the request's start to its answer.
        workers: requests processed at once; text encoders get as many workers again.
        max_waiting: requests that may wait for a worker; further ones are answered 503.
        poll: seconds between two checks for changes of `lineage.json` and `consumers.json`.
        allowed_hosts: host names besides loopback: "shop.example", "*.example", or "*" for any.
        max_buffered: total bytes of request bodies in memory; one request always fits.
        max_connections: maximum open connections.
        silence: seconds that a client may pause while it sends a request or reads the answer.
        keep_alive: seconds that a connection stays open between two requests.
        encoders: addresses of text encoders that may be opened; "recorded" allows those that
            versions record. See docs/text.md.
        max_text: maximum characters of a text.
        text_cache: bytes for cached vectors of recent texts.
        canary_every: seconds between two checks that encoders are still the recorded ones.
        texts: file with the ids and texts of stored objects, so that searches can re-rank.
        kept: folder for saving the vectors of these texts; None keeps them in memory only.
        sidecars: sidecar files, or folders of them, for reading objects as the previous version.
        sidecar_depth: hits of a query for which a search uses sidecars.
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
    # Longer than clients and proxies keep theirs (httpx 5 s, nginx 60, Go 90), so that the client
    # closes first: only it knows that no request is on its way.
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
        """Refuse settings that are unsafe, invalid, or incomplete; `tokens`: whether any consumer
        has one. Raises: ServiceError."""
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
                f"consumer token'), set {ADMIN_TOKEN}, bind to 127.0.0.1, or pass --no-auth."
            )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is a loopback one."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def admin_token() -> str | None:
    """Return the administrator's token from the environment, or None."""
    token = os.environ.get(ADMIN_TOKEN) or None
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise ServiceError(f"{ADMIN_TOKEN} must be printable ASCII without spaces.")
    return token
