"""A real headless chromium, driven through chromedriver's own HTTP interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.support.several_processes import free_port

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TAB, ENTER = "\ue004", "\ue007"


def missing() -> str | None:
    """Return the reason why there is no browser to test in; None if there is one."""
    absent = [path for path in (CHROMIUM, DRIVER) if shutil.which(path) is None]
    return f"{' and '.join(absent)} is not installed" if absent else None


class Browser:
    """One tab, with everything that the page wrote to its console and asked for."""

    def __init__(self, session: httpx.Client) -> None:
        self._session = session
        self.console: list[str] = []
        self.requests: list[str] = []

    def __call__(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = (
            self._session.get(path) if body is None else self._session.post(path, json=body)
        ).json()["value"]
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{path}: {answer['error']}: {answer['message']}")
        return answer

    def open(self, url: str) -> None:
        self("url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function; return its value, or that of its promise."""
        return self("execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self("goog/cdp/execute", {"cmd": command, "params": parameters})

    def keys(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        actions = [{"type": kind, "value": k} for k in keys for kind in ("keyDown", "keyUp")]
        self("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the viewport, such as that of a phone or a desktop."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip

    def scheme(self, name: str) -> None:
        """Set the colour scheme: "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def listen(self) -> None:
        """Record the events since the last call."""
        for entry in self("se/log", {"type": "browser"}):
            if entry["level"] in ("SEVERE", "WARNING"):
                self.console.append(entry["message"])
        for entry in self("se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def forget(self) -> None:
        """Forget all recorded events, empty the tab's storage and close any dialog."""
        self.open("about:blank")
        self.listen()
        self.console, self.requests = [], []

    def wait(self, condition: str | Callable[[], Any], seconds: float = 10) -> Any:
        """Wait until an expression of a script, or a function, is true; return its value.

        Raises: TimeoutError.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(f"return {condition}") if isinstance(condition, str) else condition()
            if value:
                return value
            time.sleep(0.05)
        raise TimeoutError(f"{condition} did not come true in {seconds} s")


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Open a browser with a fresh profile for a `with` block.

    Args:
        profile: an empty folder.
    """
    port = free_port()
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
    wanted = {
        "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
    }
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(200):
                try:
                    if client.get("/status").json()["value"]["ready"]:
                        break
                except httpx.TransportError:
                    time.sleep(0.05)
            begun = client.post("/session", json={"capabilities": wanted}).json()["value"]
            if "sessionId" not in begun:
                raise RuntimeError(f"chromium did not start: {begun.get('message')}")
            address = f"http://127.0.0.1:{port}/session/{begun['sessionId']}/"
            with httpx.Client(base_url=address, timeout=60) as session:
                try:
                    yield Browser(session)
                finally:  # also ends chromium
                    session.delete("")
    finally:
        driver.terminate()
        driver.wait(timeout=10)
