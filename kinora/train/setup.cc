#include "kinora/train/setup.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>

#include <sstream>

#include "kinora/core/build_info.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/rounding.h"
#include "kinora/core/text.h"
#include "kinora/device/device.h"
#include "kinora/device/dry_run.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/shown_frames.h"
#include "kinora/models/families.h"
#include "kinora/ops/attention.h"
#include "kinora/ops/fp8.h"
#include "kinora/train/recompute_plan.h"

namespace kinora::train {

inference::LatentSize encoded_size(const data::DataConfig& data,
                                   const pipelines::LatentEncoder& encoder) {
  const std::vector<int64_t> latent =
      encoder.shape_of(data.frames, data.height, data.width).latent;  // [C, h, w], [C, T, h, w]
  return {.shape = {.channels = latent.front(),
                    .height = latent[latent.size() - 2],
                    .width = latent.back(),
                    .pixel_height = data.height,
                    .pixel_width = data.width},
          .frames = latent.size() == 4 ? latent[1] : 1};
}

std::optional<inference::LatentSize> latent_size(const data::DataConfig& data,
                                                 const data::Source& source,
                                                 const pipelines::LatentEncoder* encoder) {
  if (const auto latents = data::latents_of(source, data::sample_size(data))) {
    return inference::LatentSize{.shape = latents->frame, .frames = latents->frames};
  }
  return encoder == nullptr ? std::nullopt : std::optional(encoded_size(data, *encoder));
}

void check_model_takes(const data::DataConfig& data, const models::ModelConfig& model,
                       std::string_view section) {
  KINORA_CHECK(data.buckets.empty() || models::family_of(model).takes_any_size, kConfig, "[train] ",
               section, ".buckets needs a model that takes clips of any size, got ", model.name,
               ". Hint: ", models::families_that(&models::Family::takes_any_size), " do");
  KINORA_CHECK(data.text == data::TextKind::kNone || model.takes_text(), kConfig, "[train] ",
               section, ".text gives samples texts, but the model, ", model.name,
               ", is conditioned on classes alone and would never see them. Hint: leave ", section,
               ".text out, or choose another model.name");
}

namespace {

/// What pictures bring beside them must be what the model is shown.
void check_pictures(const data::DataConfig& data, const models::ModelConfig& model,
                    std::string_view section) {
  const models::ModelShape shape = models::shape_of(model);
  const bool fills_in = models::fills_in(shape.input);
  KINORA_CHECK(
      !fills_in || data.mask != data::MaskKind::kNone, kConfig, "[train] ", section,
      ".mask is false, but the model learns to fill in a part of a picture. Hint: ", section,
      data.source == data::SourceKind::kLatents
          ? ".mask=true, and a cache that kinora data encode made with it"
          : ".mask=drawn, or true for NAME.mask.png beside each picture");
  KINORA_CHECK(fills_in || data.mask != data::MaskKind::kDrawn, kConfig, "[train] ", section,
               ".mask is drawn, but the input of the model is ", to_string(shape.input),
               ", and masks are drawn for inpaint and fill alone");
  const bool edits = models::changes_picture(shape.input);
  KINORA_CHECK(data.before == edits, kConfig, "[train] ", section, ".before is ",
               data.before ? "true" : "false", ", but the input of the model is ",
               to_string(shape.input), ". Hint: ", section,
               ".before=true is for a model that changes pictures, edit or reference");
  KINORA_CHECK(data.references == shape.references, kConfig, "[train] ", section, ".references is ",
               data.references, ", but model.references is ", shape.references,
               ". Hint: give both the same");
  KINORA_CHECK(shape.controls <= 1, kConfig,
               "[train] one ControlNet is trained at a time, but the model has ", shape.controls);
  KINORA_CHECK(data.control == (shape.controls == 1), kConfig, "[train] ", section, ".control is ",
               data.control ? "true" : "false", ", but the model has ", shape.controls,
               " ControlNets. Hint: ", section,
               ".control=true is for a model with one ControlNet beside its U-Net");
}

/// What a model is shown that goes on from given frames.
void check_frames(const RunConfig& config, const data::Source& source, int64_t frames,
                  std::string_view section) {
  const models::ModelConfig& model = config.model;
  KINORA_CHECK(!source.latent_shape() && !config.autoencoder.path.empty(), kConfig, "[train] ",
               models::name_of(model),
               " is shown frames of its clips, which latents do not have. Hint: train on pixels "
               "with autoencoder.path, and no data.source=latents");
  KINORA_CHECK(frames > 1, kConfig, "[train] ", section, " must be clips for ",
               models::name_of(model), ", which goes on from their frames, got single frames");
  // An image encoder's states are those of the first frame, or with a table those of both.
  const models::ModelShape shape = models::shape_of(model);
  const bool takes_first = !shape.reads_both_ends;
  const bool takes_both =
      !takes_first || (shape.image_states == 0 && shape.input == models::ShownInput::kFrames);
  diffusion::FrameMaskRatios others = config.frame_masks;
  if (takes_first) {
    others.weights.i2v_head = 0.0;
  }
  if (takes_both) {
    others.weights.i2v_loop = 0.0;
  }
  KINORA_CHECK(config.frame_masks.any() && !others.any(), kConfig, "[train] ",
               models::name_of(model), " goes on from ",
               takes_first ? (takes_both ? "first frames, or from first and last ones,"
                                         : "first frames alone,")
                           : "first and last frames,",
               " and of frame_masks takes these alone. Hint: frame_masks.weights.",
               takes_first ? "i2v_head" : "i2v_loop", "=1");
  if (shape.image_states > 0) {
    inference::FrameStates::check(config.image.encoder, model);
  }
}

}  // namespace

const data::DataConfig& data_of(const RunConfig& config, StepKind kind) {
  switch (kind) {
    case StepKind::kData:
      return config.data;
    case StepKind::kImageData:
      return config.image_data;
    case StepKind::kPriorData:
      return config.prior_data;
  }
  KINORA_UNREACHABLE("[train] no such kind of samples");
}

void check_data(const RunConfig& config, const data::Source& source, StepKind kind,
                const std::optional<inference::LatentSize>& latents,
                const pipelines::TextBatchEncoder* texts) {
  const models::ModelConfig& model = config.model;
  const std::string_view section = to_string(kind);
  const bool is_image_data = kind == StepKind::kImageData;
  const data::DataConfig& data = data_of(config, kind);
  const data::SampleShape shape =
      latents ? latents->shape : data::SampleShape{3, data.height, data.width};
  const int64_t frames = latents ? latents->frames : data.frames;
  KINORA_CHECK(model.in_channels == shape.channels, kConfig, "[train] ", section,
               latents ? ": latents of " : ": images of ", shape.channels,
               " channels, but model.in_channels is ", model.in_channels, ". Hint: ",
               latents ? "set it to that of the data"
                       : "to train on latents set autoencoder.path, or compute them first with "
                         "kinora data encode and set data.source to latents");
  check_model_takes(data, model, section);
  check_pictures(data, model, section);
  constexpr double kMostDropped = 2.0 / 3.0;
  const models::ShownInput input = models::shape_of(model).input;
  KINORA_CHECK((input != models::ShownInput::kEdit && input != models::ShownInput::kSubjects) ||
                   config.train.label_dropout <= kMostDropped,
               kConfig,
               "[train] train.label_dropout must be at most 2/3 for a model that changes pictures "
               "or is shown references, which are dropped at as many samples, half of them others, "
               "got ",
               config.train.label_dropout);
  KINORA_CHECK(input != models::ShownInput::kEdit || !source.latent_shape() ||
                   !config.autoencoder.path.empty(),
               kConfig, "[train] ", section,
               ".source is latents, and a U-Net with input edit is shown a picture's without their "
               "scale. Hint: autoencoder.path, that of the cache, which knows the scale");
  if (models::shows_frames(models::shape_of(model).input)) {
    check_frames(config, source, frames, section);
  }
  KINORA_CHECK(!config.frame_masks.any() || !models::family_of(model).conditions.frame_mask ||
                   models::shows_frames(models::shape_of(model).input) ||
                   models::shape_of(model).given_way != diffusion::GivenWay::kNone,
               kConfig, "[train] frame_masks give frames, which ", models::name_of(model),
               " takes where it embeds them beside the input. Hint: model.given_embedders=true",
               models::family_of(model).conditions.given_is_marked
                   ? ", or model.clean_first_frame=true"
                   : "");
  diffusion::FrameMaskRatios of_others = config.frame_masks;
  of_others.image_head = 0.0;
  of_others.weights.i2v_head = 0.0;
  KINORA_CHECK(!models::shape_of(model).takes_first_frame || !of_others.any(), kConfig, "[train] ",
               models::name_of(model),
               " with model.clean_first_frame goes on from first frames alone, and of frame_masks "
               "takes these alone. Hint: frame_masks.image_head");
  KINORA_CHECK(config.train.pooled_dropout == 0.0 ||
                   (models::family_of(model).conditions.pooled_beside && model.pooled_channels > 0),
               kConfig,
               "[train] train.pooled_dropout is for models that read a vector of captions beside "
               "their tokens (model.pooled_channels), got ",
               config.train.pooled_dropout, " for ", models::name_of(model),
               ". Hint: train.label_dropout drops captions");
  const bool any_size = is_image_data && models::family_of(model).takes_any_size;
  KINORA_CHECK(any_size || (model.height == shape.height && model.width == shape.width), kConfig,
               "[train] model.height and width must be those of the ", section, ", ", shape.height,
               " x ", shape.width, ", got ", model.height, " x ", model.width,
               ". Hint: leave them at 0");
  KINORA_CHECK(is_image_data || model.frames == frames, kConfig,
               "[train] model.frames must be those of the data, ", frames, ", got ", model.frames,
               ". Hint: leave it at 0");
  KINORA_CHECK(shape.pixel_height == 0 || (shape.pixel_height / model.compression == shape.height &&
                                           shape.pixel_width / model.compression == shape.width),
               kConfig, "[train] ", section, ": latents of ", shape.text(),
               ", but model.compression is ", model.compression);
  data::TextShape text = source.text_shape().value_or(data::TextShape());
  if (text.is_ids() && texts != nullptr) {
    text = texts->shape_of(text.length);
  }
  inference::check_texts(text, model);
}

bool takes_tokens(const RunConfig& config) {
  return config.data.text == data::TextKind::kTokens ||
         (config.image_steps.any() && config.image_data.text == data::TextKind::kTokens) ||
         (config.prior.any() && config.prior_data.text == data::TextKind::kTokens);
}

at::Device rank_device(const comm::World& world, DeviceChoice choice) {
  at::Device device = inference::choose_device(choice);
  if (!device.is_cuda()) {
    return device;
  }
  const int64_t gpus = cuda_device_count();
  const int64_t index = gpus == 1 && world.local_size != 1 ? 0 : world.local_rank;
  KINORA_CHECK(index < gpus, kConfig, "[train] rank ", world.rank, " is number ", world.local_rank,
               " on its machine and needs as many GPUs before its own, but there are ", gpus,
               ". Hint: fewer ranks a machine, or train.device=cpu");
  device.set_index(static_cast<at::DeviceIndex>(index));
  at::accelerator::setDeviceIndex(device.index());
  return device;
}

std::shared_ptr<ops::BlockKernels> set_path(models::Model& model, const RunConfig& config,
                                            at::Device device) {
  const RecomputePlan recompute =
      parse_recompute(config.train.recompute, models::shape_of(config.model).blocks);
  const bool needs_modules = config.finetune.lora.needs_modules();
  KINORA_CHECK(config.path != inference::Path::kFast || !needs_modules, kConfig,
               "[train] model.path is fast, but finetune.lora has DoRA, LoHa or LoKr, which only "
               "the plain path computes. Hint: model.path=auto");
  const std::shared_ptr<ops::BlockKernels> kernels =
      needs_modules ? nullptr : inference::fast_path(config, model, device);
  KINORA_CHECK(kernels != nullptr || !config.train.fp8, kConfig,
               "[train] train.fp8 needs the fast path, and this run takes the plain one. Hint: it "
               "needs a GPU and train.precision bf16 or fp16");
  KINORA_CHECK(kernels != nullptr ||
                   (recompute.level == ops::Recompute::kNone && recompute.offloaded_blocks == 0),
               kConfig, "[train] train.recompute=", config.train.recompute,
               " needs the fast path, and this run takes the plain one. "
               "Hint: block:K works there; or set model.path to fast");
  KINORA_CHECK(kernels != nullptr || !config.train.fp8_activations, kConfig,
               "[train] train.fp8_activations needs the fast path, and this run takes the plain "
               "one. Hint: train.recompute=block:K works there; or set model.path to fast");
  KINORA_CHECK(kernels != nullptr || !config.parallel.divided_norms, kConfig,
               "[train] parallel.divided_norms needs the fast path, and this run takes the plain "
               "one. Hint: model.path=fast, or parallel.divided_norms=false");
  KINORA_CHECK(!config.train.fp8 || model.num_fast_linears() > 0, kConfig,
               "[train] train.fp8 has no linears to compute in ", models::name_of(config.model),
               ". Hint: train.fp8=false");
  if (config.train.fp8) {
    kernels->use_fp8(
        std::make_unique<ops::Fp8>(model.num_fast_linears(), device, config.train.fp8_scaling));
  }
  model.set_recompute(recompute.first_blocks);
  model.use_fast_path(kernels, recompute.level);
  model.offload_activations(recompute.offloaded_blocks, device);
  model.keep_activations_in_fp8(config.train.fp8_activations);
  model.divide_norms(config.parallel.divided_norms);
  return kernels;
}

std::vector<int64_t> sample_shape(const RunConfig& config, const data::PixelSize& pixels) {
  const models::ModelConfig& model = config.model;
  const auto scaled = [](int64_t size, int64_t of_model, int64_t of_data) {
    return ceil_div(size * of_model, of_data);
  };
  std::vector<int64_t> shape = {model.in_channels,
                                scaled(pixels.height, model.height, config.data.height),
                                scaled(pixels.width, model.width, config.data.width)};
  if (pixels.frames > 1) {
    shape.insert(shape.begin() + 1, scaled(pixels.frames, model.frames, config.data.frames));
  }
  return shape;
}

bool own_optimizer(ops::Switch wanted, at::Device device) {
  const bool can = device.is_cpu() || build_info().has_own_kernels;
  KINORA_CHECK(wanted != ops::Switch::kOn || can, kConfig,
               "[kernels] kernels.optimizer is on, but this build has no nvcc");
  return can && (device.is_cpu() || wanted != ops::Switch::kOff);
}

bool use_graphs(const RunConfig& config, const ops::BlockKernels* kernels) {
  const bool importance = config.objective.timestep_sampling ==
                          diffusion::ObjectiveConfig::TimestepSampling::kImportance;
  const bool can =
      kernels != nullptr && kernels->can_be_recorded() && !importance && !config.dynamic_sequence;
  KINORA_CHECK(config.kernels.graphs != ops::Switch::kOn || can, kConfig,
               "[train] kernels.graphs is on, but this run cannot be recorded: it needs the fast "
               "path on a GPU with its kernels, timesteps that are not drawn by importance, and no "
               "parallel.dynamic_sequence");
  return can && config.kernels.graphs != ops::Switch::kOff;
}

std::optional<int64_t> graph_limit(const RunConfig& config) {
  if (config.data.buckets.empty() && config.image_data.buckets.empty()) {
    return std::nullopt;
  }
  return static_cast<int64_t>(config.train.graph_memory_gib * kGiB);
}

std::string kernel_summary(const RunConfig& config, const ops::BlockKernels* kernels,
                           int64_t micro_batch, at::Device device) {
  const models::ModelShape shape = models::shape_of(config.model);
  std::ostringstream text;
  if (kernels != nullptr) {
    text << models::describe_fast_path(config.model, *kernels) << ", "
         << (use_graphs(config, kernels) ? "CUDA graphs" : "no CUDA graphs") << ", optimizer ";
  } else {
    at::Tensor qkv = at::empty({micro_batch, shape.tokens_a_frame(), 3 * shape.width},
                               at::device(device).dtype(inference::compute_type(config.precision)));
    qkv.set_requires_grad(true);  // the choice depends on it
    text << "plain path: attention " << ops::attention_kernel(qkv, shape.heads) << " ("
         << qkv.scalar_type() << ", " << shape.tokens_a_frame() << " tokens, head_dim "
         << shape.width / shape.heads << "), linears of libtorch, optimizer ";
  }
  if (device.is_cpu()) {
    text << "own (CPU)";
  } else if (own_optimizer(config.kernels.optimizer, device)) {
    text << "own (CUDA)";
  } else {
    text << "composed of libtorch's kernels, several times slower";
  }
  return text.str();
}

}  // namespace kinora::train
