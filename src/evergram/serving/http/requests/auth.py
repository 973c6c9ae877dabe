"""Authenticate a request, and decide which versions it may read."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from evergram.errors import LineageError, UnknownVersionError
from evergram.lineage.consumers.registry import ConsumerRegistry
from evergram.serving.http.answers.errors import RefusedError
from evergram.serving.settings import ServiceSettings


class Versions(Protocol):
    """The part of `Lineage` that access is decided on."""

    @property
    def readable(self) -> list[int]: ...

    @property
    def labels(self) -> dict[str, int]: ...

    def resolve(self, what: int | str | None) -> int: ...


@dataclass(frozen=True)
class Access:
    """The rights of one request.

    Args:
        name: the consumer's name; "admin", or "" where no token is needed.
        default: version or label that is read where the request names none; None for production.
        allowed: versions and labels that may be read; None for all.
    """

    name: str
    default: str | None = None
    allowed: tuple[str, ...] | None = None

    @property
    def admin(self) -> bool:
        return self.allowed is None

    def readable(self, lineage: Versions) -> set[int]:
        """Return the versions that may be read now, labels followed to where they are now."""
        if self.allowed is None:
            return set(lineage.readable)
        versions = set()
        for what in self.allowed:
            try:
                versions.add(lineage.resolve(what))
            except LineageError:  # a label that is gone, a version that was retired
                continue
        return versions

    def version(self, lineage: Versions, what: int | str | None) -> int:
        """Return the number of a version or label; the default's where it is None.

        A consumer gets the same answer for every version that it may not read, whether the version
        exists or not.

        Raises: UnknownVersionError: the version may be read, but does not exist. RefusedError: it
            may not be read.
        """
        if self.allowed is None:
            return lineage.resolve(what)
        readable = self.readable(lineage)
        asked = self.default if what is None else what
        try:
            number = lineage.resolve(asked)
        except LineageError:
            number = None
        if number in readable:
            return number
        if _plain(asked) in self.allowed:
            raise UnknownVersionError(
                f"There is no version {asked!r} any more; this token may read {_listed(readable)}."
            )
        raise RefusedError(
            403,
            "forbidden_version",
            f"This token may not read version {asked!r}; it may read {_listed(readable)}. "
            "'evergram consumer pin' moves it to another.",
        )

    def require_admin(self, what: str) -> None:
        """Refuse a consumer's token. Raises: RefusedError."""
        if not self.admin:
            raise RefusedError(
                403, "forbidden", f"{what} is for the administrator; ask with that token."
            )


def authenticate(
    settings: ServiceSettings, consumers: ConsumerRegistry, tokens: bool, headers: Sequence[str]
) -> Access:
    """Return the rights of a request.

    Args:
        tokens: whether any consumer has a token.
        headers: the values of all its headers `Authorization`.
    Raises: RefusedError: a token is needed, the token is unknown, or there are several: a proxy
        before the service may have checked another one than the service would.
    """
    if len(headers) > 1:
        raise RefusedError(
            400, "several_tokens", "The header 'Authorization' was sent more than once; send one."
        )
    if settings.is_open(tokens):
        return Access("")
    scheme, _, token = (headers[0] if headers else "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise RefusedError(
            401, "no_token", "A token is needed: send the header 'Authorization: Bearer TOKEN'."
        )
    token = token.strip()
    if settings.admin_token is not None and hmac.compare_digest(
        token.encode(), settings.admin_token.encode()
    ):
        return Access("admin")
    consumer = consumers.authenticate(token)
    if consumer is None:
        raise RefusedError(
            401,
            "unknown_token",
            "This token is not known; 'evergram consumer token' issues one.",
        )
    return Access(consumer.name, consumer.pinned, tuple(consumer.allowed))


def _plain(what: int | str | None) -> str:
    """Return a version as consumers' rights name it: "v0", or a label."""
    text = str(what).removeprefix("v")
    return f"v{int(text)}" if text.isascii() and text.isdigit() else str(what)


def _listed(versions: set[int]) -> str:
    return ", ".join(f"v{n}" for n in sorted(versions)) or "none"
