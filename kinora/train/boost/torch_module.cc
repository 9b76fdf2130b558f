#include "kinora/train/boost/torch_module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/glob.h"
#include "kinora/train/boost/chain.h"
#include "kinora/train/boost/watched.h"

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

/// Gives `tensor` the bytes that rank `root` has, whatever their type.
void broadcast(const comm::Group& group, const at::Tensor& tensor, int64_t root = 0) {
  const at::Tensor whole = tensor.contiguous();
  group.broadcast(whole.flatten().view(at::kByte), root);
  if (!whole.is_same(tensor)) {
    tensor.copy_(whole);
  }
}

/// "blocks.3.qkv" of "blocks.3.qkv.weight"; empty of a parameter of the module itself.
std::string layer_of(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

class TorchModule;

/// Tells a TorchModule while there is one: graphs that read its weights may outlive it.
class ModuleWatcher : public Watcher {
 public:
  explicit ModuleWatcher(TorchModule* module) : module_(module) {}
  void before_read(const std::vector<size_t>& buckets) override;
  void forget() { module_ = nullptr; }

 private:
  TorchModule* module_;
};

class TorchModule : public Boostable {
 public:
  TorchModule(torch::nn::Module& module, const TorchModuleOptions& options)
      : options_(options),
        bucket_elements_(options.bucket_bytes / static_cast<int64_t>(sizeof(float))) {
    if (options.watches_reads) {
      watcher_ = std::make_shared<ModuleWatcher>(this);
    }
    find_rules(module);
    find_stages(module);
    for (const auto& named : module.named_parameters()) {
      add_parameter(named.key(), named.value());
    }
    for (const auto& named : module.named_buffers()) {
      add_buffer(named.key(), named.value(), /*is_weight=*/false);
    }
    KINORA_CHECK(!trained_.empty(), kConfig,
                 "[booster] the model has no parameter that requires gradients");
    for (int64_t rank = 0; rank < options_.pipeline.size(); ++rank) {
      KINORA_CHECK(std::ranges::any_of(trained_,
                                       [rank](const Trained& trained) {
                                         return trained.parameter.stage.value_or(rank) == rank;
                                       }),
                   kConfig, "[booster] pp_size ", options_.pipeline.size(), " gives rank ", rank,
                   " stages in which nothing requires gradients. Hint: a smaller pp_size");
    }
  }

  ~TorchModule() override {
    for (const Trained& trained : trained_) {
      if (trained.is_hooked) {
        torch::autograd::impl::set_post_acc_grad_hooks(trained.tensor, nullptr);
        if (watcher_ != nullptr) {
          unwatch(trained.tensor, at::empty({0}, trained.tensor.options()));
        } else if (trained.layer != nullptr) {
          unwatch(trained.tensor, trained.parameter.value.detach());
        }
      }
    }
    if (watcher_ != nullptr) {
      watcher_->forget();
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

  [[nodiscard]] ToldReads told_reads() const override {
    return watcher_ == nullptr ? ToldReads::kNone : ToldReads::kWatched;
  }

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
      if (!trained.parameter.is_here) {
        trained.tensor.set_data(nothing_like(trained.tensor));
        continue;
      }
      if (watcher_ != nullptr || trained.layer != nullptr) {
        watch(trained.tensor, trained.parameter.value.detach(),
              {.watcher = watcher_, .number = trained.bucket, .layer = trained.layer});
      } else {
        trained.tensor.set_data(trained.parameter.value);
      }
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
      if (is_elsewhere(kept)) {
        const std::vector<int64_t> shape = kept.tensor.sizes().vec();
        kept.tensor.set_data(nothing_like(kept.tensor));
        kept.mirrored = outline(shape, kept.tensor);
      } else {
        kept.mirrored = kept.tensor;
      }
    }
  }

  void tell_buckets(ops::BucketHook hook) override { hook_ = std::move(hook); }

  void tell_forward(std::function<void()> begins) override { begins_ = std::move(begins); }

  void loaded() override {
    being_read_.clear();  // what lies there is of before
    const at::NoGradGuard no_grad;
    for (Kept& kept : kept_) {
      if (is_elsewhere(kept)) {
        kept.mirrored = outline(kept.mirrored.sizes(), kept.tensor);
      } else {
        kept.tensor.copy_(kept.mirrored);
        kept.mirrored = kept.tensor;
      }
    }
  }

  [[nodiscard]] const Chain* chain() const override { return chain_.get(); }

  void with_all_buffers(const std::function<void()>& action) override {
    if (options_.pipeline.size() == 1) {
      return action();
    }
    for (Kept& kept : kept_) {
      if (kept.stage) {
        const at::Tensor value = is_elsewhere(kept)
                                     ? at::empty(kept.mirrored.sizes(), kept.tensor.options())
                                     : kept.tensor;
        broadcast(options_.pipeline, value, *kept.stage);
        kept.mirrored = is_elsewhere(kept) ? value.cpu() : value;
      }
    }
    action();
    loaded();
  }

  void begin_pass() override {
    missing_.assign(trained_.back().bucket + 1, 0);
    for (Trained& trained : trained_) {
      trained.tensor.mutable_grad().reset();
      missing_[trained.bucket] += trained.parameter.is_here ? 1 : 0;
    }
    num_open_ = missing_.size();
    being_read_.clear();
    is_in_pass_ = true;
  }

  void end_pass() override {
    while (num_open_ > 0) {
      close_last();
    }
    stop_reading({});
    is_in_pass_ = false;
  }

  /// The weights of these buckets are read next, and those of others no longer.
  void before_read(const std::vector<size_t>& buckets) {
    if (!is_in_pass_ && at::GradMode::is_enabled()) {
      begins_();
    }
    for (size_t i = 0; i + 1 < buckets.size(); ++i) {
      for (size_t j = i + 1; j < buckets.size(); ++j) {
        KINORA_CHECK((buckets[j] - buckets[i]) % optim::kRingBuffers != 0, kConfig,
                     "[booster] one operation reads weights of buckets ", buckets[i], " and ",
                     buckets[j],
                     ", which take turns in one buffer of zero3: parameters that are used together "
                     "must be registered together. Hint: zero2");
      }
    }
    stop_reading(buckets);
    for (const size_t bucket : buckets) {
      if (std::find(being_read_.begin(), being_read_.end(), bucket) == being_read_.end()) {
        hook_(ops::BucketMoment::kBeforeForward, static_cast<int64_t>(bucket));
        being_read_.push_back(bucket);
      }
    }
  }

 private:
  /// A parameter that requires gradients.
  struct Trained {
    std::string path;
    at::Tensor tensor;  // the module's
    size_t bucket = 0;
    nn::Parameter parameter;
    std::shared_ptr<const DividedLayer> layer;  // whose weight it is, where ranks divide that
    bool is_hooked = false;
  };
  /// A buffer, or a weight that requires no gradients.
  struct Kept {
    at::Tensor tensor;    // the module's
    at::Tensor mirrored;  // what the mirror has in its place
    bool is_weight = false;
    std::optional<int64_t> stage = {};  // as nn::Parameter's
  };

  /// Has no memory, and the type and device of `tensor`.
  static at::Tensor nothing_like(const at::Tensor& tensor) {
    return at::empty({0}, tensor.options());
  }
  /// A tensor of this shape, which takes no memory but for one element.
  static at::Tensor outline(at::IntArrayRef shape, const at::Tensor& like) {
    return at::zeros({}, like.options().device(at::kCPU)).expand(shape);
  }
  [[nodiscard]] bool is_elsewhere(const Kept& kept) const {
    return kept.stage && *kept.stage != options_.pipeline.rank();
  }

  [[nodiscard]] bool is_known(const at::Tensor& tensor) const {
    const auto same = [&tensor](const auto& entry) { return entry.tensor.is_same(tensor); };
    return std::any_of(trained_.begin(), trained_.end(), same) ||
           std::any_of(kept_.begin(), kept_.end(), same);
  }

  /// The layers that ranks divide.
  void find_rules(const torch::nn::Module& module) {
    if (options_.tensor.size() == 1) {
      return;
    }
    std::vector<std::string> layers;
    for (const auto& named : module.named_parameters()) {
      if (named.value().dim() >= 2) {
        layers.push_back(layer_of(named.key()));
      }
    }
    for (const LayerRule& rule : options_.rules) {
      const std::vector<bool> is_named = match_globs({rule.layers}, layers, "tensor_rules");
      for (size_t i = 0; i < layers.size(); ++i) {
        if (is_named[i]) {
          const bool is_new =
              layers_
                  .emplace(layers[i],
                           std::make_shared<DividedLayer>(DividedLayer{.name = layers[i],
                                                                       .cut = rule.cut,
                                                                       .group = options_.tensor,
                                                                       .parts = rule.parts}))
                  .second;
          KINORA_CHECK(is_new, kConfig, "[booster] layer ", layers[i],
                       " is named by two of tensor_rules. Hint: leave one of them out");
        }
      }
    }
  }

  /// Of all that lies in the stages of one rank alone, whose it is.
  void find_stages(torch::nn::Module& module) {
    if (options_.pipeline.size() == 1 && options_.stages.empty() && !is_chain(module)) {
      return;
    }
    chain_ = std::make_unique<Chain>(module, options_.stages, options_.pipeline, options_.chunks);
    const auto add = [this](const auto& tensors) {
      for (const auto& named : tensors) {
        const std::optional<int64_t> stage = chain_->rank_of(named.key());
        const auto [found, is_new] = stages_.emplace(named.value().unsafeGetTensorImpl(), stage);
        if (!is_new && found->second != stage) {
          found->second = std::nullopt;  // tied weights
        }
      }
    };
    add(module.named_parameters());
    add(module.named_buffers());
  }

  [[nodiscard]] std::optional<int64_t> stage_of(const at::Tensor& tensor) const {
    const auto found = stages_.find(tensor.unsafeGetTensorImpl());
    return found == stages_.end() ? std::nullopt : found->second;
  }

  /// Leaves this rank's part, where ranks divide the layer.
  void divide(Trained* trained) {
    const auto found = layers_.find(layer_of(trained->path));
    if (found == layers_.end()) {
      return;
    }
    const nn::Box box = box_of(*found->second, trained->parameter.shape);
    if (trained->parameter.shape.size() > 1) {
      trained->layer = found->second;
    }
    if (box.count > 1) {
      trained->parameter.box = box;
      trained->parameter.shape = box.shape();
    }
  }

  void add_parameter(const std::string& path, const at::Tensor& tensor) {
    const bool is_divided = layers_.contains(layer_of(path));
    if (!tensor.requires_grad()) {
      KINORA_CHECK(!is_divided, kConfig, "[booster] ", path,
                   " is frozen, and ranks divide only what is trained. Hint: take the layer out of "
                   "tensor_rules");
      return add_buffer(path, tensor, /*is_weight=*/true);
    }
    if (is_known(tensor)) {
      KINORA_CHECK(!is_divided, kConfig, "[booster] ", path,
                   " is the weight of another layer, too. Hint: take both out of tensor_rules");
      return;
    }
    const std::optional<int64_t> stage = stage_of(tensor);
    const bool is_layer_open = !trained_.empty() && !layer_of(path).empty() &&
                               layer_of(path) == layer_of(trained_.back().path);
    // A bucket is of one stage.
    const bool is_new = trained_.empty() || stage != trained_.back().parameter.stage ||
                        (!is_layer_open && elements_ + tensor.numel() > bucket_elements_);
    const size_t bucket = trained_.empty() ? 0 : trained_.back().bucket + (is_new ? 1 : 0);
    elements_ = (is_new ? 0 : elements_) + tensor.numel();
    Trained& trained = trained_.emplace_back();
    trained.path = path;
    trained.tensor = tensor;
    trained.bucket = bucket;
    trained.parameter.shape = tensor.sizes().vec();
    trained.parameter.stage = stage;
    trained.parameter.is_here =
        stage.value_or(options_.pipeline.rank()) == options_.pipeline.rank();
    divide(&trained);
    mirror_.add_parameter(path, trained.parameter);
  }

  void add_buffer(const std::string& path, const at::Tensor& tensor, bool is_weight) {
    if (!is_known(tensor)) {
      Kept& kept = kept_.emplace_back(Kept{tensor, tensor, is_weight, stage_of(tensor)});
      mirror_.add_buffer(path, kept.mirrored);
    }
  }

  /// Weights of all buckets but these are read no longer.
  void stop_reading(const std::vector<size_t>& but) {
    std::erase_if(being_read_, [&](size_t bucket) {
      if (std::find(but.begin(), but.end(), bucket) != but.end()) {
        return false;
      }
      hook_(ops::BucketMoment::kAfterForward, static_cast<int64_t>(bucket));
      return true;
    });
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

  TorchModuleOptions options_;
  std::unordered_map<std::string, std::shared_ptr<const DividedLayer>> layers_;
  std::unique_ptr<Chain> chain_;  // null: the module has none
  std::unordered_map<const at::TensorImpl*, std::optional<int64_t>> stages_;
  Mirror mirror_;
  std::deque<Trained> trained_;  // by bucket; where they lie is known to the mirror
  std::deque<Kept> kept_;
  int64_t bucket_elements_;  // at most, but for a single parameter
  int64_t elements_ = 0;     // of the last bucket
  ops::BucketHook hook_;
  std::function<void()> begins_;
  std::shared_ptr<ModuleWatcher> watcher_;  // null: whole weights lie there
  std::vector<size_t> being_read_;          // buckets

  // Buckets close from the last to the first: backward's order, as a rule.
  std::vector<int64_t> missing_;  // [bucket]: gradients of this pass
  size_t num_open_ = 0;
  bool is_in_pass_ = false;
};

void ModuleWatcher::before_read(const std::vector<size_t>& buckets) {
  KINORA_CHECK(module_ != nullptr, kConfig,
               "[booster] weights are read that zero3 has divided, and what brought them together "
               "is gone. Hint: keep the Boosted as long as its losses");
  module_->before_read(buckets);
}

}  // namespace

std::unique_ptr<Boostable> torch_module(torch::nn::Module& module,
                                        const TorchModuleOptions& options) {
  return std::make_unique<TorchModule>(module, options);
}

int64_t count_trained(const torch::nn::Module& module) {
  std::unordered_set<const at::TensorImpl*> seen;
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    const bool is_new = seen.insert(parameter.unsafeGetTensorImpl()).second;
    count += parameter.requires_grad() && is_new ? parameter.numel() : 0;
  }
  return count;
}

}  // namespace kinora::train
