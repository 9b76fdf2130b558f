#include "kinora/train/run_announcement.h"

#include <sstream>
#include <string>

#include "kinora/core/counted.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/data/causes.h"
#include "kinora/device/device.h"
#include "kinora/train/finetune.h"

namespace kinora::train {
namespace {

void announce_model(const Run& run) {
  Trainable& trainable = *run.trainable;
  log_info("[train] ", run.config.model.name, ", ", human_count(trainable.arena().num_elements()),
           " parameters, on ", device::describe(run.device));
  if (const std::string tuned =
          describe_finetuning(run.config, trainable.model(), trainable.arena());
      !tuned.empty()) {
    log_info("[train] ", tuned);
  }
  log_info("[train] kernels: ",
           kernel_summary(run.config, trainable.kernels(), run.micro_batch, run.device));
  if ((!trainable.can_be_recorded() || run.config.dynamic_sequence) && run.device.is_cuda()) {
    log_info("[train] no CUDA graphs: ",
             run.config.dynamic_sequence ? "each size has its own number of ranks"
             : run.config.optim.in_backward && trainable.optimizer().runs_beside()
                 ? "updates go on beside backward"
             : trainable.pipeline().links != nullptr ? "ranks divide the blocks"
             : trainable.boosted().can_be_recorded()
                 ? "a sequence or a model is divided among not all ranks, or in more than one way"
                 : "the ranks divide the state across several hosts");
  }
  if (const std::string ranks = trainable.boosted().describe_ranks(); !ranks.empty()) {
    log_info("[train] ", ranks);
  }
}

void announce_data(const Run& run) {
  data::announce_unusable(*run.data.whole);
  for (const data::RunData* other : {&run.image_data, &run.prior_data}) {
    if (other->whole) {
      data::announce_unusable(*other->whole);
    }
  }
  const RunConfig& config = run.config;
  const data::Source& data = *run.data.train;
  const char* const kind = data.latent_shape()       ? "latent"
                           : config.model.is_video() ? "clip"
                                                     : "image";
  const int64_t ranks = run.stage->num_ranks();
  const std::string together = ranks > 1 ? " by " + counted(ranks, "rank") + " together" : "";
  log_info("[train] ", counted(data.size(), kind),
           run.encoder ? " to encode in each step" + together + ", of " : " of ",
           counted(data.num_classes(), "class", "classes"), "; ",
           config.data.buckets.empty()
               ? counted(config.train.global_batch, "sample") + " a step, " +
                     std::to_string(run.micro_batch) + " at once"
           : config.dynamic_sequence
               ? "a step has batches of several buckets, each divided among at most " +
                     counted(config.parallel.sp_size, "rank")
               : "of a step the samples, and those at once, are those of a bucket",
           run.mesh.data_ranks() > 1 && !config.dynamic_sequence ? " on each rank" : "");
  if (run.prior_data.train) {
    log_info("[train] a step also takes ", config.prior_batch(), " of ",
             run.prior_data.train->size(), " prior_data, ",
             config.prior_micro_batch(run.mesh.data_ranks()), " at once, whose mean loss counts ",
             config.prior.weight, " times");
  }
  if (run.image_data.train) {
    log_info("[train] ", config.image_steps.share * 100.0, " % of the steps take ",
             config.image_batch(), " of ", run.image_data.train->size(), " image_data, ",
             config.image_micro_batch(run.mesh.data_ranks()), " at once");
  }
}

}  // namespace

void announce(const Run& run) {
  if (!run.writes()) {
    return;
  }
  announce_model(run);
  announce_data(run);
  if (run.config.shown.every > 0 && !run.shows_samples()) {
    log_info("[train] no grids of samples while training: samples of ",
             run.config.model.in_channels,
             " channels are latents; with autoencoder.path they would be decoded. kinora sample "
             "writes them to latents.safetensors");
  }
  if (run.planned) {
    log_info("[train] memory", run.mesh.world().size() > 1 ? " of each rank" : "", ", planned\n",
             table(*run.planned, /*by_layer=*/false));
  }
}

void announce_end(const Run& run, const data::LoaderStats& stats) {
  if (!run.writes()) {
    return;
  }
  std::ostringstream text;
  text << "[train] step " << run.state.step << "; waited " << human_duration(stats.wait_seconds)
       << " for data";
  if (stats.num_bad > 0) {
    text << "; " << counted(stats.num_bad, "unreadable sample was", "unreadable samples were")
         << " replaced";
  }
  if (const int64_t peak = run.peak_memory(); peak > 0) {
    text << "; peak memory " << human_bytes(peak);
    if (run.planned) {
      text << " (planned " << human_bytes(run.planned->peak) << ")";
    }
  }
  log_info(text.str());
}

}  // namespace kinora::train
