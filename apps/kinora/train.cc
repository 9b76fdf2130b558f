// kinora train CONFIG [key=value ...]

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>

#include "apps/kinora/commands.h"
#include "apps/kinora/ranks.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/comm/group.h"
#include "kinora/comm/link_speed.h"
#include "kinora/comm/self_check.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/parallel/bucket_groups.h"
#include "kinora/train/booster_options.h"
#include "kinora/train/trainer.h"

namespace kinora::apps {
namespace {

/// What to go on from: as the command line says, but after a restart from the newest checkpoint of
/// the run, if it has one.
train::Resume resume_of(const TrainArguments& arguments, const train::RunConfig& config,
                        const comm::World& world) {
  auto said = train::Resume::parse(arguments.resume);
  if (world.restart == 0) {
    return said;
  }
  const auto checkpoints =
      checkpoint::list_checkpoints(std::filesystem::path(config.run_dir) / "checkpoints");
  if (checkpoints.empty() && said.mode == train::Resume::Mode::kPath) {
    return said;
  }
  if (world.rank == 0) {
    log_info("[train] restart ", world.restart, ": going on as by --resume auto");
  }
  return {.mode = train::Resume::Mode::kAuto, .checkpoint = {}};
}

/// The ranks find each other fit to train together. Returns how fast they reduce and scatter.
comm::Link check_ranks(const comm::Group& group, at::Device device,
                       const train::RunConfig& config) {
  std::vector<comm::Fact> facts = comm::program_facts();
  facts.push_back({"configuration", dump_config(config), true});
  const comm::SelfCheck found = comm::self_check(group, facts);
  const std::vector<comm::OperationSpeed> speeds = comm::measure(group, device);
  const auto link_of = [&speeds](comm::Operation operation) {
    const auto speed = std::find_if(speeds.begin(), speeds.end(), [&](const auto& candidate) {
      return candidate.operation == operation;
    });
    return speed->link;
  };
  const comm::Link link = link_of(comm::Operation::kAllReduce);
  if (group.rank() == 0) {
    log_info("[train] self-check: ", group.size(), " ranks on ", found.num_hosts,
             found.num_hosts == 1 ? " host" : " hosts", ", with one program and configuration",
             found.num_hosts == 1 ? "" : "; clocks differ by " + human_duration(found.clock_offset),
             "; all-reduce at ", human_bytes(static_cast<int64_t>(link.bytes_per_s)),
             "/s a rank after ", std::lround(link.latency * 1e6), " us");
  }
  return link_of(comm::Operation::kReduceScatter);
}

/// parallel.bucket_mib of a run that leaves it open: that of the checkpoint to go on from, since
/// the norm of the gradients is summed by buckets, or as measured.
int64_t bucket_mib(const train::RunConfig& config, const train::Resume& resume,
                   const comm::Link& link, const comm::Group& group, at::Device device) {
  const bool measures = config.parallel.bucket_mib == 0 && group.size() > 1 && device.is_cuda() &&
                        !config.deterministic &&
                        train::zero_stage(config.plugin, config.parallel) < 3;
  if (!measures) {
    return config.parallel.bucket_mib;
  }
  std::filesystem::path from = resume.checkpoint;
  if (resume.mode == train::Resume::Mode::kAuto) {
    const auto own =
        checkpoint::list_checkpoints(std::filesystem::path(config.run_dir) / "checkpoints");
    from = own.empty() ? std::filesystem::path() : own.back();
  }
  int64_t mib = parallel::choose_bucket_mib(link, comm::Operation::kReduceScatter, group.size());
  if (const auto file = from / "config.yaml"; !from.empty() && std::filesystem::exists(file)) {
    mib = load_config<train::RunConfig>(file.string(), {}).parallel.bucket_mib;
  }
  if (group.rank() == 0) {
    log_info("[train] parallel.bucket_mib is ", mib,
             from.empty() ? ", as measured" : ", as in the checkpoint", " (reduce-scatter at ",
             human_bytes(static_cast<int64_t>(link.bytes_per_s)), "/s a rank after ",
             std::lround(link.latency * 1e6), " us)");
  }
  return mib;
}

int run_rank(const TrainArguments& arguments, train::RunConfig config, const comm::World& world) {
  std::optional<train::Trainer> trainer;  // outlives what ends the process after an error
  on_rank(world, config.train.device, [&](const comm::Group& group, at::Device device) {
    const train::Resume resume = resume_of(arguments, config, world);
    if (world.size > 1) {
      const comm::Link link = check_ranks(group, device, config);
      config.parallel.bucket_mib = bucket_mib(config, resume, link, group, device);
    }
    const StopSignal stop;
    trainer.emplace(config, resume, group);
    trainer->run(&stop);
  });
  return 0;
}

}  // namespace

int run(const TrainArguments& arguments) {
  if (arguments.help_config) {
    std::cout << help_config<train::RunConfig>();
    return 0;
  }
  const auto config = load_config<train::RunConfig>(arguments.config, arguments.overrides);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  return world ? run_rank(arguments, config, *world)
               : launch(arguments.ranks, config.train.device, AtStop::kSave);
}

}  // namespace kinora::apps
