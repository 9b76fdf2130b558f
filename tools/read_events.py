#!/usr/bin/env python3
"""Prints what the stock TensorBoard reads from the event files of a folder, as JSON.

    tools/read_events.py FOLDER

{"scalars": {tag: [[step, value], ...]}, "images": {tag: [[step, width, height, PNG bytes], ...]}}
"""

import json
import logging
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main():
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # purging is announced as a warning
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    tags = events.Tags()
    print(json.dumps({
        "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
        "images": {tag: [[e.step, e.width, e.height, len(e.encoded_image_string)]
                         for e in events.Images(tag)] for tag in tags["images"]},
    }))


if __name__ == "__main__":
    main()
