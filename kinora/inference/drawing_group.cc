#include "kinora/inference/drawing_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "kinora/core/error.h"
#include "kinora/data/run_data.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/frozen_text_encoder.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/placed_frames.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/inference/text_tokens.h"
#include "kinora/models/families.h"
#include "kinora/models/unconditional.h"

namespace kinora::inference {

void set_size(const SampleSize& size, double fps, ModelRecipe& recipe) {
  models::ModelConfig& model = recipe.model;
  const bool any_size = models::family_of(model).takes_any_size;
  const auto set = [&](const char* name, int64_t wanted, int64_t unit, int64_t patch,
                       int64_t& value) {
    if (wanted == 0) {
      return;
    }
    KINORA_CHECK(any_size || wanted == value * unit, kConfig, "[sample] ", name, " must be ",
                 value * unit, ", which this model was made for, got ", wanted,
                 ". Hint: leave it out; ", models::families_that(&models::Family::takes_any_size),
                 " take any size");
    KINORA_CHECK(wanted % (unit * patch) == 0, kConfig, "[sample] ", name,
                 " must be a multiple of ", unit * patch, ", got ", wanted);
    value = wanted / unit;
  };
  const models::ModelShape shape = models::shape_of(model);
  set("frames", size.frames, model.frame_compression, shape.patch_frames, model.frames);
  set("height", size.height, model.compression, shape.patch, model.height);
  set("width", size.width, model.compression, shape.patch, model.width);
  if (fps > 0.0) {
    recipe.data.fps = fps * static_cast<double>(recipe.data.frame_stride);
    recipe.data.max_fps = 0.0;
  }
}

namespace {

void check(const Request& request, const models::ModelConfig& model) {
  const int num_texts = static_cast<int>(!request.captions.empty()) +
                        static_cast<int>(!request.text_embeddings.empty()) +
                        static_cast<int>(request.encoded != nullptr);
  const bool has_texts = num_texts > 0;
  KINORA_CHECK(num_texts <= 1, kConfig, "[sample] give only one of captions and embedded texts");
  KINORA_CHECK(model.takes_text() || !has_texts, kConfig,
               "[sample] this model is conditioned on classes, not on texts. Hint: give classes");
  KINORA_CHECK(
      !models::is_unconditional(model) || request.guidance.value_or(1.0) == 1.0, kConfig,
      "[sample] this model is told nothing that guidance could be by, so it must be 1, got ",
      request.guidance.value_or(1.0));
  KINORA_CHECK(!model.takes_text() || request.classes.empty(), kConfig,
               "[sample] this model is conditioned on texts, not on classes. Hint: give captions");
  KINORA_CHECK(request.wildcards.empty() || !request.captions.empty(), kConfig,
               "[sample] wildcards stand in captions, and there are none. Hint: give captions");
  KINORA_CHECK(request.count >= 0, kConfig, "[sample] count must not be negative, got ",
               request.count);
}

/// What the samples are to show: what was asked for, or the texts of the model's data.
Prompts prompts_for(const ModelRecipe& recipe, const Request& request, at::Device device) {
  if (request.encoded) {
    return *request.encoded;
  }
  if (!request.captions.empty()) {
    const bool encodes = !recipe.text.encoder.empty();
    return encodes ? prompts_of_encoder(captions_of(request), recipe, device)
                   : prompts_of_captions(captions_of(request), recipe);
  }
  if (!request.text_embeddings.empty()) {
    return prompts_of_file(request.text_embeddings);
  }
  const int64_t count = request.count > 0 ? request.count : recipe.sample.count;
  if (recipe.data.text != data::TextKind::kTokens) {
    return prompts_of_data(*data::open_data(recipe.data).train, count);
  }
  const data::CaptionTokens tokens = caption_tokens(recipe).value();
  Prompts prompts = prompts_of_data(*data::open_data(recipe.data, &tokens).train, count);
  if (const auto encoder = open_text_encoder(recipe, tokens, device)) {
    encode(prompts, encoder->encoder);
  }
  return prompts;
}

/// kConfig where other frames than the first are given to a model that takes it alone.
void check_given(const pipelines::ClipOptions& clips, const models::ModelConfig& model) {
  const bool is_first = clips.given.places.empty() || clips.given.places == std::vector<int64_t>{0};
  KINORA_CHECK(!models::shape_of(model).takes_first_frame || (is_first && clips.pieces == 1),
               kConfig, "[sample] ", models::name_of(model),
               " goes on from one frame, the first. Hint: --image FILE, no --video, --last, "
               "--given-frames and --loop");
}

pipelines::ClipOptions clip_options(const ModelRecipe& recipe, const DrawOptions& options,
                                    at::Device device) {
  if (options.pieces > 1) {
    check_takes_given(recipe.model);
  }
  const bool shows = models::shows_frames(models::shape_of(recipe.model).input);
  pipelines::ClipOptions clips{.given = {},
                               .given_edit = options.given_edit,
                               .given_way = models::shape_of(recipe.model).given_way,
                               .pieces = options.pieces,
                               .overlap = options.overlap};
  GivenOptions how{.layout = options.frame_layout,
                   .places = options.given_frames,
                   .fps = clip_fps(recipe.data),
                   .encoder = options.encoder,
                   .device = device};
  const auto add = [&](const std::vector<std::string>& paths) {
    if (!paths.empty() && !shows) {  // else they lie beside x_t, see set_start()
      clips.given = joined(clips.given, read_given(paths, how, recipe.model), recipe.model.frames);
    }
  };
  const auto add_one = [&](const std::string& path) {
    add(path.empty() ? std::vector<std::string>() : std::vector<std::string>{path});
  };
  add(options.given);
  how.layout = data::FrameLayout::kImage;
  how.video_frames = options.video_frames;
  how.places = "head";
  add_one(options.video);
  const bool places_last = models::shape_of(recipe.model).places_frames && !options.last.empty();
  if (!options.at.empty() || places_last) {
    read_placed(options, how, recipe.model).add_to(clips, recipe.model.frames);
    return clips;
  }
  how.places = "tail";
  how.takes_last = true;
  add_one(options.last);
  check_given(clips, recipe.model);
  return clips;
}

/// One behind the other. All have the same tensors.
pipelines::DrawConditions joined(const std::vector<pipelines::DrawConditions>& pieces) {
  pipelines::DrawConditions all;
  const auto join = [&pieces](auto part, auto tensor) {
    std::vector<at::Tensor> tensors;
    for (const pipelines::DrawConditions& piece : pieces) {
      if ((piece.*part.*tensor).defined()) {
        tensors.push_back(piece.*part.*tensor);
      }
    }
    return tensors.empty() ? at::Tensor() : at::cat(tensors);
  };
  for (const auto& [name, tensor] : diffusion::kConditions) {
    all.conditions.*tensor = join(&pipelines::DrawConditions::conditions, tensor);
    all.null.*tensor = join(&pipelines::DrawConditions::null, tensor);
  }
  return all;
}

/// Whether any rank of the group that shares each sample says yes: they go on or stop together.
bool agreed(bool own, const parallel::Mesh& mesh, at::Device device) {
  const comm::Group& group = mesh.sample_group();
  if (group.size() == 1) {
    return own;
  }
  const at::Tensor any = at::full({1}, own ? 1 : 0, at::TensorOptions(at::kLong).device(device));
  group.all_reduce(any, comm::Reduction::kMax);
  return any.item<int64_t>() != 0;
}

}  // namespace

DrawingGroup::DrawingGroup(TrainedModel& trained, const SampleSize& size,
                           const DrawOptions& options)
    : trained_(trained), recipe_(trained.recipe), options_(options) {
  pipelines::SamplingConfig& sampling = recipe_.sample.sampling;
  sampling.steps = options.steps > 0 ? options.steps : sampling.steps;
  set_size(size, options.fps, recipe_);
  const models::ShownInput input = models::shape_of(recipe_.model).input;
  const bool edits = input == models::ShownInput::kEdit || input == models::ShownInput::kSubjects;
  const bool shows = models::shows_frames(input);
  const bool guides = (recipe_.model.is_video() && !shows) || edits;
  KINORA_CHECK(
      guides || sampling.given_guidance == 1.0, kConfig,
      "[sample] sample.given_guidance is for models that change a given picture, are shown "
      "references or embed given frames as they are, got ",
      sampling.given_guidance, " for ", models::name_of(recipe_.model));
  if (recipe_.model.is_video()) {
    clips_ = clip_options(recipe_, options, trained.device);
  }
}

std::vector<Asked> DrawingGroup::add(const Request& request, int64_t number) {
  check(request, recipe_.model);
  Part part{.first = std::ssize(samples_), .count = 0, .conditions_of = {}};
  std::vector<Asked> asked = recipe_.model.takes_text()
                                 ? ask_for_texts(request, part.conditions_of)
                                 : ask_for_classes(request, part.conditions_of);
  part.count = std::ssize(asked);
  const std::vector<pipelines::SampleToDraw> samples = pipelines::numbered_samples(
      0, part.count, request.seed, request.guidance.value_or(recipe_.sample.sampling.guidance));
  samples_.insert(samples_.end(), samples.begin(), samples.end());
  for (int64_t i = 0; i < part.count; ++i) {
    numbers_.push_back(number + i);
  }
  parts_.push_back(std::move(part));
  return asked;
}

void DrawingGroup::set_start(const DrawStart& start) {
  const std::vector<int64_t> shape = drawn_shape();
  const auto shown = std::ssize(clips_.shown_places);
  KINORA_CHECK(shown == 0 || (!start.noise.defined() && !start.given.frames.defined()), kConfig,
               "[sample] noise and frames of a program's own are for clips that are shown no "
               "others from later frames on. Hint: no --noise, or no --at and --last");
  const at::Tensor data = start.data.defined() && shown > 0
                              ? at::constant_pad_nd(start.data, {0, 0, 0, 0, shown, 0})
                              : start.data;  // those are given
  for (const at::Tensor& rows : {start.noise, data}) {
    KINORA_CHECK(!rows.defined() || (rows.dim() == std::ssize(shape) + 1 && rows.size(0) > 0 &&
                                     rows.sizes().slice(1) == shape),
                 kShape, "[sample] what samples begin with must have shape [N, ...], of samples ",
                 shape, ", got ", rows.sizes());
  }
  // As tokens behind those of samples it has a size of its own.
  const models::ModelShape model = models::shape_of(recipe_.model);
  const bool any_size = models::shows_tokens(model.input);
  const int64_t own_dims = std::ssize(shape) + 1;
  for (const auto& [rows, dims, channels] :
       {std::tuple{start.mask, own_dims, int64_t{1}},
        std::tuple{start.beside, model.references > 0 ? 5 : own_dims, channels_beside()}}) {
    KINORA_CHECK(
        !rows.defined() ||
            (rows.dim() == dims && rows.size(0) > 0 && channels > 0 && rows.size(1) == channels &&
             (any_size || rows.sizes().slice(2) == at::IntArrayRef(shape).slice(1))),
        kShape, "[sample] masks and what lies beside samples of ", shape,
        " must have shape [N, 1, ...] and [N, ", channels_beside(), ", ...], got ", rows.sizes());
  }
  KINORA_CHECK(!start.mask.defined() || start.data.defined(), kConfig,
               "[sample] a mask needs the data that it is of");
  if (const at::Tensor& frames = start.given.frames; frames.defined()) {
    check_takes_given(recipe_.model);
    const std::vector<int64_t> sample = recipe_.model.sample_shape();
    KINORA_CHECK(frames.dim() == 5 && frames.size(0) > 0 && frames.size(1) == sample[0] &&
                     frames.size(2) == std::ssize(start.given.places) &&
                     frames.sizes().slice(3) == at::IntArrayRef(sample).slice(2),
                 kShape, "[sample] given frames must have shape [N, C, K, H, W], of clips ", sample,
                 " and ", start.given.places.size(), " places, got ", frames.sizes());
    clips_.given = start.given;
    check_given(clips_, recipe_.model);
  }
  start_ = {.noise = start.noise, .data = data, .mask = start.mask};
  beside_ = start.beside;
  control_ = start.control;
  image_prompts_ = start.image_prompts;
  last_steps_.reset();
  if (start.data.defined()) {
    const pipelines::PartialSampler partial =
        partial_sampler_of(recipe_, trained_.objective, start.strength);
    last_steps_ = partial.sampler;
    const bool from_noise = start.mask.defined() && start.strength == 1.0;
    start_.alpha = from_noise ? 0.0 : partial.alpha;
    start_.sigma = from_noise ? pipelines::initial_scale(partial.sampler) : partial.sigma;
  }
}

diffusion::SampleStart DrawingGroup::with_first_frame() const {
  const double share = models::shape_of(recipe_.model).first_frame_share;
  const at::Tensor& shown = beside_.defined() ? beside_ : clips_.given.frames;
  diffusion::SampleStart start = start_;
  if (share == 0.0 || !shown.defined() || start.data.defined()) {
    return start;
  }
  const std::vector<int64_t> shape = drawn_shape();
  start.data = shown.narrow(1, 0, shape[0]).narrow(2, 0, 1).expand({-1, -1, shape[1], -1, -1});
  start.alpha = share;
  start.sigma = 1.0 - share;
  return start;
}

std::vector<int64_t> DrawingGroup::drawn_shape() const {
  std::vector<int64_t> shape = recipe_.model.sample_shape();
  if (recipe_.model.is_video()) {
    shape[1] += frames_before();
  }
  return shape;
}

int64_t DrawingGroup::frames_before() const {
  return models::shape_of(recipe_.model).frames_before + std::ssize(clips_.shown_places);
}

int64_t DrawingGroup::channels_beside() const {
  return models::shape_of(recipe_.model).channels_beside;
}

bool DrawingGroup::is_guided() const {
  return std::any_of(samples_.begin(), samples_.end(),
                     [](const auto& sample) { return sample.guidance != 1.0; }) ||
         recipe_.sample.sampling.low_noise_guidance > 1.0;
}

std::vector<Asked> DrawingGroup::ask_for_classes(const Request& request,
                                                 pipelines::ConditionsOf& conditions) {
  const int64_t num_classes = recipe_.model.num_classes;
  std::vector<int64_t> classes = request.classes;
  if (classes.empty()) {
    classes.resize(static_cast<size_t>(num_classes));
    std::iota(classes.begin(), classes.end(), 0);
  }
  for (const int64_t label : classes) {
    KINORA_CHECK(label >= 0 && label < num_classes, kConfig, "[sample] classes must lie in 0 to ",
                 num_classes - 1, ", got ", label);
  }
  const size_t count = request.count > 0 ? static_cast<size_t>(request.count) : classes.size();
  std::vector<int64_t> labels;
  std::vector<Asked> asked;
  for (size_t i = 0; i < count; ++i) {
    labels.push_back(classes[i % classes.size()]);
    asked.push_back({.label = labels.back()});
  }
  conditions = [labels = at::tensor(labels, at::kLong), num_classes, device = trained_.device](
                   int64_t first, int64_t size) {
    pipelines::DrawConditions result;
    result.conditions.labels = labels.narrow(0, first, size).to(device);
    result.null = null_of(result.conditions, num_classes);
    return result;
  };
  return asked;
}

std::vector<Asked> DrawingGroup::ask_for_texts(const Request& request,
                                               pipelines::ConditionsOf& conditions) {
  Prompts prompts = prompts_for(recipe_, request, trained_.device);
  const data::TextShape shape = text_shape_.value_or(prompts.shape);
  KINORA_CHECK(shape.length == prompts.shape.length && shape.channels == prompts.shape.channels &&
                   shape.pooled_channels == prompts.shape.pooled_channels,
               kConfig,
               "[sample] requests that are drawn together must have texts of one size, got ",
               shape.length, " and ", prompts.shape.length, " tokens");
  KINORA_CHECK(!text_shape_ || has_negative_ == prompts.negative.has_value(), kConfig,
               "[sample] requests that are drawn together must all have a negative text, or none");
  text_shape_ = shape;
  has_negative_ = prompts.negative.has_value();
  const size_t count = request.count > 0 ? static_cast<size_t>(request.count) : prompts.all.size();
  std::vector<Asked> asked;
  for (size_t i = 0; i < count; ++i) {
    const Prompt& prompt = prompts.all[i % prompts.all.size()];
    asked.push_back({.caption = prompt.caption, .label = prompt.label});
  }
  conditions = conditions_of_prompts(std::move(prompts), recipe_.model, clip_fps(recipe_.data),
                                     trained_.device);
  return asked;
}

pipelines::DrawConditions DrawingGroup::conditions_of(int64_t first, int64_t size) const {
  std::vector<pipelines::DrawConditions> pieces;
  for (const Part& part : parts_) {
    const int64_t begin = std::max(first, part.first);
    const int64_t end = std::min(first + size, part.first + part.count);
    if (begin < end) {
      pieces.push_back(part.conditions_of(begin - part.first, end - begin));
    }
  }
  pipelines::DrawConditions all = pieces.size() == 1 ? pieces.front() : joined(pieces);
  const models::ModelShape shape = models::shape_of(recipe_.model);
  const bool may_lack = shape.references > 0;
  KINORA_CHECK(beside_.defined() || channels_beside() == 0 || may_lack, kConfig,
               models::shows_frames(shape.input)
                   ? "[sample] this model goes on from a first frame. Hint: --image FILE"
                   : "[sample] this model changes a given picture. Hint: --image FILE");
  KINORA_CHECK(control_.defined() || models::shape_of(recipe_.model).controls == 0, kConfig,
               "[sample] this model's ControlNets want a picture. Hint: --control FILE");
  KINORA_CHECK(image_prompts_.given.defined() || !shape.reads_image_prompt, kConfig,
               recipe_.model.is_video()
                   ? "[sample] this model reads what an image encoder says of its first frame. "
                     "Hint: --image FILE"
                   : "[sample] this model's IP-Adapter wants a picture. Hint: --ip-image FILE");
  all.conditions.beside = rows_of(beside_, first, size);
  if (may_lack && !beside_.defined()) {
    std::vector<int64_t> samples = drawn_shape();
    samples.insert(samples.begin(), size);
    all.conditions.beside =
        at::zeros(sizes_beside(shape, samples), at::device(trained_.device).dtype(at::kFloat));
  }
  all.conditions.control = rows_of(control_, first, size);
  if (image_prompts_.given.defined()) {
    all.conditions.image_prompt = rows_of(image_prompts_.given, first, size);
    if (image_prompts_.none.defined()) {
      all.null.image_prompt =
          image_prompts_.none.to(trained_.device).expand_as(all.conditions.image_prompt);
    }
  }
  return all;
}

at::Tensor DrawingGroup::rows_of(const at::Tensor& all, int64_t first, int64_t size) const {
  if (!all.defined()) {
    return {};
  }
  std::vector<int64_t> rows;
  for (int64_t i = first; i < first + size; ++i) {
    rows.push_back(samples_[static_cast<size_t>(i)].index % all.size(0));
  }
  return all.index_select(0, at::tensor(rows, at::kLong)).to(trained_.device);
}

pipelines::BatchCost DrawingGroup::batch_cost() const {
  constexpr int64_t kMostSamples = 8;  // more would hardly say more, but take memory and time
  const int64_t size = std::min({kMostSamples, options_.batch, count()});
  diffusion::Guidance guidance = recipe_.sample.sampling.guidance_of();
  guidance.scale = is_guided() ? 2.0 : 1.0;  // any scale but 1 takes as long
  return pipelines::measure_batch_cost(*trained_.model, sampler_of(recipe_, trained_.objective),
                                       guidance, drawn_shape(), conditions_of(0, size), size,
                                       trained_.device);
}

at::Tensor DrawingGroup::draw_first_batch(const diffusion::StepCacheConfig& cache) {
  std::vector<bool> there(static_cast<size_t>(numbers_.back()) + 1, true);
  for (int64_t i = 0; i < std::min(options_.batch, count()); ++i) {
    there[static_cast<size_t>(numbers_[static_cast<size_t>(i)])] = false;
  }
  std::vector<at::Tensor> drawn;
  trained_.model->use_step_cache(cache);
  (void)draw_batches(
      {}, {.done = [&](int64_t /*first*/, const at::Tensor& samples) { drawn.push_back(samples); }},
      there);
  trained_.model->use_step_cache(recipe_.sample.sampling.cache);
  return at::cat(drawn);
}

bool DrawingGroup::draw_batches(const parallel::Mesh& mesh, const pipelines::DrawEvents& events,
                                const std::vector<bool>& there) {
  const models::ModelConfig& model = recipe_.model;
  const pipelines::SamplingConfig& sampling = recipe_.sample.sampling;
  const pipelines::SampleRange own = pipelines::own_samples(count(), mesh);
  const int64_t at_once = sampling.batch_invariant ? 1 : std::min(own.count, options_.batch);
  const bool by_given = (goes_on() || channels_beside() > 0) && sampling.given_guidance > 1.0;
  const int64_t copies = by_given ? 3 : is_guided() ? 2 : 1;
  const std::unique_ptr<diffusion::Denoiser> denoiser =
      share(trained_, model, mesh, options_.ranks.scheme,
            std::max<int64_t>(copies / mesh.shape().guidance, 1) * at_once);
  const diffusion::Sampler sampler =
      last_steps_ ? *last_steps_ : sampler_of(recipe_, trained_.objective);
  const auto begin = samples_.begin() + own.first;
  const auto number_of = [&](int64_t i) { return numbers_[static_cast<size_t>(own.first + i)]; };
  const auto wants = [&](int64_t first, int64_t size) {
    for (int64_t i = first; i < first + size; ++i) {
      if (there.empty() || !there[static_cast<size_t>(number_of(i))]) {
        return true;
      }
    }
    return false;
  };
  const pipelines::DrawRequest request{.samples = {begin, begin + own.count},
                                       .batch = options_.batch,
                                       .graphs = trained_.graphs && !events.preview,
                                       .wants = wants,
                                       .start = with_first_frame()};
  const auto conditions = [&](int64_t first, int64_t size) {
    return conditions_of(own.first + first, size);
  };
  const auto shown = [before = frames_before()](const at::Tensor& drawn) {
    return before == 0 ? drawn : drawn.narrow(2, before, drawn.size(2) - before);
  };
  pipelines::DrawEvents heard{.done = [&](int64_t first, const at::Tensor& drawn) {
    const at::Tensor samples = shown(drawn);
    if (!events.shared && !pipelines::leads_group(mesh)) {
      return;
    }
    // Requests of other sizes may lie between those of this one.
    int64_t begins = 0;
    for (int64_t i = 1; i <= samples.size(0); ++i) {
      if (i == samples.size(0) || number_of(first + i) != number_of(first + i - 1) + 1) {
        events.done(number_of(first + begins), samples.narrow(0, begins, i - begins));
        begins = i;
      }
    }
  }};
  if (events.shared) {
    events.shared(mesh.sample_group());
  }
  if (events.progress) {
    heard.progress = [&](pipelines::DrawProgress progress) {
      progress.first = number_of(progress.first);
      events.progress(progress);
    };
  }
  if (events.preview && pipelines::leads_group(mesh)) {
    heard.preview = [&](pipelines::DrawPreview preview) {
      preview.first = number_of(preview.first);
      preview.x0 = shown(preview.x0);
      events.preview(preview);
    };
  }
  if (events.stops) {
    heard.stops = [&] { return agreed(events.stops(), mesh, trained_.device); };
  }
  const std::vector<int64_t> shape = drawn_shape();
  return model.is_video()
             ? pipelines::draw_clip_batches(*denoiser, sampler, sampling, request, shape, clips_,
                                            conditions, trained_.device, heard)
             : pipelines::draw_batches(*denoiser, sampler, sampling, request, shape, conditions,
                                       trained_.device, heard);
}

}  // namespace kinora::inference
