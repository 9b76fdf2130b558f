#include "kinora/train/trainer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "kinora/checkpoint/buffers.h"
#include "kinora/checkpoint/checkpoint.h"
#include "kinora/checkpoint/model_weights.h"
#include "kinora/checkpoint/writer.h"
#include "kinora/core/config.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/process_memory.h"
#include "kinora/core/progress.h"
#include "kinora/core/text.h"
#include "kinora/data/loader.h"
#include "kinora/data/run_data.h"
#include "kinora/diffusion/objective_config.h"
#include "kinora/inference/conditions.h"
#include "kinora/inference/setup.h"
#include "kinora/inference/shown_samples.h"
#include "kinora/inference/updates.h"
#include "kinora/io/clip_file.h"
#include "kinora/io/file.h"
#include "kinora/io/image_grid.h"
#include "kinora/ops/device.h"
#include "kinora/ops/gpu_trace.h"
#include "kinora/pipelines/decode.h"
#include "kinora/pipelines/draw.h"
#include "kinora/train/exact_resume.h"
#include "kinora/train/finetune.h"
#include "kinora/train/frozen_encoder.h"
#include "kinora/train/latent_stage.h"
#include "kinora/train/memory_plan.h"
#include "kinora/train/non_finite.h"
#include "kinora/train/run_log.h"
#include "kinora/train/run_requests.h"
#include "kinora/train/run_state.h"
#include "kinora/train/self_test.h"
#include "kinora/train/setup.h"
#include "kinora/train/step_samples.h"
#include "kinora/train/step_times.h"
#include "kinora/train/step_vote.h"
#include "kinora/train/trainable.h"
#include "kinora/train/training_step.h"
#include "kinora/train/validation.h"
#include "kinora/train/watchdog.h"

namespace kinora::train {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

// Between two looks at what is asked of the run, and of a paused one.
constexpr double kSecondsBetweenLooks = 0.2;

// Parameters that a message names.
constexpr size_t kMaxNamesInMessage = 4;

}  // namespace

class Trainer::Impl {
 public:
  Impl(const RunConfig& config, const Resume& resume, const comm::Group& world)
      : config_(config),
        mesh_(world, config.parallel.mesh()),
        micro_batch_(config.micro_batch(mesh_.data_ranks())),
        device_(inference::choose_device(config.train.device)),
        data_(open_data(config.data)),
        image_data_(config.image_steps.any() ? open_data(config.image_data) : data::RunData()),
        vote_(mesh_.world()),
        times_(world, config.train.log_every) {
    open_directory(resume);
    KINORA_CHECK(config_.train.profile_steps == 0 || device_.is_cuda(), kConfig,
                 "[train] train.profile_steps traces a GPU, but this run computes on the CPU");
    ops::configure_computation(config_.train.threads, config_.deterministic);
    encoder_ = open_encoder(config_.autoencoder, {&config_.data, &config_.image_data}, device_);
    const pipelines::LatentEncoder* encoder = encoder_ ? &encoder_->encoder : nullptr;
    const int64_t num_image_classes = image_data_.train ? image_data_.train->num_classes() : 0;
    const auto latents = latent_size(config_.data, *data_.train, encoder);
    config_.model = inference::resolved_model(
        config_, std::max(data_.train->num_classes(), num_image_classes), latents);
    check_data(config_, *data_.train, StepKind::kData, latents);
    if (image_data_.train) {
      check_data(config_, *image_data_.train, StepKind::kImageData,
                 latent_size(config_.image_data, *image_data_.train, encoder));
      (void)config_.image_micro_batch(mesh_.data_ranks());
    }
    objective_ = diffusion::make_objective(config_.objective, config_.model.learn_sigma);
    diffusion::move_to(objective_, device_);
    if (config_.shown.every > 0) {  // what the sampler refuses is refused now, not after hours
      (void)sampler_of(config_, objective_);
      if (config_.model.is_video() && writes()) {
        io::check_can_write(config_.shown.format);
      }
    }
    if (config_.objective.timestep_sampling ==
        diffusion::ObjectiveConfig::TimestepSampling::kImportance) {
      KINORA_CHECK(mesh_.shape().sequence == 1, kConfig,
                   "[train] objective.timestep_sampling=importance does not work with "
                   "parallel.sequence, which shows a sample to several ranks");
      importance_.emplace(config_.objective.timesteps);
    }
    if (writes()) {
      planned_ = plan_of_run(config_, {.device = device_.type(), .ranks = world.size()});
    }
    trainable_ = std::make_unique<Trainable>(config_, mesh_, device_,
                                             static_cast<uint64_t>(config_.train.seed));
    start_or_resume(resume);
    // Steps change neither.
    state_.buffers = checkpoint::buffers_of(trainable_->model());
    state_.frozen = checkpoint::frozen_of(trainable_->arena());
    writer_ = std::make_unique<checkpoint::Writer>(
        checkpoint::WriterOptions{.folder = directory_->checkpoints(),
                                  .keep_last = config_.checkpoint.keep_last,
                                  .keep_every = config_.checkpoint.keep_every,
                                  .ranks_per_host = std::max<int64_t>(world.world().local_size, 1)},
        trainable_->arena(), world);
    step_runner_ = std::make_unique<TrainingStep>(
        trainable_->model(), trainable_->boosted(), objective_,
        importance_ ? &*importance_ : nullptr,
        StepSettings{
            .seed = static_cast<uint64_t>(config_.train.seed),
            .label_dropout = config_.train.label_dropout,
            .model = config_.model,
            .frame_masks = config_.frame_masks,
            .ranks = mesh_.world().size(),
            .device = device_,
            .graphs = use_graphs(config_, trainable_->kernels()) && trainable_->can_be_recorded()});
    latent_stage_.emplace(encoder, static_cast<uint64_t>(config_.train.seed), device_);
    if (config_.validation.every > 0) {
      validation_ = std::make_unique<Validation>(
          *data_.validation, data::sample_size(config_.data), *latent_stage_, config_.model,
          config_.validation.bands, micro_batch_, static_cast<uint64_t>(config_.train.seed));
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
    if (writes()) {
      io::write_file_atomic(directory_->config_file(), config_yaml_);
      log_.emplace(*directory_, state_.step, config_.train.log_every);
      requests_.clear();
      say_state(RunState::kTraining);
      announce();
    }
    loader_ = std::make_unique<StepLoader>(
        config_, *data_.train, image_data_.train.get(), mesh_,
        StepPosition{state_.step, state_.position, state_.image_position}, device_.is_cuda());
    StepLoader& loader = *loader_;
    if (writes() && config_.train.profile_steps > 0 && state_.step > config_.train.profile_from) {
      log_warn("[train] nothing is traced: train.profile_from is ", config_.train.profile_from,
               ", and this run goes on from step ", state_.step);
    }
    if (config_.train.self_test && state_.step == 0) {
      self_test_ = std::make_unique<SelfTest>(inference::trained_parameters(trainable_->model()),
                                              trainable_->arena());
    }
    watchdog_ = std::make_unique<Watchdog>(
        mesh_.world(),
        StallOptions{.seconds = mesh_.world().size() > 1 ? config_.train.stall_timeout : 0.0,
                     .data_file = [&loader] { return loader.waits_for(); },
                     .end_process = {}});
    if (writes()) {
      progress_.emplace(config_.train.steps, "steps", state_.step);
    }
    last_finished_ = now();
    fetch();
    vote_.ask(own_wish(stop));
    while (state_.step < config_.train.steps && !is_stopped(stop) && obey(stop)) {
      fetch();
      vote_.ask(own_wish(stop));
      profile_steps(/*is_over=*/false);
      enqueue_step();
      finish_steps(steps_ahead());
      const bool last = state_.step == config_.train.steps;
      if (due(state_.step, config_.checkpoint.every) || last) {
        save();
      }
      if (shows_samples() && due(state_.step, config_.shown.every)) {
        draw_samples();
      }
    }
    finish_steps(0);
    profile_steps(/*is_over=*/true);
    (void)vote_.answer();
    if (progress_) {
      progress_->finish();
    }
    if (state_.step < config_.train.steps) {
      save();
      if (writes() && wish_.stop < kFirstRankVote) {
        log_info("[train] stopped at step ", state_.step, " by ",
                 wish_.stop == 0     ? "a request"
                 : stop->requested() ? stop->name()
                                     : "a signal to another rank",
                 "; --resume auto goes on from there");
      }
    } else {
      result.complete = true;
    }
    watchdog_->enter(Phase::kCheckpoint, state_.step);
    writer_->wait();
    if (writes()) {
      say_state(result.complete ? RunState::kComplete : RunState::kStopped);
      reply_to_the_last();
    }
    if (wish_.stop >= kFirstRankVote) {
      end_without_data();
    }
    if (result.complete && config_.checkpoint.export_weights) {
      export_weights();
    }
    watchdog_.reset();
    const data::LoaderStats data_stats = loader.stats();
    loader_.reset();
    result.step = state_.step;
    result.last_loss = last_loss_;
    if (writes()) {
      log_->flush();
      report_end(data_stats);
    }
    return result;
  }

 private:
  /// Whether this rank writes logs, samples and messages.
  [[nodiscard]] bool writes() const { return mesh_.world().rank() == 0; }

  /// Starts and ends the trace of train.profile_steps, at the latest when the run `is_over`.
  void profile_steps(bool is_over) {
    const TrainOptions& options = config_.train;
    if (!trace_ && !is_over && options.profile_steps > 0 && state_.step == options.profile_from) {
      trace_.emplace();
      trace_->start();
    } else if (trace_ && (is_over || state_.step >= options.profile_from + options.profile_steps)) {
      const ops::GpuRecords records = trace_->stop();
      trace_.reset();
      const int64_t rank = mesh_.world().rank();
      const auto path = directory_->path() / ("profile-rank" + std::to_string(rank) + ".json");
      io::write_file_atomic(path, ops::chrome_trace(records, rank));
      if (writes()) {
        const ops::GpuProfile profile = ops::profile_of(records);
        const auto steps = static_cast<double>(state_.step - options.profile_from);
        std::ostringstream text;
        text.precision(4);
        text << profile.span_seconds * 1e3 / steps << " ms a step, of which "
             << profile.exposed_communication_seconds * 1e3 / steps << " ms only communication and "
             << (profile.span_seconds - profile.busy_seconds) * 1e3 / steps << " ms nothing ran";
        log_info("[train] wrote ", path, ": ", text.str());
      }
    }
  }

  void open_directory(const Resume& resume) {
    if (writes()) {
      directory_.emplace(config_.run_dir, resume);
      checkpoint::remove_unfinished(directory_->checkpoints());
    } else {
      directory_.emplace(config_.run_dir);
    }
    mesh_.world().barrier();  // the others find it as rank 0 leaves it
  }

  /// The reports of steps that are on their way, but for the last `left`.
  void finish_steps(size_t left) {
    while (pending_.size() > left) {
      report(finish_step());
    }
  }

  void report(const StepRecord& record) {
    last_loss_ = record.loss;
    if (!writes()) {
      return;
    }
    log_->add_step(record);
    std::ostringstream suffix;
    suffix.precision(4);
    suffix << (record.kind == StepKind::kImageData ? "image_data loss " : "loss ") << record.loss
           << "  " << human_rate(record.samples_per_s) << " samples/s";
    if (record.ranks) {
      ranks_ = *record.ranks;
    }
    if (ranks_.is_uneven()) {
      suffix << "  rank " << ranks_.slow_rank << " takes " << ranks_.slowness << "x";
    }
    progress_->update(record.step, suffix.str());
  }

  /// For `kinora runs`.
  void say_state(RunState state) {
    said_ = state;
    write_state(directory_->path(),
                {.state = state, .step = state_.step, .steps = config_.train.steps});
  }

  /// What this rank wants: to stop for a signal (1) or for want of samples (kFirstRankVote + rank),
  /// and on rank 0 what was asked of the run.
  [[nodiscard]] StepWish own_wish(const StopSignal* stop) {
    if (data_error_) {
      return {.stop = kFirstRankVote + mesh_.world().rank()};
    }
    if (writes() && !asked_ && now() >= next_look_) {
      asked_ = requests_.take();
      next_look_ = now() + kSecondsBetweenLooks;
    }
    StepWish wish{.stop = stop != nullptr && stop->requested() ? 1 : 0};
    if (asked_) {
      wish.command = asked_->command;
      wish.value = asked_->value;
    }
    return wish;
  }

  /// The ranks stop after the same step, for the reason of any. What they ask each other in one
  /// step is looked at in the next.
  bool is_stopped(const StopSignal* stop) {
    if (mesh_.world().size() == 1) {
      vote_.ask(own_wish(stop));  // what has come since
    }
    wish_ = vote_.answer();
    return wish_.stop != 0;
  }

  /// Does what was asked of the run since the last step, on all ranks the same. False: it shall
  /// end.
  [[nodiscard]] bool obey(const StopSignal* stop) {
    if (wish_.command == RunCommand::kNone) {
      return true;
    }
    finish_steps(0);
    const RunCommand command = wish_.command;
    if (command == RunCommand::kStop) {
      return false;  // the answer comes when all is saved
    }
    const RunAnswer answer = answer_of(wish_);
    if (writes()) {
      reply(answer);
    }
    const bool goes_on = command != RunCommand::kPause || pause(stop);
    last_finished_ = now();  // the next step did not take that long
    return goes_on;
  }

  void reply(RunAnswer answer) {
    answer.step = state_.step;
    log_info("[train] asked to ", to_string(asked_->command), ": ", answer.text);
    requests_.reply(*asked_, answer);
    asked_.reset();
  }

  /// To requests that came at the end.
  void reply_to_the_last() {
    for (; asked_ || (asked_ = requests_.take()); asked_.reset()) {
      const bool done = asked_->command == RunCommand::kStop;
      requests_.reply(*asked_, {.done = done,
                                .step = state_.step,
                                .text = std::string(done ? "stopped, and saved as step "
                                                         : "the run has ended at step ") +
                                        std::to_string(state_.step)});
    }
  }

  RunAnswer answer_of(const StepWish& wish) {
    const std::string step = std::to_string(state_.step);
    switch (wish.command) {
      case RunCommand::kPause:
        if (writes()) {
          say_state(RunState::kPaused);
        }
        return {.text = "paused after step " + step + "; kinora runs continue goes on"};
      case RunCommand::kSave:
        save();
        writer_->wait();
        return {.text = "saved step " + step};
      case RunCommand::kSample:
        if (const std::string fault = why_no_samples(); !fault.empty()) {
          return {.done = false, .text = fault};
        }
        draw_samples();
        return {.text = "drew samples/step-" + step};
      case RunCommand::kLearningRate: {
        std::ostringstream text;
        text << "lr.value was " << config_.lr.value << " and is now " << wish.value;
        config_.lr.value = wish.value;
        renew_config();
        return {.text = text.str()};
      }
      case RunCommand::kExtend: {
        const auto steps = static_cast<int64_t>(wish.value);
        if (steps <= state_.step) {
          return {.done = false, .text = "step " + step + " is done already"};
        }
        const std::string before = std::to_string(std::exchange(config_.train.steps, steps));
        renew_config();
        if (progress_) {
          progress_->set_total(steps);
        }
        return {.text = "train.steps was " + before + " and is now " + std::to_string(steps)};
      }
      case RunCommand::kContinue:
        return {.done = false, .text = "the run is not paused"};
      case RunCommand::kStop:
      case RunCommand::kNone:
        break;
    }
    KINORA_UNREACHABLE("[train] command ", to_string(wish.command));
  }

  /// Holds still until it is told to go on, with everything in memory, and does meanwhile what else
  /// is asked. False: the run shall end.
  [[nodiscard]] bool pause(const StopSignal* stop) {
    do {
      watchdog_->enter(Phase::kPaused, state_.step);
      std::this_thread::sleep_for(std::chrono::duration<double>(kSecondsBetweenLooks));
      vote_.ask(own_wish(stop));
      if (is_stopped(stop) || wish_.command == RunCommand::kStop) {
        return false;
      }
      const bool is_other =
          wish_.command != RunCommand::kNone && wish_.command != RunCommand::kContinue;
      if (is_other) {
        const RunAnswer answer = answer_of(wish_);
        if (writes()) {
          reply(answer);
        }
      }
    } while (wish_.command != RunCommand::kContinue);
    if (writes()) {
      say_state(RunState::kTraining);
      reply({.text = "goes on from step " + std::to_string(state_.step)});
    }
    return true;
  }

  /// After a change of the configuration on the way: resuming goes by it.
  void renew_config() {
    config_yaml_ = dump_config(config_);
    if (writes()) {
      io::write_file_atomic(directory_->config_file(), config_yaml_);
      say_state(said_);
    }
  }

  /// "" if samples can be drawn now.
  [[nodiscard]] std::string why_no_samples() const {
    if (!shows_samples()) {
      return "samples are latents, which cannot be shown without autoencoder.path";
    }
    try {
      (void)sampler_of(config_, objective_);
      if (config_.model.is_video()) {
        io::check_can_write(config_.shown.format);
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  /// All that was learned is saved: the rank without samples ends with its own error, the others
  /// because of it.
  [[noreturn]] void end_without_data() {
    const int64_t rank = wish_.stop - kFirstRankVote;
    if (writes()) {
      log_error("[train] ", mesh_.world().size() > 1 ? "rank " + std::to_string(rank) : "this run",
                " has no samples for step ", state_.step + 1, "; step ", state_.step,
                " is saved, and --resume auto goes on from there");
    }
    if (data_error_) {
      std::rethrow_exception(data_error_);
    }
    throw_error(ErrorKind::kComm, "[train] rank ", rank, " has no samples for step ",
                state_.step + 1, ", and says why; step ", state_.step, " is saved");
  }

  /// Whether samples can be shown as a picture, decoded if need be.
  [[nodiscard]] bool shows_samples() const {
    return encoder_ != nullptr || config_.model.in_channels == 3 || config_.model.in_channels == 1;
  }

  void start_or_resume(const Resume& resume) {
    if (resume.mode == Resume::Mode::kPath) {
      check_newest(resume.checkpoint);
      load(resume.checkpoint);
      return;
    }
    if (resume.mode == Resume::Mode::kAuto && load_newest()) {
      return;
    }
    if (!config_.checkpoint.init_from.empty()) {
      const std::string others = initialise_from(config_, trainable_->model(), trainable_->arena());
      if (writes()) {
        log_info("[train] weights from ", config_.checkpoint.init_from, others.empty() ? "" : "; ",
                 others);
      }
    }
  }

  /// Newer checkpoints of the same run would be taken for its newest state the next time.
  void check_newest(const std::filesystem::path& checkpoint) const {
    const auto own = checkpoint::list_checkpoints(directory_->checkpoints());
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
    const auto checkpoints = checkpoint::list_checkpoints(directory_->checkpoints());
    for (auto candidate = checkpoints.rbegin(); candidate != checkpoints.rend(); ++candidate) {
      try {
        load(*candidate);
        if (writes()) {
          std::for_each(checkpoints.rbegin(), candidate, set_aside);
        }
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
    state_ = checkpoint::load(checkpoint, trainable_->arena(), mesh_.world());
    checkpoint::restore_buffers(state_.buffers, trainable_->model());
    trainable_->optimizer().restore(state_.optimizer);
    if (importance_ && !state_.timestep_counts.empty()) {
      importance_->restore({.history = state_.timestep_history, .counts = state_.timestep_counts});
    }
    resume_exactly(config_, device_, state_, trainable_->kernels());
    if (writes()) {
      log_info("[train] resumed from ", checkpoint, ": step ", state_.step, ", ",
               state_.position + state_.image_position, " samples seen");
      warn_of_changes(checkpoint);
    }
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
    const optim::Arena& arena = trainable_->arena();
    log_info("[train] ", config_.model.name, ", ", human_count(arena.num_elements()),
             " parameters, on ", ops::describe(device_));
    if (const std::string tuned = describe_finetuning(config_, trainable_->model(), arena);
        !tuned.empty()) {
      log_info("[train] ", tuned);
    }
    log_info("[train] kernels: ",
             kernel_summary(config_, trainable_->kernels(), micro_batch_, device_));
    if (!trainable_->can_be_recorded()) {
      log_info("[train] no CUDA graphs: ",
               trainable_->boosted().can_be_recorded()
                   ? "a sequence is divided among not all ranks, or in more than one way"
                   : "the ranks divide the state across several hosts");
    }
    if (const std::string ranks = trainable_->boosted().describe_ranks(); !ranks.empty()) {
      log_info("[train] ", ranks);
    }
    log_info("[train] ", data_.train->size(),
             data_.train->latent_shape() ? " latents of "
             : encoder_                  ? " pictures or clips to encode in each step, of "
             : config_.model.is_video()  ? " clips of "
                                         : " images of ",
             data_.train->num_classes(), " classes; ",
             config_.data.buckets.empty()
                 ? std::to_string(config_.train.global_batch) + " samples a step, " +
                       std::to_string(micro_batch_) + " at once"
                 : "of a step the samples, and those at once, are those of a bucket",
             mesh_.data_ranks() > 1 ? " on each rank" : "");
    if (image_data_.train) {
      log_info("[train] ", config_.image_steps.share * 100.0, " % of the steps take ",
               config_.image_batch(), " of ", image_data_.train->size(), " image_data, ",
               config_.image_micro_batch(mesh_.data_ranks()), " at once");
    }
    if (config_.shown.every > 0 && !shows_samples()) {
      log_info("[train] no grids of samples while training: samples of ", config_.model.in_channels,
               " channels are latents; with autoencoder.path they would be decoded. kinora sample "
               "writes them to latents.safetensors");
    }
    if (planned_) {
      log_info("[train] memory", mesh_.world().size() > 1 ? " of each rank" : "", ", planned\n",
               table(*planned_, /*by_layer=*/false));
    }
  }

  /// A step on its way: what its report needs, and its samples, which the device may still read.
  struct PendingStep {
    int64_t step;    ///< counted from 1
    int64_t number;  ///< the optimizer's
    double lr;
    StepSamples samples;
    at::Tensor waited;  ///< DataParallel::waited() at its end; undefined alone
  };

  void enqueue_step() {
    PendingStep pending{.step = state_.step + 1,
                        .number = 0,
                        .lr = config_.lr.at(state_.step),
                        .samples = std::move(samples_.front()),
                        .waited = {}};
    samples_.pop_front();
    latent_stage_->wait(pending.samples);
    watchdog_->enter(Phase::kForwardBackward, pending.step);
    const at::Tensor loss = step_runner_->forward_backward(pending.samples.batches, state_.step);
    if (self_test_) {
      self_test_->see_gradients(trainable_->arena());
    }
    if (const auto* parallel = trainable_->boosted().parallel(); parallel != nullptr) {
      pending.waited = parallel->waited();
    }
    pending.number = trainable_->boosted().enqueue_update(pending.lr, loss);
    state_.step += 1;
    (pending.samples.kind == StepKind::kData ? state_.position : state_.image_position) +=
        pending.samples.global_batch;
    pending_.push_back(std::move(pending));
  }

  /// Steps that may be on their way when the next is enqueued: none where the host has to look at
  /// the device's memory between them.
  [[nodiscard]] size_t steps_ahead() const {
    constexpr size_t kStepsAhead = 2;
    const bool looks =
        self_test_ || importance_ || !device_.is_cuda() || state_.step == config_.train.steps ||
        due(state_.step, config_.checkpoint.every) || due(state_.step, config_.validation.every) ||
        due(state_.step, config_.shown.every);
    return looks ? 0 : kStepsAhead;
  }

  /// Where steps are of many sizes.
  [[nodiscard]] std::optional<StepSize> size_of(const StepSamples& samples) const {
    const bool is_data = samples.kind == StepKind::kData;
    if ((is_data ? config_.data : config_.image_data).buckets.empty()) {
      return std::nullopt;
    }
    return StepSize{.samples = samples.global_batch,
                    .size = inference::clip_size(samples.batches.front().images)};
  }

  /// Waits for the oldest step.
  StepRecord finish_step() {
    const PendingStep pending = std::move(pending_.front());
    pending_.pop_front();
    watchdog_->enter(Phase::kUpdate, pending.step);
    const optim::StepResult update = trainable_->optimizer().wait_report(pending.number);
    watchdog_->progress(pending.step);
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
    if (writes() && trainable_->kernels() != nullptr && ++finished_ == kStepsOfChoosing) {
      log_info("[train] kernels chosen: ",
               kernel_summary(config_, trainable_->kernels(), micro_batch_, device_));
    }
    if (self_test_ && pending.step == SelfTest::kSteps) {
      self_test_->finish(trainable_->arena());
      self_test_.reset();
    }
    const double seconds = now() - last_finished_;
    last_finished_ = now();
    StepRecord record{.step = pending.step,
                      .kind = pending.samples.kind,
                      .has_kinds = config_.image_steps.any(),
                      .size = size_of(pending.samples),
                      .loss = loss,
                      .lr = pending.lr,
                      .grad_norm = update.grad_norm,
                      .loss_scale = update.loss_scale,
                      .skipped = update.skipped,
                      .samples_per_s = static_cast<double>(pending.samples.global_batch) / seconds,
                      .peak_memory = peak_memory(),
                      .times = {.step = seconds},
                      .slowest = pending.samples.slowest,
                      .validation = {}};
    const double data_wait = loader_->stats().wait_seconds;
    record.times.data = data_wait - std::exchange(last_data_wait_, data_wait);
    if (pending.waited.defined()) {
      const int64_t waited = pending.waited.item<int64_t>();
      record.times.communication =
          static_cast<double>(waited - std::exchange(last_waited_, waited)) * 1e-9;
    }
    times_.add(pending.step, record.times);
    record.ranks = writes() ? times_.take() : std::nullopt;
    if (validation_ && due(pending.step, config_.validation.every)) {
      validate(record);
    }
    return record;
  }

  /// Takes the samples of the next step and of that behind it from the loader: all ranks have to
  /// hear that one of them has none before they begin a step that it cannot take part in.
  void fetch() {
    constexpr int64_t kStepsOfSamples = 2;
    const int64_t wanted = std::min(kStepsOfSamples, config_.train.steps - state_.step);
    watchdog_->enter(Phase::kData, state_.step + 1);
    while (!data_error_ && static_cast<int64_t>(samples_.size()) < wanted) {
      try {
        samples_.push_back(loader_->next());
        latent_stage_->begin(samples_.back());
      } catch (const Error&) {
        data_error_ = std::current_exception();
      }
    }
  }

  [[noreturn]] void stop_at_loss(const PendingStep& pending, double loss) {
    trainable_->boosted().refresh();
    const auto found = find_non_finite_output(trainable_->model(), [&] {
      step_runner_->forward_only(pending.samples.batches, pending.step - 1);
    });
    throw_error(ErrorKind::kInternal, "[train] the loss of step ", pending.step, " is ", loss,
                found ? "; first output that is not finite: " + to_string(*found)
                      : "; every module's output is finite, so the loss itself overflows",
                ". The last checkpoint is from before. Hint: a lower lr.value, or "
                "optim.max_grad_norm");
  }

  /// Bytes that were needed at once so far: on the GPU, else by the process; 0 where the system
  /// does not say.
  [[nodiscard]] int64_t peak_memory() const {
    if (device_.is_cuda()) {
      return ops::peak_memory(device_);
    }
    try {
      return peak_resident_bytes();
    } catch (const Error&) {
      return 0;
    }
  }

  void note_skipped(const PendingStep& pending, const optim::StepResult& update) {
    if (config_.precision == Precision::kFp16 && update.loss_scale >= 1.0F) {
      log_debug("[train] step ", pending.step, ": fp16 overflow, loss scale now ",
                update.loss_scale);
      return;
    }
    (void)step_runner_->forward_backward(pending.samples.batches, pending.step - 1);
    const std::vector<std::string> names = non_finite_gradients(
        inference::trained_parameters(trainable_->model()), trainable_->arena());
    trainable_->arena().zero_grad();
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
    watchdog_->enter(Phase::kValidation, record.step);
    const auto evaluate = [this] {
      return validation_->evaluate(trainable_->model(), objective_, device_, mesh_);
    };
    trainable_->boosted().refresh();
    record.validation.emplace_back("raw", evaluate());
    for (size_t k = 0; k < config_.ema_decays.size(); ++k) {
      const optim::BoundWeights bound = trainable_->arena().bind(optim::WeightSet::average(k));
      record.validation.emplace_back("ema" + std::to_string(k), evaluate());
    }
  }

  void save() {
    watchdog_->enter(Phase::kCheckpoint, state_.step);
    state_.optimizer = trainable_->optimizer().state();
    if (importance_) {
      state_.timestep_history = importance_->state().history;
      state_.timestep_counts = importance_->state().counts;
    }
    keep_for_resume(config_, device_, trainable_->kernels(), state_);
    state_.config = config_yaml_;
    writer_->start(state_);
  }

  /// Each rank draws equally many, since where weights are divided all of them take part in every
  /// pass, and rank 0 makes a picture of them.
  void draw_samples() {
    watchdog_->enter(Phase::kSampling, state_.step);
    trainable_->boosted().refresh();
    const optim::BoundWeights bound = trainable_->arena().bind(
        config_.ema_decays.empty() ? optim::WeightSet::raw() : optim::WeightSet::average(0));
    const int64_t parts = mesh_.data_ranks();
    const int64_t own = (config_.sample.count + parts - 1) / parts;
    const int64_t first = mesh_.data_rank() * own;
    const pipelines::SamplingConfig& sampling = config_.sample.sampling;
    const auto conditions = inference::shown_conditions(*data_.train, config_, device_);
    const at::Tensor drawn = pipelines::draw(
        trainable_->model(), sampler_of(config_, objective_), sampling,
        {.samples = pipelines::numbered_samples(
             first, own, static_cast<uint64_t>(config_.train.seed), sampling.guidance),
         .batch = micro_batch_},
        config_.model.sample_shape(),
        [&](int64_t number, int64_t size) { return conditions(first + number, size); }, device_);
    std::vector<int64_t> shape = drawn.sizes().vec();
    shape.insert(shape.begin(), {parts, mesh_.shape().sequence});
    const at::Tensor gathered = at::empty(shape, drawn.options());
    mesh_.world().all_gather(gathered, drawn);
    // All ranks of a sequence have drawn the same.
    const at::Tensor all = gathered.select(1, 0).flatten(0, 1);
    if (!writes()) {
      return;
    }
    at::Tensor shown = all.narrow(0, 0, config_.sample.count);
    if (encoder_ != nullptr) {
      shown = pipelines::decode_latents(*encoder_->autoencoder, shown, device_);
    }
    const io::Image grid = io::make_grid(inference::shown_images(shown));
    const auto path = directory_->samples() / ("step-" + std::to_string(state_.step));
    io::write_png(path.string() + ".png", grid);
    if (shown.dim() == 5 && shown.size(2) > 1) {
      io::write_clip(path, inference::shown_animation(shown), inference::clip_fps(config_.data),
                     config_.shown.format);
    }
    log_->add_samples(state_.step, grid);
  }

  void export_weights() {
    const auto path = directory_->path() / "model.safetensors";
    if (mesh_.index(parallel::Axis::kReplicate) == 0) {
      checkpoint::LateTensors weights = checkpoint::arena_weights(
          trainable_->model(), trainable_->arena(),
          config_.ema_decays.empty() ? optim::Role::master() : optim::Role::average(0));
      const checkpoint::Adapter adapter = merge_updates(config_, weights);
      checkpoint::write_arena_weights(path, weights, trainable_->arena(), at::kFloat, config_yaml_);
      if (writes() && !adapter.changes.empty()) {
        checkpoint::write_adapter(directory_->path() / "adapter", adapter,
                                  inference::adapter_settings(config_.finetune.lora), {});
        log_info("[train] wrote ", directory_->path() / "adapter");
      }
    }
    if (writes()) {
      log_info("[train] wrote ", path);
    }
  }

  void report_end(const data::LoaderStats& stats) const {
    std::ostringstream text;
    text << "[train] step " << state_.step << "; waited " << human_duration(stats.wait_seconds)
         << " for data";
    if (stats.num_bad > 0) {
      text << "; " << stats.num_bad << " unreadable samples were replaced";
    }
    if (const int64_t peak = peak_memory(); peak > 0) {
      text << "; peak memory " << human_bytes(peak);
      if (planned_) {
        text << " (planned " << human_bytes(planned_->peak) << ")";
      }
    }
    log_info(text.str());
  }

  RunConfig config_;
  parallel::Mesh mesh_;
  int64_t micro_batch_;
  std::optional<RunDirectory> directory_;
  at::Device device_;
  data::RunData data_;
  data::RunData image_data_;                // empty where image_data.share is 0
  std::unique_ptr<FrozenEncoder> encoder_;  // null where the model sees the data as it is
  std::optional<LatentStage> latent_stage_;
  diffusion::Objective objective_;
  std::optional<diffusion::LossSecondMoment> importance_;
  std::optional<MemoryPlan> planned_;  // rank 0's
  std::unique_ptr<Trainable> trainable_;
  std::unique_ptr<checkpoint::Writer> writer_;
  std::unique_ptr<TrainingStep> step_runner_;
  std::unique_ptr<Validation> validation_;
  std::unique_ptr<SelfTest> self_test_;
  std::unique_ptr<StepLoader> loader_;  // of a run; the watchdog's thread looks at it
  std::unique_ptr<Watchdog> watchdog_;
  checkpoint::TrainingState state_;
  std::string config_yaml_;
  std::optional<ops::GpuTrace> trace_;
  std::deque<StepSamples> samples_;  // of the steps to come
  std::exception_ptr data_error_;    // why there are no more
  static constexpr int64_t kFirstRankVote = 2;
  StepVote vote_;
  StepWish wish_;  // the last answer
  RequestBox requests_{RunDirectory(config_.run_dir).requests()};
  std::optional<RunRequest> asked_;  // taken and not replied to; rank 0's
  double next_look_ = 0.0;           // at requests_, by now()
  std::optional<RunLog> log_;        // these two: rank 0's
  std::optional<Progress> progress_;
  RunState said_ = RunState::kTraining;
  double last_loss_ = 0.0;
  StepTimesExchange times_;
  RankTimes ranks_;              // the last that came together; rank 0's
  double last_data_wait_ = 0.0;  // seconds, at the end of the last step
  int64_t last_waited_ = 0;      // nanoseconds of waiting for ranks, as well
  int64_t skipped_in_a_row_ = 0;
  std::deque<PendingStep> pending_;
  double last_finished_ = now();
  static constexpr int64_t kStepsOfChoosing = 3;  // then every kernel has been timed
  int64_t finished_ = 0;
};

Trainer::Trainer(const RunConfig& config, const Resume& resume, const comm::Group& world)
    : impl_(std::make_unique<Impl>(config, resume, world)) {}
Trainer::~Trainer() = default;

TrainResult Trainer::run(const StopSignal* stop) {
  return impl_->run(stop);
}

}  // namespace kinora::train
