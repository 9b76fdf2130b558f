#!/usr/bin/env python3
"""Runs a command as on several hosts, which are network namespaces of this machine.

    sudo python3 bench/hosts.py --hosts 2 --ranks 2 --rate 200 --delay 0.2 -- \\
        build/kinora train RECIPE parallel.plugin=zero1

starts 2 x 2 ranks. Each host has its own network, host name and processes. It reaches the others
by one link of --rate megabits per second in each direction and --delay milliseconds, which its
ranks share; inside of a host the loopback is as fast as ever. At the end, whatever it was, the
hosts are gone, and the last line says how many bytes each has sent.

A link is a TUN device: tc's tbf limits its rate, and a thread of this process carries the packets
from host to host, late by the delay. Needs Linux, iproute2 and util-linux; root, or a system that
lets users make namespaces and open /dev/net/tun.
"""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

import runs

MTU = 9000  # bytes, that of a data centre: fewer packets for the relay
BURST = 2 * MTU
PORT = 29500
DEVICE = "link0"
INSIDE = "KINORA_INSIDE_HOSTS"  # set once this process has namespaces of its own
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
LAUNCHERS = ("own", "torchrun", "slurm")


class HostsError(runs.RunError):
    """Of the hosts."""


class Unavailable(HostsError):
    """This system, or user, cannot have hosts."""


def address(host):
    return f"10.77.0.{host + 1}"


def name(host):
    return f"host{host}"


def enter():
    """Starts this program again in namespaces of its own, so that nothing outside is changed."""
    if INSIDE in os.environ:
        return
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # of ip and tc, which users' paths may lack
    for tool in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(tool) is None:
            raise Unavailable(f"there is no {tool}. Hint: install util-linux and iproute2")
    flags = ["--net", "--mount"]
    if os.geteuid() != 0:
        flags = ["--user", "--map-root-user", *flags]
    probe = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise Unavailable(f"namespaces are refused: {probe.stderr.strip()}. Hint: run it as root")
    command = ["unshare", *flags, sys.executable, *sys.argv]
    os.execvpe("unshare", command, {**os.environ, INSIDE: "1"})


def open_tun(device):
    """A TUN device, and the file of its packets."""
    try:
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise Unavailable(f"/dev/net/tun: {error.strerror}. Hint: run it as root, on a kernel with "
                          "CONFIG_TUN") from error
    return tun


class Relay(threading.Thread):
    """Carries packets between the hosts' devices; each arrives `delay` seconds late."""

    def __init__(self, tuns, delay):
        super().__init__(daemon=True)
        self.tuns = tuns
        self.delay = delay
        self.wake, self.stopped = os.pipe()

    def stop(self):
        os.close(self.stopped)
        self.join()
        os.close(self.wake)

    def run(self):
        with contextlib.suppress(PermissionError):  # before the ranks, where that is allowed
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        way = collections.deque()  # (when it arrives, device, packet), in order
        plugged = [*self.tuns]
        while True:
            left = max(0.0, way[0][0] - time.monotonic()) if way else None
            ready = select.select([self.wake, *plugged], [], [], left)[0]
            if self.wake in ready:
                return
            now = time.monotonic()
            for tun in ready:
                try:
                    while True:
                        packet = os.read(tun, 65536)
                        host = packet[19] - 1  # the last byte of IPv4's destination
                        if packet[0] >> 4 == 4 and host < len(self.tuns):
                            way.append((now + self.delay, self.tuns[host], packet))
                except BlockingIOError:
                    pass
                except OSError:  # somebody has taken the device down
                    plugged.remove(tun)
            while way and way[0][0] <= time.monotonic():
                _, tun, packet = way.popleft()
                with contextlib.suppress(OSError):  # the host is gone, or its queue is full
                    os.write(tun, packet)


class Hosts:
    """`count` hosts that exist inside a `with`. `rate` in bits and `delay` in seconds."""

    def __init__(self, count, rate, delay):
        self.count, self.rate, self.delay = count, rate, delay
        self.stack = contextlib.ExitStack()
        self.inits = []  # [host]: the first process, with which all others of it end

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            tuns = []
            for host in range(self.count):
                self.inits.append(self._boot(stack, host, self._names(folder, host)))
                tuns.append(self._plug(stack, host))
            relay = Relay(tuns, self.delay)
            relay.start()
            stack.callback(relay.stop)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self.inits.clear()
        self.stack.close()

    def _names(self, folder, host):
        """Its /etc/hosts. As on Debian a host's own name is an address that others cannot reach."""
        file = folder / name(host)
        addresses = ["127.0.1.1" if other == host else address(other)
                     for other in range(self.count)]
        file.write_text("127.0.0.1 localhost\n" + "".join(
            f"{number} {name(other)}\n" for other, number in enumerate(addresses)))
        return file

    def _boot(self, stack, host, names):
        script = (f"hostname {name(host)} && mount --bind {names} /etc/hosts && ip link set lo up "
                  "&& echo up && exec sleep infinity")
        process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "--kill-child",
             "--mount-proc", "sh", "-c", script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        stack.callback(end, process)
        if process.stdout.readline() != "up\n":
            raise Unavailable(f"{name(host)} does not start: {process.stderr.read().strip()}")
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
        return int(children.read_text().split()[0])

    def _plug(self, stack, host):
        outside = f"kinora{host}"
        tun = open_tun(outside)
        stack.callback(os.close, tun)
        setup(["ip", "link", "set", outside, "netns", str(self.inits[host])])
        for line in (f"ip link set {outside} name {DEVICE}",
                     f"ip address add {address(host)}/24 dev {DEVICE}",
                     f"ip link set {DEVICE} mtu {MTU} up",
                     f"tc qdisc add dev {DEVICE} root tbf rate {self.rate:.0f}bit burst {BURST} "
                     "latency 100ms"):
            setup(["nsenter", "--target", str(self.inits[host]), "--net", *line.split()])
        return tun

    def start(self, host, command, variables=None, **options):
        """A process on that host, in this folder."""
        inside = ["nsenter", "--target", str(self.inits[host]), "--net", "--uts", "--pid",
                  "--mount", "env", "--chdir", os.getcwd()]
        inside += [f"{key}={value}" for key, value in (variables or {}).items()]
        return subprocess.Popen([*inside, *command], **options)

    def run(self, commands, **options):
        """All (host, command, variables) at once, until all have ended. Returns the exit code of
        the first in the list that failed, else 0."""
        processes = [self.start(*command, **options) for command in commands]
        try:
            codes = [process.wait() for process in processes]
        finally:
            for process in processes:
                end(process)
        return next((code for code in codes if code != 0), 0)

    def sent(self):
        """[host]: bytes that it has sent to the others so far, headers of IP and TCP included."""
        return [self._sent(init) for init in self.inits]

    @staticmethod
    def _sent(init):
        for line in pathlib.Path(f"/proc/{init}/net/dev").read_text().splitlines():
            device, _, counters = line.partition(":")
            if device.strip() == DEVICE:
                return int(counters.split()[8])
        raise HostsError(f"{DEVICE} has no counters")


def setup(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def end(process):
    """What it has started in a host may go on until that ends."""
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def launched(command, launcher, hosts, ranks, apart=False):
    """(host, command, variables) of all processes to start for hosts x ranks.

    apart: each rank believes to be a host of its own, so that nothing is exchanged in two levels.
    """
    place = f"{address(0)}:{PORT}"
    if launcher == "own":
        per_host = 1 if apart else ranks
        nodes = hosts * ranks // per_host
        return [(node * per_host // ranks,
                 [*command, "--ranks", str(per_host), "--nodes", str(nodes), "--node-rank",
                  str(node), "--rendezvous", place], {}) for node in range(nodes)]
    if apart:
        raise HostsError("--apart is for our own launcher")
    if launcher == "torchrun":
        return [(host, ["torchrun", "--no-python", "--nnodes", str(hosts), "--nproc-per-node",
                        str(ranks), "--node-rank", str(host), "--master-addr", address(0),
                        "--master-port", str(PORT), *command], {}) for host in range(hosts)]
    processes = []
    for rank in range(hosts * ranks):
        processes.append((rank // ranks, command, {
            "SLURM_PROCID": rank, "SLURM_NTASKS": hosts * ranks, "SLURM_LOCALID": rank % ranks,
            "SLURM_STEP_TASKS_PER_NODE": f"{ranks}(x{hosts})",
            "SLURM_STEP_NODELIST": f"host[0-{hosts - 1}]", "SLURM_JOB_ID": 1}))
    return processes


def add_link(parser):
    parser.add_argument("--rate", type=float, default=200.0, help="megabits per second (200)")
    parser.add_argument("--delay", type=float, default=0.2, help="milliseconds one way (0.2)")


def stop_on_signals():
    """So that SIGTERM ends the hosts, too."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def main():
    parser = argparse.ArgumentParser(
        description="Run a command as on several hosts, which are network namespaces.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host (2)")
    add_link(parser)
    parser.add_argument("--launcher", choices=LAUNCHERS, default="own")
    parser.add_argument("--apart", action="store_true",
                        help="each rank believes to be a host of its own: flat collectives")
    parser.add_argument("command", nargs="+", help="behind --")
    arguments = parser.parse_args()
    enter()
    stop_on_signals()
    with Hosts(arguments.hosts, arguments.rate * 1e6, arguments.delay * 1e-3) as hosts:
        code = hosts.run(launched(arguments.command, arguments.launcher, arguments.hosts,
                                  arguments.ranks, arguments.apart))
        print(json.dumps({"sent": hosts.sent()}), flush=True)
    return code


def run_main(main):
    try:
        sys.exit(main())
    except runs.RunError as error:
        print(f"error: [hosts] {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run_main(main)
