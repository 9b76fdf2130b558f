#include "kinora/models/transformers/block_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/models/families.h"
#include "kinora/models/transformers/kept_branches.h"
#include "kinora/models/transformers/patch_sequence.h"
#include "kinora/models/transformers/seams.h"
#include "kinora/nn/low_rank.h"
#include "kinora/ops/activations_aside.h"
#include "kinora/ops/fp8.h"
#include "kinora/ops/parameter.h"

namespace kinora::models {
namespace {

ops::LinearRanks linear_ranks(const comm::Group& group, bool divides_rows) {
  using ops::Exchange;
  ops::LinearRanks ranks{.rank = group.rank(), .size = group.size()};
  ranks.sum = [group](const at::Tensor& part, bool beside) {
    const at::Tensor sum = part.contiguous();
    comm::Work work;
    if (beside) {
      work = group.all_reduce_async(sum);
    } else {
      group.all_reduce(sum);
    }
    return Exchange{part, [part, sum, work] {
                      work.wait();
                      if (!sum.is_same(part)) {
                        at::Tensor(part).copy_(sum);
                      }
                    }};
  };
  if (!divides_rows) {
    return ranks;
  }
  ranks.gather = [group](const at::Tensor& part, bool beside) {
    const at::Tensor own = part.contiguous();
    const at::Tensor rows = at::empty({group.size() * own.size(0), own.size(1)}, own.options());
    if (!beside) {
      group.all_gather(rows, own);
      return Exchange{rows, {}};
    }
    return Exchange{rows, [own, work = group.all_gather_async(rows, own)] { work.wait(); }};
  };
  ranks.scatter = [group](const at::Tensor& rows, bool beside) {
    const at::Tensor all = rows.contiguous();
    const at::Tensor part = at::empty({all.size(0) / group.size(), all.size(1)}, all.options());
    if (!beside) {
      group.reduce_scatter(part, all);
      return Exchange{part, {}};
    }
    return Exchange{part, [all, work = group.reduce_scatter_async(part, all)] { work.wait(); }};
  };
  return ranks;
}

}  // namespace

BlockModel::BlockModel(const ModelConfig& config) : Model(config) {}

void BlockModel::to_device(const at::Device& device) {
  for (const auto& [path, buffer] : named_buffers()) {
    *buffer = buffer->to(device);
  }
}

void BlockModel::set_buckets(std::vector<nn::BucketSpec> buckets,
                             std::vector<std::vector<nn::Linear*>> linears) {
  buckets_ = std::move(buckets);
  linears_ = std::move(linears);
  first_block_ = std::ranges::find_if(buckets_, &nn::BucketSpec::is_block) - buckets_.begin();
  num_blocks_ = std::ranges::count_if(buckets_, &nn::BucketSpec::is_block);
}

std::vector<double> BlockModel::block_costs() const {
  return std::vector(static_cast<size_t>(num_blocks_), 1.0);
}

at::Tensor BlockModel::predict(const at::Tensor& x_t, const at::Tensor& t,
                               const diffusion::Conditions& conditions,
                               const diffusion::Pass& pass) {
  if (pipeline() == nullptr || pass.stage != nullptr) {
    return in_patches(x_t, t, conditions, pass);
  }
  diffusion::Pass own = pass;
  at::Tensor last;
  for (const std::unique_ptr<diffusion::Stage>& stage : pipeline()->stages()) {
    own.stage = stage.get();
    last = in_patches(x_t, t, conditions, own);
  }
  std::vector<int64_t> shape = x_t.sizes().vec();
  shape[1] = config().out_channels();
  return pipeline()->share(last, x_t.new_empty(shape));
}

at::Tensor BlockModel::in_patches(const at::Tensor& x_t, const at::Tensor& t,
                                  const diffusion::Conditions& conditions,
                                  const diffusion::Pass& pass) {
  if (pass.cache == nullptr || !pass.cache->keeps_tokens()) {
    return compute(x_t, t, conditions, pass);
  }
  struct Restored {
    Model& model;
    std::shared_ptr<const nn::Sequence> sequence;
    ~Restored() { model.use_sequence(std::move(sequence)); }
  };
  const Restored restored{*this, shared_sequence()};
  std::vector<at::Tensor> left;
  at::Tensor last;
  for (int64_t patch = 0; patch < pass.cache->patches(); ++patch) {
    use_sequence(std::make_shared<PatchSequence>(*pass.cache, patch, left));
    last = compute(x_t, t, conditions, pass);
  }
  return last;
}

int64_t BlockModel::num_fast_linears() const {
  int64_t number = 0;
  for (const std::vector<nn::Linear*>& block : linears_) {
    for (const nn::Linear* linear : block) {
      number += linear->num_parts();
    }
  }
  return number;
}

void BlockModel::use_fast_path(std::shared_ptr<ops::BlockKernels> kernels, ops::Recompute level) {
  if (linears_.empty()) {
    Model::use_fast_path(std::move(kernels), level);
    return;
  }
  kernels_ = std::move(kernels);
  level_ = level;
  set_kernels(kernels_.get());
  int64_t number = 0;
  for (const std::vector<nn::Linear*>& block : linears_) {
    for (nn::Linear* linear : block) {
      linear->set_number(number);
      if (const nn::LowRankUpdate* update = linear->update()) {
        const std::vector<int64_t>& shape = linear->weight.shape;
        const int64_t rank = update->options().rank;
        linear->weight.room =
            kernels_ != nullptr ? kernels_->room_beside(shape[0], shape[1], rank) : 0;
      }
      number += linear->num_parts();
    }
  }
  std::set<std::string> in_rings;
  for (const nn::BucketSpec& bucket : buckets_) {
    if (!bucket.ring.empty()) {
      in_rings.insert(bucket.parameters.begin(), bucket.parameters.end());
    }
  }
  outside_.clear();
  for (const auto& [path, parameter] : named_parameters()) {
    // An update lies where its weight does.
    const std::string owner = nn::owner_of_update(path).value_or(path);
    if (!parameter->fp32_island && !in_rings.contains(path) &&
        !in_rings.contains(owner + ".weight")) {
      outside_.push_back(parameter);
    }
  }
}

void BlockModel::offload_activations(int64_t num_blocks, const at::Device& device) {
  if (linears_.empty() || kernels_ == nullptr) {
    Model::offload_activations(num_blocks, device);
    return;
  }
  host_activations_ = num_blocks > 0 ? std::make_shared<ops::HostActivations>(device) : nullptr;
  offloaded_blocks_ = num_blocks;
}

void BlockModel::keep_activations_in_fp8(bool in_fp8) {
  if (linears_.empty() || kernels_ == nullptr) {
    Model::keep_activations_in_fp8(in_fp8);
  }
  fp8_activations_ = in_fp8;
}

void BlockModel::divide_norms(bool divided) {
  if (linears_.empty() || kernels_ == nullptr) {
    Model::divide_norms(divided);
  }
  divides_norms_ = divided;
}

std::vector<bool> BlockModel::offloaded() const {
  std::vector<bool> may;
  for (int64_t use = 0; use < num_blocks_; ++use) {
    may.push_back(!ends_stack(use));
  }
  return ops::spread_evenly(may, in_blocks(offloaded_blocks_));
}

std::vector<bool> BlockModel::recomputed(const std::vector<bool>& offloaded) const {
  const int64_t count = in_blocks(recompute_blocks());
  return ops::first_others(count == num_blocks_ ? std::vector<bool>(offloaded.size()) : offloaded,
                           count);
}

int64_t BlockModel::in_blocks(int64_t count) const {
  return count * num_blocks_ / shape_of(config()).blocks;
}

int64_t BlockModel::offloaded_activation_bytes() const {
  return host_activations_ != nullptr ? host_activations_->num_bytes() : 0;
}

void BlockModel::begin_step() {
  if (is_fast() && kernels_->fp8() != nullptr) {
    kernels_->fp8()->begin_step();
    tell_fp8();
  }
}

void BlockModel::tell_fp8() const {
  for (size_t i = 0; i < linears_.size(); ++i) {
    if (!linears_[i].front()->weight.is_here) {
      continue;
    }
    std::vector<ops::LinearWeights> numbered;
    for (const nn::Linear* linear : linears_[i]) {
      for (ops::LinearWeights& part : linear->parts()) {
        numbered.push_back(std::move(part));
      }
    }
    ops::Fp8& fp8 = *kernels_->fp8();
    if (fp8.is_for_sampling()) {  // from weights that may come for a moment: what is made stays
      with_bucket(block_bucket(static_cast<int64_t>(i)), [&] { fp8.know(numbered); });
    } else {
      fp8.know(numbered);
    }
  }
}

bool BlockModel::samples_in_fp8() const {
  return is_fast() && kernels_->fp8() != nullptr && kernels_->fp8()->is_for_sampling();
}

diffusion::Prepared BlockModel::prepare(const at::Tensor& /*times*/,
                                        const diffusion::Conditions& /*conditions*/) {
  if (samples_in_fp8()) {
    kernels_->fp8()->begin_anew();
  }
  return {};
}

void BlockModel::use_step_cache(const diffusion::StepCacheConfig& config) {
  KINORA_CHECK(!config.any() || config.has_patches() || pipeline() == nullptr, kConfig,
               "[sample] sample.cache keeps what all blocks make, and parallel.pipeline divides "
               "them among ranks. Hint: sample.cache=none");
  KINORA_CHECK(!config.has_patches() || config.kind == diffusion::StepCacheConfig::Kind::kNone,
               kConfig, "[sample] sample.patches ", config.patches,
               " computes all blocks, and sample.cache would leave out some. Hint: "
               "sample.cache=none, or sample.patches=1");
  const ModelShape shape = shape_of(this->config());
  const bool has_windows = shape.has_windows || shape.has_sliding_window;
  KINORA_CHECK(!config.has_patches() || (!family_of(this->config()).spans.empty() &&
                                         !shape.is_undivided && !has_windows),
               kConfig, "[sample] the tokens of ", name_of(this->config()),
               shape.is_undivided ? " with compressed keys and values (model.kv_compress) or a "
                                    "clean first frame (model.clean_first_frame)"
               : has_windows      ? " with attention in windows"
                                  : "",
               " cannot be computed in patches. Hint: sample.patches=1");
  cache_ = config;
  cache_use_ = {};
}

std::unique_ptr<diffusion::StepCache> BlockModel::make_cache() {
  return cache_.any() ? std::make_unique<diffusion::StepCache>(cache_, cache_use_) : nullptr;
}

std::shared_ptr<const nn::Sequence> BlockModel::sequence_of(const diffusion::Pass& pass) const {
  if (pass.cache == nullptr) {
    return shared_sequence();
  }
  return std::make_shared<KeptBranches>(sequence(), *pass.cache);
}

FastPass BlockModel::fast_pass(const at::Tensor& x, int64_t tokens_a_frame,
                               const diffusion::Pass& own) const {
  FastPass pass{.kernels = *kernels_,
                .sequence = sequence(),
                .cache = own.cache,
                .tokens_a_frame = tokens_a_frame};
  if (x.defined()) {
    pass.batch = x.size(0);
    pass.frames = x.size(1);
    pass.tokens = x.size(2);
  }
  return pass;
}

ops::BlockStack BlockModel::stack(std::vector<ops::Block> blocks,
                                  const diffusion::Pass& pass) const {
  const BlockSpan span = blocks_of(pass);
  const bool overwrites = may_overwrite() && pass.overwrite;
  if (overwrites && pass.starts_step) {
    std::vector<at::Tensor> gradients;
    for (const nn::Parameter* parameter : outside_) {
      if (parameter->grad.defined()) {
        gradients.push_back(parameter->grad);
      }
    }
    ops::zero_gradients(gradients);
  }
  const std::vector<bool> at_host = offloaded();
  const std::vector<bool> again = recomputed(at_host);
  ops::BlockStack stack{.blocks = std::move(blocks),
                        .centres = centres(),
                        .recompute = level_,
                        .recomputed = {again.begin() + span.first, again.begin() + span.end},
                        .host_activations = host_activations_,
                        .offloaded = {at_host.begin() + span.first, at_host.begin() + span.end},
                        .fp8_activations = fp8_activations_,
                        .overwrites_gradients = overwrites,
                        .hook = hook(),
                        .new_weights = pass.new_weights};
  if (const nn::Linear& first = *linears_.front().front(); first.is_divided()) {
    stack.ranks = linear_ranks(first.group(), divides_norms_ && at::GradMode::is_enabled());
  }
  for (const int64_t use : span) {
    stack.block_buckets.push_back(block_bucket(use));
  }
  return stack;
}

at::Tensor BlockModel::run(ops::BlockStack stack, ops::StackInputs inputs,
                           const diffusion::Pass& pass) const {
  if (!runs_in_pieces(pass)) {
    stack.has_final_norm = blocks_of(pass).end == num_blocks_;
    if (!stack.has_final_norm && inputs.condition.defined()) {
      inputs.vectors = inputs.vectors.narrow(1, 0, 0);  // the final norm's
    }
    const auto all = [&](const Streams& in, int64_t /*first*/, int64_t /*end*/) {
      inputs.x = in[0];
      return Streams{run_joint(std::move(stack), std::move(inputs))[0]};
    };
    return through_blocks({inputs.x.to(compute_type())}, num_blocks_, pass, all, {});
  }
  if (inputs.condition.defined()) {
    inputs.vectors = stack_vectors(stack, inputs.condition, inputs.vectors);
    inputs.condition = at::Tensor();
  }
  const at::Tensor x = inputs.x.to(compute_type());
  const auto blocks = [&](const Streams& in, int64_t first, int64_t end) {
    inputs.x = in[0];
    return run_piece(stack, inputs, first, end);
  };
  const at::Tensor& offset = stack.blocks.front().offset;
  const at::Tensor h = through_blocks({x}, std::ssize(stack.blocks), pass, blocks, [&] {
    return normed(offset.defined() ? x + offset.view(x.sizes().slice(1)) : x, inputs.vectors, 0,
                  centres());
  });
  return normed(h.to(at::kFloat), inputs.vectors, inputs.vectors.size(1) / x.size(-1) - 2);
}

at::Tensor BlockModel::normed(const at::Tensor& x, const at::Tensor& vectors, int64_t first,
                              bool centres) {
  const int64_t width = x.size(-1);
  const at::Tensor shift = vectors.narrow(1, first * width, width).unsqueeze(1);
  const at::Tensor scale = vectors.narrow(1, (first + 1) * width, width).unsqueeze(1);
  const at::Tensor rows = x.to(at::kFloat).reshape({vectors.size(0), -1, width});
  return (centres ? modulated_norm(rows, shift, scale) : modulated_rms_norm(rows, shift, scale))
      .to(x.scalar_type())
      .view(x.sizes());
}

BlockModel::Streams BlockModel::run_piece(const ops::BlockStack& stack,
                                          const ops::StackInputs& inputs, int64_t first,
                                          int64_t end) const {
  ops::BlockStack piece = stack;
  ops::StackInputs own = inputs;
  int64_t column = 0;
  int64_t columns = 0;
  for (int64_t i = 0; i < end; ++i) {
    (i < first ? column : columns) += stack.blocks[static_cast<size_t>(i)].num_vectors;
  }
  const int64_t width = inputs.x.size(-1);
  own.vectors = inputs.vectors.narrow(1, column * width, columns * width);
  piece.blocks = {stack.blocks.begin() + first, stack.blocks.begin() + end};
  piece.block_buckets = {stack.block_buckets.begin() + first, stack.block_buckets.begin() + end};
  piece.recomputed = {stack.recomputed.begin() + first, stack.recomputed.begin() + end};
  piece.modulation.clear();
  piece.modulation_buckets.clear();
  piece.has_final_norm = false;
  const auto out = run_joint(std::move(piece), std::move(own));
  return out[1].defined() ? Streams{out[0], out[1]} : Streams{out[0]};
}

at::Tensor BlockModel::through_blocks(Streams streams, int64_t count, const diffusion::Pass& pass,
                                      const BlockRange& blocks,
                                      const std::function<at::Tensor()>& first_input) const {
  if (pass.stage != nullptr) {
    diffusion::Stage& stage = *pass.stage;
    if (stage.first() > 0) {
      streams = stage.enter(streams);
    }
    streams = blocks(std::move(streams), stage.first(), stage.end());
    if (stage.end() == count) {
      return streams[0];
    }
    stage.leave(streams);
    return {};
  }
  if (!runs_in_pieces(pass)) {
    return blocks(std::move(streams), 0, count)[0];
  }
  diffusion::StepCache& cache = *pass.cache;
  const int64_t first = cache.computes_first_block() ? 1 : 0;
  at::Tensor watched;
  if (cache.computes_first_block()) {
    const at::Tensor before = streams[0];
    streams = blocks(std::move(streams), 0, 1);
    watched = streams[0] - before;
  } else {
    watched = first_input();
  }
  const at::Tensor x = streams[0];
  const bool reuses =
      cache.reuses(watched, [this](const at::Tensor& numbers) { sequence().add_up(numbers); });
  cache.count_blocks(count, reuses ? count - first : 0);
  if (reuses) {
    return x + cache.residual();
  }
  if (first < count) {
    streams = blocks(std::move(streams), first, count);
  }
  cache.keep(streams[0] - x);
  return streams[0];
}

at::Tensor BlockModel::through_plain_blocks(
    at::Tensor x, int64_t count, const diffusion::Pass& pass,
    const std::function<at::Tensor(int64_t i, const at::Tensor& x)>& body,
    const std::function<at::Tensor()>& first_input) const {
  const auto blocks = [&body](Streams streams, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      streams[0] = body(i, streams[0]);
    }
    return streams;
  };
  return through_blocks({std::move(x)}, count, pass, blocks, [&] {
    at::Tensor h;
    with_bucket(block_bucket(0), [&] { h = first_input(); });
    return h;
  });
}

at::ScalarType BlockModel::compute_type() const {
  const auto here = std::ranges::find_if(
      linears_, [](const auto& linears) { return linears.front()->weight.is_here; });
  return here->front()->weight.value.scalar_type();
}

std::array<at::Tensor, 2> BlockModel::run_joint(ops::BlockStack stack,
                                                ops::StackInputs inputs) const {
  if (samples_in_fp8() && stack.block_buckets.front() == first_block_) {  // once a pass
    if (kernels_->fp8()->num_linears() == 0) {
      tell_fp8();
    }
    kernels_->fp8()->begin_step();
  }
  const at::ScalarType type = compute_type();
  inputs.x = inputs.x.to(type);
  if (inputs.second.defined()) {
    inputs.second = inputs.second.to(type);
  }
  return ops::run_joint_blocks(*kernels_, std::move(stack), std::move(inputs));
}

at::Tensor BlockModel::stack_vectors(const ops::BlockStack& stack, const at::Tensor& condition,
                                     const at::Tensor& vectors) const {
  return ops::stack_vectors(*kernels_, stack, config().transformer.hidden, condition, vectors);
}

at::Tensor BlockModel::packed_text(const ops::CrossAttentionBody& body,
                                   const at::Tensor& text) const {
  return ops::packed_text(*kernels_, body, text);
}

}  // namespace kinora::models
