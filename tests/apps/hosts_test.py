#!/usr/bin/env python3
"""2 x 2 ranks on two hosts (bench/hosts.py) learn as one rank does, and send what they must.

Exits with 77 where the system or the user cannot make network namespaces.
"""

import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))
import host_layouts  # noqa: E402
import hosts  # noqa: E402
import runs  # noqa: E402

RANKS = 2
LAYOUTS = ("ZeRO-1, flat", "ZeRO-1, torus")
MOST_BESIDE = 0.05  # of what is sent: headers, losses, norms


def main(kinora):
    hosts.enter()
    with tempfile.TemporaryDirectory() as name:
        work = host_layouts.Study(pathlib.Path(name), kinora, RANKS, steps=8, hidden=128)
        wanted = work.losses_of_one_rank()
        with hosts.Hosts(host_layouts.HOSTS, rate=1e9, delay=1e-4) as cluster:
            for layout in host_layouts.layouts():
                if layout.name not in LAYOUTS:
                    continue
                run = work.train(cluster, layout)
                runs.check_losses(layout.name, run.losses, wanted, 1e-6)
                must = layout.sends(work.gradients(), work.block(), RANKS)
                print(f"{layout.name}: sent {run.sent:.0f} bytes a step, must send {must:.0f}")
                if not must <= run.sent <= (1 + MOST_BESIDE) * must:
                    raise hosts.HostsError(f"{layout.name} sends too much or too little")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except hosts.Unavailable as error:
        print(f"skipped: {error}")
        sys.exit(77)
