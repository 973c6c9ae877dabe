"""Access control: which versions a token may read, and which hosts and web pages may call."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.consumers import ConsumerRegistry
from evergram.lineage.lineage import Lineage
from evergram.serving.errors import JSON, ErrorResponse, RefusedError, error_response
from evergram.serving.service import Service
from evergram.serving.settings import ServiceSettings, is_address, is_loopback

_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9_.-]{1,253})(?::([0-9]{1,5}))?", re.I)
_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class Access:
    """The rights of one request."""

    name: str  # the consumer's name; "admin" for the administrator, "" if no token is needed
    # Version or label to read if the request names none; None for production.
    default: str | None = None
    # Versions and labels that the token may read; None for all.
    allowed: tuple[str, ...] | None = None

    def readable(self, lineage: Lineage) -> set[int]:
        """Return the versions that may be read, with each label resolved to its current version."""
        if self.allowed is None:
            return set(lineage.readable)
        versions = set()
        for name in self.allowed:
            try:
                versions.add(lineage.resolve(name))
            except LineageError:  # the label was removed, or the version was retired
                continue
        return versions

    def version(self, lineage: Lineage, name: int | str | None) -> int:
        """Return the number of a version or label; None means the default. A consumer gets the same
        answer for every version that it may not read, whether or not the version exists."""
        if self.allowed is None:
            return lineage.resolve(name)
        readable = self.readable(lineage)
        name = self.default if name is None else name
        try:
            number = lineage.resolve(name)
        except LineageError:
            number = None
        if number in readable:
            return number
        listed = ", ".join(f"v{n}" for n in sorted(readable)) or "none"
        # `allowed` has entries such as "v0", or labels.
        text = str(name).removeprefix("v")
        if (f"v{int(text)}" if text.isascii() and text.isdigit() else str(name)) in self.allowed:
            gone = f"Version {name!r} no longer exists; this token may read {listed}."
            raise UnknownVersionError(gone)
        refusal = f"This token may not read version {name!r}; it may read {listed}."
        raise RefusedError(403, "forbidden_version", refusal)

    def require_admin(self, page: str) -> None:
        """Refuse a consumer's token."""
        if self.allowed is not None:
            raise RefusedError(403, "forbidden", f"{page} needs the administrator's token.")


def authenticate(
    settings: ServiceSettings, consumers: ConsumerRegistry, tokens: bool, headers: Sequence[str]
) -> Access:
    """Return the rights of a request with these `Authorization` headers; `tokens`: whether any
    consumer has one. Two headers are refused, because a proxy may have checked the other one."""
    if len(headers) > 1:
        several = "The header 'Authorization' was sent more than once; send one."
        raise RefusedError(400, "several_tokens", several)
    if settings.is_open(tokens):
        return Access("")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        needed = "A token is needed: send the header 'Authorization: Bearer TOKEN'."
        raise RefusedError(401, "no_token", needed)
    admin = settings.admin_token
    if admin is not None and hmac.compare_digest(token.encode(), admin.encode()):
        return Access("admin")
    consumer = consumers.authenticate(token)
    if consumer is None:
        unknown = "Unknown token; 'evergram consumer token' issues one."
        raise RefusedError(401, "unknown_token", unknown)
    return Access(consumer.name, consumer.pinned, tuple(consumer.allowed))


class HostCheck:
    """Middleware that refuses requests to a foreign host, or from a web page of another origin.

    A web page whose domain is pointed at this machine (DNS rebinding) could read all answers of an
    open service; only the Host header reveals it. A page of another origin can send requests, but
    not read answers. Pages have no token, so a service that needs tokens accepts any host. Refusals
    are counted in `errors` by code.
    """

    def __init__(
        self, app: ASGIApp, service: Service, settings: ServiceSettings, errors: Counter
    ) -> None:
        self._app, self._service, self._settings = app, service, settings
        self._errors = errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            try:
                self._check(Headers(raw=scope["headers"]), scope["method"], scope["http_version"])
            except RefusedError as error:
                refusal = error_response(error)
                self._errors.labels(refusal.code).inc()
                answer = refusal_response(refusal)
        await answer(scope, receive, send)

    def _check(self, headers: Headers, method: str, http: str) -> None:
        match = _HOST.fullmatch(headers.get("host", "").strip())
        # In lower case, without brackets; "" if missing or malformed.
        host = "" if match is None else match[1].strip("[]").rstrip(".").lower()
        # HTTP/1.0 requests need no Host header, and browsers do not send HTTP/1.0.
        if not self._is_ours(host) and (http != "1.0" or "host" in headers):
            todo = f"start it with '--allowed-host {host or 'NAME'}'"
            foreign = f"The host {host or 'none'!r} is not a name of this service; {todo}."
            raise RefusedError(421, "host", foreign)
        page = headers.get("origin")
        if page is not None:
            foreign_page = not self._is_own_page(page, host, match[2] if match else None)
        else:
            site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
            followed_link = method == "GET" and mode == "navigate"
            foreign_page = site in ("cross-site", "same-site") and not followed_link
        if foreign_page:
            sent = f"This request was sent by a web page of {(page or 'another origin')[:80]!r}"
            allowed = "only the service's own pages and those of an '--allowed-host' may do that"
            raise RefusedError(403, "origin", f"{sent}; {allowed}.")

    def _is_ours(self, host: str) -> bool:
        settings = self._settings
        if not settings.allowed_hosts and not settings.is_open(self._service.tokens):
            return True
        if not host:
            return False
        if is_loopback(host) or host == settings.host.lower() or self._is_listed(host, "*"):
            return True
        # DNS rebinding needs a name; it cannot redirect a numeric address.
        return not is_loopback(settings.host) and is_address(host)

    def _is_listed(self, host: str, *wildcards: str) -> bool:
        return any(
            pattern in wildcards
            or host == pattern
            or (pattern.startswith("*.") and host.endswith(pattern[1:]))
            for pattern in map(str.lower, self._settings.allowed_hosts)
        )

    def _is_own_page(self, page: str, host: str, port: str | None) -> bool:
        try:
            parts = urlsplit(page)
            page_host = (parts.hostname or "").rstrip(".")
            page_port = str(parts.port) if parts.port else _PORTS.get(parts.scheme)
        except ValueError:
            return False
        if parts.scheme not in _PORTS or not page_host:
            return False
        ports = (port,) if port else _PORTS.values()
        return (page_host == host and page_port in ports) or self._is_listed(page_host)


def refusal_response(refusal: ErrorResponse, **headers: str) -> Response:
    """Return a refusal as a Starlette response with additional headers."""
    return Response(refusal.body, refusal.status, {**refusal.headers, **headers}, JSON)
