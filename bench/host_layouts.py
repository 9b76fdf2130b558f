#!/usr/bin/env python3
"""What layouts of ranks cost over a slow link between hosts: measured, and by `bench simulate`.

    sudo python3 bench/host_layouts.py build/kinora --ranks 2 --rate 100 --delay 0.2

trains a small DiT on the CPUs of two hosts (hosts.py), in one layout after the other. Of each it
prints the median step, the share of it in which ranks wait for each other, the bytes that a host
sends in a step beside those that it must send, and the step that `kinora bench simulate` predicts.
A prediction knows the link, as two programs measure it that only send, and how long a step computes
where the link has no limit. Losses must be those of one rank.

All ranks share this machine's cores, so choose a link so slow that it decides.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import hosts as hosts_of
import runs

HOSTS = 2
DEPTH, BATCH = 4, 16
RECIPE = """
model: {{depth: {depth}, hidden: {hidden}, heads: 4, patch: 4}}
data: {{source: shapes, height: 16, width: 16, count: 256, threads: 1}}
train: {{steps: {steps}, global_batch: {batch}, threads: 1, device: cpu, precision: fp32}}
checkpoint: {{every: 1000}}
"""
FREE = 100e9  # bits per second of a link that costs nothing
WARMUP = 3  # steps
FP8 = (1 + 4 / 128) / 4  # bytes of comm/quantised.h for one of fp32
FAR = (HOSTS - 1) / HOSTS  # of a whole that all hosts divide, what one does not have

# Two processes: bytes per second of a stream, and seconds of a message there and back.
PEER = """
import socket, sys, time
count = 1 << 23
if sys.argv[1] == "server":
    listening = socket.create_server(("", 29600))
    print("up", flush=True)
    peer = listening.accept()[0]
else:
    peer = socket.create_connection((sys.argv[2], 29600))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def receive(left):
    while left > 0:
        left -= len(peer.recv(min(left, 1 << 20)))
times = []
for _ in range(50):
    start = time.monotonic()
    if sys.argv[1] == "client":
        peer.sendall(b"x")
    receive(1)
    if sys.argv[1] == "server":
        peer.sendall(b"x")
    times.append(time.monotonic() - start)
start = time.monotonic()
if sys.argv[1] == "client":
    peer.sendall(b"x" * count)
    receive(1)
    print(sorted(times)[25] / 2, count / (time.monotonic() - start))
else:
    receive(count)
    peer.sendall(b"x")
"""


@dataclasses.dataclass
class Layout:
    name: str
    overrides: list
    sends: callable  # bytes of a host a step, of (bytes of gradients, of a block's, its ranks)
    simulate: list = None  # options of `bench simulate`; None: it does not know the layout
    apart: bool = False  # ranks do not know which of them share a host
    like: str = ""  # the layout from which it differs by quantising alone
    computes_alike: bool = True  # as data parallelism does
    tolerance: float = 1e-5  # of losses, as a share


@dataclasses.dataclass
class Run:
    step: float  # seconds, median
    computing: float  # of it, while nothing of other ranks is waited for
    sent: float  # bytes a step of the host that sends most
    losses: list


def layouts():
    def gather(size, ranks):  # a ring through all ranks
        return size * (HOSTS * ranks - 1) / (HOSTS * ranks)

    def flat(size, block, ranks):  # and gradients from each rank to each
        return ranks * FAR * size + gather(size, ranks)

    def torus(size, block, ranks):
        return 2 * FAR * size

    def zero3(size, block, ranks):  # backward finds the last two blocks from forward
        return 2 * FAR * size + FAR * (DEPTH - 2) * block

    def tensor(size, block, ranks):  # of a pair each has half of the blocks, and all else
        divided = 1.5 * DEPTH * block  # with adaLN's linears, of half the size
        return 2 * FAR * (divided + 2 * (size - divided))

    return [
        Layout("ddp", ["parallel.plugin=ddp"], flat,
               ["--zero-stage", "0", "--route", "gloo"]),
        Layout("ZeRO-1, flat", ["parallel.plugin=zero1"], flat,
               ["--zero-stage", "1", "--route", "gloo"], apart=True),
        Layout("ZeRO-1, torus", ["parallel.plugin=zero1"], torus, ["--zero-stage", "1"]),
        Layout("ZeRO-1, torus, fp8 across", ["parallel.plugin=zero1", "parallel.fp8_across=true"],
               lambda size, block, ranks: FAR * size * (FP8 + 1), ["--zero-stage", "1"],
               like="ZeRO-1, torus", tolerance=1e-3),
        Layout("ZeRO-1 in each host", ["parallel.plugin=zero1", f"parallel.replicate={HOSTS}"],
               torus, ["--zero-stage", "1"]),
        Layout("ZeRO-2, torus", ["parallel.plugin=zero2"], torus, ["--zero-stage", "2"]),
        Layout("ZeRO-3, torus", ["parallel.plugin=zero3"], zero3, ["--zero-stage", "3"]),
        Layout("ZeRO-3 in each host", ["parallel.plugin=zero3", f"parallel.replicate={HOSTS}"],
               torus, ["--zero-stage", "3"]),
        Layout("tensor inside, ZeRO-1 across", ["parallel.tensor=2", "parallel.zero_stage=1"],
               tensor, ["--zero-stage", "1"], computes_alike=False),
        Layout("pipeline across, ZeRO-1 inside", ["parallel.pipeline=2", "parallel.zero_stage=1"],
               None, computes_alike=False),
    ]


def num_logged(run):
    """Steps in the log of a run, whose last line may be half written."""
    log = run / "log.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


class Study:
    """Runs of one recipe, in a folder for its files."""

    def __init__(self, folder, kinora, ranks, steps, hidden):
        self.folder, self.kinora, self.ranks = folder, kinora, ranks
        self.steps, self.hidden = steps, hidden

    def recipe(self, steps, batch):
        file = self.folder / f"{steps}-{batch}.yaml"
        file.write_text(RECIPE.format(depth=DEPTH, hidden=self.hidden, steps=steps, batch=batch))
        return str(file)

    def block(self):
        """Bytes of a block's linears but adaLN's in fp32."""
        return 4 * (12 * self.hidden**2 + 9 * self.hidden)

    def train(self, cluster, layout, launcher="own"):
        run = self.folder / "run"
        command = [self.kinora, "train", self.recipe(self.steps, BATCH), f"run.dir={run}",
                   *layout.overrides]
        errors = self.folder / "errors"
        sent = {}  # by number of logged steps, of the busiest host
        with errors.open("w") as log:
            processes = [cluster.start(*process, stdout=subprocess.DEVNULL, stderr=log)
                         for process in hosts_of.launched(command, launcher, HOSTS, self.ranks,
                                                          layout.apart)]
            try:
                while any(process.poll() is None for process in processes):
                    sent.setdefault(num_logged(run), max(cluster.sent()))
                    time.sleep(0.002)
            finally:
                for process in processes:
                    hosts_of.end(process)
        if any(process.returncode != 0 for process in processes):
            raise hosts_of.HostsError(f"{layout.name}:\n{errors.read_text()[-3000:]}")
        lines = runs.logged(run)
        shutil.rmtree(run)
        timed = lines[WARMUP:]
        counted = sorted(count for count in sent if WARMUP <= count <= self.steps)
        first, last = counted[0], counted[-1]
        return Run(statistics.median(line["step_s"] for line in timed),
                   statistics.median(line["step_s"] - line["communication_s"] for line in timed),
                   (sent[last] - sent[first]) / (last - first), [line["loss"] for line in lines])

    def losses_of_one_rank(self):
        run = self.folder / "one"
        runs.output_of([self.kinora, "train", self.recipe(self.steps, BATCH), f"run.dir={run}"])
        return [line["loss"] for line in runs.logged(run)]

    def inside(self, cluster):
        """Seconds and bytes per second of collectives of a host's ranks."""
        run = self.folder / "inside"
        process = cluster.start(
            0, [self.kinora, "train", self.recipe(1, BATCH), f"run.dir={run}", "--ranks",
                str(self.ranks)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True)
        text = process.communicate()[1]
        found = re.search(r"all-reduce at ([\d.]+) ([KMG])iB/s a rank(?: after ([\d.]+) (us|ms))?",
                          text)
        if found is None:
            raise hosts_of.HostsError(f"the ranks of a host do not start:\n{text[-3000:]}")
        speed = float(found[1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[found[2]]
        return float(found[3] or 0) * {"us": 1e-6, "ms": 1e-3, None: 0}[found[4]], speed

    def gradients(self):
        """Bytes of all of them."""
        return self.predict(layouts()[0], (0, 1e9), (0, 1e9), 1.0)[1]

    def predict(self, layout, inside, across, computing, quantised=None):
        """Seconds of a step, and the bytes of gradients on which that rests."""
        models = HOSTS * self.ranks // (1 if layout.computes_alike else 2)
        recipe = self.recipe(self.steps, BATCH // models)  # the samples of one model
        command = [self.kinora, "bench", "simulate", recipe, "run.dir=unused", "--json",
                   "--nodes", str(HOSTS), "--gpus-per-node", str(self.ranks),
                   "--ranks-per-link", str(self.ranks), "--step-seconds", str(computing),
                   "--inside", ",".join(map(str, inside)),
                   "--across", ",".join(map(str, across)), *layout.simulate,
                   *(["--quantised", str(quantised)] if quantised else []),
                   *(key for key in layout.overrides if "zero" not in key and "plugin" not in key)]
        facts = json.loads(runs.output_of(command))
        gradients = next(each["value"] for each in facts["inputs"] if each["name"] == "gradients")
        return facts["rows"][-1]["ms"] * 1e-3, gradients


def measure_link(cluster):
    server = cluster.start(0, [sys.executable, "-c", PEER, "server"], stdout=subprocess.PIPE)
    server.stdout.readline()
    client = cluster.start(1, [sys.executable, "-c", PEER, "client", hosts_of.address(0)],
                           stdout=subprocess.PIPE, text=True)
    text = client.communicate()[0]
    hosts_of.end(server)
    return tuple(float(number) for number in text.split())


def study(arguments, folder):
    link = (arguments.rate * 1e6, arguments.delay * 1e-3)
    work = Study(folder, arguments.kinora, arguments.ranks, arguments.steps, arguments.hidden)
    wanted = work.losses_of_one_rank()
    chosen = [layout for layout in layouts() if arguments.only in layout.name]
    size = work.gradients()
    by_name = {layout.name: layout for layout in layouts()}
    computing, quantised = {}, {}
    with hosts_of.Hosts(HOSTS, FREE, 0) as cluster:
        inside = work.inside(cluster)
        alike = work.train(cluster, layouts()[0]).computing
        for layout in chosen:
            if not layout.computes_alike:
                computing[layout.name] = work.train(cluster, layout).computing
            if layout.like:
                longer = (work.train(cluster, layout).step
                          - work.train(cluster, by_name[layout.like]).step)
                quantised[layout.name] = size / arguments.ranks / longer
    with hosts_of.Hosts(HOSTS, *link) as cluster:
        across = measure_link(cluster)
        print(f"{HOSTS} x {arguments.ranks} ranks; link {across[1] / 1e6:.2f} MB/s after "
              f"{across[0] * 1e6:.0f} us; inside {inside[1] / 1e6:.0f} MB/s after "
              f"{inside[0] * 1e6:.0f} us; a step computes {alike * 1e3:.0f} ms")
        print("| layout | ms | waits, % | sent, MB | must send | predicted, ms | error, % |")
        print("|---|---|---|---|---|---|---|")
        for layout in chosen:
            run = work.train(cluster, layout)
            runs.check_losses(layout.name, run.losses, wanted, layout.tolerance)
            must = ""
            if layout.sends:
                must = f"{layout.sends(size, work.block(), arguments.ranks) / 1e6:.2f}"
            predicted, error = "", ""
            if layout.simulate:
                seconds = work.predict(layout, inside, across,
                                       computing.get(layout.name, alike),
                                       quantised.get(layout.name))[0]
                predicted = f"{seconds * 1e3:.0f}"
                error = f"{100 * (seconds / run.step - 1):+.1f}"
            print(f"| {layout.name} | {run.step * 1e3:.0f} | "
                  f"{100 * (1 - run.computing / run.step):.0f} | {run.sent / 1e6:.2f} | {must} | "
                  f"{predicted} | {error} |", flush=True)
        torus = by_name["ZeRO-1, torus"]
        for launcher in filter(None, arguments.launchers.split(",")):
            run = work.train(cluster, torus, launcher)
            runs.check_losses(launcher, run.losses, wanted, torus.tolerance)
            print(f"{torus.name} under {launcher}: {run.step * 1e3:.0f} ms, "
                  f"{run.sent / 1e6:.2f} MB, losses those of one rank", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Layouts of ranks over a slow link.")
    parser.add_argument("kinora", help="the program")
    parser.add_argument("--ranks", type=int, default=2, help="on each of two hosts (2)")
    parser.add_argument("--steps", type=int, default=12, help="of each layout (12)")
    parser.add_argument("--hidden", type=int, default=256, help="width of the DiT (256)")
    parser.add_argument("--only", default="", help="layouts whose names have this in them")
    parser.add_argument("--launchers", default="own,torchrun,slurm",
                        help="under which one layout is tried (own,torchrun,slurm)")
    hosts_of.add_link(parser)
    arguments = parser.parse_args()
    hosts_of.enter()
    hosts_of.stop_on_signals()
    with tempfile.TemporaryDirectory() as folder:
        study(arguments, pathlib.Path(folder))
    return 0


if __name__ == "__main__":
    hosts_of.run_main(main)
