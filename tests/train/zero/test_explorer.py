"""The explorer of ZeRO names what it counts and what it leaves out."""

from __future__ import annotations

from tests.explorers.cases import Case, report

ZERO = Case("zero").made()


def test_zero_names_what_is_not_counted_and_what_is_left() -> None:
    lines = report(ZERO, model="70 B", num_ranks=512, stage=2, recipe="bf16")
    assert lines[-4].startswith("not counted: activations, the layer in use, ")
    assert [line.split(": ")[1].endswith("left for these") for line in lines[-3:]] == [False, False, True]
    assert "activations" not in report(ZERO, activations_gb=3)[-4]
