"""Refuse requests that a foreign web page made a browser send.

A page whose name is made to lead to this machine (DNS rebinding) has the service's origin in the
browser's eyes, and could read everything that an open service answers; only the host in the request
gives it away. A page of another origin cannot read answers, but can send requests.

Starlette's `TrustedHostMiddleware` has one fixed list of hosts and answers plain text. Here the
list depends on whether tokens are asked for, and the refusal says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from evergram.serving.http.answers.errors import ErrorResponse, RefusedError, error_response
from evergram.serving.settings import ServiceSettings

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.I)
_PORTS = {"http": "80", "https": "443"}


class HostCheck:
    """Middleware that answers requests for a foreign host, or of a foreign page, with a refusal.

    Args:
        tokens: returns whether a consumer has a token. A page has none, so where tokens are asked
            for it can read nothing, under whatever name.
        refused: called with every refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServiceSettings,
        tokens: Callable[[], bool],
        refused: Callable[[ErrorResponse], None],
    ) -> None:
        self._app, self._settings = app, settings
        self._tokens, self._refused = tokens, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(Headers(raw=scope["headers"]), scope["method"], scope["http_version"])
        except RefusedError as error:
            refusal = error_response(error)
            self._refused(refusal)
            answer = Response(refusal.body, refusal.status, refusal.headers, "application/json")
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, method: str, http: str) -> None:
        """Refuse a foreign host, and a foreign page. Raises: RefusedError."""
        host, port = _parted(headers.get("host", ""))
        # HTTP/1.0 names no host, and no browser speaks it.
        if not self._is_ours(host) and (http != "1.0" or "host" in headers):
            name = host or "none that can be read"
            raise RefusedError(
                421,
                "host",
                f"This service is asked for under the host {name!r}, which is not one of its "
                "names; ask for it under its address, or start it with '--allowed-host "
                f"{host or 'NAME'}'.",
            )
        page = headers.get("origin")
        if page is not None:
            if self._is_own_page(page, host, port):
                return
            raise RefusedError(
                403,
                "origin",
                f"A web page of {page[:80]!r} made this request; only the service's own pages may. "
                "Send it from a program, or from a page under a host that is named with "
                "'--allowed-host'.",
            )
        site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if site in ("cross-site", "same-site") and not (method == "GET" and mode == "navigate"):
            raise RefusedError(
                403,
                "origin",
                "A web page of another origin made this request; only the service's own pages may.",
            )

    def _is_ours(self, host: str) -> bool:
        settings = self._settings
        if not settings.allowed_hosts and not settings.is_open(self._tokens()):
            return True
        if not host:
            return False
        if _is_loopback(host) or host == settings.host.lower() or self._is_listed(host, "*"):
            return True
        # Only a name can be made to lead elsewhere; an address cannot.
        return not settings.loopback and _is_address(host)

    def _is_listed(self, host: str, *anything: str) -> bool:
        return any(
            pattern in anything
            or host == pattern
            or (pattern.startswith("*.") and host.endswith(pattern[1:]))
            for pattern in map(str.lower, self._settings.allowed_hosts)
        )

    def _is_own_page(self, page: str, host: str, port: str | None) -> bool:
        try:
            parts = urlsplit(page)
            named = (parts.hostname or "").rstrip(".")
            asked = str(parts.port) if parts.port else _PORTS.get(parts.scheme)
        except ValueError:
            return False
        if parts.scheme not in _PORTS or not named:
            return False
        same = host and named == host and asked in ((port,) if port else _PORTS.values())
        return bool(same) or self._is_listed(named)


def _parted(text: str) -> tuple[str, str | None]:
    """Return a header's host, in lower case and without brackets, and its port; "" for none."""
    return _parted_short(text) if len(text) < 300 else ("", None)


# Every request has one of the same few hosts.
@lru_cache(256)
def _parted_short(text: str) -> tuple[str, str | None]:
    match = _HOST.fullmatch(text.strip())
    if match is None:
        return "", None
    return match[1].strip("[]").rstrip(".").lower(), match[2]


@lru_cache(256)
def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
