#!/usr/bin/env python3
"""Makes tests/io/data/images/ and tests/io/data/resize.txt with Pillow as the reference.

    tools/make_image_fixtures.py [FOLDER]      (default: tests/io/data)

images/NAME       a small file of each kind that the decoders must read
images/index.txt  a line "NAME height width tolerance" for each
images/pixels.rgb the expected RGB pixels of all of them, in the order of the index
resize.txt        a line "KIND in_height in_width height width hash" for each resampling case: the
                  input is noise(in_height, in_width), hash is FNV-1a 64 of the expected pixels
"""

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HEIGHT, WIDTH = 13, 19


def picture(height=HEIGHT, width=WIDTH, channels=3, bits=8):
    """Smooth ramps with a hard edge, so that chroma subsampling and filters leave a trace."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * 11 + y * 3), (y * 17 + 40), ((x + y) * 7 + 90 * (x > width // 2)), (x * y + 9)]
    values = np.stack(planes[:channels], axis=-1) % 256
    if bits == 16:
        values = values * 256 + (x * 37 + y * 91)[..., None] % 256
        return values.astype(np.uint16)
    return values.astype(np.uint8)


def noise(height, width):
    """Bytes that the test makes alike: a 32-bit hash of the position."""
    i = np.arange(height * width * 3, dtype=np.uint64) + np.uint64(1)
    mask = np.uint64(0xFFFFFFFF)
    i = (i * np.uint64(2654435761)) & mask
    i ^= i >> np.uint64(15)
    i = (i * np.uint64(2246822519)) & mask
    i ^= i >> np.uint64(13)
    return (i & np.uint64(255)).astype(np.uint8).reshape(height, width, 3)


def saved(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def raw_png(pixels, color_type, bits=8, interlaced=False):
    """A PNG written by hand, for what Pillow cannot write: 16-bit colour and Adam7."""
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, int(interlaced))
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
                  (1, 0, 2, 1)]
    big_endian = pixels.astype(">u2" if bits == 16 else "u1")
    rows = b""
    for top, left, step_y, step_x in passes:
        part = big_endian[top::step_y, left::step_x]
        if part.size:
            rows += b"".join(b"\0" + row.tobytes() for row in part)
    return (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(rows))
            + png_chunk(b"IEND", b""))


def exif(orientation, big_endian):
    order = ">" if big_endian else "<"
    return (b"Exif\0\0" + (b"MM" if big_endian else b"II") + struct.pack(order + "HI", 42, 8)
            + struct.pack(order + "H", 1) + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
            + struct.pack(order + "I", 0))


def webp_chunk(kind, data):
    return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1)


def animated_webp(frames, width, height):
    """frames: (still WebP file without VP8X, left, top), written by hand to place the first one."""
    def u24(value):
        return struct.pack("<I", value)[:3]

    body = webp_chunk(b"VP8X", bytes([0x12, 0, 0, 0]) + u24(width - 1) + u24(height - 1))
    body += webp_chunk(b"ANIM", struct.pack("<IH", 0xFF3366CC, 0))
    for still, left, top in frames:
        size = Image.open(io.BytesIO(still)).size
        place = u24(left // 2) + u24(top // 2) + u24(size[0] - 1) + u24(size[1] - 1)
        body += webp_chunk(b"ANMF", place + u24(100) + b"\0" + still[12:])
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


def raw_bmp(palette, bits):
    """A BMP written by hand, for what Pillow cannot write: 16 colours."""
    colours = np.zeros((2 ** bits, 4), np.uint8)
    stored = np.array(palette.getpalette(), np.uint8).reshape(-1, 3)[:2 ** bits, ::-1]
    colours[:len(stored), :3] = stored
    pixels = np.asarray(palette)[::-1]
    per_byte = 8 // bits
    padded = np.zeros((pixels.shape[0], -(-pixels.shape[1] // (4 * per_byte)) * 4 * per_byte), np.uint8)
    padded[:, :pixels.shape[1]] = pixels
    rows = sum(padded[:, i::per_byte].astype(int) << bits * (per_byte - 1 - i) for i in range(per_byte))
    offset = 54 + colours.size
    return (struct.pack("<2sIII", b"BM", offset + rows.size, 0, offset)
            + struct.pack("<IiiHHIIiiII", 40, palette.width, palette.height, 1, bits, 0, rows.size, 0, 0,
                          2 ** bits, 0) + colours.tobytes() + rows.astype(np.uint8).tobytes())


def top_down(bmp):
    """The BMP of 24 bits whose first row is the upper one."""
    offset, = struct.unpack_from("<I", bmp, 10)
    height, = struct.unpack_from("<i", bmp, 22)
    stride = (len(bmp) - offset) // height
    rows = [bmp[offset + i * stride:offset + (i + 1) * stride] for i in range(height)]
    return bmp[:22] + struct.pack("<i", -height) + bmp[26:offset] + b"".join(reversed(rows))


def larger_screen(gif, left, top):
    """The GIF with its only frame moved to the right and down on a larger screen."""
    width, height = struct.unpack_from("<HH", gif, 6)
    moved = bytearray(gif)
    struct.pack_into("<HH", moved, 6, width + left + 3, height + top + 2)
    frame = gif.index(b"," + bytes(4) + struct.pack("<HH", width, height))
    struct.pack_into("<HH", moved, frame + 1, left, top)
    return bytes(moved)


def raw_tiff(pixels):
    """A TIFF written by hand, for what Pillow cannot write: 16-bit colour."""
    height, width, channels = pixels.shape
    data = pixels.astype("<u2").tobytes()
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, channels, 16), (259, 3, 1, 1),
            (262, 3, 1, 2 if channels == 3 else 1), (273, 4, 1, 0), (277, 3, 1, channels),
            (278, 3, 1, height), (279, 4, 1, len(data))]
    end = 8 + 2 + 12 * len(tags) + 4
    deep = struct.pack("<3H", 16, 16, 16) if channels == 3 else b""
    values = {258: end if deep else 16, 273: end + len(deep)}
    directory = struct.pack("<H", len(tags)) + b"".join(
        struct.pack("<HHI", tag, kind, count)
        + struct.pack("<I" if kind == 4 or (tag == 258 and deep) else "<Hxx", values.get(tag, value))
        for tag, kind, count, value in tags) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + directory + deep + data


def as_rgb(data):
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def image_cases():
    """Yields (name, file, expected RGB, tolerance)."""
    rgb, rgba = Image.fromarray(picture()), Image.fromarray(picture(channels=4))
    gray = Image.fromarray(picture()[..., 0])
    alpha = Image.fromarray(picture(channels=4)[..., 3])
    palette = rgb.quantize(200)
    small_palette = rgb.quantize(13)

    def pillow(name, data, tolerance=0):
        return name, data, as_rgb(data), tolerance

    yield pillow("rgb.png", saved(rgb, format="png"))
    yield pillow("rgba.png", saved(rgba, format="png"))
    yield pillow("gray.png", saved(gray, format="png"))
    yield pillow("gray_1bit.png", saved(gray.convert("1"), format="png"))
    yield pillow("gray_alpha.png", saved(Image.merge("LA", (gray, alpha)), format="png"))
    yield pillow("gray_transparent.png", saved(gray, format="png", transparency=40))
    yield pillow("rgb_transparent.png", saved(rgb, format="png", transparency=(0, 40, 0)))
    yield pillow("palette.png", saved(palette, format="png"))
    yield pillow("palette_4bit.png", saved(small_palette, format="png", bits=4))
    yield pillow("palette_transparent.png",
                 saved(palette, format="png", transparency=bytes(range(0, 200, 2))))
    yield pillow("interlaced.png", raw_png(picture(), 2, interlaced=True))
    yield pillow("animated.png", saved(rgb, format="png", save_all=True,
                                       append_images=[rgb.rotate(180), rgb.rotate(90)]))
    # Pillow cuts the low byte of 16-bit colour off and clips 16-bit grey, so numpy is the reference.
    for name, channels, color_type in (("rgb16.png", 3, 2), ("rgba16.png", 4, 6), ("gray16.png", 1, 0)):
        deep = picture(channels=channels, bits=16)
        rounded = np.floor(deep[..., :3] * (255.0 / 65535.0) + 0.5).astype(np.uint8)
        yield name, raw_png(deep, color_type, bits=16), np.broadcast_to(rounded, (HEIGHT, WIDTH, 3)), 0

    yield pillow("rgb_420.jpg", saved(rgb, format="jpeg", quality=85, subsampling="4:2:0"), 1)
    yield pillow("rgb_422.jpg", saved(rgb, format="jpeg", quality=85, subsampling="4:2:2"), 1)
    yield pillow("rgb_444.jpg", saved(rgb, format="jpeg", quality=85, subsampling="4:4:4"), 1)
    yield pillow("progressive.jpg", saved(rgb, format="jpeg", quality=85, progressive=True), 1)
    yield pillow("gray.jpg", saved(gray, format="jpeg", quality=85), 1)
    cmyk = saved(Image.fromarray(picture(channels=4), "CMYK"), format="jpeg", quality=85)
    yield pillow("cmyk.jpg", cmyk, 1)
    adobe = cmyk.index(b"Adobe")
    yield pillow("ycck.jpg", cmyk[:adobe + 11] + b"\x02" + cmyk[adobe + 12:], 1)
    for orientation in range(1, 9):
        yield pillow(f"orientation_{orientation}.jpg",
                     saved(rgb, format="jpeg", quality=60, exif=exif(orientation, orientation % 2)), 1)
    yield pillow("orientation_5_cmyk.jpg",
                 saved(Image.fromarray(picture(channels=4), "CMYK"), format="jpeg", quality=60,
                       exif=exif(5, False)), 1)

    lossless = saved(rgb, format="webp", lossless=True)
    lossy = saved(rgb, format="webp", quality=80)
    yield pillow("lossless.webp", lossless)
    yield pillow("lossy.webp", lossy)
    yield pillow("lossless_alpha.webp", saved(rgba, format="webp", lossless=True, exact=True))
    yield pillow("lossy_alpha.webp", saved(rgba, format="webp", quality=80))
    yield pillow("animated_lossless.webp",
                 animated_webp([(lossless, 0, 0), (lossless, 0, 0)], WIDTH, HEIGHT))
    yield pillow("animated_offset.webp",
                 animated_webp([(lossy, 4, 6), (lossless, 0, 0)], WIDTH + 7, HEIGHT + 8))

    for bits, kind in ((1, gray.convert("1")), (4, small_palette), (8, palette), (24, rgb), (32, rgba)):
        yield pillow(f"{bits}bit.bmp", raw_bmp(kind, 4) if bits == 4 else saved(kind, format="bmp"))
    yield pillow("top_down.bmp", top_down(saved(rgb, format="bmp")))

    yield pillow("palette.gif", saved(palette, format="gif"))
    yield pillow("palette_4bit.gif", saved(small_palette, format="gif", interlace=0))
    yield pillow("interlaced.gif", saved(palette, format="gif", interlace=1))
    yield pillow("transparent.gif", saved(palette, format="gif", transparency=7))
    yield pillow("animated.gif", saved(palette, format="gif", save_all=True, duration=100,
                                       append_images=[palette.rotate(180), palette.rotate(90)]))
    yield pillow("small_frame.gif", larger_screen(saved(palette, format="gif"), 7, 8))
    yield pillow("small_frame_transparent.gif",
                 larger_screen(saved(palette, format="gif", transparency=7), 7, 8))

    for packing in (None, "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield pillow(f"rgb_{packing or 'plain'}.tif", saved(rgb, format="tiff", compression=packing))
    yield pillow("gray.tif", saved(gray, format="tiff"))
    yield pillow("fax.tif", saved(gray.convert("1"), format="tiff", compression="group4"))
    yield pillow("palette.tif", saved(palette, format="tiff"))
    yield pillow("rgba.tif", saved(rgba, format="tiff", compression="tiff_lzw"))
    yield pillow("gray_alpha.tif", saved(Image.merge("LA", (gray, alpha)), format="tiff"))
    yield pillow("jpeg.tif", saved(rgb, format="tiff", compression="jpeg"), 2)
    yield pillow("pages.tif", saved(rgb, format="tiff", save_all=True, append_images=[rgb.rotate(180)]))
    for orientation in range(2, 9):
        yield pillow(f"orientation_{orientation}.tif",
                     saved(rgb, format="tiff", tiffinfo={274: orientation}))
    for name, channels, tolerance in (("rgb16.tif", 3, 0), ("gray16.tif", 1, 1)):
        deep = picture(channels=channels, bits=16)
        rounded = np.floor(deep * (255.0 / 65535.0) + 0.5).astype(np.uint8)
        yield name, raw_tiff(deep), np.broadcast_to(rounded, (HEIGHT, WIDTH, 3)), tolerance


def fnv(array):
    value = 0xCBF29CE484222325
    for byte in array.tobytes():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def resized(image, height, width, resample):
    """Rows first, as Pillow before 13 always did; 13 takes columns first where that is cheaper."""
    return image.resize((width, image.height), resample).resize((width, height), resample)


def adm_crop(image, size):
    """center_crop_arr of openai/guided-diffusion (guided_diffusion/image_datasets.py), in Pillow."""
    while min(image.size) >= 2 * size:
        image = image.resize(tuple(side // 2 for side in image.size), resample=Image.Resampling.BOX)
    scale = size / min(image.size)
    image = image.resize(tuple(round(side * scale) for side in image.size),
                         resample=Image.Resampling.BICUBIC)
    array = np.asarray(image)
    top, left = (array.shape[0] - size) // 2, (array.shape[1] - size) // 2
    return array[top:top + size, left:left + size]


def covering_crop(image, height, width):
    """The rule of image_resize.h for rectangles."""
    while image.height >= 2 * height and image.width >= 2 * width:
        image = image.resize((image.width // 2, image.height // 2), resample=Image.Resampling.BOX)
    scale = max(height / image.height, width / image.width)
    image = image.resize((round(image.width * scale), round(image.height * scale)),
                         resample=Image.Resampling.BICUBIC)
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return np.asarray(image)[top:top + height, left:left + width]


def resize_cases():
    filters = {"box": Image.Resampling.BOX, "bicubic": Image.Resampling.BICUBIC,
               "lanczos": Image.Resampling.LANCZOS}
    sizes = [(1, 1, 1, 1), (1, 1, 5, 7), (5, 7, 1, 1), (16, 16, 8, 8), (17, 31, 8, 15),
             (17, 31, 17, 10), (17, 31, 9, 31), (17, 31, 17, 31), (20, 30, 33, 71), (64, 48, 13, 47),
             (3, 90, 50, 7), (100, 75, 32, 24), (33, 44, 32, 43), (121, 1, 10, 3), (81, 64, 64, 81)]
    for kind, resample in filters.items():
        for in_height, in_width, height, width in sizes:
            image = Image.fromarray(noise(in_height, in_width))
            yield kind, in_height, in_width, np.asarray(resized(image, height, width, resample))
    for in_height, in_width, size in [(32, 32, 32), (32, 32, 16), (40, 50, 16), (64, 64, 16),
                                      (63, 97, 16), (131, 67, 16), (90, 47, 32), (20, 30, 32),
                                      (7, 5, 16), (150, 151, 24), (95, 200, 24), (33, 65, 32)]:
        result = adm_crop(Image.fromarray(noise(in_height, in_width)), size)
        yield "crop", in_height, in_width, result
    for in_height, in_width, height, width in [(64, 64, 16, 32), (90, 47, 16, 24), (47, 90, 24, 16),
                                               (200, 30, 20, 30), (31, 77, 8, 40), (10, 10, 12, 30)]:
        result = covering_crop(Image.fromarray(noise(in_height, in_width)), height, width)
        yield "crop", in_height, in_width, result


def main():
    default = Path(__file__).resolve().parent.parent / "tests" / "io" / "data"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    index, pixels = [], b""
    for name, data, expected, tolerance in image_cases():
        (images / name).write_bytes(data)
        index.append(f"{name} {expected.shape[0]} {expected.shape[1]} {tolerance}\n")
        pixels += np.ascontiguousarray(expected, dtype=np.uint8).tobytes()
    (images / "index.txt").write_text("".join(index))
    (images / "pixels.rgb").write_bytes(pixels)
    (folder / "resize.txt").write_text("".join(
        f"{kind} {in_height} {in_width} {result.shape[0]} {result.shape[1]} {fnv(result):016x}\n"
        for kind, in_height, in_width, result in resize_cases()))


if __name__ == "__main__":
    main()
