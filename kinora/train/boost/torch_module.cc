#include "kinora/train/boost/torch_module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "kinora/core/error.h"

namespace kinora::train {
namespace {

/// The names and shapes of a torch::nn::Module.
class Mirror : public nn::Module {
 public:
  using nn::Module::add_buffer;
  using nn::Module::add_parameter;
};

/// Runs after a backward has added to a parameter's grad.
class AfterGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(std::function<void()> action) : action_(std::move(action)) {}
  void operator()(const at::Tensor& /*parameter*/) override { action_(); }

 private:
  std::function<void()> action_;
};

/// Gives `tensor` the bytes that rank 0 has, whatever their type.
void broadcast(const comm::Group& world, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.contiguous();
  world.broadcast(whole.flatten().view(at::kByte), 0);
  if (!whole.is_same(tensor)) {
    tensor.copy_(whole);
  }
}

class TorchModule : public Boostable {
 public:
  TorchModule(torch::nn::Module& module, int64_t bucket_bytes)
      : bucket_elements_(bucket_bytes / static_cast<int64_t>(sizeof(float))) {
    for (const auto& named : module.named_parameters()) {
      add_parameter(named.key(), named.value());
    }
    for (const auto& named : module.named_buffers()) {
      add_buffer(named.key(), named.value(), /*is_weight=*/false);
    }
    KINORA_CHECK(!trained_.empty(), kConfig,
                 "[booster] the model has no parameter that requires gradients");
  }

  ~TorchModule() override {
    for (const Trained& trained : trained_) {
      if (trained.is_hooked) {
        torch::autograd::impl::set_post_acc_grad_hooks(trained.tensor, nullptr);
      }
    }
  }

  nn::Module& module() override { return mirror_; }

  [[nodiscard]] std::vector<nn::BucketSpec> buckets() const override {
    std::vector<nn::BucketSpec> specs;
    for (const Trained& trained : trained_) {
      if (trained.bucket == specs.size()) {
        // In a ring: where gradients are divided, no bucket needs more than its turn in a buffer.
        specs.push_back({.name = "bucket." + std::to_string(trained.bucket),
                         .parameters = {},
                         .fp32_island = false,
                         .ring = "module"});
      }
      specs.back().parameters.push_back(trained.path);
    }
    return specs;
  }

  [[nodiscard]] bool tells_reads() const override { return false; }

  void settle(optim::Arena& arena, const comm::Group& world) override {
    const at::NoGradGuard no_grad;
    const at::Device device = arena.options().device;
    for (Trained& trained : trained_) {
      KINORA_CHECK(torch::autograd::impl::post_acc_grad_hooks(trained.tensor) == nullptr, kConfig,
                   "[booster] parameter ", trained.path,
                   " has a hook: the model is boosted already");
      at::Tensor value = trained.tensor.detach().to(device, at::kFloat, false, /*copy=*/true);
      broadcast(world, value);
      arena.load_parameter(trained.path, value);
      trained.tensor.set_data(trained.parameter.value);
      trained.tensor.mutable_grad().reset();
      const size_t bucket = trained.bucket;
      torch::autograd::impl::set_post_acc_grad_hooks(
          trained.tensor, std::make_unique<AfterGradient>([this, bucket] { arrived(bucket); }));
      trained.is_hooked = true;
    }
    arena.reset_averages();
    for (Kept& kept : kept_) {
      const at::ScalarType type = kept.is_weight && at::isFloatingType(kept.tensor.scalar_type())
                                      ? arena.options().compute_type
                                      : kept.tensor.scalar_type();
      kept.tensor.set_data(kept.tensor.to(device, type));
      broadcast(world, kept.tensor);
      kept.mirrored = kept.tensor;
    }
  }

  void tell_buckets(ops::BucketHook hook) override { hook_ = std::move(hook); }

  void buffers_replaced() override {
    const at::NoGradGuard no_grad;
    for (Kept& kept : kept_) {
      kept.tensor.copy_(kept.mirrored);
      kept.mirrored = kept.tensor;
    }
  }

  void begin_pass() override {
    missing_.assign(trained_.back().bucket + 1, 0);
    for (Trained& trained : trained_) {
      trained.tensor.mutable_grad().reset();
      ++missing_[trained.bucket];
    }
    num_open_ = missing_.size();
    is_in_pass_ = true;
  }

  void end_pass() override {
    while (num_open_ > 0) {
      close_last();
    }
    is_in_pass_ = false;
  }

 private:
  /// A parameter that requires gradients.
  struct Trained {
    std::string path;
    at::Tensor tensor;  // the module's
    size_t bucket = 0;
    nn::Parameter parameter;
    bool is_hooked = false;
  };
  /// A buffer, or a weight that requires no gradients.
  struct Kept {
    at::Tensor tensor;    // the module's
    at::Tensor mirrored;  // what the mirror has in its place
    bool is_weight = false;
  };

  [[nodiscard]] bool is_known(const at::Tensor& tensor) const {
    const auto same = [&tensor](const auto& entry) { return entry.tensor.is_same(tensor); };
    return std::any_of(trained_.begin(), trained_.end(), same) ||
           std::any_of(kept_.begin(), kept_.end(), same);
  }

  void add_parameter(const std::string& path, const at::Tensor& tensor) {
    if (!tensor.requires_grad()) {
      return add_buffer(path, tensor, /*is_weight=*/true);
    }
    if (is_known(tensor)) {
      return;
    }
    const bool is_new = trained_.empty() || elements_ + tensor.numel() > bucket_elements_;
    const size_t bucket = trained_.empty() ? 0 : trained_.back().bucket + (is_new ? 1 : 0);
    elements_ = (is_new ? 0 : elements_) + tensor.numel();
    Trained& trained = trained_.emplace_back();
    trained.path = path;
    trained.tensor = tensor;
    trained.bucket = bucket;
    trained.parameter.shape = tensor.sizes().vec();
    mirror_.add_parameter(path, trained.parameter);
  }

  void add_buffer(const std::string& path, const at::Tensor& tensor, bool is_weight) {
    if (!is_known(tensor)) {
      Kept& kept = kept_.emplace_back(Kept{tensor, tensor, is_weight});
      mirror_.add_buffer(path, kept.mirrored);
    }
  }

  /// A parameter of `bucket` has its gradient. In the engine's thread, one at a time.
  void arrived(size_t bucket) {
    if (!is_in_pass_) {
      return;
    }
    --missing_[bucket];
    while (num_open_ > 0 && missing_[num_open_ - 1] == 0) {
      close_last();
    }
  }

  /// Adds what the module has as gradients of the last open bucket to the arena's, and frees them.
  void close_last() {
    const size_t bucket = --num_open_;
    if (hook_) {
      hook_(ops::BucketMoment::kBeforeBackward, static_cast<int64_t>(bucket));
    }
    std::vector<at::Tensor> sums;
    std::vector<at::Tensor> added;
    for (const Trained& trained : trained_) {
      if (trained.bucket == bucket && trained.tensor.grad().defined()) {
        sums.push_back(trained.parameter.grad);
        added.push_back(std::exchange(trained.tensor.mutable_grad(), at::Tensor()));
      }
    }
    if (!sums.empty()) {
      const at::NoGradGuard no_grad;
      at::_foreach_add_(sums, added);
    }
    if (hook_) {
      hook_(ops::BucketMoment::kAfterBackward, static_cast<int64_t>(bucket));
    }
  }

  Mirror mirror_;
  std::deque<Trained> trained_;  // by bucket; where they lie is known to the mirror
  std::deque<Kept> kept_;
  int64_t bucket_elements_;  // at most, but for a single parameter
  int64_t elements_ = 0;     // of the last bucket
  ops::BucketHook hook_;

  // Buckets close from the last to the first: backward's order, as a rule.
  std::vector<int64_t> missing_;  // [bucket]: gradients of this pass
  size_t num_open_ = 0;
  bool is_in_pass_ = false;
};

}  // namespace

std::unique_ptr<Boostable> torch_module(torch::nn::Module& module, int64_t bucket_bytes) {
  return std::make_unique<TorchModule>(module, bucket_bytes);
}

}  // namespace kinora::train
