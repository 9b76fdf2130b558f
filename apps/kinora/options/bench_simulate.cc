#include <CLI/CLI.hpp>

#include <memory>

#include "apps/kinora/options/command.h"
#include "apps/kinora/options/numbers.h"

namespace kinora::apps {

void add_bench_simulate(CLI::App& bench, Chosen& chosen) {
  auto arguments = std::make_shared<SimulateArguments>();
  CLI::App* command = bench.add_subcommand(
      "simulate", "Predict the training step on 1 to N nodes from the speed of GPUs and links.");
  command->add_option("config", arguments->config, "The recipe, with the batch of one GPU")
      ->required();
  command->add_option("overrides", arguments->overrides, "key.path=value, each over the recipe");
  command->add_option("--gpus-per-node", arguments->gpus_per_node, "GPUs a node")
      ->check(whole(1, kMany))
      ->capture_default_str();
  command->add_option("--nodes", arguments->nodes, "The largest number of nodes")
      ->check(whole(1, kMany))
      ->capture_default_str();
  command
      ->add_option("--step-seconds", arguments->step_seconds,
                   "Seconds of a step of one GPU alone; default: measured here")
      ->check(above_zero());
  command
      ->add_option("--update-seconds", arguments->update_seconds,
                   "Of it, the optimizer's update, which ZeRO divides by the GPUs")
      ->check(real(0.0));
  command
      ->add_option("--inside", arguments->inside,
                   "Latency and bandwidth of the link inside a node: seconds,bytes/s")
      ->delimiter(',')
      ->expected(2);
  command->add_option("--across", arguments->across, "Likewise of the link across nodes")
      ->delimiter(',')
      ->expected(2);
  command
      ->add_option("--ranks-per-link", arguments->ranks_per_link,
                   "GPUs of a node that share one link across: 1, or all where it has one link")
      ->check(whole(1, kMany))
      ->capture_default_str();
  command
      ->add_option("--route", arguments->route,
                   "How collectives cross nodes: torus (in two levels), ring (flat, around all "
                   "GPUs), gloo (flat, as CPUs without hosts of several ranks do)")
      ->check(CLI::IsMember({"torus", "ring", "gloo"}))
      ->capture_default_str();
  command
      ->add_option("--quantised", arguments->quantised,
                   "With parallel.fp8_across: bytes/s of numbers that a GPU quantises, and makes "
                   "numbers again; default: that takes no time")
      ->check(above_zero());
  command->add_option("--zero-stage", arguments->zero_stage, "0 (all-reduce), 1, 2 or 3")
      ->check(whole(0, 3));
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &chosen] { chosen = *arguments; });
}

}  // namespace kinora::apps
