"""The ids of Qdrant's points, and requests cut into blocks."""

from __future__ import annotations

from uuid import UUID

from evergram.stores.qdrant.qdrant_points import blocks_of, points_of


def test_every_point_keeps_its_id_for_ever() -> None:
    """They are stored, so a later Evergram must compute the same."""
    assert points_of([7, "7", "a"]) == [
        "f0b5b4b8-b5cb-5920-af1b-2cdcb054a491",
        "f0b5b4b8-b5cb-5920-af1b-2cdcb054a491",
        "e59b53f8-58a3-5574-b7b7-297c834c9cf7",
    ]
    assert len({UUID(point) for point in points_of(range(-100, 100))}) == 200


def test_the_last_block_is_what_is_left() -> None:
    assert list(blocks_of([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(blocks_of([], 2)) == []
