#include "kinora/train/plan/memory_plan.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "kinora/checkpoint/snapshot.h"
#include "kinora/comm/rehearsal.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/core/text_table.h"
#include "kinora/data/bucket.h"
#include "kinora/data/loader.h"
#include "kinora/data/run_data.h"
#include "kinora/device/dry_run.h"
#include "kinora/device/free_memory.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/setup.h"
#include "kinora/models/families.h"
#include "kinora/optim/held_weights.h"
#include "kinora/parallel/mesh.h"
#include "kinora/pipelines/autoencoder_file.h"
#include "kinora/pipelines/block_layout.h"
#include "kinora/pipelines/image_encoder_file.h"
#include "kinora/pipelines/shared_blocks.h"
#include "kinora/pipelines/text_batch_encoder.h"
#include "kinora/pipelines/text_encoder_file.h"
#include "kinora/train/own_text_encoder.h"
#include "kinora/train/setup.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"

namespace kinora::train {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The peak of `kinora train` on a CPU beyond its tensors, fitted to eight runs of configs/demo.yaml
// and demo-video.yaml of other sizes, types and recomputation on 2 CPU cores: code and threads of
// the program and of libtorch, the loader; and what the heap holds between tensors, as a share of
// them.
constexpr int64_t kProcess = 400 * kMiB;
constexpr double kHeapShare = 0.1;
// libtorch's workspaces of cuBLAS and cuBLASLt on Hopper, 32 MiB each for every stream that they
// run on (CUDABlas.cpp: getChosenWorkspaceSize), which its allocator counts as tensors: what
// configs/demo.yaml has on an H200 beyond the plan. A step that is recorded runs on a stream of its
// own.
constexpr int64_t kCublasWorkspace = 64 * kMiB;
// kernels/cuda/matmul.h: beside libtorch's allocator.
constexpr int64_t kProductsWorkspace = 64 * kMiB;
// NCCL's channels and buffers of a communicator among GPUs of one host; assumed.
constexpr int64_t kCommunicator = 512 * kMiB;
// What libtorch's caching allocator holds beside the tensors: a share of them, up to so much. On an
// H100 0.2 to 0.3 GiB of peaks of 6.5 to 51 GiB (docs/planning.md).
constexpr double kFragmentation = 0.03;
constexpr int64_t kMostFragments = 320 * kMiB;

// What graphs of several sizes take of the largest one's pass, since one leaves memory in pieces
// that do not suit the next: 42.6 GiB of 31.8 for three sizes of an STDiT2 of XL/2's size on an
// H200.
constexpr double kGraphPieces = 1.34;

/// Whether an autoencoder makes what the model learns, in the step.
bool encodes_pixels(const RunConfig& config) {
  return config.data.source != data::SourceKind::kLatents && !config.autoencoder.path.empty();
}

/// Whether it does, or has before.
bool learns_latents(const RunConfig& config) {
  return config.data.source == data::SourceKind::kLatents || encodes_pixels(config);
}

/// Samples that are computed at once.
struct PlannedBatch {
  std::vector<int64_t> shape;  ///< of one
  int64_t size = 0;
  std::string bucket;  ///< its name
};

/// With data.buckets one of each row, of the ratio that has the most pixels.
std::vector<PlannedBatch> planned_batches(const RunConfig& config, int64_t micro_batch) {
  const models::ModelConfig& model = config.model;
  if (config.data.buckets.empty()) {
    return {{.shape = model.sample_shape(), .size = micro_batch, .bucket = ""}};
  }
  const data::BucketTable table(data::loader_options(config.data).buckets);
  std::map<int64_t, data::Bucket> largest;  // by row
  for (const data::Bucket& bucket : table.buckets()) {
    data::Bucket& known = largest.try_emplace(bucket.row, bucket).first->second;
    if (bucket.height * bucket.width > known.height * known.width) {
      known = bucket;
    }
  }
  std::vector<PlannedBatch> batches;
  for (const auto& [row, bucket] : largest) {
    batches.push_back({.shape = sample_shape(config, bucket.pixels()),
                       .size = bucket.batch,
                       .bucket = bucket.text()});
  }
  return batches;
}

/// Empty samples, as the recipe's loader would bring them.
data::Batch sample_batch(const RunConfig& config, const PlannedBatch& planned) {
  const models::ModelConfig& model = config.model;
  const int64_t size = planned.size;
  std::vector<int64_t> shape = planned.shape;
  shape.insert(shape.begin(), size);
  data::Batch batch = inference::unseen_batch(
      model, at::empty(shape, learns_latents(config) ? at::kFloat : at::kByte));
  batch.fps = at::full({size}, config.data.fps, at::kFloat);
  return batch;
}

/// What lives when backward begins, and what each block's part of forward leaves there.
class Marks {
 public:
  explicit Marks(const std::vector<nn::BucketSpec>& buckets) : buckets_(buckets) {}

  [[nodiscard]] ops::BucketHook hook() {
    return [this](ops::BucketMoment moment, int64_t bucket) {
      const int64_t live = device::DryRun::live_bytes();
      switch (moment) {
        case ops::BucketMoment::kBeforeForward:
          if (in_backward_) {  // of the pass before
            layers_.clear();
            in_backward_ = false;
          }
          before_[bucket] = live;
          return;
        case ops::BucketMoment::kAfterForward:
          // Those of modulations lie across blocks, and what they keep is the blocks'.
          if (const nn::BucketSpec& spec = buckets_[static_cast<size_t>(bucket)]; spec.is_block) {
            layers_.push_back({spec.name, live - before_[bucket]});
          }
          return;
        case ops::BucketMoment::kBeforeBackward:
          if (!in_backward_) {
            at_backward_ = live;
          }
          in_backward_ = true;
          return;
        case ops::BucketMoment::kAfterBackward:
          return;
      }
    };
  }
  /// Of the last pass.
  [[nodiscard]] const std::vector<MemoryPart>& layers() const { return layers_; }
  [[nodiscard]] int64_t at_backward() const { return at_backward_; }

 private:
  std::vector<nn::BucketSpec> buckets_;
  std::map<int64_t, int64_t> before_;
  int64_t at_backward_ = 0;
  bool in_backward_ = false;
  std::vector<MemoryPart> layers_;
};

class Planner {
 public:
  Planner(const RunConfig& config, const PlanTarget& target)
      : config_(config), run_(target.device) {
    plan_.target = target;
  }

  MemoryPlan plan() {
    const comm::World world{.rank = 0,
                            .size = plan_.target.ranks,
                            .local_rank = 0,
                            .local_size = plan_.target.ranks,
                            .store_host = "",
                            .store_port = 0,
                            .store_is_hosted = false,
                            .store_prefix = ""};
    const comm::Group group = world.size > 1
                                  ? comm::rehearse(world, std::make_shared<comm::RehearsedCalls>())
                                  : comm::Group();
    const parallel::Mesh mesh(group, config_.parallel.mesh());
    plan_.micro_batch = config_.micro_batch(mesh.data_ranks());
    plan_.passes = config_.data.buckets.empty()
                       ? config_.train.global_batch / mesh.data_ranks() / plan_.micro_batch
                       : std::max<int64_t>(config_.data.bucket_batches / mesh.data_ranks(), 1);
    const int64_t start = device::DryRun::live_bytes();
    diffusion::Objective objective =
        diffusion::make_objective(config_.objective, config_.model.learn_sigma);
    diffusion::move_to(objective, at::kMeta);
    Trainable trainable(config_, mesh, at::kMeta, /*seed=*/0);
    plan_.fast_path = trainable.kernels() != nullptr;
    records_ = use_graphs(config_, trainable.kernels()) && trainable.can_be_recorded();
    plan_.parameters = trainable.arena().num_elements();
    plan_.sharing = trainable.boosted().describe_ranks();
    plan_.peak = device::DryRun::peak_bytes() - start;
    const int64_t state = add_state(trainable.arena(), device::DryRun::live_bytes() - start);
    take_steps(trainable, objective, mesh.gradient_ranks(), start, state);
    count_checkpoint(trainable.arena(), device::DryRun::live_bytes() - start);
    if (takes_tokens(config_) && !config_.text.encoder.empty()) {
      add_text_encoder();
    }
    if (models::shape_of(config_.model).image_states > 0 &&
        std::filesystem::exists(config_.image.encoder)) {
      add("image encoder", pipelines::image_encoder_bytes(config_.image.encoder));
    }
    if (encodes_pixels(config_) && std::filesystem::exists(config_.autoencoder.path)) {
      add("autoencoder",
          pipelines::autoencoder_bytes(config_.autoencoder.path,
                                       inference::compute_type(config_.autoencoder.precision)));
    }
    add_what_is_no_tensor();
    add_graphs();
    return std::move(plan_);
  }

 private:
  void add(const std::string& name, int64_t bytes) {
    plan_.parts.push_back({name, bytes});
    plan_.peak += bytes;
  }

  /// Returns the bytes of all parts, which are `live`.
  int64_t add_state(const optim::Arena& arena, int64_t live) {
    using optim::Role;
    const auto on_device = [&](Role role) {
      const bool is_gpu = plan_.target.device == c10::DeviceType::CUDA;
      const bool on_disk = arena.disk_bytes() > 0;  // else all is the host's
      const int64_t offloaded = is_gpu || on_disk ? arena.offloaded_bytes(role) : 0;
      (on_disk ? plan_.on_disk : plan_.offloaded) += offloaded;
      return arena.bytes(role) - offloaded;
    };
    int64_t averages = 0;
    for (size_t k = 0; k < arena.options().num_averages(); ++k) {
      averages += on_device(Role::average(k));
    }
    plan_.parts = {
        {"weights", on_device(Role::master())},
        {"compute copies", on_device(Role::compute())},
        {"gradients", on_device(Role::grad())},
        {"moments", on_device(Role::exp_avg()) + on_device(Role::exp_avg_sq()) +
                        on_device(Role::exp_avg_scales()) + on_device(Role::exp_avg_sq_scales()) +
                        on_device(Role::factors()) + on_device(Role::instability()) +
                        on_device(Role::base()) + on_device(Role::grad_sum())},
        {"averages", averages}};
    disk_memory_ = arena.disk_memory();
    if (const optim::HeldWeights* held = arena.held()) {
      const bool is_gpu = plan_.target.device == c10::DeviceType::CUDA;
      const int64_t own = held->code_bytes() + (is_gpu ? 0 : held->host_bytes());
      plan_.offloaded += is_gpu ? held->host_bytes() : 0;
      plan_.parts.push_back({"frozen weights of blocks", own});
      plan_.parts.push_back({"room for a block's weights", held->room_bytes()});
    }
    int64_t sum = 0;
    for (const MemoryPart& part : plan_.parts) {
      sum += part.bytes;
    }
    other_state_ = live - sum;
    return live;
  }

  /// Two steps, since the second one needs what the first one has made: what ranks exchange in the
  /// order of the first, and 8-bit products by the scales that it has measured.
  void take_steps(Trainable& trainable, const diffusion::Objective& objective, int64_t ranks,
                  int64_t start, int64_t state) {
    Marks marks(trainable.model().buckets());
    // The hook wants gradients of every bucket, which frozen ones do not have.
    if (trainable.boosted().parallel() == nullptr && trainable.arena().num_frozen() == 0) {
      trainable.model().tell_buckets(marks.hook());
    }
    TrainingStep step(trainable.model(), trainable.boosted(), objective, nullptr,
                      StepSettings{.seed = 0,
                                   .label_dropout = config_.train.label_dropout,
                                   .pooled_dropout = config_.train.pooled_dropout,
                                   .model = config_.model,
                                   .frame_masks = config_.frame_masks,
                                   .ranks = ranks,
                                   .device = at::kMeta,
                                   .graphs = false,
                                   .graph_limit = {},
                                   .pipeline = trainable.pipeline()});
    // Of a pipeline so many are under way.
    const int64_t together = 2 * config_.parallel.pp_size * config_.parallel.pp_chunks;
    const int64_t passes =
        std::min<int64_t>(plan_.passes, config_.parallel.pp_size > 1 ? together : 2);
    int64_t live = 0;
    int64_t kept = 0;
    for (const PlannedBatch& planned : planned_batches(config_, plan_.micro_batch)) {
      const std::vector<data::Batch> batches(static_cast<size_t>(passes),
                                             sample_batch(config_, planned));
      int64_t peak = 0;
      constexpr int64_t kSteps = 2;
      for (int64_t i = 0; i < kSteps; ++i) {
        device::DryRun::start_peak_anew();
        (void)step.forward_backward(batches, i);
        peak = std::max(peak, device::DryRun::peak_bytes() - start);
      }
      if (peak < plan_.peak && live > 0) {
        continue;
      }
      plan_.peak = std::max(plan_.peak, peak);
      plan_.micro_batch = planned.size;
      plan_.bucket = planned.bucket;
      plan_.layers = marks.layers();
      live = device::DryRun::live_bytes() - start;
      kept = marks.at_backward() - start - live;
    }
    const int64_t at_host = trainable.model().offloaded_activation_bytes();
    if (plan_.target.device == c10::DeviceType::CUDA) {
      plan_.offloaded += at_host;
    } else {
      plan_.parts.push_back({"activations out of the way", at_host});
      other_state_ -= at_host;
    }
    other_state_ += live - state;
    plan_.parts.push_back({"buffers and exchange", other_state_});
    const int64_t of_pass = plan_.peak - live;
    if (plan_.layers.empty()) {
      plan_.parts.push_back({"activations and workspace", of_pass});
    } else {
      plan_.parts.push_back({"activations kept for backward", kept});
      plan_.parts.push_back({"workspace of backward", of_pass - kept});
    }
    of_pass_ = of_pass;
  }

  /// Graphs of data.buckets share memory, beside that of sizes without a graph.
  void add_graphs() {
    const std::optional<int64_t> limit = graph_limit(config_);
    if (!records_ || !limit) {
      return;
    }
    const auto shared = static_cast<int64_t>(kGraphPieces * static_cast<double>(of_pass_));
    const int64_t bytes = *limit > 0 ? std::min(*limit, shared) : shared;
    if (plan_.target.memory == 0 || plan_.needed() + bytes <= plan_.target.memory) {
      plan_.graphs = bytes;
    }
  }

  /// A checkpoint's copy of the state is taken on the GPU where it has room
  /// (checkpoint/snapshot.h), when activations are gone.
  void count_checkpoint(const optim::Arena& arena, int64_t live) {
    if (plan_.target.device != c10::DeviceType::CUDA) {
      return;
    }
    int64_t copy = 0;
    for (const optim::Role role : arena.state_roles()) {
      copy += arena.bytes(role);
    }
    const int64_t peak = live + copy;
    const int64_t room = plan_.target.memory - plan_.peak - device::kContextBytes;
    const bool has_room = plan_.target.memory == 0 || room >= copy + checkpoint::kDeviceReserve;
    if (peak > plan_.peak && has_room) {
      plan_.parts.push_back({"more for a checkpoint's copy", peak - plan_.peak});
      plan_.peak = peak;
    }
  }

  /// Its weights, what it needs for texts of full length, and the texts of the two steps that are
  /// on their way (step_supply.h). On a GPU it computes beside a step, else before it.
  void add_text_encoder() {
    const int64_t before = device::DryRun::live_bytes();
    const std::unique_ptr<models::TextEncoder> encoder =
        pipelines::outlined_text_encoder(config_.text.encoder);
    const auto type = inference::compute_type(config_.text.precision);
    for (const auto& [path, parameter] : encoder->named_parameters()) {
      parameter->value = at::empty(parameter->shape, at::device(at::kMeta).dtype(type));
    }
    const int64_t whole = device::DryRun::live_bytes() - before;
    const int64_t weights =
        config_.text.shared && plan_.target.ranks > 1
            ? whole - bytes_not_held(*encoder, static_cast<int64_t>(c10::elementSize(type)))
            : whole - pipelines::weight_bytes(*encoder, type) +
                  pipelines::weight_bytes(*encoder, type,
                                          inference::eight_bits_of(config_.text.weights));
    const int64_t length =
        config_.text.max_length > 0 ? config_.text.max_length : config_.model.text_tokens;
    const int64_t at_once = std::min(plan_.micro_batch, config_.text.micro_batch > 0
                                                            ? config_.text.micro_batch
                                                            : inference::TextOptions::kMicroBatch);
    device::DryRun::start_peak_anew();
    // The last of the vocabulary is CLIP's end token, without which it takes no text.
    const int64_t tokens = length - encoder->num_states(0);
    const at::Tensor ids = at::full({at_once, tokens}, encoder->vocab_size() - 1, at::kLong);
    if (const int64_t beside = encoder->beside().tokens; beside > 0) {  // of CLIPs beside a T5
      ids.narrow(1, tokens - beside, beside)
          .fill_(encoder->vocabularies().front().parameter->shape.front() - 1);
    }
    (void)pipelines::TextBatchEncoder(*encoder, at_once)
        .encode(ids, at::full({at_once}, tokens, at::kLong));
    const int64_t workspace = device::DryRun::peak_bytes() - before - whole;
    constexpr int64_t kSteps = 2;
    const auto value_bytes = static_cast<int64_t>(sizeof(float));
    const int64_t texts =
        kSteps * plan_.passes * plan_.micro_batch * length * encoder->width() * value_bytes;
    const bool is_beside = plan_.target.device == c10::DeviceType::CUDA;
    plan_.parts.push_back({"text encoder", weights});
    plan_.parts.push_back({"encoded texts", texts});
    plan_.parts.push_back({"workspace of the text encoder", is_beside ? workspace : 0});
    plan_.peak += weights + texts + (is_beside ? workspace : 0);
  }

  /// Of the encoder's blocks, where ranks share them.
  [[nodiscard]] int64_t bytes_not_held(models::TextEncoder& encoder, int64_t element_bytes) const {
    const pipelines::BlockLayout layout(encoder);
    int64_t elements = -pipelines::SharedBlocks::elements_held(layout, plan_.target.ranks);
    for (int64_t i = 0; i < layout.num_blocks(); ++i) {
      for (const pipelines::PlacedParameter& placed : layout.block(i)) {
        elements += placed.count;
      }
    }
    return elements * element_bytes;
  }

  void add_what_is_no_tensor() {
    if (plan_.target.device == c10::DeviceType::CUDA) {
      const int64_t cublas = (records_ ? 2 : 1) * kCublasWorkspace;
      add("workspace of cuBLAS", cublas);
      plan_.offloaded += disk_memory_;
      plan_.outside = device::kContextBytes + (plan_.fast_path ? kProductsWorkspace : 0) +
                      (plan_.target.ranks > 1 ? kCommunicator : 0);
      plan_.besides =
          plan_.outside +
          std::min(kMostFragments,
                   static_cast<int64_t>(kFragmentation * static_cast<double>(plan_.peak)));
    } else {
      const int64_t process =
          kProcess + static_cast<int64_t>(kHeapShare * static_cast<double>(plan_.peak));
      plan_.process = process;
      plan_.parts.push_back({"program, libraries, heap", process});
      plan_.parts.push_back({"on the way to the disk", disk_memory_});
      plan_.peak += process + disk_memory_;
    }
  }

  const RunConfig& config_;
  device::DryRun run_;
  MemoryPlan plan_;
  int64_t other_state_ = 0;
  int64_t disk_memory_ = 0;
  int64_t of_pass_ = 0;   // bytes of a pass
  bool records_ = false;  // CUDA graphs
};

/// Whether the classes of the data, or the size of its latents, are needed.
bool needs_data(const RunConfig& config) {
  const models::ModelConfig& model = config.model;
  return model.num_classes == 0 ||
         (learns_latents(config) && (model.height == 0 || model.width == 0));
}

}  // namespace

RunConfig without_data(RunConfig config, std::vector<std::string>& assumed) {
  if (!config.text.encoder.empty() && !std::filesystem::exists(config.text.encoder)) {
    config.text.encoder.clear();
    assumed.push_back("a text encoder that takes no memory, since text.encoder does not exist");
  }
  if (encodes_pixels(config) && !std::filesystem::exists(config.autoencoder.path)) {
    assumed.push_back("an autoencoder that takes no memory, since autoencoder.path does not exist");
  }
  config = with_own_text_encoder(std::move(config));
  if (!needs_data(config)) {
    config.model = inference::resolved_model(config, 1);
    return config;
  }
  constexpr int64_t kClasses = 1000;
  int64_t classes = std::max<int64_t>(config.model.num_classes, 1);
  std::optional<inference::LatentSize> latents;
  try {
    const data::RunData data = open_data(config.data);
    classes = data.whole->num_classes();
    latents = latent_size(config.data, *data.whole, nullptr);
  } catch (const Error&) {
    if (config.model.num_classes == 0) {
      classes = kClasses;
      assumed.push_back("data of 1000 classes (model.num_classes), since it cannot be opened");
    }
  }
  if (learns_latents(config) && !latents && (config.model.height == 0 || config.model.width == 0)) {
    constexpr int64_t kCompression = 8;  // of Stable Diffusion's autoencoder, and most since
    KINORA_CHECK(config.data.source != data::SourceKind::kLatents, kConfig,
                 "[plan] the size of the latents is not known: model.height and model.width are 0, "
                 "and data.path cannot be opened. Hint: give them as overrides");
    latents = inference::LatentSize{.shape = {.channels = config.model.in_channels,
                                              .height = config.data.height / kCompression,
                                              .width = config.data.width / kCompression,
                                              .pixel_height = config.data.height,
                                              .pixel_width = config.data.width},
                                    .frames = config.data.frames};
    assumed.push_back("an autoencoder that makes pictures 8 times smaller each way");
  }
  config.model = inference::resolved_model(config, classes, latents);
  return config;
}

MemoryPlan plan_memory(const RunConfig& config, const PlanTarget& target) {
  return Planner(config, target).plan();
}

std::optional<MemoryPlan> plan_of_run(const RunConfig& config, const PlanTarget& target) {
  try {
    return plan_memory(config, target);
  } catch (const std::exception& error) {
    log_warn("[train] the memory of this run cannot be planned: ", error.what());
    return std::nullopt;
  }
}

std::string table(const MemoryPlan& plan, bool by_layer) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, int64_t bytes) {
    if (bytes != 0) {
      rows.push_back({"  " + name, human_bytes(bytes)});
    }
  };
  for (const MemoryPart& part : plan.parts) {
    add(part.name, part.bytes);
  }
  rows.push_back({"peak", human_bytes(plan.peak)});
  if (plan.besides > 0) {
    rows.push_back({"besides: context, libraries, fragments", human_bytes(plan.besides)});
  }
  if (plan.graphs > 0) {
    rows.push_back({"besides: CUDA graphs of data.buckets", human_bytes(plan.graphs)});
  }
  if (plan.offloaded > 0) {
    rows.push_back({"in the host's memory", human_bytes(plan.offloaded)});
  }
  if (plan.on_disk > 0) {
    rows.push_back({"on the disk", human_bytes(plan.on_disk)});
  }
  if (by_layer && !plan.layers.empty()) {
    rows.push_back({"activations by layer", ""});
    for (const MemoryPart& layer : plan.layers) {
      add(layer.name, layer.bytes);
    }
  }
  return text_table(rows);
}

}  // namespace kinora::train
