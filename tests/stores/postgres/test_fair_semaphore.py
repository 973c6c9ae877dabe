"""FairSemaphore are in order, and nobody gives up while others get on."""

from __future__ import annotations

import threading
import time

from evergram.stores.postgres.fair_semaphore import FairSemaphore


def test_who_comes_first_is_first_and_all_get_on() -> None:
    """The last of six waits longer than anybody has patience where nobody gets on."""
    semaphore = FairSemaphore(1, patience=2.0)
    order: list[int] = []

    def go(number: int) -> None:
        assert semaphore.acquire()
        time.sleep(0.5)
        order.append(number)
        semaphore.release()

    assert semaphore.acquire()
    waiting = [threading.Thread(target=go, args=(number,)) for number in range(6)]
    for number, thread in enumerate(waiting):
        thread.start()
        while len(semaphore._waiting) <= number:
            time.sleep(0.001)
    semaphore.release()
    for thread in waiting:
        thread.join()
    assert order == list(range(6))
    assert semaphore.acquire(), "it is free again"


def test_where_nobody_gets_on_it_is_given_up() -> None:
    semaphore = FairSemaphore(2, patience=0.1)
    assert semaphore.acquire()
    assert semaphore.acquire()
    assert not semaphore.acquire()
    semaphore.release()
    assert semaphore.acquire()
    assert not semaphore.acquire()
    # Nobody who gave up is called later.
    semaphore.release()
    semaphore.release()
    assert semaphore.acquire()
    assert semaphore.acquire()
