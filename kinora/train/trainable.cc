#include "kinora/train/trainable.h"

#include <bit>
#include <string>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/device/dry_run.h"
#include "kinora/inference/setup.h"
#include "kinora/ops/fp8.h"
#include "kinora/optim/disk_state.h"
#include "kinora/parallel/sequence.h"
#include "kinora/train/finetune.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

/// A model of ours as the Booster sees it.
class BoostableModel : public Boostable {
 public:
  /// Borrows both.
  BoostableModel(models::Model& model, const ops::BlockKernels* kernels)
      : model_(model), kernels_(kernels) {
    if (overwrites_gradients()) {
      model_.overwrite_gradients();
    }
  }

  nn::Module& module() override { return model_; }
  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override {
    return with_updates(model_.buckets(), model_);
  }

  [[nodiscard]] ToldReads told_reads() const override { return ToldReads::kInOrder; }
  [[nodiscard]] bool overwrites_gradients() const override {
    return kernels_ != nullptr && model_.can_overwrite_gradients();
  }
  [[nodiscard]] bool is_fp8() const override {
    return kernels_ != nullptr && kernels_->fp8() != nullptr;
  }
  void trained_weights_take_turns() override {
    if (is_fp8()) {
      kernels_->fp8()->trained_take_turns();
    }
  }
  [[nodiscard]] at::Tensor magnitudes() const override {
    return is_fp8() ? kernels_->fp8()->magnitudes() : at::Tensor();
  }

  void settle(optim::Arena& arena, const comm::Group& /*world*/) override {
    model_.to_device(arena.options().device);
  }
  void tell_buckets(ops::BucketHook hook) override { model_.tell_buckets(std::move(hook)); }
  void begin_step() override { model_.begin_step(); }

 private:
  models::Model& model_;
  const ops::BlockKernels* kernels_;
};

BoosterOptions booster_options(const RunConfig& config, at::Device device, uint64_t seed,
                               optim::ModulationUse modulation) {
  return {.plugin = config.plugin,
          .plugin_config = config.parallel,
          .precision = config.precision,
          .grad_clip = 0.0,  // optim.max_grad_norm
          .use_fp8 = config.train.fp8,
          .frozen_weights = inference::format_of(config.finetune.frozen_weights),
          .frozen_offload = config.finetune.offload,
          .modulation = modulation,
          .ema_decays = config.ema_decays,
          .device = device.is_cuda() ? DeviceChoice::kCuda : DeviceChoice::kCpu,
          .seed = seed,
          .optimizer_kernel = config.kernels.optimizer};
}

std::unique_ptr<models::Model> prepared_model(const RunConfig& config, const parallel::Mesh& mesh) {
  std::unique_ptr<models::Model> model = models::make_model(config.model);
  prepare_finetuning(config, *model);
  inference::divide_weights(*model, mesh.group(parallel::Axis::kTensor));
  return model;
}

/// What is done with that which makes the vectors that modulate blocks. Where blocks run as
/// modules, those that are computed again read it in backward, whatever is trained.
optim::ModulationUse modulation_use(const RunConfig& config, models::Model& model,
                                    const ops::BlockKernels* kernels, int64_t data_ranks,
                                    at::Device device) {
  if (kernels == nullptr || !kernels->has_head_rules() || trains_modulation(model)) {
    return optim::ModulationUse::kBothWays;
  }
  return device::is_gpu(device) && has_host_products(config, data_ranks)
             ? optim::ModulationUse::kHostProducts
             : optim::ModulationUse::kForward;
}

/// Leaves this rank's stages of the model; null: it keeps all blocks.
std::unique_ptr<parallel::PipelineLinks> divided_blocks(const PluginConfig& config,
                                                        const parallel::Mesh& mesh,
                                                        models::Model& model) {
  const comm::Group& group = mesh.group(parallel::Axis::kPipeline);
  KINORA_CHECK(group.size() > 1 || (config.pp_chunks == 1 &&
                                    config.pp_schedule == parallel::PipelineSchedule::k1F1B),
               kConfig,
               "[pipeline] parallel.pipeline_chunks and parallel.pipeline_schedule are of a "
               "pipeline, and parallel.pipeline is 1. Hint: parallel.pipeline=2");
  return inference::divide_blocks(model, group, config.pp_chunks);
}

}  // namespace

Trainable::Trainable(const RunConfig& config, const parallel::Mesh& mesh, at::Device device,
                     uint64_t seed)
    : model_(prepared_model(config, mesh)),
      links_(divided_blocks(config.parallel, mesh, *model_)),
      schedule_(config.parallel.pp_schedule),
      kernels_(set_path(*model_, config, device)),
      boosted_(Booster(booster_options(config, device, seed,
                                       modulation_use(config, *model_, kernels_.get(),
                                                      mesh.data_ranks(), device)),
                       mesh)
                   .boost(std::make_unique<BoostableModel>(*model_, kernels_.get()), config.optim,
                          config.lr)) {
  KINORA_CHECK(kernels_ != nullptr || schedule_ == parallel::PipelineSchedule::k1F1B, kConfig,
               "[pipeline] parallel.pipeline_schedule=zero_bubble needs the fast path, on which "
               "products can wait. Hint: model.path=fast, or parallel.pipeline_schedule=1f1b");
  if (kernels_ != nullptr && config.finetune.holds()) {
    kernels_->weights_take_turns();
  }
  const bool speaks = mesh.world().rank() == 0 && !device::in_dry_run();
  if (optim::DiskState* disk = boosted_.arena().disk()) {
    const std::string speed = disk->measure();  // of all ranks at once, as in a step
    if (speaks) {
      log_info("[train] ", speed);
    }
  }
  if (const std::string stays = config.train.fp8 && speaks ? model_->what_stays_16_bit() : "";
      !stays.empty()) {
    log_info("[train] train.fp8: these stay in 16 bits: ", stays);
  }
  const auto plan_of = [&](const comm::Group& group) {
    return inference::sequence_plan(config.model, config.precision,
                                    {.scheme = config.parallel.sequence_scheme,
                                     .tensor = mesh.shape().tensor,
                                     .has_updates = config.finetune.lora.any(),
                                     .is_fp8 = config.train.fp8,
                                     .batch = config.micro_batch(mesh.data_ranks())},
                                    group, device, config.deterministic);
  };
  if (config.dynamic_sequence) {
    sequences_.push_back(std::make_shared<nn::Sequence>());
    for (int64_t ranks = 2; ranks < config.parallel.sp_size; ranks *= 2) {
      const comm::Group group =
          mesh.world().split(parallel::lines(/*stride=*/1, ranks, mesh.world().size()));
      sequences_.push_back(parallel::make_sequence(plan_of(group), group));
    }
  }
  if (const comm::Group& group = mesh.group(parallel::Axis::kSequence); group.size() > 1) {
    const parallel::SequencePlan plan = plan_of(group);
    const auto sequence = parallel::make_sequence(plan, group);
    model_->use_sequence(sequence);
    sequences_.push_back(sequence);
    has_one_communicator_ = plan.num_levels() == 1 && group.size() == mesh.world().size();
    if (speaks) {
      log_info("[train] ", plan.reason);
    }
  }
  if (links_ != nullptr) {
    model_->use_pipeline(std::make_shared<parallel::StagePipeline>(*links_));
  }
  if (links_ != nullptr || (mesh.shape().tensor > 1 && mesh.gradient_ranks() > 1)) {
    has_one_communicator_ = false;
  }
}

void Trainable::divide_among(int64_t ranks) {
  model_->use_sequence(
      sequences_.at(static_cast<size_t>(std::countr_zero(static_cast<uint64_t>(ranks)))));
}

bool Trainable::can_be_recorded() const {
  return has_one_communicator_ && boosted_.can_be_recorded();
}

}  // namespace kinora::train
