"""Count nuclei in microscope images over MIP, with KubeMo's own client: a batch of image files.

    python examples/nuclei/count.py

The images are synthetic, so the right counts are known. Ends with exit code 0 only when every
check holds.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import kubemo
import numpy as np

# KubeMo's client has a class Image, too.
from PIL import Image as Pillow

import farm

SIZE, RADIUS, COUNTS = 256, 7.0, (3, 11, 24, 40)


def drawn(count: int, rng: np.random.Generator) -> bytes:
    """A PNG of `count` discs on a noisy background, no two of which touch."""
    y, x = np.mgrid[:SIZE, :SIZE]
    cells = rng.permutation(64)[:count]  # one disc at most in each cell of 32 x 32
    image = rng.normal(40.0, 8.0, (SIZE, SIZE))
    for row, column in zip(cells // 8, cells % 8, strict=True):
        middle = 16 + 32 * np.array([row, column]) + rng.uniform(-5, 5, 2)
        image[np.hypot(y - middle[0], x - middle[1]) < RADIUS] += 150.0
    file = io.BytesIO()
    Pillow.fromarray(image.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    rng = np.random.default_rng(1)
    batch = tuple((kubemo.Image(io.BytesIO(drawn(count, rng))),) for count in COUNTS)
    with tempfile.TemporaryDirectory() as name:
        model, socket = Path(__file__).with_name("nuclei.py"), f"{name}/nuclei.sock"
        with farm.serve(model, port=0, workers=2, dir=name, mip=(f"unix:{socket}",)):
            answer = kubemo.Client().inference(f"unix://{socket}", batch)
    counts = [count.decode()[0] for count, _, _ in answer]
    areas = [area.decode()[0] for _, area, _ in answer]
    colours = [len(marked.decode().getcolors(SIZE**2)) for _, _, marked in answer]
    disc = np.pi * RADIUS**2
    off = max(abs(area / disc - 1) for area in areas)
    print(f"nuclei in each image {counts}   expected {list(COUNTS)}")
    print(f"mean area off by {off:.2f}   expected below 0.1, discs have {disc:.0f} pixels")
    print(f"colours of the marked images {colours}   expected one each, and black")
    if tuple(counts) != COUNTS or off > 0.1 or colours != [count + 1 for count in COUNTS]:
        raise SystemExit("the images are not counted as they were drawn")


if __name__ == "__main__":
    main()
