// Who sets a hook hears, on one rank too, when each bucket is used: for every family, on both
// paths. That is what may bring parameters when they are needed and take them away behind.

#include "kinora/ops/bucket_hook.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kinora/models/families.h"
#include "kinora/models/model.h"
#include "kinora/models/transformers/block_model.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/optim/arena.h"
#include "tests/models/small_network.h"
#include "tests/models/transformers/tuned.h"
#include "tests/ops/tensors.h"
#include "tests/tolerances.h"

namespace kinora::models {
namespace bucket_hook_test {

using Moment = ops::BucketMoment;
using Event = std::pair<Moment, int64_t>;
using testing::IsEmpty;
using testing::IsSupersetOf;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// How a model is run.
struct Way {
  const char* name;
  bool is_fast = false;
  int64_t recompute = 0;
  bool tuned = false;  ///< by updates of linears, some frozen
};
constexpr Way kWays[] = {
    {.name = "plain"},
    {.name = "plain, recomputed", .recompute = 6},
    {.name = "plain, tuned", .tuned = true},
    {.name = "plain, tuned, recomputed", .recompute = 6, .tuned = true},
    {.name = "fast", .is_fast = true},
    {.name = "fast, recomputed", .is_fast = true, .recompute = 6},
    {.name = "fast, tuned", .is_fast = true, .tuned = true},
};

/// Sets values without autograd's knowledge, as memory that is used for something else.
void fill(const at::Tensor& tensor, float value) {
  float* const data = tensor.mutable_data_ptr<float>();
  std::fill(data, data + tensor.numel(), value);
}
void copy(const at::Tensor& from, const at::Tensor& to) {
  const float* const data = from.const_data_ptr<float>();
  std::copy(data, data + from.numel(), to.mutable_data_ptr<float>());
}

/// A model of a family, all its weights random, and one batch.
class HookedRun {
 public:
  HookedRun(const std::string& architecture, const Way& way)
      : model_(made(architecture, way)),
        buckets_(buckets_with_updates(model_->buckets(), *model_)),
        arena_(model_->named_parameters(), buckets_,
               {.device = at::kCPU,
                .compute_type = at::kFloat,
                .seed = 1,
                .train = true,
                .ema_decays = {}}) {
    int64_t number = 0;
    for (const auto& [path, parameter] : model_->named_parameters()) {
      arena_.load_parameter(path, ops::normal(parameter->shape, number++) * 0.1);
      parameters_[path] = parameter;
    }
    if (way.is_fast) {
      model_->use_fast_path(
          std::make_shared<ops::BlockKernels>(ops::KernelOptions(), at::kCPU, at::kFloat, false));
    }
    model_->set_recompute(way.recompute);
    const ModelConfig& config = model_->config();
    std::vector<int64_t> shape = config.sample_shape();
    shape.insert(shape.begin(), kBatch);
    x_t_ = ops::normal(shape, 1000);
    t_ = at::arange(kBatch, at::kFloat) * 300.0 + 5.0;
    const FamilyConditions& wanted = family_of(config).conditions;
    if (wanted.labels) {
      conditions_.labels = at::arange(kBatch);
    }
    if (wanted.text) {
      conditions_.text = ops::normal({kBatch, config.text_tokens, config.text_channels}, 1001);
      conditions_.text_lengths = at::arange(kBatch) + 1;
    }
    if (wanted.pooled) {
      conditions_.pooled = ops::normal({kBatch, config.text_channels}, 1001);
    }
    const auto all = [](double value) { return at::full({kBatch}, value, at::kFloat); };
    conditions_.fps = all(24.0);
    conditions_.height = all(48.0);
    conditions_.width = all(80.0);
    conditions_.num_frames = all(static_cast<double>(config.frames));
  }

  /// From now on what a ring's bucket holds is there only between "before" and "after".
  void come_and_go() {
    for (const nn::BucketSpec& bucket : buckets_) {
      if (bucket.ring.empty()) {
        continue;
      }
      for (const std::string& path : bucket.parameters) {
        away_[path] = parameters_.at(path)->value.detach().clone();
        fill(parameters_.at(path)->value, kNan);
        if (parameters_.at(path)->grad.defined()) {
          fill(parameters_.at(path)->grad, kNan);
        }
      }
    }
    model_->tell_buckets([this](Moment moment, int64_t bucket) {
      events_.emplace_back(moment, bucket);
      for (const std::string& path : buckets_[static_cast<size_t>(bucket)].parameters) {
        use(moment, *parameters_.at(path), path);
      }
    });
  }

  /// Whether the blocks of the fast path are one node of autograd.
  [[nodiscard]] bool is_stack() const {
    return dynamic_cast<const BlockModel*>(model_.get()) != nullptr;
  }
  [[nodiscard]] bool has_fast_path() const { return model_->has_fast_path(); }

  [[nodiscard]] at::Tensor forward() { return model_->forward(x_t_, t_, conditions_); }
  void backward(const at::Tensor& output) {
    torch::autograd::backward({(output * ops::normal(output.sizes().vec(), 1002)).sum()}, {});
  }
  /// Without gradients, as a sampler's step does.
  /// Forward alone, with what was prepared before; `prepare`: the blocks that were heard for that.
  [[nodiscard]] at::Tensor sample(std::vector<int64_t>* prepare = nullptr) {
    const at::NoGradGuard no_grad;
    const diffusion::Prepared prepared = model_->prepare(t_.narrow(0, 0, 1), conditions_);
    if (prepare != nullptr) {
      *prepare = buckets(Moment::kBeforeForward, /*of_blocks=*/true);
      std::erase_if(events_, [this](const auto& event) {
        return buckets_[static_cast<size_t>(event.second)].is_block;
      });
    }
    return model_->forward(x_t_, t_.narrow(0, 0, 1).expand({kBatch}), conditions_,
                           {.prepared = prepared.at_time(0)});
  }

  /// Of all trained parameters, wherever they are now.
  [[nodiscard]] std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& [path, parameter] : parameters_) {
      if (parameter->grad.defined()) {
        const auto taken = taken_.find(path);
        all[path] = taken == taken_.end() ? parameter->grad : taken->second;
      }
    }
    return all;
  }

  [[nodiscard]] std::vector<int64_t> buckets(Moment moment, bool of_blocks) const {
    std::vector<int64_t> numbers;
    for (const auto& [when, bucket] : events_) {
      if (when == moment && buckets_[static_cast<size_t>(bucket)].is_block == of_blocks) {
        numbers.push_back(bucket);
      }
    }
    return numbers;
  }
  /// Those in rings, in the order of the model's list.
  [[nodiscard]] std::vector<int64_t> in_rings(bool of_blocks) const {
    std::vector<int64_t> numbers;
    for (size_t i = 0; i < buckets_.size(); ++i) {
      if (!buckets_[i].ring.empty() && buckets_[i].is_block == of_blocks) {
        numbers.push_back(static_cast<int64_t>(i));
      }
    }
    return numbers;
  }
  std::vector<Event>& events() { return events_; }

 private:
  static constexpr int64_t kBatch = 2;

  static std::unique_ptr<Model> made(const std::string& architecture, const Way& way) {
    ModelConfig config;
    config.architecture = architecture;
    set_small_network(config, 6, 48, 2);  // DiT: two slabs of modulation
    config.in_channels = 4;
    config.height = 6;
    config.width = 10;
    config.num_classes = 5;
    config.text_channels = 8;
    config.text_tokens = 5;
    config.time_scale = 1.0;
    config.frames = config.is_video() ? 4 : 1;
    std::unique_ptr<Model> model = make_model(resolved(config));
    if (way.tuned) {
      tune(*model);
    }
    return model;
  }

  void use(Moment moment, const nn::Parameter& parameter, const std::string& path) {
    switch (moment) {
      case Moment::kBeforeForward:
        copy(away_.at(path), parameter.value);
        return;
      case Moment::kBeforeBackward:
        copy(away_.at(path), parameter.value);
        if (parameter.grad.defined()) {
          fill(parameter.grad, 0.0F);
        }
        return;
      case Moment::kAfterForward:
        fill(parameter.value, kNan);
        return;
      case Moment::kAfterBackward:
        fill(parameter.value, kNan);
        if (parameter.grad.defined()) {
          taken_[path] = parameter.grad.clone();
          fill(parameter.grad, kNan);
        }
        return;
    }
  }

  std::unique_ptr<Model> model_;
  std::vector<nn::BucketSpec> buckets_;
  optim::Arena arena_;
  std::map<std::string, nn::Parameter*> parameters_;
  std::map<std::string, at::Tensor> away_;   // values
  std::map<std::string, at::Tensor> taken_;  // gradients
  std::vector<Event> events_;
  at::Tensor x_t_, t_;
  diffusion::Conditions conditions_;
};

std::vector<int64_t> reversed(std::vector<int64_t> numbers) {
  return {numbers.rbegin(), numbers.rend()};
}

std::vector<std::string> keys() {
  std::vector<std::string> all;
  for (const Family& family : families()) {
    all.push_back(family.key);
  }
  return all;
}

class BucketHookTest : public testing::TestWithParam<std::string> {
 protected:
  /// Those that the family has.
  static std::vector<Way> ways() {
    const bool has_fast_path = HookedRun(GetParam(), kWays[0]).has_fast_path();
    std::vector<Way> all;
    for (const Way& way : kWays) {
      if (has_fast_path || !way.is_fast) {
        all.push_back(way);
      }
    }
    return all;
  }
};

TEST_P(BucketHookTest, HearsEachBucketBeforeAndBehindItsUse) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    HookedRun whole(GetParam(), way);
    const at::Tensor want = whole.forward();
    whole.backward(want);
    HookedRun run(GetParam(), way);
    run.come_and_go();
    const at::Tensor got = run.forward();
    const size_t end_of_forward = run.events().size();
    run.backward(got);

    EXPECT_TRUE(at::equal(got, want));
    for (const auto& [path, gradient] : whole.gradients()) {
      EXPECT_TRUE(at::equal(run.gradients().at(path), gradient)) << path;
    }
    for (const bool of_blocks : {true, false}) {
      const std::vector<int64_t> order = run.in_rings(of_blocks);
      EXPECT_EQ(run.buckets(Moment::kBeforeForward, of_blocks), order);
      EXPECT_EQ(run.buckets(Moment::kAfterForward, of_blocks), order);
      EXPECT_EQ(run.buckets(Moment::kBeforeBackward, of_blocks), reversed(order));
      EXPECT_EQ(run.buckets(Moment::kAfterBackward, of_blocks), reversed(order));
    }
    // "Before" of a bucket comes before "after", and forward before backward.
    std::map<int64_t, Moment> last;
    for (size_t i = 0; i < run.events().size(); ++i) {
      const auto& [moment, bucket] = run.events()[i];
      EXPECT_EQ(i < end_of_forward,
                moment == Moment::kBeforeForward || moment == Moment::kAfterForward);
      EXPECT_EQ(last.contains(bucket), moment != Moment::kBeforeForward);
      EXPECT_TRUE(!last.contains(bucket) || last[bucket] < moment);
      last[bucket] = moment;
    }
  }
}

TEST_P(BucketHookTest, HearsForwardAloneWithoutGradients) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    HookedRun whole(GetParam(), way);
    HookedRun run(GetParam(), way);
    run.come_and_go();
    std::vector<int64_t> prepared;
    EXPECT_TRUE(at::equal(run.sample(&prepared), whole.sample()));
    EXPECT_TRUE(std::ranges::is_sorted(prepared));
    for (const bool of_blocks : {true, false}) {
      EXPECT_EQ(run.buckets(Moment::kBeforeForward, of_blocks), run.in_rings(of_blocks));
      EXPECT_EQ(run.buckets(Moment::kAfterForward, of_blocks), run.in_rings(of_blocks));
      EXPECT_THAT(run.buckets(Moment::kBeforeBackward, of_blocks), IsEmpty());
      EXPECT_THAT(run.buckets(Moment::kAfterBackward, of_blocks), IsEmpty());
    }
  }
}

/// The names of all nodes of the graph behind `output`.
std::multiset<std::string> nodes_of(const at::Tensor& output) {
  std::multiset<std::string> names;
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open = {output.grad_fn().get()};
  while (!open.empty()) {
    const torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    names.insert(node->name());
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
  return names;
}

TEST_P(BucketHookTest, CostsNothingWhereNoneIsSet) {
  for (const Way& way : ways()) {
    if (way.recompute > 0 || way.tuned) {
      continue;
    }
    SCOPED_TRACE(way.name);
    HookedRun unset(GetParam(), way);
    HookedRun set(GetParam(), way);
    set.come_and_go();
    const std::multiset<std::string> without = nodes_of(unset.forward());
    const std::multiset<std::string> with = nodes_of(set.forward());
    if (way.is_fast && set.is_stack()) {
      EXPECT_EQ(with, without) << "the stack calls it itself";
    } else {
      EXPECT_THAT(with, IsSupersetOf(without));
      const size_t nodes = 2 * set.in_rings(/*of_blocks=*/true).size();
      EXPECT_EQ(with.size(), without.size() + nodes) << "a node before and one behind a block";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, BucketHookTest, testing::ValuesIn(keys()),
                         [](const auto& info) { return info.param; });

}  // namespace bucket_hook_test
}  // namespace kinora::models
