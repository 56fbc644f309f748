"""`StoredImages`: a small real dataset whose samples must be fetched and decompressed, for notebooks and tests."""

from __future__ import annotations

import time
import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import number, whole


class StoredImages:
    """Images that are stored compressed, as a map-style dataset for a DataLoader.

    Item i is a float32 image of `size_px` × `size_px`, enlarged by repeating pixels, and its label. A read first sleeps
    for `latency_s`, as if the storage were remote, and then decompresses the image. `images` has the shape (number,
    height, width). Raises ValueError if a number is out of range.

    >>> dataset = StoredImages(np.eye(2)[None], [3], size_px=4)
    >>> image, label = dataset[0]
    >>> image[0].tolist(), label
    ([1.0, 1.0, 0.0, 0.0], 3)
    """

    def __init__(self, images: ArrayLike, labels: ArrayLike, size_px: int = 256, latency_s: float = 0.0) -> None:
        pictures = np.asarray(images, dtype=np.float32)
        self.labels = np.asarray(labels)
        self.size_px = whole("size_px", size_px, 1)
        self.latency_s = number("latency_s", latency_s, 0)
        rows, columns = (np.arange(size_px) * length // size_px for length in pictures.shape[1:])
        self._stored = [zlib.compress(picture[np.ix_(rows, columns)].tobytes(), level=1) for picture in pictures]

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        time.sleep(self.latency_s)
        pixels = bytearray(zlib.decompress(self._stored[index]))
        image = np.frombuffer(pixels, np.float32).reshape(self.size_px, self.size_px)
        return image, int(self.labels[index])
