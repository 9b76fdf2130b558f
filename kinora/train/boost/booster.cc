#include "kinora/train/boost/booster.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/core/error.h"
#include "kinora/data/loader.h"
#include "kinora/device/free_memory.h"
#include "kinora/inference/setup.h"
#include "kinora/optim/held_weights.h"
#include "kinora/parallel/bucket_groups.h"
#include "kinora/parallel/pipeline.h"
#include "kinora/parallel/tensor.h"
#include "kinora/pipelines/diffusers_model.h"
#include "kinora/train/boost/chain.h"
#include "kinora/train/boost/pipeline_run.h"
#include "kinora/train/boost/torch_module.h"
#include "kinora/train/setup.h"

namespace kinora::train {
namespace {

void check_possible(const Boostable& model, const BoosterOptions& options,
                    const optim::OptimizerConfig& optimizer, int stage,
                    const parallel::Mesh& mesh) {
  KINORA_CHECK(mesh.shape().pipeline == 1 || stage <= 1 ||
                   (stage == 2 && !options.plugin_config.reduce_each_micro_batch),
               kConfig, "[booster] parallel.zero_stage ", stage,
               " reduces gradients after each micro-batch, and a pipeline (parallel.pipeline, "
               "pp_size) has several under way. Hint: parallel.zero_stage=1");
  const bool holds = options.frozen_weights.has_value() || options.frozen_offload > 0.0;
  KINORA_CHECK(!holds || model.told_reads() == ToldReads::kInOrder, kConfig,
               "[booster] frozen_weights and frozen_offload are of the linears of Kinora's own "
               "models; a torch::nn::Module has its own. Hint: leave them out");
  KINORA_CHECK(optimizer.offload_weights == 0.0 || mesh.shape().pipeline == 1, kConfig,
               "[booster] optim.offload_weights brings weights for one pass at a time, and a "
               "pipeline (parallel.pipeline, pp_size) has several under way. Hint: no pipeline");
  KINORA_CHECK(!options.use_fp8 || model.is_fp8(), kConfig,
               "[booster] use_fp8 needs the linears of Kinora's own models, on their fast path; a "
               "torch::nn::Module has its own. Hint: precision bf16");
}

/// Says what is wrong with a plugin before axes that it would need are found not to fit.
parallel::MeshShape checked_mesh(const BoosterOptions& options) {
  (void)zero_stage(options.plugin, options.plugin_config);
  return options.plugin_config.mesh();
}

optim::OptimizerConfig with_clipping(optim::OptimizerConfig optimizer, double grad_clip) {
  if (grad_clip != 0.0) {
    KINORA_CHECK(optimizer.max_grad_norm == 0.0 || optimizer.max_grad_norm == grad_clip, kConfig,
                 "[booster] grad_clip is ", grad_clip, ", but the optimizer's max_grad_norm is ",
                 optimizer.max_grad_norm, ". Hint: leave one of them out");
    optimizer.max_grad_norm = grad_clip;
  }
  return optimizer;
}

}  // namespace

Boosted::Boosted(std::unique_ptr<Boostable> model, const BoosterOptions& options,
                 const parallel::Mesh& mesh, const optim::OptimizerConfig& optimizer,
                 const optim::LrSchedule& schedule)
    : mesh_(mesh), schedule_(schedule), model_(std::move(model)) {
  const int stage = zero_stage(options.plugin, options.plugin_config);
  check_possible(*model_, options, optimizer, stage, mesh_);
  schedule_.validate();
  const at::Device device = inference::choose_device(options.device);
  const bool is_own = model_->told_reads() == ToldReads::kInOrder;
  const bool groups = mesh_.gradient_ranks() > 1 && is_own;
  const parallel::BucketGroups buckets = parallel::group_buckets(
      model_->buckets(), model_->module().named_parameters(),
      groups && options.plugin_config.pp_chunks == 1 ? options.plugin_config.bucket_mib << 20 : 0);
  arena_ = std::make_unique<optim::Arena>(
      model_->module().named_parameters(), buckets.buckets,
      optim::ArenaOptions{
          .device = device,
          .compute_type = inference::compute_type(options.precision),
          .seed = options.seed,
          .train = true,
          .rule = optimizer.rule,
          .moments = optimizer.moments,
          .masters = optimizer.masters,
          .ema_decays = options.ema_decays,
          .offload = optimizer.offload,
          .offload_weights = optimizer.offload_weights,
          .in_backward = optimizer.in_backward,
          .disk = optimizer.disk,
          .sharding = {.group = mesh_.state_group(),
                       .stage = stage,
                       .whole_gradients = !options.plugin_config.reduce_each_micro_batch},
          .held = {.format = options.frozen_weights,
                   .offload = options.frozen_offload,
                   .modulation = options.modulation,
                   .buckets = model_->buckets()},
          .tensor = mesh_.group(parallel::Axis::kTensor),
          .pipeline = mesh_.group(parallel::Axis::kPipeline)});
  optimizer_ =
      std::make_unique<optim::Optimizer>(with_clipping(optimizer, options.grad_clip), *arena_,
                                         own_optimizer(options.optimizer_kernel, device));
  if (model_->overwrites_gradients()) {
    optimizer_->leave_gradients();
  }
  if (std::ranges::any_of(arena_->buckets(),
                          [](const optim::Bucket& bucket) { return !bucket.owns_compute; })) {
    model_->trained_weights_take_turns();
  }
  waiting_ = std::make_unique<device::Stopwatch>(device);
  ops::BucketHook hook;
  if (mesh_.gradient_ranks() > 1 || optimizer.offload_weights > 0.0 || optimizer.in_backward) {
    // Alone, with weights that come one by one: each when its own update is done.
    waits_by_bucket_ = mesh_.gradient_ranks() == 1 && optimizer_->runs_beside();
    parallel_ = std::make_unique<parallel::DataParallel>(
        *arena_, mesh_.group(parallel::Axis::kReplicate), *waiting_,
        parallel::DataParallelOptions{
            .reduce_type = inference::compute_type(options.plugin_config.reduce_type),
            .fp8_across = options.plugin_config.fp8_across,
            .overwrites_gradients = model_->overwrites_gradients(),
            .reads_before_passes = model_->told_reads() == ToldReads::kNone,
            .gradients_apart = model_->told_reads() == ToldReads::kWatched,
            .before_fetch = [optimizer =
                                 optimizer_.get()](size_t bucket) { optimizer->wait_for(bucket); },
            .update = updating(),
            .before_reuse = [optimizer = optimizer_.get()](
                                size_t bucket) { optimizer->wait_for_gradient(bucket); }});
    hook = buckets.translate(waits_by_bucket_ ? waiting_for_updates(parallel_->hook())
                                              : parallel_->hook());
  } else if (optimizer_->runs_beside() && is_own && arena_->num_frozen() == 0) {
    waits_by_bucket_ = true;
    hook = buckets.translate(waiting_for_updates({}));
  }
  if (arena_->held() != nullptr) {
    hook = arena_->held()->hook(std::move(hook));
  }
  if (hook) {
    model_->tell_buckets(std::move(hook));
  }
  model_->tell_forward([this] { begin(); });
  model_->settle(*arena_, mesh_.world());  // when all that can be refused has been
  loss_ = at::zeros({}, at::device(device).dtype(at::kFloat));
}

Boosted::~Boosted() = default;

std::function<void(size_t)> Boosted::updating() {
  if (!arena_->options().in_backward) {
    return {};
  }
  return [this](size_t bucket) {
    if (update_) {
      optimizer_->update(bucket);
    }
  };
}

ops::BucketHook Boosted::waiting_for_updates(ops::BucketHook next) const {
  return [optimizer = optimizer_.get(), next = std::move(next)](ops::BucketMoment moment,
                                                                int64_t bucket) {
    if (moment == ops::BucketMoment::kBeforeForward) {
      optimizer->wait_for(static_cast<size_t>(bucket));
    }
    if (next) {
      next(moment, bucket);
    }
  };
}

void Boosted::accumulate(int64_t num_passes) {
  KINORA_CHECK(num_passes >= 1, kConfig, "[booster] a step must have 1 pass or more, got ",
               num_passes);
  next_num_passes_ = num_passes;
}

diffusion::Pass Boosted::begin() {
  if (begun_) {
    return *begun_;
  }
  KINORA_CHECK(passes_ == 0 || passes_ < num_passes_, kConfig, "[booster] the ", num_passes_,
               " passes of a step are done, step() must come. Hint: accumulate(n) sets how many "
               "make one");
  if (passes_ == 0) {
    num_passes_ = next_num_passes_;
    begin_update(schedule_.at(steps_));
    begin_step();
  }
  begun_ = begin_pass({.first = passes_ == 0, .last = passes_ + 1 == num_passes_});
  return *begun_;
}

void Boosted::backward(const at::Tensor& loss) {
  const Chain* const chain = model_->chain();
  KINORA_CHECK(chain == nullptr || chain->links() == nullptr, kConfig, "[booster] with pp_size ",
               mesh_.shape().pipeline,
               " no rank has the whole forward, so that there is no loss to call backward() with. "
               "Hint: execute_pipeline()");
  KINORA_CHECK(loss.defined() && loss.numel() == 1, kShape,
               "[booster] backward() needs a loss of one element");
  begin();
  begun_.reset();  // also after an error
  end_pass(loss, 1.0 / static_cast<double>(num_passes_ * mesh_.gradient_ranks()));
  ++passes_;
}

void Boosted::execute_pipeline(
    const std::function<at::Tensor(int64_t)>& input_of,
    const std::function<at::Tensor(const at::Tensor&, int64_t)>& loss_of) {
  const Chain* const chain = model_->chain();
  KINORA_CHECK(chain != nullptr, kConfig,
               "[booster] execute_pipeline() passes through the children of a "
               "torch::nn::Sequential, and the model is none. Hint: name one in it with `stages`");
  KINORA_CHECK(passes_ == 0, kConfig,
               "[booster] execute_pipeline() makes all passes of a step, got ", passes_,
               " before it. Hint: step() comes after it");
  if (chain->links() == nullptr) {
    for (int64_t pass = 0; pass < next_num_passes_; ++pass) {
      backward(loss_of(chain->forward(0, chain->size(), input_of(pass)), pass));
    }
    return;
  }
  num_passes_ = next_num_passes_;
  begin_update(schedule_.at(steps_));
  begin_step();
  const std::vector<double> shares(static_cast<size_t>(num_passes_),
                                   1.0 / static_cast<double>(num_passes_ * mesh_.gradient_ranks()));
  run_pipeline(*this, {.links = chain->links()}, shares, [&](const StageForward& forward) {
    const auto pass = static_cast<int64_t>(forward.micro_batch);
    parallel::StagePass& stage = forward.stage;
    const at::Tensor input =
        stage.first() == 0 ? input_of(pass) : stage.enter_one(arena_->options().device);
    const at::Tensor output = chain->forward(stage.first(), stage.end(), input);
    if (stage.is_last()) {
      return loss_of(output, pass);
    }
    stage.leave_one(output);
    return at::Tensor();
  });
  passes_ = num_passes_;
}

optim::StepResult Boosted::step() {
  const int64_t needed = passes_ == 0 ? next_num_passes_ : num_passes_;
  KINORA_CHECK(passes_ == needed && !begun_, kConfig, "[booster] step() comes after ", needed,
               " calls of backward(), got ", passes_);
  passes_ = 0;
  const int64_t number = enqueue_update(end_step());
  if (model_->told_reads() == ToldReads::kNone) {
    refresh();
  } else {
    optimizer_->wait_for_all();
  }
  ++steps_;
  return optimizer_->wait_report(number);
}

void Boosted::save_model(const std::filesystem::path& path, optim::WeightSet weights) {
  if (mesh_.index(parallel::Axis::kReplicate) == 0) {
    model_->with_all_buffers([&] {
      checkpoint::save_weights(
          path, model_->module(), *arena_,
          weights.ema ? optim::Role::average(*weights.ema) : optim::Role::master(), at::kFloat,
          checkpoint::weights_metadata(""));
    });
  }
  mesh_.world().barrier();  // the others find it
}

void Boosted::load_model(const std::filesystem::path& path) {
  checkpoint::load_weights(pipelines::open_weights(path), model_->module(), *arena_);
  model_->loaded();
}

std::filesystem::path Boosted::save_optimizer(const std::filesystem::path& folder) {
  if (mesh_.world().rank() == 0) {
    std::filesystem::create_directories(folder);
  }
  mesh_.world().barrier();  // the others find it
  return checkpoint::save(folder, *arena_,
                          {.step = steps_,
                           .position = 0,
                           .optimizer = optimizer_->state(),
                           .timestep_history = {},
                           .timestep_counts = {},
                           .config = {},
                           .pinned = {},
                           .fp8 = {},
                           .buffers = {},
                           .frozen = {}},
                          mesh_.world());
}

void Boosted::load_optimizer(const std::filesystem::path& checkpoint) {
  const checkpoint::TrainingState state = checkpoint::load(checkpoint, *arena_, mesh_.world());
  optimizer_->restore(state.optimizer);
  steps_ = state.step;
  model_->loaded();
}

void Boosted::begin_step() {
  if (!waits_by_bucket_) {
    optimizer_->wait_for_all();
  }
  if (parallel_ != nullptr) {
    parallel_->begin_step();
  }
  model_->begin_step();
  loss_.zero_();
}

diffusion::Pass Boosted::begin_pass(Turn turn) {
  if (parallel_ != nullptr) {
    parallel_->begin_pass(turn.first, turn.last);
  }
  model_->begin_pass();
  return {.starts_step = turn.first,
          .overwrite = parallel_ == nullptr ? turn.first : parallel_->starts_empty(turn.first),
          .new_weights = turn.first};
}

void Boosted::end_pass(const at::Tensor& loss, double share) {
  backward_of(loss, share);
  end_passes();
}

void Boosted::backward_of(const at::Tensor& loss, double share) {
  // Without dims the product is fp32, which holds the loss scale of fp16.
  const at::Tensor scalar = loss.dim() == 0 ? loss : loss.reshape({});
  torch::autograd::backward({scalar * (optimizer_->loss_scale() * share)}, {});
  loss_.add_(scalar.detach(), share);
}

void Boosted::begin_last_backward() {
  if (parallel_ != nullptr) {
    parallel_->begin_last_backward();
  }
}

void Boosted::begin_backward() {
  model_->begin_pass();
}

void Boosted::end_backward() {
  model_->end_pass();
}

void Boosted::end_passes() {
  model_->end_pass();
  if (parallel_ != nullptr) {
    parallel_->end_pass();
  }
}

at::Tensor Boosted::end_step() {
  if (parallel_ != nullptr) {
    parallel_->add_over_samples(loss_);
  }
  if (arena_->options().tensor.size() > 1) {
    const device::Lap lap(*waiting_);
    parallel::add_partial_gradients(*arena_);
  }
  if (const comm::Group& pipeline = arena_->options().pipeline; pipeline.size() > 1) {
    const device::Lap lap(*waiting_);
    pipeline.all_reduce(loss_);  // the last stage's
    parallel::add_shared_gradients(*arena_);
  }
  if (const at::Tensor magnitudes = model_->magnitudes(); magnitudes.defined()) {
    if (parallel_ != nullptr) {
      parallel_->take_largest(magnitudes);
    }
    for (const comm::Group* group : {&arena_->options().tensor, &arena_->options().pipeline}) {
      group->all_reduce(magnitudes, comm::Reduction::kMax);
    }
  }
  return loss_;
}

void Boosted::begin_update(double lr) {
  lr_ = lr;
  if (arena_->options().in_backward) {
    update_ = optimizer_->begin_updates(*arena_, lr);
  }
}

int64_t Boosted::enqueue_update(const at::Tensor& loss) {
  int64_t number = 0;
  if (update_) {
    optimizer_->end_updates(loss);
    number = *std::exchange(update_, std::nullopt);
  } else {
    number = optimizer_->enqueue_step(*arena_, lr_, loss);
  }
  if (parallel_ != nullptr) {
    parallel_->weights_changed();
  }
  return number;
}

void Boosted::refresh() {
  optimizer_->wait_for_all();
  if (parallel_ != nullptr) {
    parallel_->refresh();
  }
}

std::string Boosted::describe_ranks() const {
  if (mesh_.world().size() == 1) {
    return {};
  }
  const optim::Sharding& sharding = arena_->options().sharding;
  const parallel::MeshShape& shape = mesh_.shape();
  std::ostringstream text;
  const int64_t together = shape.sequence * shape.tensor * shape.pipeline;
  if (together == 1) {
    text << mesh_.data_ranks() << " ranks, each with its own samples; ";
  } else {
    text << mesh_.data_ranks() << (mesh_.data_ranks() == 1 ? " group of " : " groups of ")
         << together << " ranks, which divide ";
    std::vector<std::string> parts;
    if (shape.sequence > 1) {
      parts.push_back("each sample among " + std::to_string(shape.sequence));
    }
    if (shape.tensor > 1) {
      parts.push_back("heads and MLPs among " + std::to_string(shape.tensor));
    }
    if (shape.pipeline > 1) {
      parts.push_back("blocks among " + std::to_string(shape.pipeline));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      text << (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") << parts[i];
    }
    text << "; ";
  }
  if (parallel_ == nullptr) {
    text << "each keeps what it has";
    return text.str();
  }
  if (!sharding.divides()) {
    text << "each keeps everything (DDP), in " << arena_->buckets().size() << " buckets";
    return text.str();
  }
  text << "ZeRO-" << sharding.stage << " among " << sharding.group.size() << ": master, moments";
  text << (sharding.divides_gradients() ? ", averages and gradients" : " and averages");
  text << (sharding.divides_compute() ? " and weights are divided" : " are divided");
  if (mesh_.shape().replicate > 1) {
    text << ", " << mesh_.shape().replicate << " times over";
  }
  text << ", in " << arena_->buckets().size() << " buckets";
  return text.str();
}

Booster::Booster(const BoosterOptions& options, const comm::Group& world)
    : Booster(options, parallel::Mesh(world, checked_mesh(options))) {}

Booster::Booster(const BoosterOptions& options, const parallel::Mesh& mesh)
    : options_(options), mesh_(mesh), device_(inference::choose_device(options.device)) {}

Boosted Booster::boost(torch::nn::Module& model, const optim::OptimizerConfig& optimizer,
                       const optim::LrSchedule& schedule) const {
  KINORA_CHECK(mesh_.shape().sequence == 1, kConfig,
               "[booster] sp_size must be 1 for a torch::nn::Module, which does not divide tokens: "
               "the ranks of a sequence would all compute the same, got ",
               mesh_.shape().sequence,
               ". Hint: leave sp_size out, and all ranks take other samples");
  KINORA_CHECK(mesh_.shape().tensor == 1 || !options_.tensor_rules.empty(), kConfig,
               "[booster] tp_size is ", mesh_.shape().tensor,
               ", and nothing says which layers of the torch::nn::Module ranks divide. Hint: name "
               "them in tensor_rules (docs/booster.md)");
  KINORA_CHECK(!options_.plugin_config.divided_norms, kConfig,
               "[booster] divided_norms is of Kinora's own models, whose blocks know which parts "
               "treat each token by itself. Hint: leave divided_norms out");
  KINORA_CHECK(options_.plugin_config.pp_schedule == parallel::PipelineSchedule::k1F1B, kConfig,
               "[booster] pp_schedule zero_bubble puts off products of Kinora's own models; a "
               "torch::nn::Module has its own. Hint: leave pp_schedule out");
  KINORA_CHECK(options_.plugin_config.pp_chunks == 1 || mesh_.shape().pipeline > 1, kConfig,
               "[booster] pp_chunks is of a pipeline, and pp_size is 1. Hint: pp_size 2");
  const optim::OptimizerConfig placed = this->placed(optimizer, count_trained(model));
  return {torch_module(model, module_options(placed)), options_, mesh_, placed, schedule};
}

optim::OptimizerConfig Booster::placed(const optim::OptimizerConfig& optimizer,
                                       int64_t num_parameters) const {
  const comm::Group& group = mesh_.state_group();
  int64_t free = INT64_MAX;  // a CPU has one memory
  if (options_.plugin == "gemini" && options_.plugin_config.placement == Placement::kAuto &&
      device_.is_cuda()) {
    // The ranks agree: that with the least decides.
    const at::Tensor least =
        at::full({1}, -static_cast<double>(device::free_memory(device_)), at::kFloat);
    group.all_reduce(least, comm::Reduction::kMax);
    free = static_cast<int64_t>(-least.item<float>());
  }
  return train::placed(options_, optimizer, num_parameters, group.size(), free);
}

TorchModuleOptions Booster::module_options(const optim::OptimizerConfig& optimizer) const {
  const int stage = zero_stage(options_.plugin, options_.plugin_config);
  return {.bucket_bytes = kBucketBytes,
          .watches_reads =
              (stage == 3 && mesh_.state_group().size() > 1) || optimizer.offload_weights > 0.0,
          .tensor = mesh_.group(parallel::Axis::kTensor),
          .rules = options_.tensor_rules,
          .pipeline = mesh_.group(parallel::Axis::kPipeline),
          .chunks = options_.plugin_config.pp_chunks,
          .stages = options_.stages};
}

Boosted Booster::boost(std::unique_ptr<Boostable> model, const optim::OptimizerConfig& optimizer,
                       const optim::LrSchedule& schedule) const {
  int64_t num_parameters = 0;
  for (const auto& [path, parameter] : model->module().named_parameters()) {
    num_parameters += parameter->frozen ? 0 : parameter->numel();
  }
  const optim::OptimizerConfig placed = this->placed(optimizer, num_parameters);
  return {std::move(model), options_, mesh_, placed, schedule};
}

data::LoaderOptions Booster::boost(data::LoaderOptions loader) const {
  loader.rank = mesh_.data_rank();
  loader.num_ranks = mesh_.data_ranks();
  loader.pinned = device_.is_cuda();
  return loader;
}

}  // namespace kinora::train
