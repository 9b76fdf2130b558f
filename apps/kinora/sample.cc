// kinora sample --run DIR | --checkpoint FILE_OR_DIR

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>

#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/ranks.h"
#include "apps/kinora/sample_first_frames.h"
#include "apps/kinora/sample_like.h"
#include "apps/kinora/sample_preview.h"
#include "apps/kinora/sample_start.h"
#include "apps/kinora/sample_upsample.h"
#include "apps/kinora/verdicts.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/stop_signal.h"
#include "kinora/core/text.h"
#include "kinora/data/data_config.h"
#include "kinora/device/device.h"
#include "kinora/device/free_memory.h"
#include "kinora/eval/sample_judge.h"
#include "kinora/inference/class_words.h"
#include "kinora/inference/decoder.h"
#include "kinora/inference/drawing.h"
#include "kinora/inference/drawing_group.h"
#include "kinora/inference/drawing_key.h"
#include "kinora/inference/drawing_memory.h"
#include "kinora/inference/given_frames.h"
#include "kinora/inference/pipeline_prompts.h"
#include "kinora/inference/prompts.h"
#include "kinora/inference/sample_files.h"
#include "kinora/inference/sample_folder.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/io/file.h"
#include "kinora/io/image.h"
#include "kinora/models/autoencoders/autoencoder.h"
#include "kinora/models/families.h"
#include "kinora/models/unconditional.h"
#include "kinora/pipelines/cache_price.h"
#include "kinora/pipelines/decode.h"
#include "kinora/pipelines/pipeline.h"
#include "kinora/pipelines/tokenizer_folder.h"

namespace kinora::apps {
namespace {

// Ranks that have drawn their samples wait for the others.
constexpr std::chrono::hours kPatience{24};

// Of a model of many classes, those that are drawn where none are named.
constexpr int64_t kMostClasses = 64;

inference::LoadOptions load_options(const SampleArguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (!arguments.sampler.empty()) {
    overrides.push_back("sample.method=" + arguments.sampler);
  }
  if (arguments.image_guidance) {
    overrides.push_back("sample.given_guidance=" + std::to_string(*arguments.image_guidance));
  }
  std::vector<double> scales = arguments.control_scales;
  if (scales.size() == 1 && arguments.controlnets.size() > 1) {
    scales.resize(arguments.controlnets.size(), scales.front());
  }
  return {.ema = arguments.weights == "ema",
          .device = arguments.device,
          .precision = arguments.precision,
          .held = {.format = arguments.quantise, .offload = arguments.offload},
          .exchange_experts = arguments.exchange_experts,
          .overrides = overrides,
          .config_file = arguments.config,
          .adapters = arguments.adapters,
          .low_noise_adapters = arguments.low_noise_adapters,
          .controlnets = arguments.controlnets,
          .control_scales = scales,
          .ip_adapter = arguments.ip_adapter,
          .ip_scale = arguments.ip_scale};
}

const std::string& model_of(const SampleArguments& arguments) {
  return arguments.run.empty() ? arguments.checkpoint : arguments.run;
}

/// Those that the model was trained with, or of generated data.
std::vector<std::string> class_names_of(const inference::ModelRecipe& recipe) {
  const bool is_generated = recipe.data.path.empty();
  return recipe.model.class_names.empty() && is_generated
             ? data::open_source(recipe.data)->class_names()
             : recipe.model.class_names;
}

/// By number or by name.
std::vector<int64_t> classes_of(const std::vector<std::string>& words,
                                const inference::ModelRecipe& recipe) {
  std::vector<int64_t> classes;
  std::optional<std::vector<std::string>> names;
  for (const std::string& word : words) {
    int64_t number = 0;
    const char* const end = word.data() + word.size();
    if (const auto read = std::from_chars(word.data(), end, number);
        read.ec == std::errc() && read.ptr == end) {
      classes.push_back(number);
      continue;
    }
    if (!names) {
      names = class_names_of(recipe);
      KINORA_CHECK(!names->empty(), kConfig,
                   "[sample] classes must be numbers for this model, which "
                   "does not say what they are called, got ",
                   quote(word));
    }
    classes.push_back(inference::class_of(word, *names));
  }
  return classes;
}

inference::Request request_of(const SampleArguments& arguments,
                              const inference::ModelRecipe& recipe) {
  const models::ModelConfig& model = recipe.model;
  inference::Request request = arguments.request;
  if (!arguments.captions_file.empty()) {
    request.captions = inference::caption_lines(arguments.captions_file);
  }
  std::vector<std::string> classes = arguments.classes;
  if (!model.takes_text()) {  // what it is told in words are classes
    classes.insert(classes.end(), request.captions.begin(), request.captions.end());
    request.captions.clear();
  }
  request.classes = classes_of(classes, recipe);
  if (request.classes.empty() && !model.takes_text()) {
    request.classes.resize(static_cast<size_t>(std::min(model.num_classes, kMostClasses)));
    std::iota(request.classes.begin(), request.classes.end(), 0);
  }
  return request;
}

/// What is there and what was judged, in words or as JSON.
std::string report_of(const std::string& written, const SampleArguments& arguments, int64_t count,
                      bool judges, const std::optional<pipelines::CachePrice>& price) {
  nlohmann::json json = {{"samples", count}, {"out", arguments.out}};
  if (price) {
    json["cache"] = {{"times_as_fast", price->seconds_without / price->seconds},
                     {"relative_error", price->relative_error},
                     {"psnr", price->psnr ? nlohmann::json(*price->psnr) : nlohmann::json()}};
  }
  std::ostringstream text;
  text << written << '\n';
  if (judges) {
    const std::map<int64_t, bool> verdicts = read_verdicts(arguments.out);
    nlohmann::json each = nlohmann::json::array();
    for (int64_t i = 0; i < count; ++i) {
      const auto found = verdicts.find(i);
      each.push_back(found == verdicts.end() ? nlohmann::json() : nlohmann::json(found->second));
    }
    const auto num_right = std::count(each.begin(), each.end(), nlohmann::json(true));
    const auto num_judged = std::ssize(verdicts);
    text << "judged " << num_right << "/" << num_judged << " right";
    if (num_judged < count) {
      text << "; " << count - num_judged << " were drawn without --judge";
    }
    text << '\n';
    json["judge"] = {{"right", num_right},
                     {"share", static_cast<double>(num_right) /
                                   static_cast<double>(std::max<int64_t>(num_judged, 1))},
                     {"each", each}};
  }
  return arguments.json ? json.dump() + "\n" : text.str();
}

/// What the step cache costs in the first batch, in pictures where the model's are or are decoded.
pipelines::CachePrice cache_price(inference::Drawing& drawing, models::Autoencoder* decoder,
                                  inference::SampleKind kind, at::Device device) {
  KINORA_CHECK(
      drawing.recipe().sample.sampling.cache.any(), kConfig,
      "[sample] --cache-price is of sample.cache and sample.patches, which leave out nothing "
      "here. Hint: --set sample.cache=first_block");
  const inference::Drawing::CacheTrial trial = drawing.try_cache();
  pipelines::CachePrice price = trial.price;
  if (kind == inference::SampleKind::kLatents) {
    return price;
  }
  const auto shown = [&](const at::Tensor& samples) {
    return decoder == nullptr ? samples : pipelines::decode_latents(*decoder, samples, device);
  };
  price.psnr = pipelines::psnr(shown(trial.with), shown(trial.without));
  return price;
}

/// What the options decide beside what inference::drawing_key() has.
inference::DrawingKey key_of(const SampleArguments& arguments,
                             const inference::TrainedModel& trained,
                             const inference::Drawing& drawing, const inference::Request& request) {
  static constexpr const char* kFormats[] = {"usual", "png", "webp", "gif", "mp4"};
  inference::DrawingKey key = inference::drawing_key(trained, drawing, request, arguments.options);
  key["decoder"] = arguments.autoencoder;
  if (!arguments.tokenizer.empty()) {
    key["tokenizer"] = arguments.tokenizer;
  }
  if (const std::string start = words_of_start(arguments); !start.empty()) {
    key["begins with"] = start;
  }
  if (arguments.only) {
    key["only"] = std::to_string(*arguments.only);
  }
  key["format"] = kFormats[static_cast<size_t>(arguments.format)];
  return key;
}

inference::SampleKind kind_of(const models::ModelConfig& model, bool decoded) {
  if (!decoded && model.in_channels != 3 && model.in_channels != 1) {
    return inference::SampleKind::kLatents;
  }
  // A clip of one frame is an image.
  return model.is_video() && model.frames > 1 ? inference::SampleKind::kClips
                                              : inference::SampleKind::kImages;
}

/// Which samples rank 0 finds; the same on all ranks.
std::vector<bool> shared(const std::vector<bool>& there, const comm::Group& world,
                         at::Device device) {
  at::Tensor all = at::zeros({std::ssize(there)}, at::kLong);
  for (int64_t i = 0; i < std::ssize(there); ++i) {
    all[i] = there[static_cast<size_t>(i)] ? 1 : 0;
  }
  all = all.to(device);
  world.broadcast(all, 0);
  all = all.cpu();
  std::vector<bool> result;
  for (int64_t i = 0; i < all.numel(); ++i) {
    result.push_back(all.const_data_ptr<int64_t>()[i] != 0);
  }
  return result;
}

/// The step within a batch: "step 12/50 of samples 1-8".
std::string words_of(const pipelines::DrawProgress& progress) {
  if (progress.step == progress.steps) {
    return "";
  }
  std::ostringstream text;
  text << "step " << progress.step << "/" << progress.steps << " of samples " << progress.first + 1
       << "-" << progress.first + progress.size;
  return text.str();
}

/// What a pipeline chooses where nobody says otherwise.
/// recipe: of the size that is drawn.
void announce(const pipelines::Pipeline& pipeline, inference::ModelRecipe recipe,
              const SampleArguments& arguments, const std::string& decoder) {
  pipelines::SamplingConfig& sampling = recipe.sample.sampling;
  sampling.steps = arguments.options.steps > 0 ? arguments.options.steps : sampling.steps;
  sampling.guidance = arguments.request.guidance.value_or(sampling.guidance);
  const models::ModelConfig& model = recipe.model;
  const auto values = flatten_config(recipe);
  const std::map<std::string, std::string> keys(values.begin(), values.end());
  log_info("[sample] ", pipeline.class_name, " in ", pipeline.folder);
  if (!pipeline.note.empty()) {
    log_warn("[sample] ", pipeline.note);
  }
  const bool is_flow = keys.at("objective.kind") == "flow";
  log_info("[sample] sampler ", keys.at("sample.method"),
           is_flow
               ? " of a flow, shift " + keys.at("objective.shift") + ", by tokens " +
                     keys.at("objective.shift_by_tokens")
               : ", spacing " + keys.at("sample.spacing") + ", on betas " +
                     keys.at("objective.betas") + ", predicts " + keys.at("objective.prediction"));
  const std::string size = std::to_string(model.height * model.compression) + " x " +
                           std::to_string(model.width * model.compression) + " pixels";
  log_info(
      "[sample] ",
      model.is_video() ? "clips of " + std::to_string(model.frames) + " frames of " + size
                       : "pictures of " + size,
      decoder.empty() ? ", as latents" : " by autoencoder " + decoder, ", ", sampling.steps,
      " steps, guidance ",
      models::shape_of(model).is_distilled ? keys.at("model.guidance") : keys.at("sample.guidance"),
      ", in ", keys.at("train.precision"));
}

/// The captions of `request` as the text encoder of its pipeline embeds them. The encoder is gone
/// when this returns.
void encode(const SampleArguments& arguments, const pipelines::Pipeline& pipeline,
            const inference::ModelRecipe& recipe, bool says, inference::Request& request) {
  if (!request.text_embeddings.empty()) {
    return;
  }
  KINORA_CHECK(
      !request.captions.empty(), kConfig,
      "[sample] a pipeline draws what words say, got none. Hint: --prompt \"a red circle\"");
  std::vector<io::Image> pictures;
  if (models::shape_of(recipe.model).reads_frame_in_text) {
    for (const std::string& path : arguments.options.given) {
      pictures.push_back(inference::read_picture(path));
    }
  }
  request.encoded = std::make_shared<inference::Prompts>(
      inference::prompts_of_pipeline(pipeline, inference::captions_of(request), recipe,
                                     {.negative = arguments.negative,
                                      .cleans = arguments.cleans_captions,
                                      .scores = arguments.scores,
                                      .device = inference::choose_device(arguments.device),
                                      .memory_gib = arguments.memory_budget.value_or(0.0),
                                      .says = says,
                                      .weights = arguments.prompt_weights,
                                      .embeddings = arguments.embeddings,
                                      .adapters = arguments.adapters,
                                      .verbose = arguments.verbose,
                                      .pictures = std::move(pictures)}));
  request.captions.clear();
  request.wildcards.clear();
}

/// The captions of all samples, in words; none where they were embedded before.
std::vector<std::string> captions_drawn(const inference::Request& request) {
  return request.captions.empty() ? std::vector<std::string>() : inference::captions_of(request);
}

/// Of --vram-budget what plans may fill; 0: there is none. From here on tensors cannot take more
/// than it.
int64_t limited_memory(const SampleArguments& arguments, at::Device device) {
  const int64_t budget = device::gpu_budget("--vram-budget", arguments.vram_budget, device);
  if (budget == 0) {
    return 0;
  }
  KINORA_CHECK(budget > device::kContextBytes, kMemory, "[sample] --vram-budget is ",
               human_bytes(budget), ", and the GPU's context and libraries alone take about ",
               human_bytes(device::kContextBytes));
  device::limit_memory(device, budget - device::kContextBytes);
  return static_cast<int64_t>(device::kPlannedShare * static_cast<double>(budget));
}

/// GiB beside the context and `weights`, without what the autoencoder's own weights or a text
/// encoder's activations take at most.
double gib_beside(int64_t room, int64_t weights) {
  constexpr int64_t kOthers = int64_t{512} << 20;
  constexpr double kLeast = 0.1;
  return std::max(kLeast,
                  static_cast<double>(room - device::kContextBytes - kOthers - weights) / kGiB);
}

/// Places the weights of a model so that batches of `samples` are drawn within `room`. Returns the
/// bytes of those that the GPU holds.
int64_t place_weights(const inference::ModelRecipe& recipe, int64_t samples, int64_t room,
                      inference::LoadOptions& options) {
  const int64_t rows = recipe.sample.sampling.guidance_of().scale.any() ? 2 * samples : samples;
  const auto [held, exchange_experts, memory] =
      inference::fitting_weights(recipe, options.held, rows, room, options.exchange_experts);
  options.held = held;
  options.exchange_experts = exchange_experts;
  if (options.says) {
    log_info("[sample] --vram-budget: ", exchange_experts ? "--exchange-experts, " : "",
             "--offload ", options.held.offload, ", weights take ", human_bytes(memory.weights),
             " of the GPU and ", human_bytes(memory.at_host),
             " of the host's memory, an evaluation ", human_bytes(memory.beside));
  }
  return memory.weights;
}

/// What sample_on_rank() has drawn.
struct Drawn {
  bool all = false;                     ///< else it was stopped
  std::vector<std::string> files = {};  ///< of each sample
  inference::DrawingKey key = {};
  std::string report = {};  ///< what is there and what was judged; on rank 0
};

/// like: what the file of --like says; nothing in it without one. first: with --image-model.
/// begins_with: in the drawing's key, in the place of --latents.
Drawn sample_on_rank(const SampleArguments& given, const LikeArguments& like,
                     const comm::Group& world, const FirstFrames& first = {},
                     const std::string& begins_with = "") {
  device::configure_computation(given.threads, given.deterministic);
  inference::LoadOptions options = load_options(given);
  const bool speaks = world.rank() == 0;
  options.says = speaks;
  options.groups = inference::ModelGroups::of(world, given.options.ranks);
  if (speaks && !like.command.empty()) {
    log_info("[sample] like ", given.like, ": ", like.command);
  }
  inference::ModelRecipe own = inference::read_recipe(model_of(given), options);
  SampleArguments arguments = for_model(given, own.model);
  if (!first.files.empty()) {
    arguments.options.given = first.files;
  }
  if (models::shape_of(own.model).is_distilled && arguments.request.guidance) {
    options.overrides.push_back("model.guidance=" + std::to_string(*arguments.request.guidance));
    arguments.request.guidance.reset();
    own = inference::read_recipe(model_of(given), options);
  }
  // What is refused is refused before anything is drawn.
  inference::check_format(arguments.format, own.model.is_video());
  inference::ModelRecipe sized = own;
  inference::set_size(arguments.options.size, arguments.options.fps, sized);
  const int64_t room = limited_memory(arguments, inference::choose_device(arguments.device));
  KINORA_CHECK(
      room == 0 || !options.groups.divide(), kConfig,
      "[sample] --vram-budget does not work with --tensor and --pipeline, whose ranks each have a "
      "part of the weights. Hint: leave one of them out");
  const bool bounds = room > 0 && !arguments.memory_budget;
  if (bounds) {
    arguments.memory_budget = gib_beside(room, /*weights=*/0);
  }
  if (only_decodes(arguments)) {
    KINORA_CHECK(world.size() == 1, kConfig, "[sample] --latents are decoded on one rank, got ",
                 world.size());
    log_info("[sample] ", decode_files(arguments, own, inference::choose_device(arguments.device)));
    return {.all = true};
  }
  const StartPictures pictures = read_start(arguments, sized);
  inference::Request request = request_of(arguments, own);
  const std::vector<std::string> captions = captions_drawn(request);
  auto pipeline = pipelines::find_pipeline(model_of(arguments));
  const bool has_words = pipeline && pipeline->text;
  KINORA_CHECK(
      has_words || (arguments.text_encoder.empty() && arguments.tokenizer.empty()), kConfig,
      "[sample] --text-encoder and --tokenizer are for pipelines that draw from words, and ",
      model_of(arguments), " is none");
  if (!arguments.text_encoder.empty()) {
    pipeline->text->encoder = std::filesystem::absolute(arguments.text_encoder);
  }
  if (!arguments.tokenizer.empty()) {
    pipeline->text->tokenizer = std::filesystem::absolute(arguments.tokenizer);
  } else if (!arguments.text_encoder.empty()) {
    pipeline->text->tokenizer = pipelines::find_tokenizer(arguments.text_encoder);
  }
  if (pipeline) {
    inference::check_decoder(own, {.path = arguments.autoencoder});
    if (speaks) {
      announce(*pipeline, sized, arguments,
               inference::decoder_path(own, {.path = arguments.autoencoder}));
    }
  }
  if (has_words) {
    options.has_encoder = request.text_embeddings.empty();
    encode(arguments, *pipeline, sized, speaks, request);
  }
  KINORA_CHECK(has_words || (arguments.negative.empty() && arguments.cleans_captions &&
                             arguments.embeddings.empty() &&
                             arguments.prompt_weights == inference::PromptWeights::kOff),
               kConfig,
               "[sample] --negative, --no-cleaning, --embedding and --prompt-weights are for "
               "pipelines with a text encoder, and ",
               model_of(arguments), " has none");
  const pipelines::ImagePrompts image_prompts =
      encode_prompts(arguments, pictures, own, inference::choose_device(arguments.device));
  if (room > 0) {
    const int64_t asked = std::max({std::ssize(request.captions), std::ssize(request.classes),
                                    std::ssize(captions), request.count, int64_t{1}});
    const int64_t weights =
        place_weights(sized, std::min(arguments.options.batch, asked), room, options);
    if (bounds) {
      arguments.memory_budget = gib_beside(room, weights);
    }
  }
  inference::TrainedModel trained = inference::load_trained(model_of(arguments), options);
  const std::unique_ptr<models::Autoencoder> decoder = inference::open_decoder(
      trained.recipe, {.path = arguments.autoencoder, .memory_gib = arguments.memory_budget},
      trained.device);
  inference::DrawOptions draw_options = arguments.options;
  draw_options.encoder = decoder.get();
  inference::Drawing drawing(trained, {request}, draw_options);
  const inference::ModelRecipe& recipe = drawing.recipe();
  const std::vector<inference::Asked>& asked = drawing.asked();
  std::optional<eval::SampleJudge> judge;
  if (arguments.judge) {
    judge.emplace(recipe.data, recipe.model);
    for (const inference::Asked& each : asked) {
      (void)judge->label_of(each);
    }
  }
  if (const auto start =
          start_of(arguments, pictures, image_prompts, recipe, decoder.get(), trained.device)) {
    drawing.set_start(*start);
  }
  const inference::SampleKind kind = kind_of(recipe.model, decoder != nullptr);
  KINORA_CHECK(!arguments.only || *arguments.only < std::ssize(asked), kConfig,
               "[sample] --only must be one of the ", asked.size(), " samples, 0 to ",
               asked.size() - 1, ", got ", arguments.only.value_or(0));
  KINORA_CHECK(
      !arguments.only ||
          (kind != inference::SampleKind::kLatents && !arguments.judge && !arguments.save_latents),
      kConfig, "[sample] --only is for pictures and clips, not with --judge or --save-latents");
  inference::DrawingKey key = key_of(arguments, trained, drawing, request);
  if (!first.files.empty()) {
    key["given frames"] = first.origin;
  }
  if (!begins_with.empty()) {
    key["begins with"] = begins_with;
  }
  if (speaks && !like.weights.empty() && like.weights != key.at("weights")) {
    log_warn("[sample] the weights are not those that ", arguments.like,
             " was drawn with, so the picture differs");
  }
  const inference::SampleMetadata metadata = metadata_of(arguments, key, recipe, captions);
  inference::SampleFilesOptions file_options{
      .folder = arguments.out,
      .kind = kind,
      .labels = {},
      .fps = inference::clip_fps(recipe.data),
      .format = arguments.format,
      .texts =
          [&](int64_t index) {
            return inference::texts_of(metadata_of_sample(metadata, index, asked));
          },
      .only = arguments.only};
  for (const inference::Asked& each : asked) {
    const bool is_told = !recipe.model.takes_text() && !models::is_unconditional(recipe.model);
    file_options.labels.push_back(is_told ? each.label : std::nullopt);
  }
  inference::SampleFiles files(file_options);
  std::optional<inference::SampleFiles> latents;
  if (arguments.save_latents && kind != inference::SampleKind::kLatents) {
    file_options.kind = inference::SampleKind::kLatents;
    latents.emplace(file_options);
  }

  std::optional<io::FileLock> lock;
  if (speaks) {
    lock = inference::claim_folder(
        arguments.out, std::ssize(asked),
        [&](int64_t count) { return inference::key_of_first(key, asked, count); },
        arguments.overwrite);
  }
  const auto written = [&] {
    std::vector<bool> all = files.there();
    if (latents) {
      const std::vector<bool> of_latents = latents->there();
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = all[i] && of_latents[i];
      }
    }
    return all;
  };
  const std::vector<bool> there = shared(written(), world, trained.device);
  const auto count = std::ssize(there);
  const auto before = std::count(there.begin(), there.end(), true);
  if (speaks && before > 0 && !arguments.only) {
    log_info("[sample] ", before, " of ", count, " are there already, drawing ", count - before);
  }
  const bool alone = recipe.sample.sampling.batch_invariant;
  if (speaks && alone && count - before > 1) {
    log_info("[sample] sample.batch_invariant takes ", drawing.batch_cost().describe());
  }
  std::optional<pipelines::CachePrice> price;
  if (arguments.cache_price) {
    KINORA_CHECK(world.size() == 1, kConfig, "[sample] --cache-price draws on one rank, got ",
                 world.size());
    price = cache_price(drawing, decoder.get(), kind, trained.device);
    log_info("[sample] ", recipe.sample.sampling.cache.key(), " is ", price->describe());
  }
  std::optional<VerdictLog> verdicts;
  const StopSignal stop;
  Progress progress(count, recipe.model.is_video() ? "clips" : "images", before);
  bool leads = true;  // of those who draw each sample together
  pipelines::DrawEvents events{.done = [&](int64_t first, const at::Tensor& samples) {
    const at::Tensor shown =
        decoder == nullptr ? samples
                           : pipelines::decode_latents(*decoder, samples, trained.device, alone);
    if (!leads) {
      return;
    }
    if (judge) {
      if (!verdicts) {
        verdicts.emplace(arguments.out, world.rank());
      }
      for (int64_t i = 0; i < shown.size(0); ++i) {
        verdicts->add(first + i, judge->is_right(shown[i], asked[static_cast<size_t>(first + i)]));
      }
    }
    files.write(first, shown);
    if (latents) {
      latents->write(first, samples);
    }
  }};
  std::optional<Previews> previews;
  if (speaks && arguments.preview > 0) {
    previews.emplace(arguments, recipe, decoder.get(), trained.device);
    events.preview = [&](const pipelines::DrawPreview& now) { previews->show(now); };
  }
  if (decoder != nullptr && arguments.preview == 0) {
    events.shared = [&](const comm::Group& ranks) {
      leads = ranks.rank() == 0;
      const bool divides = models::Autoencoder::divides(recipe.model.height, ranks.size());
      decoder->use_ranks(divides ? ranks : comm::Group());
    };
  }
  events.stops = [&stop] { return stop.requested(); };
  if (speaks) {
    events.progress = [&](const pipelines::DrawProgress& now) {  // other groups are about as far
      progress.update(static_cast<double>(before) + now.part * static_cast<double>(count - before),
                      words_of(now));
    };
  }
  if (before < count) {
    (void)drawing.draw_batches(world, events, there);
  }
  files.flush();
  if (latents) {
    latents->flush();
  }
  previews.reset();
  progress.finish();
  world.barrier();
  Drawn drawn{.key = key};
  const std::vector<bool> now = shared(written(), world, trained.device);
  const auto done = std::count(now.begin(), now.end(), true);
  drawn.all = done == count;
  for (int64_t i = 0; i < count; ++i) {
    drawn.files.push_back(files.outputs(arguments.only.value_or(i)).front().string());
  }
  if (!speaks) {
    return drawn;
  }
  if (const std::string use = trained.model->step_cache_use().describe(); !use.empty()) {
    log_info("[sample] ", recipe.sample.sampling.cache.key(), " ", use);
  }
  if (!drawn.all) {
    log_info("[sample] stopped", stop.requested() ? " by " : "", stop.name(), ": ", done, " of ",
             count, " samples are in ", arguments.out,
             "; the same command goes on with the others");
    return drawn;
  }
  const std::string where = files.finish();
  drawn.report = report_of(latents ? where + ", " + latents->finish() : where, arguments,
                           arguments.only ? 1 : count, judge.has_value(), price);
  return drawn;
}

/// The first frames of --image-model. Nothing where drawing them was stopped.
std::optional<FirstFrames> draw_first_frames(const SampleArguments& arguments,
                                             const inference::ModelRecipe& clips,
                                             const comm::Group& world) {
  const SampleArguments pictures = first_frame_arguments(arguments, clips);
  if (world.rank() == 0) {
    log_info("[sample] first frames are drawn by ", arguments.image_model, " into ", pictures.out);
    io::check_can_write(pictures.out);
  }
  world.barrier();
  const Drawn drawn = sample_on_rank(pictures, {}, world);
  device::release_unused(inference::choose_device(arguments.device));
  return drawn.all
             ? std::optional(FirstFrames{.files = drawn.files, .origin = origin_of(drawn.key)})
             : std::nullopt;
}

}  // namespace

namespace {

/// Of the size that is drawn.
inference::ModelRecipe sized_recipe(const SampleArguments& arguments) {
  inference::LoadOptions options = load_options(arguments);
  options.says = false;
  inference::ModelRecipe recipe = inference::read_recipe(model_of(arguments), options);
  inference::set_size(arguments.options.size, arguments.options.fps, recipe);
  return recipe;
}

/// With --upsample. Without a report where the small ones were stopped.
Drawn sample_small_and_large(const SampleArguments& arguments, const LikeArguments& like,
                             const comm::Group& world, const FirstFrames& first) {
  const inference::ModelRecipe recipe = sized_recipe(arguments);
  const SampleArguments small = small_arguments(arguments, recipe);
  if (world.rank() == 0) {
    log_info("[sample] clips are drawn small into ", small.out, ", to be doubled");
    io::check_can_write(small.out);
  }
  world.barrier();
  const Drawn drawn = sample_on_rank(small, {}, world, first);
  if (!drawn.all) {
    return {};
  }
  const at::Device device = inference::choose_device(arguments.device);
  device::release_unused(device);
  if (world.rank() == 0) {
    upsample_small(arguments, recipe, device);
    device::release_unused(device);
  }
  world.barrier();
  return sample_on_rank(refining_arguments(arguments), like, world, first,
                        words_of_upsampled(arguments, drawn.key));
}

int run_sample(const SampleArguments& arguments, const LikeArguments& like) {
  io::check_can_write(arguments.out);
  const std::optional<comm::World> world = own_rank(arguments.ranks);
  if (!world) {
    check_room(arguments.ranks, arguments.device);
    // What is wrong with the models is said once, and before there are ranks.
    const inference::ModelRecipe recipe = sized_recipe(arguments);
    if (!arguments.image_model.empty()) {
      (void)first_frame_arguments(arguments, recipe);
    }
    if (!arguments.upsample.empty()) {
      (void)small_arguments(arguments, recipe);
    }
    return launch(arguments.ranks, arguments.device, AtStop::kSave);
  }
  on_rank(*world, arguments.device,
          [&](const comm::Group& group, at::Device /*device*/) {
            const std::optional<FirstFrames> first =
                arguments.image_model.empty()
                    ? FirstFrames()
                    : draw_first_frames(arguments, sized_recipe(arguments), group);
            if (!first) {
              return;
            }
            std::cout << (arguments.upsample.empty()
                              ? sample_on_rank(arguments, like, group, *first)
                              : sample_small_and_large(arguments, like, group, *first))
                             .report;
          },
          {.operation_timeout = kPatience});
  return 0;
}

}  // namespace

int run(const SampleArguments& arguments) {
  set_memory_hint(
      "--vram-budget auto, which brings weights from the host's memory as they are used, "
      "--quantise fp8, or a smaller --batch");
  if (arguments.like.empty()) {
    return run_sample(arguments, {});
  }
  LikeArguments like = arguments_like(arguments);
  if (!like.arguments) {
    return like.exit_code;
  }
  like.arguments->like = arguments.like;
  return run_sample(*like.arguments, like);
}

}  // namespace kinora::apps
