"""Stages, pipelines and service times as values: their times and bounds."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.pipeline import Lognormal, StoredImages
from rankscope.pipeline.service import draw


@pytest.mark.parametrize("cv", [0.0, 0.8])
def test_lognormal_times_have_the_mean_and_spread_they_name(cv: float) -> None:
    service = Lognormal(0.2, cv)
    times = draw("it", service, 200_000, 7)
    assert times.mean() == pytest.approx(0.2, rel=0.02)
    assert times.std() == pytest.approx(0.2 * cv, rel=0.05)
    assert (draw("it", service, 10, 7) == times[:10]).all(), "more items must not change the first ones"
    assert cv == 0 or (draw("it", service, 10, 8) != times[:10]).any()


def test_a_decoded_image_looks_like_the_original() -> None:
    from sklearn.datasets import load_digits  # takes a second, in every process that collects tests

    digits = load_digits()
    dataset = StoredImages(digits.images[:20] / 16, digits.target[:20], size_px=128)
    for index in range(len(dataset)):
        image, label = dataset[index]
        assert (image.dtype, image.shape, label) == (np.float32, (128, 128), digits.target[index])
        assert np.array_equal(image[8::16, 8::16], digits.images[index].astype(np.float32) / 16)
