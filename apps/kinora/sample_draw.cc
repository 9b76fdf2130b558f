#include "apps/kinora/sample_draw.h"

#include <algorithm>
#include <fstream>
#include <memory>

#include "apps/kinora/sample_given.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/text.h"
#include "kinora/models/families.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/pipelines/clips.h"
#include "kinora/train/micro_batch.h"
#include "kinora/train/prompts.h"
#include "kinora/train/setup.h"
#include "kinora/train/shown_samples.h"

namespace kinora::apps {
namespace {

/// The ranks that draw, and what this one does of it.
class Team {
 public:
  /// `count` samples in all, a plural `unit`. Borrows the model. All ranks of `world` make one.
  Team(train::TrainedModel& trained, const SampleArguments& arguments, int64_t count,
       const char* unit, const comm::Group& world)
      : count_(count) {
    const bool guided = trained.config.sample.sampling.guidance != 1.0;
    const pipelines::SamplingShares shares =
        pipelines::share_ranks(arguments.sharing, world.size(), count, guided);
    mesh_ = parallel::Mesh(world, shares.mesh());
    const pipelines::SampleRange own = pipelines::own_samples(count, mesh_);
    request_ = {.count = own.count,
                .first_index = own.first,
                .batch = arguments.batch,
                .seed = static_cast<uint64_t>(arguments.seed)};
    if (world.rank() == 0) {
      if (world.size() > 1) {
        log_info("[sample] ", shares.reason);
      }
      progress_ = std::make_unique<Progress>(count, unit);
    }
    const bool doubled = guided && shares.guidance == 1;
    const int64_t batch = std::min(own.count, arguments.batch);
    denoiser_ = train::share(trained, mesh_, arguments.sharing.scheme, doubled ? 2 * batch : batch);
    request_.graphs = trained.graphs;
  }

  [[nodiscard]] diffusion::Denoiser& denoiser() { return *denoiser_; }
  /// This rank's samples.
  [[nodiscard]] const pipelines::DrawRequest& request() const { return request_; }
  [[nodiscard]] bool speaks() const { return progress_ != nullptr; }

  /// Of the own samples; the other groups are about as far.
  void update(double done) {
    if (progress_ != nullptr) {
      progress_->update(static_cast<int64_t>(done * static_cast<double>(count_) /
                                             static_cast<double>(request_.count)));
    }
  }

  /// On rank 0 all samples, of the own ones.
  [[nodiscard]] at::Tensor finish(const at::Tensor& own) {
    at::Tensor all = pipelines::gather_samples(own, count_, mesh_);
    if (progress_ != nullptr) {
      progress_->finish();
    }
    return all;
  }

 private:
  int64_t count_;
  parallel::Mesh mesh_;
  std::unique_ptr<diffusion::Denoiser> denoiser_;
  pipelines::DrawRequest request_;
  std::unique_ptr<Progress> progress_;  // of rank 0
};

int64_t count_of(const SampleArguments& arguments, size_t default_count) {
  return arguments.count > 0 ? arguments.count : static_cast<int64_t>(default_count);
}

Drawn draw_classes(train::TrainedModel& trained, const SampleArguments& arguments,
                   const comm::Group& world) {
  const models::ModelConfig& model = trained.config.model;
  std::vector<int64_t> classes = arguments.classes;
  if (classes.empty()) {
    for (int64_t label = 0; label < std::min<int64_t>(model.num_classes, 64); ++label) {
      classes.push_back(label);
    }
  }
  const int64_t count = count_of(arguments, classes.size());
  Team team(trained, arguments, count, "images", world);
  const pipelines::DrawRequest& request = team.request();
  Drawn drawn;
  drawn.samples = team.finish(pipelines::sample_classes(
      team.denoiser(), train::sampler_of(trained.config, trained.objective),
      trained.config.sample.sampling,
      {.classes = classes,
       .count = request.count,
       .first_index = request.first_index,
       .batch = request.batch,
       .seed = request.seed,
       .graphs = request.graphs},
      model.sample_shape(), model.num_classes, trained.device,
      [&team](double done) { team.update(done); }));
  for (int64_t i = 0; i < count; ++i) {
    drawn.asked.push_back(
        {.caption = "", .label = classes[static_cast<size_t>(i) % classes.size()]});
  }
  return drawn;
}

/// The lines of a file that are not empty.
std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  KINORA_CHECK(file.good(), kIo, "[sample] cannot read ", path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!trim(line).empty()) {
      lines.emplace_back(trim(line));
    }
  }
  return lines;
}

/// What the samples are to show: as the command line says, or the texts of the run's data.
train::Prompts prompts_for(const train::RunConfig& config, const SampleArguments& arguments) {
  std::vector<std::string> captions = arguments.captions;
  if (!arguments.captions_file.empty()) {
    captions = lines_of(arguments.captions_file);
  }
  if (!captions.empty() || !arguments.captions_file.empty()) {
    return train::prompts_of_captions(captions, config.data);
  }
  if (!arguments.text_embeddings.empty()) {
    return train::prompts_of_file(arguments.text_embeddings);
  }
  const train::RunData data = train::open_data(config.data);
  return train::prompts_of_data(*data.train,
                                arguments.count > 0 ? arguments.count : config.sample.count);
}

pipelines::ClipOptions clip_options(const train::RunConfig& config,
                                    const SampleArguments& arguments) {
  const models::ModelConfig& model = config.model;
  pipelines::ClipOptions options{.given = {},
                                 .given_edit = arguments.given_edit,
                                 .pieces = arguments.loop,
                                 .overlap = arguments.overlap};
  if (arguments.loop > 1) {
    check_takes_given(model);
  }
  if (!arguments.given.empty()) {
    const auto layout =
        arguments.frame_layout == "strip" ? data::FrameLayout::kStrip : data::FrameLayout::kImage;
    options.given = read_given(
        arguments.given,
        {.layout = layout, .places = arguments.given_frames, .fps = train::clip_fps(config.data)},
        model);
  }
  return options;
}

Drawn draw_texts(train::TrainedModel& trained, const SampleArguments& arguments,
                 const SampleJudge* judge, const comm::Group& world) {
  const train::RunConfig& config = trained.config;
  const train::Prompts prompts = prompts_for(config, arguments);
  const int64_t count = count_of(arguments, prompts.all.size());
  Drawn drawn;
  for (int64_t i = 0; i < count; ++i) {
    const train::Prompt& prompt = prompts.all[static_cast<size_t>(i) % prompts.all.size()];
    drawn.asked.push_back({.caption = prompt.caption, .label = prompt.label});
    if (judge != nullptr) {  // what it refuses is refused before anything is drawn
      (void)judge->label_of(drawn.asked.back());
    }
  }
  const auto conditions = train::conditions_of_prompts(
      prompts, config.model, train::clip_fps(config.data), trained.device);
  const diffusion::Sampler sampler = train::sampler_of(config, trained.objective);
  const pipelines::SamplingConfig& sampling = config.sample.sampling;
  const std::vector<int64_t> shape = config.model.sample_shape();
  Team team(trained, arguments, count, config.model.is_video() ? "clips" : "images", world);
  const auto report = [&team](double done) { team.update(done); };
  if (config.model.is_video()) {
    const pipelines::ClipOptions options = clip_options(config, arguments);
    const bool goes_on = options.given.frames.defined() || options.pieces > 1;
    if (goes_on && config.frame_masks.sum() == 0.0 && team.speaks()) {
      log_warn(
          "[sample] this run was never given frames while it trained (frame_masks), so it may "
          "not go on from them");
    }
    drawn.samples = pipelines::draw_clips(team.denoiser(), sampler, sampling, team.request(), shape,
                                          options, conditions, trained.device, report);
  } else {
    drawn.samples = pipelines::draw(team.denoiser(), sampler, sampling, team.request(), shape,
                                    conditions, trained.device, report);
  }
  drawn.samples = team.finish(drawn.samples);
  return drawn;
}

}  // namespace

void check_options(const SampleArguments& arguments, const models::ModelConfig& model) {
  const int64_t num_texts = static_cast<int64_t>(!arguments.captions.empty()) +
                            static_cast<int64_t>(!arguments.captions_file.empty()) +
                            static_cast<int64_t>(!arguments.text_embeddings.empty());
  KINORA_CHECK(num_texts <= 1, kConfig,
               "[sample] give only one of --captions, --captions-file and --text-embeddings");
  KINORA_CHECK(model.takes_text() || num_texts == 0, kConfig,
               "[sample] this model is conditioned on classes, not on texts. Hint: --classes");
  KINORA_CHECK(!model.takes_text() || arguments.classes.empty(), kConfig,
               "[sample] this model is conditioned on texts, not on classes. Hint: --captions");
  const bool of_clips = arguments.fps > 0.0 || arguments.loop > 1 || !arguments.given.empty();
  KINORA_CHECK(model.is_video() || !of_clips, kConfig,
               "[sample] --fps, --loop and --given are for models of clips, and this one draws "
               "images");
}

void adjust(train::RunConfig& config, const SampleArguments& arguments) {
  pipelines::SamplingConfig& sampling = config.sample.sampling;
  if (arguments.steps > 0) {
    sampling.steps = arguments.steps;
  }
  if (arguments.guidance >= 0.0) {
    sampling.guidance = arguments.guidance;
  }
  models::ModelConfig& model = config.model;
  const bool any_size = models::family_of(model).takes_any_size;
  const auto set = [&](const char* option, int64_t wanted, int64_t unit, int64_t patch,
                       int64_t& value) {
    if (wanted == 0) {
      return;
    }
    KINORA_CHECK(any_size || wanted == value * unit, kConfig, "[sample] ", option, " must be ",
                 value * unit, ", which this model was made for, got ", wanted,
                 ". Hint: ", models::families_that(&models::Family::takes_any_size),
                 " take any size");
    KINORA_CHECK(wanted % (unit * patch) == 0, kConfig, "[sample] ", option,
                 " must be a multiple of ", unit * patch, ", got ", wanted);
    value = wanted / unit;
  };
  set("--frames", arguments.frames, model.frame_compression, model.patch_frames, model.frames);
  set("--height", arguments.height, model.compression, model.patch, model.height);
  set("--width", arguments.width, model.compression, model.patch, model.width);
  if (arguments.fps > 0.0) {
    config.data.fps = arguments.fps * static_cast<double>(config.data.frame_stride);
    config.data.max_fps = 0.0;
  }
}

Drawn draw_samples(train::TrainedModel& trained, const SampleArguments& arguments,
                   const SampleJudge* judge, const comm::Group& world) {
  return trained.config.model.takes_text() ? draw_texts(trained, arguments, judge, world)
                                           : draw_classes(trained, arguments, world);
}

}  // namespace kinora::apps
