#include "kinora/train/bench/benchmark_sequence.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "kinora/comm/rehearsal.h"
#include "kinora/core/error.h"
#include "kinora/device/device.h"
#include "kinora/nn/self_attention.h"
#include "kinora/nn/sequence.h"
#include "kinora/ops/block_kernels.h"
#include "kinora/ops/random.h"
#include "kinora/parallel/sequence.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/bench/separate_ulysses.h"

// Shapes: T frames, S tokens a frame, C hidden; one clip: [1, T, S, C].

namespace kinora::train {
namespace {

constexpr int kRounds = 3;

/// Standard normals that depend on `number` alone.
at::Tensor normal(std::vector<int64_t> shape, int64_t number, at::Device device) {
  shape.insert(shape.begin(), 1);
  return ops::random_normal(shape, at::arange(number, number + 1, at::kLong), kBenchmarkSeed, 0,
                            RandomPurpose::kTest, device)
      .squeeze(0);
}

/// Counts what libtorch's allocators give and take back while it is alive, in the threads of
/// backward, too.
class MemoryCount {
  struct Count : c10::MemoryReportingInfoBase {
    explicit Count(at::Device device) : type(device.type()) {}

    void reportMemoryUsage(void* /*ptr*/, int64_t bytes, size_t /*total_allocated*/,
                           size_t /*total_reserved*/, c10::Device device) override {
      if (device.type() == type) {
        now += bytes;
        peak = std::max(peak, now);
      }
    }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return true; }

    const c10::DeviceType type;
    int64_t now = 0;
    int64_t peak = 0;
  };

 public:
  explicit MemoryCount(at::Device device)
      : count_(std::make_shared<Count>(device)),
        guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

  [[nodiscard]] int64_t now() const { return count_->now; }
  [[nodiscard]] int64_t peak() const { return count_->peak; }

 private:
  std::shared_ptr<Count> count_;
  c10::DebugInfoGuard guard_;
};

/// What goes in at both ends, or comes out: [1, T, S', C].
struct Ends {
  at::Tensor output;
  at::Tensor input;  // or its gradient
};

/// The layers.
class Stack {
 public:
  Stack(const SequenceWork& work, at::Device device)
      : work_(work), device_(device), type_(device.is_cuda() ? at::kBFloat16 : at::kFloat) {
    if (ops::BlockKernels::worthwhile(device, type_)) {
      kernels_ = std::make_unique<ops::BlockKernels>(ops::KernelOptions{}, device, type_,
                                                     /*deterministic=*/false);
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(work.hidden));
    int64_t number = 2;
    for (int64_t i = 0; i < work.depth; ++i) {
      layers_.push_back(std::make_unique<nn::SelfAttention>(
          nn::SelfAttention::Options{.hidden = work.hidden, .heads = work.heads}));
      for (const auto& [path, parameter] : layers_.back()->named_parameters()) {
        parameter->value =
            (normal(parameter->shape, ++number, device) * scale).to(type_).requires_grad_();
        parameter->grad = at::zeros(parameter->shape, at::device(device));
      }
      layers_.back()->set_kernels(kernels_.get());
    }
  }

  /// This rank's part of random input and gradient of the output.
  [[nodiscard]] Ends ends(const nn::Sequence& sequence) const {
    const std::vector<int64_t> shape = {1, work_.num_frames, work_.tokens_a_frame, work_.hidden};
    const auto part = [&](int64_t number) {
      return sequence.enter(normal(shape, number, device_)).to(type_, false, /*copy=*/true);
    };
    at::Tensor output = part(0);
    return {std::move(output), part(1)};
  }

  [[nodiscard]] at::Tensor forward(const nn::Sequence& sequence, at::Tensor x) const {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool in_time = work_.num_frames > 1 && i % 2 == 1;
      x = x + sequence.self_attention(*layers_[i], at::layer_norm(x, {work_.hidden}),
                                      in_time ? nn::Span::kTime : nn::Span::kFrame,
                                      work_.tokens_a_frame);
    }
    return x;
  }

  /// Forward and backward; the output and the gradient of the input.
  Ends step(const nn::Sequence& sequence, const Ends& given) const {
    const at::Tensor x = given.input.detach().requires_grad_();
    const at::Tensor output = forward(sequence, x);
    output.backward(given.output);
    return {output.detach(), x.grad()};
  }

  [[nodiscard]] const SequenceWork& work() const { return work_; }
  [[nodiscard]] at::Device device() const { return device_; }

 private:
  const SequenceWork work_;
  const at::Device device_;
  const at::ScalarType type_;
  std::unique_ptr<ops::BlockKernels> kernels_;
  std::vector<std::unique_ptr<nn::SelfAttention>> layers_;
};

/// The largest of all ranks' figures.
double largest(const comm::Group& group, double seconds) {
  const at::Tensor nanoseconds =
      at::full({1}, static_cast<int64_t>(std::llround(seconds * 1e9)), at::kLong);
  group.all_reduce(nanoseconds, comm::Reduction::kMax);
  return 1e-9 * static_cast<double>(nanoseconds.item<int64_t>());
}

double relative(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kFloat);
  return ((got.to(at::kFloat) - exact).norm() / exact.norm()).item<double>();
}

double difference(const Ends& got, const Ends& expected) {
  return std::max(relative(got.output, expected.output), relative(got.input, expected.input));
}

/// The groups that a plan's calls can be on.
std::vector<comm::Group> groups_of(const parallel::SequencePlan& plan, const comm::Group& group) {
  std::vector<comm::Group> groups = {group};
  const parallel::SequenceGroups lists = parallel::sequence_groups(plan);
  for (const auto& parts : {lists.all_to_all, lists.ring_inside, lists.ring_across}) {
    if (parts.size() > 1 && parts.front().size() > 1) {
      groups.push_back(group.split(parts));
    }
  }
  return groups;
}

/// Seconds of these calls, one behind the other.
double communication_seconds(const comm::RehearsedCalls& calls,
                             const std::vector<comm::Group>& groups, const Stack& stack) {
  int64_t most = 0;
  for (const comm::RehearsedCall& call : calls) {
    most = std::max(most, call.bytes);
  }
  const auto bytes = at::device(stack.device()).dtype(at::kByte);
  const at::Tensor from = at::zeros({most}, bytes);
  const at::Tensor to = at::empty({most}, bytes);
  const auto all_calls = [&](int64_t /*step*/) {
    for (const comm::RehearsedCall& call : calls) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& other) {
        return other.world_ranks() == call.world_ranks;
      });
      KINORA_CHECK(group != groups.end(), kInternal, "[bench] a call on an unknown group");
      const at::Tensor input = from.narrow(0, 0, call.bytes);
      if (call.operation == comm::Operation::kAllToAll) {
        (void)group->reshard(input.view({group->size(), -1}), /*split=*/0, /*joined=*/1);
      } else {
        KINORA_CHECK(call.operation == comm::Operation::kExchange, kInternal,
                     "[bench] no scheme was known to call ", comm::to_string(call.operation));
        group->exchange(to.narrow(0, 0, call.bytes), call.from, input, call.to);
      }
    }
  };
  all_calls(0);
  groups.front().barrier();
  return median_call_seconds(stack.device(), stack.work().steps, all_calls);
}

/// Times steps after having warmed up.
class Runner {
 public:
  Runner(const Stack& stack, std::shared_ptr<const nn::Sequence> sequence)
      : stack_(stack), sequence_(std::move(sequence)), given_(stack.ends(*sequence_)) {
    for (int64_t i = 0; i < stack.work().warmup; ++i) {
      static_cast<void>(step());
    }
  }

  [[nodiscard]] Ends step() const { return stack_.step(*sequence_, given_); }
  /// Of one step in the median block of them.
  [[nodiscard]] double seconds() const {
    return median_call_seconds(stack_.device(), stack_.work().steps,
                               [this](int64_t) { static_cast<void>(step()); });
  }
  /// What forward keeps, and the most of a step. Where ranks communicate threads that do not count
  /// may give memory back.
  void count_memory(SequenceRow* row) const {
    const MemoryCount count(stack_.device());
    const at::Tensor x = given_.input.detach().requires_grad_();
    const at::Tensor output = stack_.forward(*sequence_, x);
    row->kept_bytes = count.now();
    output.backward(given_.output);
    row->peak_bytes = count.peak();
  }
  /// The most by the statistics of a GPU's allocator.
  [[nodiscard]] int64_t peak_of_gpu() const {
    start_memory_anew(stack_.device());
    const int64_t before = device::peak_memory(stack_.device());
    static_cast<void>(step());
    return device::peak_memory(stack_.device()) - before;
  }

 private:
  const Stack& stack_;
  std::shared_ptr<const nn::Sequence> sequence_;
  Ends given_;
};

/// silent: the same work without communication.
void measure_memory(const Stack& stack, const Runner& runner, const Runner& silent,
                    SequenceRow* row) {
  silent.count_memory(row);
  if (stack.device().is_cuda()) {
    row->peak_bytes = runner.peak_of_gpu();
  }
}

/// One rank's results: this rank's part of them.
struct Base {
  double step_s;
  Ends ends;
};

Base time_one(const Stack& stack, const comm::Group& group, SequenceRow* row) {
  const Runner runner(stack, std::make_shared<nn::Sequence>());
  Ends ends = runner.step();
  if (group.size() > 1) {
    const SeparateUlysses parts(group);
    ends = {parts.enter(ends.output).clone(), parts.enter(ends.input).clone()};
  }
  measure_memory(stack, runner, runner, row);
  group.barrier();
  row->step_s = -largest(group, -runner.seconds());
  row->compute_s = row->step_s;
  row->efficiency = 1.0;
  row->difference = 0.0;
  return {row->step_s, std::move(ends)};
}

parallel::SequencePlan plan_of(const std::string& scheme, const SequenceWork& work,
                               const comm::Group& group) {
  const int64_t local = std::max<int64_t>(group.world().local_size, 1);
  parallel::SequenceFacts facts = {
      .ranks = group.size(),
      .ranks_inside = group.size() % local == 0 ? std::min(local, group.size()) : group.size(),
      .heads = work.heads,
      .hidden = work.hidden,
      .num_frames = work.num_frames,
      .tokens_a_frame = work.tokens_a_frame,
      .spans = {nn::Span::kFrame}};
  for (size_t i = 1; i < parallel::kNumSequenceSchemes; ++i) {
    if (parallel::to_string(static_cast<parallel::SequenceScheme>(i)) ==
        (scheme == kSeparateUlysses ? "ulysses" : scheme)) {
      facts.scheme = static_cast<parallel::SequenceScheme>(i);
    }
  }
  KINORA_CHECK(facts.scheme != parallel::SequenceScheme::kDsp || work.num_frames > 1, kConfig,
               "[bench] dsp divides frames, and there is one");
  return parallel::plan_sequence(facts);
}

std::shared_ptr<const nn::Sequence> make(const std::string& scheme,
                                         const parallel::SequencePlan& plan,
                                         const comm::Group& group) {
  return scheme == kSeparateUlysses ? std::make_shared<SeparateUlysses>(group)
                                    : parallel::make_sequence(plan, group);
}

void time_scheme(const Stack& stack, const comm::Group& group, const parallel::SequencePlan& plan,
                 const std::optional<Base>& base, SequenceRow* row) {
  const Runner runner(stack, make(row->scheme, plan, group));
  if (base) {
    row->difference = difference(runner.step(), base->ends);
  }
  const auto calls = std::make_shared<comm::RehearsedCalls>();
  const Runner alone(stack, make(row->scheme, plan, comm::rehearse(group.world(), calls)));
  measure_memory(stack, runner, alone, row);
  calls->clear();
  static_cast<void>(alone.step());
  const comm::RehearsedCalls of_a_step = *calls;
  row->calls = static_cast<int64_t>(of_a_step.size());
  for (const comm::RehearsedCall& call : of_a_step) {
    row->bytes += call.bytes;
  }

  std::vector<double> steps;
  std::vector<double> computing;
  for (int round = 0; round < kRounds; ++round) {
    group.barrier();
    steps.push_back(largest(group, runner.seconds()));
    computing.push_back(largest(group, alone.seconds()));
  }
  row->step_s = median(std::move(steps));
  row->compute_s = median(std::move(computing));
  row->communication_s =
      largest(group, communication_seconds(of_a_step, groups_of(plan, group), stack));
  if (base) {
    row->efficiency = base->step_s / (static_cast<double>(group.size()) * row->step_s);
  }
}

/// Null where the scheme cannot be; then the row says why.
std::optional<parallel::SequencePlan> plan_for(const SequenceWork& work, const comm::Group& group,
                                               SequenceRow* row) {
  if (group.size() == 1) {
    row->refused = "there is one rank";
    return std::nullopt;
  }
  try {
    return plan_of(row->scheme, work, group);
  } catch (const Error& error) {
    row->refused = error.what();
    return std::nullopt;
  }
}

}  // namespace

std::vector<SequenceRow> benchmark_sequence(const SequenceWork& work,
                                            const std::vector<std::string>& schemes,
                                            const comm::Group& group, at::Device device) {
  const std::vector<std::string> known = sequence_benchmark_schemes();
  for (const std::string& scheme : schemes) {
    KINORA_CHECK(std::find(known.begin(), known.end(), scheme) != known.end(), kConfig,
                 "[bench] there is no scheme ", scheme);
  }
  KINORA_CHECK(work.hidden % work.heads == 0, kConfig, "[bench] --heads must divide --hidden, ",
               work.hidden, ", got ", work.heads);
  const Stack stack(work, device);
  std::optional<Base> base;
  std::vector<SequenceRow> rows;
  for (const std::string& scheme : schemes) {
    SequenceRow& row = rows.emplace_back();
    row.scheme = scheme;
    if (scheme == kOneRank) {
      base = time_one(stack, group, &row);
      continue;
    }
    const std::optional<parallel::SequencePlan> plan = plan_for(work, group, &row);
    if (plan) {
      start_memory_anew(device);
      time_scheme(stack, group, *plan, base, &row);
    }
  }
  return rows;
}

}  // namespace kinora::train
