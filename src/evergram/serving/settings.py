"""What a service is told when it starts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address

from evergram.errors import ServiceError

ADMIN_TOKEN = "EVERGRAM_ADMIN_TOKEN"
_PATTERN = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*", re.I)


@dataclass(frozen=True)
class Settings:
    """Limits, and who may come in.

    Args:
        host: where it listens; without tokens, only where this machine alone can reach it.
        no_auth: everybody may read everything, wherever it listens.
        admin_token: reads every version, and sees consumers and metrics.
        max_batch: ids, objects or vectors in one request.
        max_k: results of one query.
        max_hits: results of all queries of one request.
        max_dim: coordinates of a vector that is sent.
        max_body: bytes of a request.
        timeout: seconds from the request's start to its answer.
        workers: requests that are worked on at once.
        max_waiting: requests that may wait for a worker; the next is answered 503.
        poll: seconds between two looks at `lineage.json` and `consumers.json`.
        allowed_hosts: names that it is asked for under, beside those of loopback: "shop.example",
            "*.example", or "*" for any.
        max_buffered: bytes of all requests that are held at once; at least of one.
        max_connections: connections that are open at once.
        silence: seconds that a client may be silent within a request: in its headers, from one
            part of its body to the next, and while it should take an answer.
        keep_alive: seconds that a connection stays open between two requests.
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
    # Longer than clients and proxies keep theirs (httpx 5 s, nginx 60, Go 90): whoever closes first
    # must be the one who knows that no request is on its way.
    keep_alive: float = 120.0

    @cached_property
    def loopback(self) -> bool:
        """Whether this machine alone can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def is_open(self, tokens: bool) -> bool:
        """Whether requests need no token.

        Args:
            tokens: whether a consumer has one.
        """
        return self.no_auth or (self.loopback and not tokens and self.admin_token is None)

    def check(self, tokens: bool) -> None:
        """Raises: ServiceError: others can reach it, and there is no token to ask of them; or an
        allowed host can be no host's name."""
        for pattern in self.allowed_hosts:
            if not _PATTERN.fullmatch(pattern):
                raise ServiceError(
                    f"--allowed-host {pattern} is no name of a host; give one such as "
                    "shop.example.com, *.example.com for all below it, or * for any, without "
                    "http:// and without a port."
                )
        if self.no_auth or self.loopback or tokens or self.admin_token is not None:
            return
        raise ServiceError(
            f"Bound to {self.host}, others can reach the service, and no consumer has a token: add "
            "one with 'evergram consumer-token', "
            f"set {ADMIN_TOKEN}, bind to 127.0.0.1, or say --no-auth."
        )


def admin_token() -> str | None:
    """The administrator's token, of the environment.

    Raises: ServiceError: no request could carry it.
    """
    found = os.environ.get(ADMIN_TOKEN) or None
    if found is not None and not re.fullmatch(r"[!-~]+", found):
        raise ServiceError(
            f"{ADMIN_TOKEN} has a space or a character beyond ASCII in it, which no request can "
            "send; choose letters, digits and signs."
        )
    return found
