#!/usr/bin/env python3
"""Draws the pictures of configs/shapes-lora.yaml: the demo's shapes in two colours that it has never seen.

    python3 tools/make_tuning_pictures.py data/two-colours

Eight folders, one a class ("orange circle", ..., "pink triangle"), of 40 PNGs of 32 x 32 pixels each, as the demo's
own pictures but for the colour. Needs nothing but Python; the same files each time.
"""
import math
import pathlib
import random
import struct
import sys
import zlib

SIDE = 32
PICTURES = 40
FINE = 4  # samples along a pixel's side, for smooth borders
COLOURS = {"orange": (250, 130, 30), "pink": (240, 90, 200)}


def circle(x, y):
    return math.hypot(x, y) < 1


def square(x, y):
    return max(abs(x), abs(y)) < 0.88


def triangle(x, y):
    return max(y, abs(x) * math.sqrt(3) / 2 - y / 2) < 0.62


def cross(x, y):
    a, b = sorted((abs(x), abs(y)))
    return a < 0.36 and b < 1.05


def draw(inside, colour, rng):
    """Rows of RGB bytes."""
    centre = [0.5 + 0.13 * rng.randrange(-1, 2) + rng.uniform(-0.012, 0.012) for _ in range(2)]
    radius, light, ground = rng.uniform(0.24, 0.26), rng.uniform(0.9, 1.0), rng.uniform(0.09, 0.15)
    rows = []
    for row in range(SIDE):
        line = bytearray()
        for column in range(SIDE):
            hits = sum(
                inside(((column + (i + 0.5) / FINE) / SIDE - centre[0]) / radius,
                       ((row + (k + 0.5) / FINE) / SIDE - centre[1]) / radius)
                for i in range(FINE) for k in range(FINE))
            share = hits / FINE**2
            line += bytes(round(share * light * value + (1 - share) * 255 * ground) for value in colour)
        rows.append(bytes(line))
    return rows


def write_png(path, rows):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
    header = struct.pack(">IIBBBBB", SIDE, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


def main():
    folder = pathlib.Path(sys.argv[1])
    rng = random.Random(1)
    for name, colour in COLOURS.items():
        for inside in (circle, cross, square, triangle):
            place = folder / f"{name} {inside.__name__}"
            place.mkdir(parents=True, exist_ok=True)
            for number in range(PICTURES):
                write_png(place / f"{number:02}.png", draw(inside, colour, rng))


if __name__ == "__main__":
    main()
