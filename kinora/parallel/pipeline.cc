#include "kinora/parallel/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "kinora/core/error.h"
#include "kinora/parallel/mesh.h"

namespace kinora::parallel {
namespace {

using Kind = PipelineAction::Kind;

std::vector<PipelineAction> one_forward_one_backward(const StagePlan& plan, int64_t rank,
                                                     int64_t micro_batches) {
  const int64_t chunks = plan.chunks();
  const int64_t total = micro_batches * chunks;
  const int64_t later = plan.ranks - rank - 1;
  const int64_t warmup =
      std::min(total, chunks == 1 ? later : 2 * later + (chunks - 1) * plan.ranks);
  // With several stages a rank takes as many micro-batches as there are ranks through one stage,
  // then through the next.
  const auto action = [&](Kind kind, int64_t number) {
    const int64_t round = plan.ranks * chunks;
    const int64_t chunk = number % round / plan.ranks;
    return chunks == 1 ? PipelineAction{kind, number, 0}
                       : PipelineAction{kind, number / round * plan.ranks + number % plan.ranks,
                                        kind == Kind::kForward ? chunk : chunks - 1 - chunk};
  };
  std::vector<PipelineAction> actions;
  for (int64_t i = 0; i < total + warmup; ++i) {
    if (i < total) {
      actions.push_back(action(Kind::kForward, i));
    }
    if (i >= warmup) {
      actions.push_back(action(Kind::kBackward, i - warmup));
    }
  }
  return actions;
}

/// ZB-H1: a rank puts off the weights of as many micro-batches as there are ranks before it.
std::vector<PipelineAction> with_late_weights(const std::vector<PipelineAction>& actions,
                                              int64_t rank, int64_t micro_batches) {
  std::vector<PipelineAction> result;
  for (const PipelineAction& action : actions) {
    result.push_back(action);
    if (action.kind == Kind::kBackward && action.micro_batch >= rank) {
      result.push_back({Kind::kWeights, action.micro_batch - rank, 0});
    }
  }
  for (int64_t i = std::max<int64_t>(micro_batches - rank, 0); i < micro_batches; ++i) {
    result.push_back({Kind::kWeights, i, 0});
  }
  return result;
}

}  // namespace

int64_t StagePlan::stage_of_block(int64_t use) const {
  return std::ranges::upper_bound(begins, use) - begins.begin() - 1;
}

StagePlan plan_stages(const std::vector<double>& costs, int64_t ranks, int64_t chunks) {
  const auto count = std::ssize(costs);
  const int64_t stages = ranks * chunks;
  KINORA_CHECK(count > 0, kConfig, "[pipeline] parallel.pipeline is ", ranks,
               ", but this model has no sequence of blocks that ranks could divide. Hint: "
               "parallel.pipeline=1");
  KINORA_CHECK(stages <= count, kConfig, "[pipeline] parallel.pipeline ", ranks,
               chunks > 1 ? " x parallel.pipeline_chunks " + std::to_string(chunks) : "",
               " are more stages than the model's ", count, " blocks. Hint: at most as many");
  std::vector<double> before = {0.0};  // [blocks]
  for (const double cost : costs) {
    before.push_back(before.back() + cost);
  }
  // dearest[s][b]: of the best division of the first b blocks into s stages.
  const auto blocks = static_cast<size_t>(count);
  const double none = std::numeric_limits<double>::infinity();
  std::vector dearest(static_cast<size_t>(stages) + 1, std::vector(blocks + 1, none));
  std::vector last(static_cast<size_t>(stages) + 1, std::vector<size_t>(blocks + 1, 0));
  dearest[0][0] = 0.0;
  for (size_t s = 1; s < dearest.size(); ++s) {
    for (size_t b = s; b <= blocks; ++b) {
      for (size_t first = s - 1; first < b; ++first) {
        const double cost = std::max(dearest[s - 1][first], before[b] - before[first]);
        if (cost < dearest[s][b]) {
          dearest[s][b] = cost;
          last[s][b] = first;
        }
      }
    }
  }
  StagePlan plan{.ranks = ranks, .begins = {count}};
  for (size_t s = dearest.size() - 1; s > 0; --s) {
    plan.begins.insert(plan.begins.begin(),
                       static_cast<int64_t>(last[s][static_cast<size_t>(plan.begins.front())]));
  }
  return plan;
}

std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, const StagePlan& plan,
                                             int64_t rank, int64_t micro_batches) {
  KINORA_CHECK(plan.chunks() == 1 || micro_batches % plan.ranks == 0, kConfig, "[pipeline] with ",
               plan.chunks(),
               " stages a rank (parallel.pipeline_chunks) a step must have a "
               "multiple of parallel.pipeline's ",
               plan.ranks, " micro-batches, got ", micro_batches,
               ". Hint: train.micro_batch, or parallel.pipeline_chunks=1");
  const std::vector<PipelineAction> actions = one_forward_one_backward(plan, rank, micro_batches);
  if (schedule == PipelineSchedule::k1F1B) {
    return actions;
  }
  KINORA_CHECK(plan.chunks() == 1, kConfig,
               "[pipeline] parallel.pipeline_schedule=zero_bubble has one stage a rank, got "
               "parallel.pipeline_chunks ",
               plan.chunks(), ". Hint: one of them");
  return with_late_weights(actions, rank, micro_batches);
}

void divide_blocks(nn::Module& model, const std::vector<nn::BucketSpec>& buckets,
                   const StagePlan& plan, int64_t rank) {
  std::vector<std::string> blocks;  // paths, in order of use
  for (const nn::BucketSpec& bucket : buckets) {
    if (bucket.is_block) {
      blocks.push_back(bucket.name + ".");
    }
  }
  KINORA_CHECK(std::ssize(blocks) == plan.begins.back(), kInternal, "[pipeline] a plan of ",
               plan.begins.back(), " blocks is not for a model of ", blocks.size());
  for (const auto& [path, parameter] : model.named_parameters()) {
    const auto block = std::ranges::find_if(
        blocks, [&path = path](const std::string& prefix) { return path.starts_with(prefix); });
    if (block != blocks.end()) {
      parameter->stage = plan.rank_of(plan.stage_of_block(block - blocks.begin()));
      parameter->is_here = *parameter->stage == rank;
    }
  }
}

PipelineLinks::PipelineLinks(const comm::Group& group, StagePlan plan)
    : group_(group), plan_(std::move(plan)) {
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  std::iota(all.begin(), all.end(), 0);
  for (size_t i = 0; i < (plan_.chunks() > 1 ? links_.size() : links_.size() / 2); ++i) {
    links_[i] = group.split({all});
  }
}

const comm::Group& PipelineLinks::link(bool of_gradients, int64_t stage) const {
  const bool goes_around = plan_.rank_of(stage + 1) == 0;
  return links_[(goes_around ? 2 : 0) + (of_gradients ? 1 : 0)];
}

void PipelineLinks::send(const comm::Group& link, const Streams& tensors, int64_t rank) {
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor data = tensor.detach().contiguous();
    sent_.emplace_back(link.send_async(data, rank), data);
  }
  // No rank is further ahead than there are stages, both ways, of at most two streams: what is
  // older has been received.
  while (std::ssize(sent_) > 8 * plan_.num_stages()) {
    sent_.front().first.wait();
    sent_.pop_front();
  }
}

void PipelineLinks::receive(const comm::Group& link, const at::Tensor& tensor, int64_t rank) {
  std::optional<device::Lap> lap;
  if (waiting_ != nullptr) {
    lap.emplace(*waiting_);
  }
  link.receive(tensor, rank);
}

PipelineLinks::Streams PipelineLinks::receive_streams(int64_t stage, const Streams& like) {
  Streams streams;
  for (const at::Tensor& tensor : like) {
    streams.push_back(at::empty_like(tensor.detach(), at::MemoryFormat::Contiguous));
    receive(link(false, stage - 1), streams.back(), plan_.rank_of(stage - 1));
  }
  return streams;
}

void PipelineLinks::send_streams(int64_t stage, const Streams& streams) {
  send(link(false, stage), streams, plan_.rank_of(stage + 1));
}

at::Tensor PipelineLinks::receive_outline(int64_t stage, at::Device device) {
  const at::Tensor outline = at::empty({kMaxDims + 3}, at::kLong);
  receive(link(false, stage - 1), outline, plan_.rank_of(stage - 1));
  const auto* const values = outline.const_data_ptr<int64_t>();
  return at::empty({}, at::device(device).dtype(static_cast<at::ScalarType>(values[0])))
      .expand({values + 3, static_cast<size_t>(values[2])})
      .set_requires_grad(values[1] != 0);
}

void PipelineLinks::send_outline(int64_t stage, const at::Tensor& stream) {
  KINORA_CHECK(stream.is_floating_point() && stream.dim() <= kMaxDims, kShape,
               "[pipeline] what goes from stage to stage must be floats of ", kMaxDims,
               " dims at most, got ", stream.scalar_type(), " ", stream.sizes(), " from stage ",
               stage);
  std::vector<int64_t> values(kMaxDims + 3);
  values[0] = static_cast<int64_t>(stream.scalar_type());
  values[1] = stream.requires_grad() ? 1 : 0;
  values[2] = stream.dim();
  std::ranges::copy(stream.sizes(), values.begin() + 3);
  send(link(false, stage), {at::tensor(values, at::kLong)}, plan_.rank_of(stage + 1));
}

PipelineLinks::Streams PipelineLinks::receive_gradients(int64_t stage, const Streams& like) {
  Streams gradients;
  for (const at::Tensor& tensor : like) {
    gradients.push_back(at::empty_like(tensor.detach(), at::MemoryFormat::Contiguous));
    receive(link(true, stage), gradients.back(), plan_.rank_of(stage + 1));
  }
  return gradients;
}

void PipelineLinks::send_gradients(int64_t stage, const Streams& gradients) {
  send(link(true, stage - 1), gradients, plan_.rank_of(stage - 1));
}

void PipelineLinks::finish() {
  for (const auto& [work, tensor] : sent_) {
    work.wait();
  }
  sent_.clear();
}

StagePass::StagePass(PipelineLinks& links, int64_t stage)
    : Stage(links.plan().begins[static_cast<size_t>(stage)],
            links.plan().begins[static_cast<size_t>(stage) + 1]),
      links_(links),
      stage_(stage) {}

bool StagePass::is_last() const {
  return stage_ + 1 == links_.plan().num_stages();
}

std::vector<at::Tensor> StagePass::enter(const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> streams = links_.receive_streams(stage_, like);
  if (at::GradMode::is_enabled()) {
    for (at::Tensor& stream : streams) {
      stream.set_requires_grad(true);
    }
    received_ = streams;
  }
  return streams;
}

void StagePass::leave(const std::vector<at::Tensor>& streams) {
  links_.send_streams(stage_, streams);
  if (at::GradMode::is_enabled()) {
    made_ = streams;
  }
}

at::Tensor StagePass::enter_one(at::Device device) {
  const at::Tensor outline = links_.receive_outline(stage_, device);
  const at::Tensor stream = links_.receive_streams(stage_, {outline}).front();
  if (outline.requires_grad() && at::GradMode::is_enabled()) {
    received_ = {stream.set_requires_grad(true)};
  }
  return stream;
}

void StagePass::leave_one(const at::Tensor& stream) {
  links_.send_outline(stage_, stream);
  links_.send_streams(stage_, {stream});
  if (stream.requires_grad()) {
    made_ = {stream};
  }
}

void StagePass::backward() {
  if (made_.empty()) {
    return;
  }
  torch::autograd::backward(made_, links_.receive_gradients(stage_, made_));
  made_.clear();
}

void StagePass::send_gradients() {
  if (received_.empty()) {
    return;
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& stream : received_) {
    gradients.push_back(stream.grad().defined() ? stream.grad() : at::zeros_like(stream));
  }
  links_.send_gradients(stage_, gradients);
  received_.clear();
}

StagePipeline::StagePipeline(PipelineLinks& links) : links_(links) {
  for (int64_t chunk = 0; chunk < links.plan().chunks(); ++chunk) {
    stages_.push_back(
        std::make_unique<StagePass>(links, chunk * links.plan().ranks + links.group().rank()));
  }
}

at::Tensor StagePipeline::share(const at::Tensor& own, const at::Tensor& like) const {
  at::Tensor shared = own.defined() ? own.contiguous() : like;
  links_.finish();  // calls of two communicators under way at once could wait for each other
  links_.group().broadcast(shared, links_.plan().ranks - 1);
  return shared;
}

comm::Group stage_group(const comm::Group& world, int64_t size) {
  KINORA_CHECK(size >= 1 && world.size() % size == 0, kConfig, "[pipeline] ", size,
               " ranks that share the blocks of a model do not divide ", world.size(),
               ". Hint: as many ranks, or a multiple");
  return size == 1 ? comm::Group() : world.split(lines(world.size() / size, size, world.size()));
}

RowsInFlight::RowsInFlight(diffusion::Denoiser& model, PipelineLinks& links, int64_t out_channels)
    : model_(model), pipeline_(links), out_channels_(out_channels) {}

at::Tensor RowsInFlight::predict(const at::Tensor& x_t, const at::Tensor& t,
                                 const diffusion::Conditions& conditions,
                                 const diffusion::Pass& pass) {
  const at::NoGradGuard no_grad;
  diffusion::Pass own = pass;
  std::vector<at::Tensor> predicted;
  for (int64_t row = 0; row < x_t.size(0); ++row) {
    diffusion::Conditions of_row;
    for (const diffusion::NamedCondition& condition : diffusion::kConditions) {
      const at::Tensor& all = conditions.*condition.tensor;
      of_row.*condition.tensor = all.defined() ? all.narrow(0, row, 1) : at::Tensor();
    }
    if (own.cache != nullptr) {
      own.cache->take_row(row);
    }
    at::Tensor last;
    for (const std::unique_ptr<diffusion::Stage>& stage : pipeline_.stages()) {
      own.stage = stage.get();
      last = model_.forward(x_t.narrow(0, row, 1), t.narrow(0, row, 1), of_row, own);
    }
    if (last.defined()) {
      predicted.push_back(std::move(last));
    }
  }
  std::vector<int64_t> shape = x_t.sizes().vec();
  shape[1] = out_channels_;
  return pipeline_.share(predicted.empty() ? at::Tensor() : at::cat(predicted),
                         at::empty(shape, x_t.options()));
}

void add_shared_gradients(const optim::Arena& arena) {
  for (const optim::Bucket& bucket : arena.buckets()) {
    if (!bucket.slots.front().stage) {
      arena.options().pipeline.all_reduce(bucket.grad);
    }
  }
}

}  // namespace kinora::parallel
