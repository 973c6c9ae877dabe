"""Rules that mark interactions, and what is made of two of them."""

from __future__ import annotations

import torch

from evergram.data.columnar.pair_blocks import PairBlock, PairRule

BLOCK = PairBlock(10, torch.tensor([0, 1, 2]), torch.tensor([5, 5, 6]))
LOW = PairRule("low", lambda block: block.query < 2)
FIVE = PairRule("five", lambda block: block.candidate == 5)


def test_a_block_knows_its_places() -> None:
    assert len(BLOCK) == 3
    assert BLOCK.places.tolist() == [10, 11, 12]


def test_rules_are_combined() -> None:
    assert LOW(BLOCK).tolist() == [True, True, False]
    assert (~LOW)(BLOCK).tolist() == [False, False, True]
    assert (~LOW & FIVE)(BLOCK).tolist() == [False, False, False]
    assert (~LOW | FIVE)(BLOCK).tolist() == [True, True, True]


def test_the_key_of_a_combination_says_what_it_is_of() -> None:
    keys = {r.key for r in (LOW, FIVE, ~LOW, ~FIVE, LOW & FIVE, LOW | FIVE, ~LOW & FIVE)}
    assert len(keys) == 7
    assert (LOW & FIVE).key == PairRule("low", FIVE.marks).__and__(FIVE).key
