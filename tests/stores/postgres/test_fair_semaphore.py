"""Waiters are served in order, and none gives up while others make progress."""

from __future__ import annotations

import threading
import time

from evergram.stores.postgres.fair_semaphore import FairSemaphore


def test_waiters_are_served_in_order_of_arrival() -> None:
    """The last of six waits longer than its patience, as the others make progress."""
    semaphore = FairSemaphore(1, patience=1.0)
    order: list[int] = []

    def go(number: int) -> None:
        assert semaphore.acquire()
        time.sleep(0.25)
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


def test_a_waiter_gives_up_where_nobody_makes_progress() -> None:
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
