#include "kinora/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <sstream>

#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/weights_file.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/text.h"
#include "kinora/data/loader.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/io/file.h"
#include "kinora/io/image_grid.h"
#include "kinora/models/dit.h"
#include "kinora/ops/device.h"
#include "kinora/pipelines/class_to_image.h"
#include "kinora/train/exact_resume.h"
#include "kinora/train/non_finite.h"
#include "kinora/train/run_log.h"
#include "kinora/train/self_test.h"
#include "kinora/train/setup.h"
#include "kinora/train/training_step.h"
#include "kinora/train/validation.h"

namespace kinora::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// Parameters that a message names.
constexpr size_t kMaxNamesInMessage = 4;

}  // namespace

class Trainer::Impl {
 public:
  Impl(const RunConfig& config, const Resume& resume)
      : config_(config),
        directory_(config.run_dir, resume),
        device_(choose_device(config.train.device)),
        data_(open_data(config.data)) {
    ops::configure_computation(config_.train.threads, config_.train.deterministic);
    config_.model =
        resolved_model(config_, data_.train->num_classes(), data_.train->latent_shape());
    check_input();
    objective_ = diffusion::make_objective(config_.objective, config_.model.learn_sigma);
    diffusion::move_to(objective_, device_);
    if (config_.sample.every > 0) {  // what the sampler refuses is refused now, not after hours
      (void)pipelines::make_sampler(config_.sample.sampling, objective_);
    }
    if (config_.objective.timestep_sampling ==
        diffusion::ObjectiveConfig::TimestepSampling::kImportance) {
      importance_.emplace(config_.objective.timesteps);
    }
    model_ = std::make_unique<models::DiT>(config_.model);
    kernels_ = set_path(*model_, config_, device_);
    arena_ = std::make_unique<optim::Arena>(
        model_->named_parameters(), models::dit_buckets(config_.model),
        optim::ArenaOptions{.device = device_,
                            .compute_type = compute_type(config_.train.precision),
                            .seed = static_cast<uint64_t>(config_.train.seed),
                            .train = true,
                            .ema_decays = config_.ema_decays});
    model_->to_device(device_);
    optimizer_ =
        std::make_unique<optim::AdamW>(config_.optim, *arena_, own_optimizer(config_, device_));
    skip_zeroing(*model_, kernels_.get(), *optimizer_);
    start_or_resume(resume);
    step_runner_ = std::make_unique<TrainingStep>(
        *model_, objective_, importance_ ? &*importance_ : nullptr,
        StepSettings{.seed = static_cast<uint64_t>(config_.train.seed),
                     .label_dropout = config_.train.label_dropout,
                     .null_class = config_.model.num_classes,
                     .global_batch = config_.train.global_batch,
                     .device = device_,
                     .graphs = use_graphs(config_, kernels_.get())});
    if (config_.validation.every > 0) {
      validation_ = std::make_unique<Validation>(
          *data_.validation, config_.data.height, config_.data.width, config_.validation.bands,
          config_.micro_batch(), static_cast<uint64_t>(config_.train.seed));
    }
    config_yaml_ = dump_config(config_);
  }

  TrainResult run(const StopSignal* stop) {
    TrainResult result{.step = state_.step, .complete = state_.step >= config_.train.steps};
    if (result.complete) {
      log_info("[train] step ", state_.step, " of ", config_.train.steps,
               ": there is nothing to do. Hint: raise train.steps to go on");
      return result;
    }
    io::write_file_atomic(directory_.config_file(), config_yaml_);
    RunLog log(directory_, state_.step, config_.train.log_every);
    announce();
    data::LoaderOptions options = data::loader_options(config_.data);
    options.micro_batch = config_.micro_batch();
    options.global_batch = config_.train.global_batch;
    options.first_position = state_.position;
    options.seed = static_cast<uint64_t>(config_.train.seed);
    options.pinned = device_.is_cuda();
    data::Loader loader(*data_.train, options);
    if (config_.train.self_test && state_.step == 0) {
      self_test_ = std::make_unique<SelfTest>(model_->named_parameters(), *arena_);
    }
    Progress progress(config_.train.steps, "steps", state_.step);
    last_finished_ = now();
    const auto report = [&](const StepRecord& record) {
      result.last_loss = record.loss;
      log.add_step(record);
      std::ostringstream suffix;
      suffix.precision(4);
      suffix << "loss " << record.loss << "  " << human_rate(record.samples_per_s) << " samples/s";
      progress.update(record.step, suffix.str());
    };
    while (state_.step < config_.train.steps && (stop == nullptr || !stop->requested())) {
      enqueue_step(loader);
      while (pending_.size() > steps_ahead()) {
        report(finish_step());
      }
      const bool last = state_.step == config_.train.steps;
      if (due(state_.step, config_.checkpoint.every) || last) {
        save();
      }
      if (has_pixels() && due(state_.step, config_.sample.every)) {
        draw_samples(log);
      }
    }
    while (!pending_.empty()) {
      report(finish_step());
    }
    progress.finish();
    if (state_.step < config_.train.steps) {
      save();
      log_info("[train] stopped at step ", state_.step, " by ", stop->name(),
               "; --resume auto goes on from there");
    } else {
      result.complete = true;
      if (config_.checkpoint.export_weights) {
        export_weights();
      }
    }
    log.flush();
    result.step = state_.step;
    report_end(loader.stats());
    return result;
  }

 private:
  void check_input() const {
    const models::DiTConfig& model = config_.model;
    const std::optional<data::SampleShape> latents = data_.train->latent_shape();
    const data::SampleShape shape =
        latents.value_or(data::SampleShape{3, config_.data.height, config_.data.width});
    KINORA_CHECK(model.in_channels == shape.channels, kConfig, "[train] the data are ",
                 latents ? "latents" : "images", " of ", shape.channels,
                 " channels, but model.in_channels is ", model.in_channels, ". Hint: ",
                 latents
                     ? "set it to that of the data"
                     : "to train on latents, compute them first and set data.source to latents");
    KINORA_CHECK(model.height == shape.height && model.width == shape.width, kConfig,
                 "[train] model.height and width must be those of the data, ", shape.height, " x ",
                 shape.width, ", got ", model.height, " x ", model.width,
                 ". Hint: leave them at 0");
  }

  /// Whether samples can be shown as a picture.
  [[nodiscard]] bool has_pixels() const {
    return config_.model.in_channels == 3 || config_.model.in_channels == 1;
  }

  void start_or_resume(const Resume& resume) {
    checkpoint::remove_unfinished(directory_.checkpoints());
    if (resume.mode == Resume::Mode::kPath) {
      check_newest(resume.checkpoint);
      load(resume.checkpoint);
      return;
    }
    if (resume.mode == Resume::Mode::kAuto && load_newest()) {
      return;
    }
    if (!config_.checkpoint.init_from.empty()) {
      const auto file = checkpoint::WeightsFile::open(config_.checkpoint.init_from);
      checkpoint::load_weights(file, *model_, *arena_);
      log_info("[train] weights from ", config_.checkpoint.init_from);
    }
  }

  /// Newer checkpoints of the same run would be taken for its newest state the next time.
  void check_newest(const std::filesystem::path& checkpoint) const {
    const auto own = checkpoint::list_checkpoints(directory_.checkpoints());
    if (own.empty()) {
      return;
    }
    std::error_code ignored;
    KINORA_CHECK(std::filesystem::equivalent(own.back(), checkpoint, ignored), kConfig,
                 "[train] the run directory holds the newer checkpoint ", own.back(),
                 ". Hint: give another run.dir to branch off at ", checkpoint);
  }

  /// The newest checkpoint that is not damaged; damaged ones are named.
  bool load_newest() {
    const auto checkpoints = checkpoint::list_checkpoints(directory_.checkpoints());
    for (auto candidate = checkpoints.rbegin(); candidate != checkpoints.rend(); ++candidate) {
      try {
        load(*candidate);
        std::for_each(checkpoints.rbegin(), candidate, set_aside);
        return true;
      } catch (const Error& error) {
        if (std::next(candidate) == checkpoints.rend() || error.kind() != ErrorKind::kIo) {
          throw;
        }
        log_error("[train] ", error.what(), "; trying the one before");
      }
    }
    return false;
  }

  /// Frees the name of a damaged checkpoint for the run, which comes to its step again.
  static void set_aside(const std::filesystem::path& damaged) {
    const auto aside = damaged.parent_path() / ("damaged-" + damaged.filename().string());
    std::filesystem::remove_all(aside);
    io::rename_durably(damaged, aside);
    log_warn("[train] the damaged checkpoint is now ", aside);
  }

  void load(const std::filesystem::path& checkpoint) {
    state_ = checkpoint::load(checkpoint, *arena_);
    optimizer_->restore(state_.optimizer);
    if (importance_ && !state_.timestep_counts.empty()) {
      importance_->restore({.history = state_.timestep_history, .counts = state_.timestep_counts});
    }
    resume_exactly(config_, device_, state_, kernels_.get());
    log_info("[train] resumed from ", checkpoint, ": step ", state_.step, ", ", state_.position,
             " samples seen");
    warn_of_changes(checkpoint);
  }

  void warn_of_changes(const std::filesystem::path& checkpoint) const {
    const auto before = flatten_config(parse_config<RunConfig>(
        {.text = state_.config, .origin = "configuration of " + checkpoint.string()}));
    const auto after = flatten_config(config_);
    for (size_t i = 0; i < after.size(); ++i) {
      if (before[i].second != after[i].second) {
        log_warn("[train] ", after[i].first, " was ", before[i].second, " and is now ",
                 after[i].second);
      }
    }
  }

  void announce() const {
    log_info("[train] ", config_.model.name, ", ", human_count(arena_->num_elements()),
             " parameters, on ", ops::describe(device_));
    log_info("[train] kernels: ", kernel_summary(config_, kernels_.get(), device_));
    log_info("[train] ", data_.train->size(),
             data_.train->latent_shape() ? " latents of " : " images of ",
             data_.train->num_classes(), " classes; ", config_.train.global_batch,
             " samples a step, ", config_.micro_batch(), " at once");
    if (config_.sample.every > 0 && !has_pixels()) {
      log_info("[train] no grids of samples while training: samples of ", config_.model.in_channels,
               " channels are latents, which cannot be shown; kinora sample writes them to "
               "latents.safetensors");
    }
    std::ostringstream memory;
    for (const auto& [name, role] : std::initializer_list<std::pair<const char*, optim::Role>>{
             {"weights", optim::Role::master()},
             {"compute copies", optim::Role::compute()},
             {"gradients", optim::Role::grad()},
             {"first moments", optim::Role::exp_avg()},
             {"second moments", optim::Role::exp_avg_sq()}}) {
      memory << name << " " << human_bytes(arena_->bytes(role)) << ", ";
    }
    int64_t averages = 0;
    for (size_t k = 0; k < config_.ema_decays.size(); ++k) {
      averages += arena_->bytes(optim::Role::average(k));
    }
    log_info("[train] memory: ", memory.str(), "averages ", human_bytes(averages));
  }

  /// A step on its way: what its report needs, and its batches, which the device may still read.
  struct PendingStep {
    int64_t step;    ///< counted from 1
    int64_t number;  ///< the optimizer's
    double lr;
    double data_wait_s;
    std::vector<data::Batch> batches;
  };

  void enqueue_step(data::Loader& loader) {
    const double waited = loader.stats().wait_seconds;
    PendingStep pending{.step = state_.step + 1,
                        .number = 0,
                        .lr = config_.lr.at(state_.step),
                        .data_wait_s = 0.0,
                        .batches = next_global_batch(loader)};
    pending.data_wait_s = loader.stats().wait_seconds - waited;
    const at::Tensor loss =
        step_runner_->forward_backward(pending.batches, state_.step, optimizer_->loss_scale());
    if (self_test_) {
      self_test_->see_gradients();
    }
    pending.number = optimizer_->enqueue_step(*arena_, pending.lr, loss);
    pending_.push_back(std::move(pending));
    state_.step += 1;
    state_.position += config_.train.global_batch;
  }

  /// Steps that may be on their way when the next is enqueued: none where the host has to look at
  /// the device's memory between them.
  [[nodiscard]] size_t steps_ahead() const {
    constexpr size_t kStepsAhead = 2;
    const bool looks =
        self_test_ || importance_ || !device_.is_cuda() || state_.step == config_.train.steps ||
        due(state_.step, config_.checkpoint.every) || due(state_.step, config_.validation.every) ||
        due(state_.step, config_.sample.every);
    return looks ? 0 : kStepsAhead;
  }

  /// Waits for the oldest step.
  StepRecord finish_step() {
    const PendingStep pending = std::move(pending_.front());
    pending_.pop_front();
    const optim::StepResult update = optimizer_->wait_report(pending.number);
    const double loss = update.loss;
    if (!std::isfinite(loss)) {
      stop_at_loss(pending, loss);
    }
    if (update.skipped) {
      note_skipped(pending, update);
    } else {
      skipped_in_a_row_ = 0;
      step_runner_->update_importance();
    }
    if (kernels_ != nullptr && ++finished_ == kStepsOfChoosing) {
      log_info("[train] kernels chosen: ", kernel_summary(config_, kernels_.get(), device_));
    }
    if (self_test_ && pending.step == SelfTest::kSteps) {
      self_test_->finish(*arena_);
      self_test_.reset();
    }
    const double seconds = now() - last_finished_;
    last_finished_ = now();
    StepRecord record{.step = pending.step,
                      .loss = loss,
                      .lr = pending.lr,
                      .grad_norm = update.grad_norm,
                      .loss_scale = update.loss_scale,
                      .skipped = update.skipped,
                      .samples_per_s = static_cast<double>(config_.train.global_batch) / seconds,
                      .data_wait_s = pending.data_wait_s,
                      .validation = {}};
    if (validation_ && due(pending.step, config_.validation.every)) {
      validate(record);
    }
    return record;
  }

  std::vector<data::Batch> next_global_batch(data::Loader& loader) {
    std::vector<data::Batch> batches;
    try {
      for (int64_t done = 0; done < config_.train.global_batch; done += config_.micro_batch()) {
        batches.push_back(loader.next());
      }
    } catch (const Error&) {
      save();  // the data failed, not the training: nothing that was learned is lost
      throw;
    }
    return batches;
  }

  [[noreturn]] void stop_at_loss(const PendingStep& pending, double loss) {
    const auto found = find_non_finite_output(
        *model_, [&] { step_runner_->forward_only(pending.batches, pending.step - 1); });
    throw_error(ErrorKind::kInternal, "[train] the loss of step ", pending.step, " is ", loss,
                found ? "; first output that is not finite: " + to_string(*found)
                      : "; every module's output is finite, so the loss itself overflows",
                ". The last checkpoint is from before. Hint: a lower lr.value, or "
                "optim.max_grad_norm");
  }

  void note_skipped(const PendingStep& pending, const optim::StepResult& update) {
    if (config_.train.precision == Precision::kFp16 && update.loss_scale >= 1.0F) {
      log_debug("[train] step ", pending.step, ": fp16 overflow, loss scale now ",
                update.loss_scale);
      return;
    }
    (void)step_runner_->forward_backward(pending.batches, pending.step - 1,
                                         optimizer_->loss_scale());
    const std::vector<std::string> names = non_finite_gradients(model_->named_parameters());
    arena_->zero_grad();
    ++skipped_in_a_row_;
    std::ostringstream message;
    message << "[train] step " << pending.step << " was skipped: gradients are not finite ("
            << (names.empty() ? "finite when computed again"
                              : list_names(names, kMaxNamesInMessage))
            << "); " << skipped_in_a_row_ << " in a row of at most " << config_.train.max_skipped;
    KINORA_CHECK(skipped_in_a_row_ < config_.train.max_skipped, kInternal, message.str(),
                 ". Hint: a lower lr.value, or optim.max_grad_norm");
    log_warn(message.str());
  }

  void validate(StepRecord& record) {
    record.validation.emplace_back("raw", validation_->evaluate(*model_, objective_, device_));
    for (size_t k = 0; k < config_.ema_decays.size(); ++k) {
      const optim::BoundWeights bound = arena_->bind(optim::WeightSet::average(k));
      record.validation.emplace_back("ema" + std::to_string(k),
                                     validation_->evaluate(*model_, objective_, device_));
    }
  }

  void save() {
    state_.optimizer = optimizer_->state();
    if (importance_) {
      state_.timestep_history = importance_->state().history;
      state_.timestep_counts = importance_->state().counts;
    }
    keep_for_resume(config_, device_, kernels_.get(), state_);
    state_.config = config_yaml_;
    checkpoint::save(directory_.checkpoints(), *arena_, state_);
    checkpoint::prune(directory_.checkpoints(), config_.checkpoint.keep_last,
                      config_.checkpoint.keep_every);
  }

  void draw_samples(RunLog& log) {
    const optim::BoundWeights bound = arena_->bind(
        config_.ema_decays.empty() ? optim::WeightSet::raw() : optim::WeightSet::average(0));
    pipelines::ClassToImageRequest request{.classes = {},
                                           .count = config_.sample.count,
                                           .first_index = 0,
                                           .batch = config_.micro_batch(),
                                           .seed = static_cast<uint64_t>(config_.train.seed)};
    for (int64_t label = 0; label < config_.model.num_classes; ++label) {
      request.classes.push_back(label);
    }
    const pipelines::SamplingConfig& sampling = config_.sample.sampling;
    const at::Tensor pixels = pipelines::sample_classes(
        *model_, pipelines::make_sampler(sampling, objective_), sampling, request,
        {config_.model.in_channels, config_.model.height, config_.model.width},
        config_.model.num_classes, device_);
    const std::vector<io::Image> images = pipelines::to_images(pixels);
    const io::Image grid = io::make_grid(images);
    io::write_png(directory_.samples() / ("step-" + std::to_string(state_.step) + ".png"), grid);
    log.add_samples(state_.step, grid);
  }

  void export_weights() {
    const auto path = directory_.path() / "model.safetensors";
    checkpoint::save_weights(
        path, *model_, *arena_,
        config_.ema_decays.empty() ? optim::Role::master() : optim::Role::average(0), at::kFloat,
        config_yaml_);
    log_info("[train] wrote ", path);
  }

  void report_end(const data::LoaderStats& stats) const {
    std::ostringstream text;
    text << "[train] step " << state_.step << "; waited " << human_duration(stats.wait_seconds)
         << " for data";
    if (stats.num_bad > 0) {
      text << "; " << stats.num_bad << " unreadable samples were replaced";
    }
    if (device_.is_cuda()) {
      text << "; peak GPU memory " << human_bytes(ops::peak_memory(device_));
    }
    log_info(text.str());
  }

  RunConfig config_;
  RunDirectory directory_;
  at::Device device_;
  RunData data_;
  diffusion::Objective objective_;
  std::optional<diffusion::LossSecondMoment> importance_;
  std::unique_ptr<models::DiT> model_;
  std::shared_ptr<ops::BlockKernels> kernels_;  // null: plain path
  std::unique_ptr<optim::Arena> arena_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<TrainingStep> step_runner_;
  std::unique_ptr<Validation> validation_;
  std::unique_ptr<SelfTest> self_test_;
  checkpoint::TrainingState state_;
  std::string config_yaml_;
  int64_t skipped_in_a_row_ = 0;
  std::deque<PendingStep> pending_;
  double last_finished_ = now();
  static constexpr int64_t kStepsOfChoosing = 3;  // then every kernel has been timed
  int64_t finished_ = 0;
};

Trainer::Trainer(const RunConfig& config, const Resume& resume)
    : impl_(std::make_unique<Impl>(config, resume)) {}
Trainer::~Trainer() = default;

TrainResult Trainer::run(const StopSignal* stop) {
  return impl_->run(stop);
}

}  // namespace kinora::train
