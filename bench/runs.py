"""What the benchmarks share that start kinora: commands, logs, losses."""

import json
import subprocess


class RunError(Exception):
    """What the user can mend."""


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunError(f"`{' '.join(command)}` failed:\n{done.stderr[-3000:]}")
    return done.stdout


def logged(run):
    """The lines of a run's log; none before it is there."""
    log = run / "log.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def check_losses(name, losses, wanted, tolerance):
    worst = max(abs(got - want) / want for got, want in zip(losses, wanted))
    if len(losses) != len(wanted) or worst > tolerance:
        raise RunError(f"{name}: losses differ from those of one rank by {worst:.1e}")
