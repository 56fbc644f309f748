"""Stages, pipelines and service times as values: their times and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rankscope.pipeline import Lognormal, Stage, StoredImages
from rankscope.pipeline.service import draw

from ..distributions import Exponential


@pytest.mark.parametrize(
    ("service", "mean", "deviation"),
    [(Lognormal(0.2, cv=0.8), 0.2, 0.16), (Lognormal(0.2, cv=0.0), 0.2, 0.0), (Exponential(0.2), 0.2, 0.2)],
)
def test_distributions_have_the_mean_and_spread_they_name(service: Any, mean: float, deviation: float) -> None:
    times = draw("it", service, 200_000, 7)
    assert Stage("it", service).mean_s == pytest.approx(mean)
    assert times.mean() == pytest.approx(mean, rel=0.02)
    assert times.std() == pytest.approx(deviation, rel=0.05)
    assert (draw("it", service, 10, 7) == times[:10]).all(), "more items must not change the first ones"
    assert deviation == 0 or (draw("it", service, 10, 8) != times[:10]).any()


def test_a_decoded_image_looks_like_the_original() -> None:
    from sklearn.datasets import load_digits  # takes a second, in every process that collects tests

    digits = load_digits()
    dataset = StoredImages(digits.images[:20] / 16, digits.target[:20], size_px=128)
    assert len(dataset) == 20
    for index in range(20):
        image, label = dataset[index]
        assert (image.dtype, image.shape, label) == (np.float32, (128, 128), digits.target[index])
        middles = image[8::16, 8::16]
        assert np.abs(middles - digits.images[index] / 16).max() < 0.15
        assert np.abs(middles - digits.images[index - 1] / 16).max() > 0.5
