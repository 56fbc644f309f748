"""The example dataset really decodes: what comes out is what went in, a little blurred."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.pipeline.stored_images import StoredImages


def test_a_decoded_image_looks_like_the_original():
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
    with pytest.raises(IndexError):
        dataset[20]
