#include "kinora/train/rank_agreement.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "kinora/checkpoint/step_folders.h"
#include "kinora/comm/self_check.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/inference/setup.h"
#include "kinora/parallel/bucket_groups.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

/// "996 MiB/s a rank after 435 us". On a busy machine larger messages may take no longer, and then
/// a rate cannot be told.
std::string speed_text(const comm::Link& link) {
  const std::string rate = std::isfinite(link.bytes_per_s)
                               ? human_bytes(static_cast<int64_t>(link.bytes_per_s)) + "/s a rank"
                               : "a rate too high to measure";
  return rate + " after " + std::to_string(std::lround(link.latency * 1e6)) + " us";
}

bool leaves_buckets_open(const RunConfig& config, int64_t ranks, at::Device device) {
  return config.parallel.bucket_mib == 0 && ranks > 1 && device.is_cuda() &&
         !config.deterministic && zero_stage(config.plugin, config.parallel) < 3;
}

/// The configuration of the checkpoint that a run goes on from; empty without one.
std::filesystem::path config_to_resume(const RunConfig& config, const Resume& resume) {
  std::filesystem::path from = resume.checkpoint;
  if (resume.mode == Resume::Mode::kAuto) {
    const auto own =
        checkpoint::list_checkpoints(std::filesystem::path(config.run_dir) / "checkpoints");
    from = own.empty() ? std::filesystem::path() : own.back();
  }
  const auto file = from / "config.yaml";
  return !from.empty() && std::filesystem::exists(file) ? file : std::filesystem::path();
}

}  // namespace

int64_t bucket_mib_of(const RunConfig& config, const Resume& resume, const comm::Link& link,
                      int64_t ranks, at::Device device) {
  if (!leaves_buckets_open(config, ranks, device)) {
    return config.parallel.bucket_mib;
  }
  const auto file = config_to_resume(config, resume);
  return file.empty() ? parallel::choose_bucket_mib(link, comm::Operation::kReduceScatter, ranks)
                      : load_config<RunConfig>(file).parallel.bucket_mib;
}

RunConfig agree_on_run(const RunConfig& config, const Resume& resume, const comm::Group& world) {
  if (world.size() == 1) {
    return config;
  }
  std::vector<comm::Fact> facts = comm::program_facts();
  facts.push_back({"configuration", dump_config(config), true});
  const comm::SelfCheck found = comm::self_check(world, facts);
  const at::Device device = inference::choose_device(config.train.device);
  const std::vector<comm::OperationSpeed> speeds = comm::measure(world, device);
  const auto link_of = [&speeds](comm::Operation operation) {
    return std::find_if(speeds.begin(), speeds.end(),
                        [&](const auto& speed) { return speed.operation == operation; })
        ->link;
  };
  const comm::Link reduce_scatter = link_of(comm::Operation::kReduceScatter);
  RunConfig agreed = config;
  agreed.parallel.bucket_mib = bucket_mib_of(config, resume, reduce_scatter, world.size(), device);
  if (world.rank() == 0) {
    log_info("[train] self-check: ", world.size(), " ranks on ", counted(found.num_hosts, "host"),
             ", with one program and configuration",
             found.num_hosts == 1 ? "" : "; clocks differ by " + human_duration(found.clock_offset),
             "; all-reduce at ", speed_text(link_of(comm::Operation::kAllReduce)));
    if (leaves_buckets_open(config, world.size(), device)) {
      const bool is_resumed = !config_to_resume(config, resume).empty();
      log_info("[train] parallel.bucket_mib is ", agreed.parallel.bucket_mib,
               is_resumed ? ", as in the checkpoint" : ", as measured", " (reduce-scatter at ",
               speed_text(reduce_scatter), ")");
    }
  }
  return agreed;
}

}  // namespace kinora::train
