"""Count nuclei in a microscope image, measure their area and mark them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

import farm

FILE = farm.TensorInfo("image", (1,), "bytes")
"""One image file, of any format that Pillow opens."""


class Nuclei(farm.Model):
    """Bright spots of a grey image that are above half its range after smoothing."""

    name = "nuclei"
    inputs = {"image": FILE}
    outputs = {"count": farm.TensorInfo("count", (1,), "int64"), "area": 1, "marked": FILE}

    def evaluate(self, inputs: farm.Inputs, config: farm.Config) -> Any:
        """count; mean area in pixels; the image with each nucleus in a colour, as PNG."""
        grey = np.asarray(Image.open(io.BytesIO(inputs["image"][0])).convert("L"), float)
        smooth = ndimage.gaussian_filter(grey, 1.5)
        labels, count = ndimage.label(smooth > (smooth.min() + smooth.max()) / 2)
        colours = np.random.default_rng(0).integers(80, 256, (count + 1, 3), dtype=np.uint8)
        colours[0] = 0
        file = io.BytesIO()
        Image.fromarray(colours[labels]).save(file, "PNG")
        area = np.count_nonzero(labels) / max(count, 1)
        return {"count": [count], "area": [area], "marked": [file.getvalue()]}
