"""The explorer of unequal lengths shows what balancing does."""

from __future__ import annotations

from tests.explorers.cases import Case, report


def test_unequal_lengths_shows_that_balancing_equalizes_steps() -> None:
    explorer = Case("unequal_lengths").made()
    lines = {name: report(explorer, **preset) for name, preset in explorer.presets.items()}
    times = {name: float(words[1].split("takes ")[1].split(" times")[0]) for name, words in lines.items()}
    assert times["unequal lengths, in random order"] > 1.3
    assert times["the same, balanced"] < 1.05
    assert times["64 ranks, in random order"] > times["unequal lengths, in random order"]
    assert times["64 ranks, balanced"] < 1.05
    assert lines["the same, balanced"][0].startswith("16 steps")
    assert report(explorer, num_ranks=64, batch_size=8, size=512)[0].startswith("1 step ")
    by_tokens = lines["batches of tokens"]
    assert by_tokens[0].startswith("17 steps of at most ")
    assert times["batches of tokens"] < 1.2
    shares = {name: int(words[2].split(" %")[0]) for name, words in lines.items()}
    assert shares["batches of tokens"] < shares["the same, balanced"] / 2
