#!/usr/bin/env python3
"""Makes tests/io/data/crops/: JPEGs for decoding that knows of the crop. Wants numpy and Pillow.

    tools/make_crop_fixtures.py [FOLDER]      (default: tests/io/data/crops)

NAME.jpg     pictures of some hundred pixels a side, a kind of JPEG each
scaled.txt   a line "NAME height width" for each crop that Pillow makes after decoding at 1/2, 1/4 or 1/8
scaled.rgb   its pixels, one crop after the other
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def picture(height, width):
    """Waves of all directions and some sharp discs: chroma and luma differ everywhere."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 120 * np.sin(x * a + y * b + c) for a, b, c in [(0.11, 0.05, 0), (0.04, -0.13, 1), (-0.07, 0.09, 2)]]
    values = np.stack(planes, axis=-1)
    for i in range(12):
        inside = (y - (37 * i) % height) ** 2 + (x - (53 * i) % width) ** 2 < (6 + i) ** 2
        values[inside] = [(40 * i) % 256, (200 - 17 * i) % 256, (91 * i) % 256]
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def cover(image, height, width):
    """The bicubic step of ADM's crop, rows first."""
    scale = max(height / image.height, width / image.width)
    wide, high = round(image.width * scale), round(image.height * scale)
    image = image.resize((wide, image.height), Image.Resampling.BICUBIC)
    array = np.asarray(image.resize((wide, high), Image.Resampling.BICUBIC))
    top, left = (high - height) // 2, (wide - width) // 2
    return array[top : top + height, left : left + width]


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "tests/io/data/crops")
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "420": (150, 217, {"subsampling": "4:2:0"}),
        "420_tall": (231, 140, {"subsampling": "4:2:0"}),
        "420_restarts": (150, 217, {"subsampling": "4:2:0", "restart_marker_blocks": 3}),
        "422": (150, 217, {"subsampling": "4:2:2"}),
        "444": (150, 217, {"subsampling": "4:4:4"}),
        "progressive": (160, 231, {"subsampling": "4:2:0", "progressive": True}),
        "gray": (150, 217, {}),
    }
    crops, lines = [], []
    for name, (height, width, options) in kinds.items():
        image = picture(height, width)
        image = image.convert("L") if name == "gray" else image
        out = io.BytesIO()
        image.save(out, format="jpeg", quality=60, **options)
        (folder / f"{name}.jpg").write_bytes(out.getvalue())
        for high, wide in [(40, 48), (30, 37), (18, 18)]:
            decoded = Image.open(io.BytesIO(out.getvalue()))
            decoded.draft(decoded.mode, (wide, high))
            crops.append(cover(decoded.convert("RGB"), high, wide))
            lines.append(f"{name}.jpg {high} {wide}\n")
    (folder / "scaled.txt").write_text("".join(lines))
    (folder / "scaled.rgb").write_bytes(b"".join(crop.tobytes() for crop in crops))


if __name__ == "__main__":
    main()
