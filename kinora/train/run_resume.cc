#include "kinora/train/run_resume.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/seconds.h"
#include "kinora/core/text.h"
#include "kinora/io/file.h"
#include "kinora/train/exact_resume.h"
#include "kinora/train/finetune.h"
#include "kinora/train/null_caption.h"
#include "kinora/train/run.h"

namespace kinora::train {
namespace {

/// Newer checkpoints of the same run would be taken for its newest state the next time.
void check_newest(const Run& run, const std::filesystem::path& checkpoint) {
  const auto own = checkpoint::list_checkpoints(run.directory.checkpoints());
  if (own.empty()) {
    return;
  }
  std::error_code ignored;
  KINORA_CHECK(std::filesystem::equivalent(own.back(), checkpoint, ignored), kConfig,
               "[train] the run directory holds the newer checkpoint ", own.back(),
               ". Hint: give another run.dir to branch off at ", checkpoint);
}

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Of the run that wrote the checkpoint; empty where they cannot be read, which loading it reports.
Settings settings_of(const std::filesystem::path& checkpoint) {
  try {
    return flatten_config(
        parse_config<RunConfig>({.text = checkpoint::load_state(checkpoint).config,
                                 .origin = "configuration of " + checkpoint.string()}));
  } catch (const Error& error) {
    log_warn("[train] what has changed since ", checkpoint, " is not known: ", error.what());
    return {};
  }
}

/// Says which keys differ between the run and the command, before what they may cause.
void warn_of_changes(const Run& run, const Resume& resume,
                     const std::filesystem::path& checkpoint) {
  const Settings before = settings_of(checkpoint);
  const Settings after = flatten_config(run.config);
  std::ostringstream changes;
  int64_t count = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].second != after[i].second) {
      changes << "\n  " << after[i].first << " was " << before[i].second << " and is now "
              << after[i].second;
      ++count;
    }
  }
  if (count > 0) {
    log_warn("[train] this command differs from the run in ", counted(count, "key"), changes.str(),
             "\n  To go on as before: kinora train ", (checkpoint / "config.yaml").string(),
             " --resume ", resume.mode == Resume::Mode::kAuto ? "auto" : checkpoint.string());
  }
}

void load_run(Run& run, const Resume& resume, const std::filesystem::path& checkpoint) {
  if (run.writes()) {
    warn_of_changes(run, resume, checkpoint);
  }
  const auto started = std::chrono::steady_clock::now();
  run.state = checkpoint::load(checkpoint, run.trainable->arena(), run.mesh.world());
  checkpoint::restore_buffers(run.state.buffers, run.trainable->model());
  run.trainable->optimizer().restore(run.state.optimizer);
  if (run.importance && !run.state.timestep_counts.empty()) {
    run.importance->restore(
        {.history = run.state.timestep_history, .counts = run.state.timestep_counts});
  }
  resume_exactly(run.config, run.device, run.state, run.trainable->kernels());
  if (run.writes()) {
    log_info("[train] resumed from ", checkpoint, ": step ", run.state.step, ", ",
             run.state.position + run.state.image_position, " samples seen; read in ",
             human_duration(seconds_since(started)));
  }
}

/// Frees the name of a damaged checkpoint for the run, which comes to its step again.
void set_aside(const std::filesystem::path& damaged) {
  const auto aside = io::damaged_name(damaged);
  io::rename_durably(damaged, aside);
  log_warn("[train] the damaged checkpoint is now ", aside);
}

/// The newest checkpoint that is not damaged; damaged ones are named. False: there is none.
bool load_newest(Run& run, const Resume& resume) {
  const auto checkpoints = checkpoint::list_checkpoints(run.directory.checkpoints());
  for (auto candidate = checkpoints.rbegin(); candidate != checkpoints.rend(); ++candidate) {
    try {
      load_run(run, resume, *candidate);
      if (run.writes()) {
        std::for_each(checkpoints.rbegin(), candidate, set_aside);
      }
      return true;
    } catch (const Error& error) {
      if (std::next(candidate) == checkpoints.rend() || error.kind() != ErrorKind::kDamaged) {
        throw;
      }
      log_error("[train] ", error.what(), "; trying the one before");
    }
  }
  return false;
}

}  // namespace

void start_or_resume(Run& run, const Resume& resume) {
  if (resume.mode == Resume::Mode::kPath) {
    check_newest(run, resume.checkpoint);
    load_run(run, resume, resume.checkpoint);
    return;
  }
  if (resume.mode == Resume::Mode::kAuto && load_newest(run, resume)) {
    return;
  }
  if (!run.config.checkpoint.init_from.empty()) {
    const std::string others =
        initialise_from(run.config, run.trainable->model(), run.trainable->arena());
    if (run.writes()) {
      log_info("[train] weights from ", run.config.checkpoint.init_from, others.empty() ? "" : "; ",
               others);
    }
  }
  fill_null_caption(run);
}

}  // namespace kinora::train
