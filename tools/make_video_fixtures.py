"""Writes tests/io/data/videos: small video files of odd kinds for kinora/io/video.h.

Wants the packages av (PyAV 18), pillow and numpy: python3 tools/make_video_fixtures.py

Every frame says its number: six blocks along its upper half are its binary digits, the highest at
the left, white for 1. The lower half is red at the left and blue at the right. PyAV, which brings
an FFmpeg of its own, reads every file back here.
"""

import fractions
import pathlib
import struct

import av
import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "io" / "data" / "videos"


def draw(number, width=72, height=48):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 2 :, : width // 2] = (230, 20, 20)
    pixels[height // 2 :, width // 2 :] = (20, 20, 230)
    for digit in range(6):
        white = number >> (5 - digit) & 1
        pixels[: height // 2, digit * width // 6 : (digit + 1) * width // 6] = 235 if white else 20
    return pixels


def number_of(pixels):
    height, width = pixels.shape[:2]
    number = 0
    for digit in range(6):
        number = 2 * number + int(pixels[height // 4, (2 * digit + 1) * width // 12, 1] > 128)
    return number


def write(name, codec, count, *, times=None, options=None, container=None, pix_fmt="yuv420p",
          size=(72, 48), rate=25, full_range=False):
    """Frame k is shown at times[k] / 1000 s, or at k / rate."""
    with av.open(str(FOLDER / name), "w", options=container or {}) as output:
        stream = output.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        if times is not None:
            stream.codec_context.time_base = fractions.Fraction(1, 1000)
        if full_range:
            stream.codec_context.color_range = 2
            stream.codec_context.colorspace = 1
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(draw(number, *size), format="rgb24")
            if full_range:
                frame = frame.reformat(format=pix_fmt, dst_colorspace="ITU709", dst_color_range="JPEG")
            else:
                frame = frame.reformat(format=pix_fmt)
            if times is not None:
                frame.pts = times[number]
                frame.time_base = fractions.Fraction(1, 1000)
            for packet in stream.encode(frame):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)


def shown(name):
    with av.open(str(FOLDER / name)) as source:
        return [number_of(frame.to_ndarray(format="rgb24")) for frame in source.decode(video=0)]


def turn(name, matrix):
    """Puts `matrix` (a b c d, of (x, y) -> (a x + c y, b x + d y)) into the track header."""
    path = FOLDER / name
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 4 + 40
    a, b, c, d = (value * 65536 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)


def write_gif(name, count):
    """Frames that only hold what changes, over those before, with times of their own."""
    frames = [Image.fromarray(draw(number)) for number in range(count)]
    frames[0].save(FOLDER / name, save_all=True, append_images=frames[1:], optimize=True, loop=0,
                   duration=[40 + 20 * (number % 3) for number in range(count)])


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    x264 = {"preset": "slow", "crf": "30"}
    closed = x264 | {"x264-params": "keyint=12:min-keyint=12:scenecut=0:bframes=3:b-pyramid=normal"}
    opened = x264 | {"x264-params": "keyint=10:min-keyint=10:scenecut=0:bframes=3:open-gop=1"}
    write("bframes.mp4", "libx264", 40, options=closed)
    write("fast_start.mp4", "libx264", 20, options=closed, container={"movflags": "faststart"})
    write("fragmented.mp4", "libx264", 30, options=closed,
          container={"movflags": "frag_keyframe+empty_moov"})
    write("open_gop.mkv", "libx264", 40, options=opened)
    uneven = [0]
    for number in range(1, 30):
        uneven.append(uneven[-1] + 10 + 17 * number % 90)
    write("uneven.mp4", "libx264", 30, options=closed, times=uneven)
    write("uneven.mkv", "libx264", 30, options=closed, times=uneven)
    # The first 7 frames lie before time 0: an edit list cuts them off.
    write("edit_list.mp4", "libx264", 30, options=closed,
          times=[40 * (number - 7) for number in range(30)], container={"use_editlist": "1"})
    write("turned.mp4", "libx264", 5, options=closed)
    turn("turned.mp4", (0, 1, -1, 0))  # as phones held upright: a quarter turn to the right
    write("one.mp4", "libx264", 1, options=x264)
    write("odd.mp4", "libx264", 6, options=x264, pix_fmt="yuv444p", size=(73, 47))
    write("full_range.mp4", "libx264", 3, options=x264, full_range=True)
    write("hevc.mp4", "libx265", 30,
          options={"crf": "32", "x265-params": "keyint=10:min-keyint=10:scenecut=0:log-level=0"})
    write("hidden.webm", "libvpx", 40, options={
        "auto-alt-ref": "1", "lag-in-frames": "12", "g": "15", "crf": "30", "b": "100k"})
    write("vp9.webm", "libvpx-vp9", 30, options={"g": "12", "crf": "45", "b": "0"})
    write("no_times.avi", "mpeg4", 30, options={"g": "10", "bf": "2", "qscale": "12"})
    write("still.avi", "mjpeg", 8, pix_fmt="yuvj422p", size=(36, 24), options={"qscale": "8"})
    write_gif("parts.gif", 20)

    expected = {"edit_list.mp4": list(range(7, 30))}
    for path in sorted(FOLDER.iterdir()):
        numbers = shown(path.name)
        if path.name == "turned.mp4":  # PyAV leaves the turn to its user
            assert numbers == list(range(5))
        want = expected.get(path.name, list(range(len(numbers))))
        print(path.name, path.stat().st_size, len(numbers), "" if numbers == want else numbers)


if __name__ == "__main__":
    main()
