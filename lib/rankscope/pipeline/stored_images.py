"""`StoredImages`: a small real dataset whose samples must be fetched and decoded, for notebooks and tests."""

from __future__ import annotations

import time
import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.checks import number, whole


class StoredImages:
    """Images stored as compressed low frequencies. A read decompresses and transforms them to a larger image.

    This is the kind of work that a JPEG needs, and like a JPEG the image is slightly blurred. It is a map-style dataset
    for a DataLoader: item i is a float32 image of `size_px` × `size_px` and its label. Each read first sleeps for
    `latency_s`, as if the storage were remote.

    Raises ValueError if `images` is not an array of shape (number, height, width), if the number of labels differs, if
    `size_px` is below four times the size of the images, or if the latency is negative or not finite.

    >>> dataset = StoredImages(np.eye(8)[None], [3], size_px=32)
    >>> image, label = dataset[0]
    >>> image.shape, label, [bool(image[row, 2] > 0.5) for row in (2, 18)]
    ((32, 32), 3, [True, False])
    """

    def __init__(self, images: ArrayLike, labels: ArrayLike, size_px: int = 256, latency_s: float = 0.0) -> None:
        pictures = np.asarray(images, dtype=np.float32)
        self.labels = np.asarray(labels)
        if pictures.shape[:-2] != self.labels.shape:
            shapes = f"{pictures.shape} and {self.labels.shape}"
            raise ValueError(f"images must be (number, height, width) with a label each, got arrays of {shapes}")
        # Four times, because a quarter of the frequencies is stored, which must not be fewer than the image's pixels.
        self.size_px = whole("size_px", size_px, 4 * max(pictures.shape[1:]))
        self.latency_s = number("latency_s", latency_s, 0)
        self._num_frequencies = self.size_px // 4  # that are stored along each axis
        self._stored = [self._encode(picture) for picture in pictures]

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        if self.latency_s:
            time.sleep(self.latency_s)
        low = np.frombuffer(zlib.decompress(self._stored[index]), np.complex64)
        spectrum = np.zeros((self.size_px, self.size_px // 2 + 1), np.complex64)  # that of a real image in numpy
        spectrum[self._rows(), : self._num_frequencies] = low.reshape(2 * self._num_frequencies, self._num_frequencies)
        image = np.fft.irfft2(spectrum, s=(self.size_px, self.size_px))
        return image.astype(np.float32), int(self.labels[index])

    def _encode(self, picture: NDArray[np.float32]) -> bytes:
        """Enlarge a picture to `size_px` by repeating its pixels; return its low frequencies as compressed bytes."""
        rows, columns = (np.arange(self.size_px) * length // self.size_px for length in picture.shape)
        spectrum = np.fft.rfft2(picture[np.ix_(rows, columns)])
        low = spectrum[self._rows(), : self._num_frequencies].astype(np.complex64)
        return zlib.compress(low.tobytes(), level=1)  # the fastest

    def _rows(self) -> NDArray[np.int64]:
        """Return the indices of the rows of a spectrum with low frequencies.

        Negative frequencies are its last rows, so their indices are negative, too.
        """
        return np.arange(-self._num_frequencies, self._num_frequencies)
