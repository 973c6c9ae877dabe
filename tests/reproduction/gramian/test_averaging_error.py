"""What is said of SOGram's Gramian error by α."""

from __future__ import annotations

from reproduction.gramian.averaging_error import EXPERIMENT

from reproduction import results


def test_the_remark_names_the_steps_of_the_small_preset() -> None:
    kept = results.read_all(results.FOLDER, EXPERIMENT.source, "small")
    steps = {result.series["errors"]["step"][-1] for result in kept}
    assert len(steps) == 1
    (remark,) = (claim.remark for claim in EXPERIMENT.claims if claim.remark)
    assert f"small preset has {steps.pop():,};" in remark
