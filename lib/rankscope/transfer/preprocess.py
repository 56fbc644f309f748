"""Random crop, flip, resize and normalise as one torch function: on a CPU worker, or on the device after the copy.

`random_crops` chooses the crop of each image from seed, epoch and index alone; `preprocessed` applies it. The random
numbers are drawn on the CPU, 40 bytes per image, so both places give the same result within float rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.functional import grid_sample

from ..common.checks import number, of_type, whole
from ..common.frozen import each

Words = NDArray[np.uint64]
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the constant that splitmix64 adds
_NUM_DRAWS = 5  # per image: area, shape, row, column, flip
_LEAST_AREA = 0.08  # of a crop, as a share of the image
_LARGEST_RATIO = 4 / 3  # of a crop's width to its height; the smallest is 3 / 4


def random_crops(indices: ArrayLike, image_px: Sequence[int], *, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    """Draw a random crop per index, as rows of top, left, height and width in pixels, and 1 if it is flipped.

    `image_px` is the images' height and width. As in torchvision's RandomResizedCrop, the crop's share of the area is
    uniform from 0.08 to 1, and the logarithm of width / height is uniform from that of 3/4 to that of 4/3; a side
    longer than the image is cut to it. Half of the crops are flipped left to right. A row depends only on seed, epoch
    and its index. Raises ValueError if a value is out of range.

    >>> random_crops([7, 8], (32, 48), seed=1).tolist() == random_crops([8, 7], (32, 48), seed=1).flip(0).tolist()
    True
    """
    height, width = _sides("image_px", image_px)
    share, shape, row, column, coin = _uniform(indices, seed, epoch).T  # each with a number in [0, 1) per image
    pixels = (_LEAST_AREA + (1 - _LEAST_AREA) * share) * height * width
    ratio = np.exp((2 * shape - 1) * math.log(_LARGEST_RATIO))
    heights = np.clip(np.rint(np.sqrt(pixels / ratio)), 1, height)
    widths = np.clip(np.rint(np.sqrt(pixels * ratio)), 1, width)
    tops = np.floor(row * (height - heights + 1))
    lefts = np.floor(column * (width - widths + 1))
    return torch.from_numpy(np.stack([tops, lefts, heights, widths, coin < 0.5], axis=1).astype(np.int64))


def preprocessed(
    images: torch.Tensor,
    crops: torch.Tensor,
    size_px: Sequence[int],
    mean: Sequence[float] = (0.5,),
    std: Sequence[float] = (0.5,),
) -> torch.Tensor:
    """Return the crops, resized to `size_px` (height, width), as float32 of shape (image, channel, height, width).

    `images` are uint8 of shape (image, height, width, channel), as from a decoder, on any device; the work is done
    there. Pixels are interpolated as by ``interpolate(mode="bilinear")`` without antialiasing, then divided by 255,
    then `mean` is subtracted and the result divided by `std` (one number, or one per channel). Raises ValueError if
    images and crops do not match; crops on a GPU are not checked to lie within the images.

    >>> images = torch.tensor([[[[0], [255]]]], dtype=torch.uint8)  # one image, one row: black, white
    >>> preprocessed(images, torch.tensor([[0, 0, 1, 2, 1]]), (1, 2), mean=[0.0], std=[1.0]).tolist()  # flipped
    [[[[1.0, 0.0]]]]
    """
    _check(images, crops)
    height, width = _sides("size_px", size_px)
    normalisation = _normalisation(mean, std, images)
    top, left, crop_height, crop_width, flipped = crops.to(images.device, non_blocking=True).unbind(1)
    rows = _grid_positions(top, crop_height, height, images.shape[1])
    columns = _grid_positions(left, crop_width, width, images.shape[2])
    columns = torch.where(flipped.bool()[:, None], columns.flip(1), columns)
    shape = (len(images), height, width)
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], 3)  # x and y of each pixel
    values = images.permute(0, 3, 1, 2).float()
    resized = grid_sample(values, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return resized.mul_(normalisation.scale).add_(normalisation.shift)


def _grid_positions(first: torch.Tensor, length: torch.Tensor, num: int, side: int) -> torch.Tensor:
    """Return the positions of `num` pixels spread over each crop, along a side of the image, as in `grid_sample`.

    `first` and `length` have an entry per image, the result a row per image. -1 and 1 are the ends of the side.
    """
    centre = torch.arange(num, device=first.device) + 0.5  # of each new pixel, in new pixels
    # In pixels of the image, 0 being the centre of the crop's first pixel. Nothing outside the crop is read.
    in_crop = (centre * (length[:, None] / num) - 0.5).clamp_(min=0)
    pixel = first[:, None] + torch.minimum(in_crop, length[:, None] - 1.0)
    return (2 * pixel + 1) / side - 1  # as ``align_corners=False`` counts: the ends are edges of pixels, not centres


class _Normalisation(NamedTuple):
    """The factor and the offset of pixel values, each of shape (channel or 1, 1, 1)."""

    scale: torch.Tensor
    shift: torch.Tensor


def _normalisation(mean: Sequence[float], std: Sequence[float], images: torch.Tensor) -> _Normalisation:
    """Return (value / 255 - mean) / std as a factor and an offset, on the device of the images."""
    num_channels = images.shape[3]
    means = _by_channel("mean", mean, num_channels, above=None)
    stds = _by_channel("std", std, num_channels, above=0)
    both = torch.tensor(np.stack(np.broadcast_arrays(1 / (255 * stds), -means / stds)))  # copied together
    scale, shift = both.to(torch.float32).to(images.device, non_blocking=True)[:, :, None, None]
    return _Normalisation(scale, shift)


def _by_channel(name: str, values: Any, num_channels: int, above: float | None) -> NDArray[np.float64]:
    """Return one number, or one per channel, as an array."""
    numbers = [number(name, value, above=above) for value in np.atleast_1d(np.asarray(values)).tolist()]
    if len(numbers) not in (1, num_channels):
        raise ValueError(f"{name} must be one number, or one for each of {num_channels} channels, got {values!r}")
    return np.array(numbers)


def _check(images: Any, crops: Any) -> None:
    """Raise ValueError unless these are images and crops that lie within them."""
    of_type("images", images, torch.Tensor)
    of_type("crops", crops, torch.Tensor)
    if images.dtype != torch.uint8 or images.ndim != 4:
        kind = f"{images.dtype} of shape {tuple(images.shape)}"
        raise ValueError(f"images must be uint8 of shape (image, height, width, channel), got {kind}")
    if crops.dtype != torch.int64 or crops.shape != (len(images), 5):
        kind = f"{crops.dtype} of shape {tuple(crops.shape)}"
        raise ValueError(f"crops must be int64 of shape ({len(images)}, 5), as random_crops gives them, got {kind}")
    if crops.device.type != "cpu":  # a check on a GPU would make the host wait
        return
    first = crops[:, :2]
    length = crops[:, 2:4]
    sides = torch.tensor(images.shape[1:3])
    is_outside = ((first < 0) | (length < 1) | (first + length > sides)).any(1)
    if is_outside.any():
        crop = crops[int(is_outside.int().argmax())]  # the first one
        raise ValueError(f"crops must lie in images of {tuple(sides.tolist())} pixels, got {crop.tolist()}")


def _uniform(indices: ArrayLike, seed: int, epoch: int) -> NDArray[np.float64]:
    """Return numbers in [0, 1), a row of `_NUM_DRAWS` per index.

    They are hashes of seed, epoch, index and position in the row (splitmix64; Steele 2014).
    """
    array = np.asarray(indices)  # of floats if the list is empty
    if array.ndim != 1 or (array.size and (array.dtype.kind not in "iu" or array.min() < 0)):
        raise ValueError(f"indices must be a list of whole numbers of at least 0, got {indices!r}")
    words: Any = np.zeros((array.size, _NUM_DRAWS), dtype=np.uint64)
    words = _mixed(words + np.uint64(whole("seed", seed, 0, 2**63 - 1)))
    words = _mixed(words + np.uint64(whole("epoch", epoch, 0, 2**63 - 1)))
    words = _mixed(words + array.astype(np.uint64)[:, None])
    words = _mixed(words + np.arange(_NUM_DRAWS, dtype=np.uint64))
    return np.asarray((words >> np.uint64(11)) * 2.0**-53)  # the upper 53 bits, as many as a float has


def _mixed(words: Words) -> Words:
    words = words + _GAMMA
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _sides(name: str, values: Sequence[int]) -> tuple[int, ...]:
    sides = each(name, values, whole, 1)
    if len(sides) != 2:
        raise ValueError(f"{name} must be height and width, got {values!r}")
    return sides
