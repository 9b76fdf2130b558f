#include "kinora/train/trainable.h"

#include <utility>

#include "kinora/ops/fp8.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

/// A DiT as the Booster sees it.
class BoostableDiT : public Boostable {
 public:
  /// Borrows both.
  BoostableDiT(models::DiT& model, const ops::BlockKernels* kernels)
      : model_(model), kernels_(kernels) {
    if (kernels_ != nullptr) {
      model_.overwrite_gradients();
    }
  }

  nn::Module& module() override { return model_; }
  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override {
    return models::dit_buckets(model_.config());
  }

  [[nodiscard]] bool tells_reads() const override { return true; }
  [[nodiscard]] bool overwrites_gradients() const override { return kernels_ != nullptr; }
  [[nodiscard]] bool is_fp8() const override {
    return kernels_ != nullptr && kernels_->fp8() != nullptr;
  }
  [[nodiscard]] at::Tensor magnitudes() const override {
    return is_fp8() ? kernels_->fp8()->magnitudes() : at::Tensor();
  }

  void settle(optim::Arena& arena, const comm::Group& /*world*/) override {
    model_.to_device(arena.options().device);
  }
  void tell_buckets(ops::BucketHook hook) override { model_.tell_buckets(std::move(hook)); }
  void begin_step() override { model_.begin_step(); }
  void begin_pass(bool overwrite) override { model_.begin_pass(overwrite); }

 private:
  models::DiT& model_;
  const ops::BlockKernels* kernels_;
};

BoosterOptions booster_options(const RunConfig& config, at::Device device, uint64_t seed) {
  return {.plugin = config.plugin,
          .plugin_config = config.parallel,
          .precision = config.train.precision,
          .grad_clip = 0.0,  // optim.max_grad_norm
          .use_fp8 = config.train.fp8,
          .ema_decays = config.ema_decays,
          .device = device.is_cuda() ? DeviceChoice::kCuda : DeviceChoice::kCpu,
          .seed = seed,
          .optimizer_kernel = config.kernels.optimizer};
}

}  // namespace

Trainable::Trainable(const RunConfig& config, const parallel::Mesh& mesh, at::Device device,
                     uint64_t seed)
    : model_(std::make_unique<models::DiT>(config.model)),
      kernels_(set_path(*model_, config, device)),
      boosted_(Booster(booster_options(config, device, seed), mesh)
                   .boost(std::make_unique<BoostableDiT>(*model_, kernels_.get()), config.optim,
                          config.lr)) {}

}  // namespace kinora::train
