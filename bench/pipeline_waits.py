#!/usr/bin/env python3
"""How much of a step the ranks of a pipeline wait, by schedule, beside the schedule's formula.

    python3 bench/pipeline_waits.py build/kinora --stages 4 --micro-batches 8

trains a DiT of equal blocks on CPU ranks of one thread each, first on one rank, then with its blocks
divided by each schedule. Of a step it prints the share in which ranks wait, of the rank that waits
least, of the median and of the one that waits most (log.jsonl: communication_s_min, ...). With P
stages and M micro-batches the formula of 1F1B is (P - 1) / (M + P - 1). In that of ZB-H1 a
micro-batch on a stage takes F forward, B for gradients of tokens and W for those of weights:
x / (M (F + B + W) + x) with x = (P - 1) (F + B - W). W is what one rank's step takes less where the
blocks' weights are frozen. Losses must be those of one rank.

Each rank has its own share of the cores. Ranks wait for a slower core, too, which the formula does
not know. So a second one takes what each rank computes in a step, from the same log: the busiest one
waits for the first and last micro-batches of the others, x = (sum of the others') / M of 1F1B and
(F + B - W) / (F + B + W) of that of ZB-H1. It is to be held against the rank that waits least. (The log has
the sum for four stages at most; for more, those between count as the median.)
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

import runs

RECIPE = """
model: {{depth: {depth}, hidden: {hidden}, heads: 8, patch: 2, path: fast}}
data: {{source: shapes, height: {side}, width: {side}, count: 256, threads: 1}}
train:
  {{steps: {steps}, global_batch: {batch}, micro_batch: 1, threads: 1, device: cpu, precision: fp32, log_every: 2}}
checkpoint: {{every: 1000}}
"""
WARMUP = 2  # steps


def run_ranks(command, num_ranks):
    """Runs the command as so many ranks, each on its own share of the cores."""
    cores = sorted(os.sched_getaffinity(0))
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(num_ranks):
        share = cores[rank * len(cores) // num_ranks:(rank + 1) * len(cores) // num_ranks] or cores
        environment = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks,
            "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        ranks.append(subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, share)), *command],
            env=os.environ | {name: str(value) for name, value in environment.items()},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate()[1] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        raise runs.RunError(f"`{' '.join(command)}` failed:\n{''.join(said)[-3000:]}")


def train(arguments, folder, name, overrides, num_ranks=1):
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(
        depth=arguments.stages * arguments.blocks, hidden=arguments.hidden, side=arguments.side,
        steps=WARMUP + arguments.steps, batch=arguments.micro_batches))
    run = folder / name
    run_ranks([arguments.kinora, "train", str(recipe), f"run.dir={run}", *overrides], num_ranks)
    return runs.logged(run)


def seconds_of(lines):
    return statistics.mean(line["step_s"] for line in lines[WARMUP:])


def main():
    parser = argparse.ArgumentParser(description="How much the ranks of a pipeline wait.")
    parser.add_argument("kinora", help="the program")
    parser.add_argument("--stages", type=int, default=4, help="ranks (4)")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a step (8)")
    parser.add_argument("--steps", type=int, default=6, help="timed ones (6)")
    parser.add_argument("--blocks", type=int, default=2, help="of each stage (2)")
    parser.add_argument("--hidden", type=int, default=512, help="width of the DiT (512)")
    parser.add_argument("--side", type=int, default=32, help="of the pictures, in pixels (32)")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps must be 3 at least: times of all ranks come a step or two later")
    stages, micro_batches = arguments.stages, arguments.micro_batches
    if len(os.sched_getaffinity(0)) < stages:
        print(f"fewer cores than {stages} stages: what follows says little", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        alone = train(arguments, folder, "alone", [])
        one = seconds_of(alone)
        weights = one - seconds_of(train(arguments, folder, "frozen", ["finetune.freeze=[blocks.*]"]))
        print(f"{stages} stages of {arguments.blocks} blocks, {micro_batches} micro-batches; "
              f"one rank takes {one * 1e3:.0f} ms, {weights * 1e3:.0f} of them for the weights of blocks")
        print("| schedule | ms | of one rank's / stages | waits, %: least, median, most | formula, % "
              "| for each rank's time, % |")
        print("|---|---|---|---|---|---|")
        for schedule, waits_each in (("1f1b", 1), ("zero_bubble", 1 - 2 * weights / one)):
            lines = train(arguments, folder, schedule,
                          [f"parallel.pipeline={stages}", f"parallel.pipeline_schedule={schedule}"],
                          stages)
            runs.check_losses(schedule, [line["loss"] for line in lines],
                              [line["loss"] for line in alone], 1e-5)
            step = seconds_of(lines)
            spread = [line for line in lines if line.get("ranks_step", 0) > WARMUP]
            least, median, most = (
                statistics.mean(line[f"communication_s_{of}"] for line in spread) / step
                for of in ("min", "median", "max"))
            waits_all = (stages - 1) * waits_each
            formula = waits_all / (micro_batches + waits_all)
            others = 1 - most + (stages - 2) * (1 - median)
            waits_busiest = others * waits_each / micro_batches
            own_formula = waits_busiest / (1 - least + waits_busiest)
            print(f"| {schedule} | {step * 1e3:.0f} | {100 * one / stages / step:.1f} % | "
                  f"{100 * least:.1f}, {100 * median:.1f}, {100 * most:.1f} | {100 * formula:.1f} | "
                  f"{100 * own_formula:.1f} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except runs.RunError as error:
        sys.exit(f"error: {error}")
