// Against the same computed plainly: one forward of all samples, and the Booster's own backward.
#include "kinora/train/training_step.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <vector>

#include "kinora/ops/random.h"
#include "kinora/train/bench/benchmark.h"
#include "kinora/train/trainable.h"
#include "tests/tolerances.h"

namespace kinora::train {
namespace training_step_test {

constexpr uint64_t kSeed = 7;
constexpr int64_t kStep = 3;
constexpr double kDropout = 0.5;

RunConfig tiny() {
  RunConfig config;
  config.model =
      models::resolved({.in_channels = 4,
                        .height = 8,
                        .width = 8,
                        .num_classes = 10,
                        .time_scale = 1.0,
                        .transformer = {.depth = 2, .hidden = 32, .heads = 2, .patch = 2}});
  config.path = inference::Path::kPlain;
  config.train.device = DeviceChoice::kCpu;
  return config;
}

RunConfig tiny_clips() {
  RunConfig config = tiny();
  config.model =
      models::resolved({.architecture = "stdit3",
                        .in_channels = 4,
                        .frames = 4,
                        .height = 4,
                        .width = 4,
                        .time_scale = 1.0,
                        .text_channels = 8,
                        .text_tokens = 5,
                        .transformer = {.depth = 1, .hidden = 48, .heads = 4, .patch = 2}});
  config.model.num_classes = 1;
  return config;
}

data::Batch samples(const models::ModelConfig& model, int64_t first, int64_t count) {
  data::Batch batch;
  batch.sample_index = at::arange(first, first + count, at::kLong);
  batch.labels = batch.sample_index.remainder(10);
  const auto random = [&](std::vector<int64_t> shape, uint32_t number) {
    shape.insert(shape.begin(), count);
    return ops::random_uniform(shape, batch.sample_index, kSeed, number, RandomPurpose::kTest,
                               at::kCPU);
  };
  batch.images = random(model.sample_shape(), 0);
  if (model.takes_text()) {
    batch.text = random({model.text_tokens, model.text_channels}, 1);
    batch.text_lengths = batch.sample_index.remainder(model.text_tokens) + 1;
    batch.fps = batch.text_lengths.to(at::kFloat);
  }
  return batch;
}

/// What a denoiser was shown.
class Watched : public diffusion::Denoiser {
 public:
  explicit Watched(models::Model& model) : model_(model) {}

  at::Tensor predict(const at::Tensor& x_t, const at::Tensor& t,
                     const diffusion::Conditions& conditions,
                     const diffusion::Pass& pass) override {
    seen.push_back({x_t, t, conditions});
    return model_.forward(x_t, t, conditions, pass);
  }

  struct Call {
    at::Tensor x_t;
    at::Tensor t;
    diffusion::Conditions conditions;
  };
  std::vector<Call> seen;

 private:
  models::Model& model_;
};

/// A trained model and all that a step of it needs.
struct Tiny {
  explicit Tiny(const RunConfig& recipe, const StepSettings& settings = {},
                diffusion::LossSecondMoment* importance = nullptr)
      : config(recipe),
        objective(diffusion::make_objective(config.objective, config.model.learn_sigma)),
        trainable(config, {}, at::kCPU, kSeed),
        watched(trainable.model()),
        step(watched, trainable.boosted(), objective, importance, with_model(settings)) {
    randomise_zeros(trainable.model().named_parameters(), trainable.arena());
  }

  [[nodiscard]] StepSettings with_model(StepSettings settings) const {
    settings.seed = kSeed;
    settings.model = config.model;
    return settings;
  }

  [[nodiscard]] at::Tensor gradients() {
    std::vector<at::Tensor> values;
    for (const auto& [path, parameter] : trainable.model().named_parameters()) {
      values.push_back(trainable.arena().export_parameter(path, optim::Role::grad()).flatten());
    }
    return at::cat(values);
  }

  RunConfig config;
  diffusion::Objective objective;
  Trainable trainable;
  Watched watched;
  TrainingStep step;
};

/// The loss of all samples at once.
diffusion::Loss plain_loss(Tiny& setup, const data::Batch& batch, double dropout) {
  const at::Tensor draw = ops::random_uniform({batch.labels.size(0)}, batch.sample_index, kSeed,
                                              kStep, RandomPurpose::kLabelDropout, at::kCPU);
  const at::Tensor labels = at::where(draw < dropout, setup.config.model.num_classes, batch.labels);
  const diffusion::NoisedBatch noised = diffusion::noise(
      setup.objective, batch.images,
      {.seed = kSeed, .step = uint32_t{kStep}, .sample_index = batch.sample_index});
  return diffusion::loss(setup.objective,
                         setup.trainable.model().forward(noised.x_t, noised.t, {.labels = labels}),
                         noised, batch.images);
}

TEST(TrainingStepTest, MicroBatchesGiveLossAndGradientsOfTheWholeBatch) {
  const RunConfig config = tiny();
  Tiny plain(config);
  plain.trainable.boosted().begin();
  const diffusion::Loss want = plain_loss(plain, samples(config.model, 0, 6), kDropout);
  plain.trainable.boosted().backward(want.mean);
  const at::Tensor want_gradients = plain.gradients();
  ASSERT_GT(want_gradients.abs().max().item<double>(), 1e-3);
  for (const int64_t micro_batch : {6, 3, 2, 1}) {
    Tiny setup(config, {.label_dropout = kDropout});
    std::vector<data::Batch> batches;
    for (int64_t first = 0; first < 6; first += micro_batch) {
      batches.push_back(samples(config.model, first, micro_batch));
    }
    const double loss = setup.step.forward_backward(batches, kStep).item<double>();
    EXPECT_NEAR(loss, want.mean.item<double>(), tolerance::kOtherOrder * loss) << micro_batch;
    EXPECT_TRUE(at::allclose(setup.gradients(), want_gradients, tolerance::kOtherOrder,
                             tolerance::kOtherOrder))
        << micro_batch;
  }
}

// Ruiz et al. 2023, equation 2: the mean over the one set, plus the weight times that of the other.
TEST(TrainingStepTest, PriorSamplesCountByTheirWeight) {
  constexpr double kWeight = 0.3;
  const RunConfig config = tiny();
  Tiny plain(config);
  plain.trainable.boosted().begin();
  const at::Tensor want = plain_loss(plain, samples(config.model, 0, 4), 0.0).mean +
                          kWeight * plain_loss(plain, samples(config.model, 4, 2), 0.0).mean;
  plain.trainable.boosted().backward(want);
  Tiny setup(config);
  const std::vector<data::Batch> batches = {
      samples(config.model, 0, 2), samples(config.model, 2, 2), samples(config.model, 4, 1),
      samples(config.model, 5, 1)};
  const double loss =
      setup.step.forward_backward(batches, kStep, {.count = 2, .weight = kWeight}).item<double>();
  EXPECT_NEAR(loss, want.item<double>(), tolerance::kOtherOrder * loss);
  EXPECT_TRUE(at::allclose(setup.gradients(), plain.gradients(), tolerance::kOtherOrder,
                           tolerance::kOtherOrder));
}

TEST(TrainingStepTest, PixelsAreScaledAndTheShareIsThatOfAllRanks) {
  const RunConfig config = tiny();
  data::Batch bytes = samples(config.model, 0, 2);
  bytes.images = (bytes.images * 255).to(at::kByte);
  data::Batch floats = bytes;
  floats.images = bytes.images.to(at::kFloat) / 127.5 - 1.0;
  Tiny of_bytes(config);
  Tiny of_floats(config);
  Tiny one_of_four(config, {.ranks = 4});
  const double loss = of_floats.step.forward_backward({floats}, kStep).item<double>();
  EXPECT_NEAR(of_bytes.step.forward_backward({bytes}, kStep).item<double>(), loss,
              tolerance::kOtherOrder * loss);
  EXPECT_NEAR(one_of_four.step.forward_backward({floats}, kStep).item<double>(), loss / 4,
              tolerance::kOtherOrder * loss);
  EXPECT_TRUE(at::allclose(one_of_four.gradients() * 4.0, of_floats.gradients(),
                           tolerance::kOtherOrder, tolerance::kOtherOrder));
}

TEST(TrainingStepTest, GradientsOfStepsAddUpUntilTheyAreUsed) {
  const RunConfig config = tiny();
  Tiny setup(config);
  const std::vector<data::Batch> batch = {samples(config.model, 0, 2)};
  (void)setup.step.forward_backward(batch, kStep);
  const at::Tensor once = setup.gradients();
  (void)setup.step.forward_backward(batch, kStep);
  EXPECT_TRUE(
      at::allclose(setup.gradients(), once * 2.0, tolerance::kOtherOrder, tolerance::kOtherOrder));
}

TEST(TrainingStepTest, ForwardOnlyShowsTheSameAndLeavesNoGradients) {
  const RunConfig config = tiny();
  Tiny setup(config, {.label_dropout = kDropout});
  const std::vector<data::Batch> batch = {samples(config.model, 0, 4)};
  (void)setup.step.forward_backward(batch, kStep);
  const at::Tensor before = setup.gradients();
  setup.step.forward_only(batch, kStep);
  ASSERT_EQ(setup.watched.seen.size(), 2U);
  const auto& [first, second] = std::tie(setup.watched.seen[0], setup.watched.seen[1]);
  EXPECT_TRUE(second.x_t.equal(first.x_t));
  EXPECT_TRUE(second.t.equal(first.t));
  EXPECT_TRUE(second.conditions.labels.equal(first.conditions.labels));
  EXPECT_TRUE(setup.gradients().equal(before));
}

TEST(TrainingStepTest, GivenFramesAreCleanAndTheOthersNoised) {
  RunConfig config = tiny_clips();
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;  // at t = 0 nothing is noised
  const data::Batch batch = samples(config.model, 0, 3);
  Tiny setup(config, {.frame_masks = {.image_head = 1.0}});  // the first frame of each
  const double loss = setup.step.forward_backward({batch}, kStep).item<double>();
  EXPECT_GT(loss, 0.0);
  const Watched::Call& call = setup.watched.seen.at(0);
  const at::Tensor noised = at::arange(4).expand({3, 4}) > 0;
  EXPECT_TRUE(call.conditions.frame_mask.equal(noised));
  EXPECT_TRUE(call.x_t.select(2, 0).equal(batch.images.select(2, 0)));
  EXPECT_GT((call.x_t - batch.images).narrow(2, 1, 3).abs().min().item<double>(), 0.0);
  EXPECT_TRUE(call.conditions.given.select(2, 0).equal(batch.images.select(2, 0)));
  EXPECT_EQ(call.conditions.given.narrow(2, 1, 3).abs().max().item<double>(), 0.0);
}

// Open-Sora 1.3, training_losses() with mask_index: x_t is noised everywhere, the frames are shown
// beside it, and the loss counts them as the others.
TEST(TrainingStepTest, FramesThatAreEmbeddedAreNoisedAndCount) {
  RunConfig config = tiny_clips();
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  config.model.transformer.given_embedders = true;
  const data::Batch batch = samples(config.model, 0, 3);
  Tiny setup(config, {.frame_masks = {.image_head = 1.0}});
  const double loss = setup.step.forward_backward({batch}, kStep).item<double>();
  const Watched::Call& call = setup.watched.seen.at(0);
  EXPECT_TRUE(call.conditions.frame_mask.equal(at::arange(4).expand({3, 4}) > 0));
  EXPECT_TRUE(call.conditions.given.select(2, 0).equal(batch.images.select(2, 0)));
  const at::Tensor t = call.t.view({3, 1, 1, 1, 1});
  const at::Tensor noise = (call.x_t - (1.0 - t) * batch.images) / t;
  EXPECT_GT((call.x_t - batch.images).abs().min().item<double>(), 0.0);
  const at::NoGradGuard no_grad;
  const at::Tensor prediction =
      setup.trainable.model().forward(call.x_t, call.t, call.conditions).narrow(1, 0, 4);
  const double expected = (prediction - (noise - batch.images)).square().mean().item<double>();
  EXPECT_NEAR(loss, expected, 1e-4 * expected);
}

/// Open-Sora 2's form, of clips of 4 frames with texts and their vectors.
RunConfig tiny_open_sora2() {
  RunConfig config = tiny_clips();
  config.model = models::resolved(
      {.architecture = "open_sora2",
       .in_channels = 4,
       .frames = 4,
       .height = 4,
       .width = 4,
       .time_scale = 1000.0,
       .text_channels = 8,
       .text_tokens = 5,
       .pooled_channels = 6,
       .transformer = {.depth = 1, .hidden = 32, .heads = 2, .patch = 2, .given_embedders = true}});
  config.model.num_classes = 1;
  config.objective.kind = diffusion::ObjectiveConfig::Kind::kFlow;
  return config;
}

data::Batch samples_with_vectors(const models::ModelConfig& model, int64_t count) {
  data::Batch batch = samples(model, 0, count);
  batch.pooled = ops::random_uniform({count, model.pooled_channels}, batch.sample_index, kSeed, 2,
                                     RandomPurpose::kTest, at::kCPU);
  return batch;
}

// Open-Sora 2, prepare_visual_condition_*(): one condition of condition_config a clip, by weight.
TEST(TrainingStepTest, WeightsSayWhatOpenSora2IsGiven) {
  const RunConfig config = tiny_open_sora2();
  const data::Batch batch = samples_with_vectors(config.model, 3);
  Tiny setup(config, {.frame_masks = {.weights = {.i2v_loop = 2.0}}});
  const double loss = setup.step.forward_backward({batch}, kStep).item<double>();
  const Watched::Call& call = setup.watched.seen.at(0);
  const at::Tensor frame = at::arange(4);
  EXPECT_TRUE(call.conditions.frame_mask.equal(((frame > 0) & (frame < 3)).expand({3, 4})));
  EXPECT_TRUE(call.conditions.given.select(2, 3).equal(batch.images.select(2, 3)));
  EXPECT_EQ(call.conditions.given.narrow(2, 1, 2).abs().max().item<double>(), 0.0);
  // All frames are noised, and the loss counts them.
  const at::Tensor t = call.t.view({3, 1, 1, 1, 1});
  const at::Tensor noise = (call.x_t - (1.0 - t) * batch.images) / t;
  EXPECT_GT((call.x_t - batch.images).abs().min().item<double>(), 0.0);
  const at::NoGradGuard no_grad;
  const at::Tensor prediction =
      setup.trainable.model().forward(call.x_t, call.t, call.conditions).narrow(1, 0, 4);
  const double expected = (prediction - (noise - batch.images)).square().mean().item<double>();
  EXPECT_NEAR(loss, expected, 1e-4 * expected);
}

TEST(TrainingStepTest, FramesThatWereEncodedByThemselvesAreGiven) {
  const RunConfig config = tiny_open_sora2();
  data::Batch batch = samples_with_vectors(config.model, 3);
  batch.given = batch.images + 1.0;
  Tiny setup(config, {.frame_masks = {.weights = {.i2v_head = 1.0}}});
  (void)setup.step.forward_backward({batch}, kStep);
  const at::Tensor& given = setup.watched.seen.at(0).conditions.given;
  EXPECT_TRUE(given.select(2, 0).equal(batch.given.select(2, 0)));
  EXPECT_EQ(given.narrow(2, 1, 3).abs().max().item<double>(), 0.0);
}

// Open-Sora 2 drops the texts of T5 and of CLIP each by itself.
TEST(TrainingStepTest, VectorsOfCaptionsAreDroppedByThemselves) {
  constexpr double kRate = 0.31622777;
  constexpr int64_t kCount = 2000;
  const RunConfig config = tiny_open_sora2();
  const data::Batch batch = samples_with_vectors(config.model, kCount);
  const auto dropped = [&](double pooled_rate) {
    Tiny setup(config, {.label_dropout = kRate, .pooled_dropout = pooled_rate});
    setup.step.forward_only({batch}, kStep);
    return setup.watched.seen.at(0).conditions;
  };
  const diffusion::Conditions together = dropped(0.0);
  EXPECT_FALSE(together.null_pooled.defined());
  const diffusion::Conditions apart = dropped(kRate);
  EXPECT_TRUE(apart.null_text.equal(together.null_text));
  const auto share = [](const at::Tensor& rows) {
    return rows.to(at::kDouble).mean().item<double>();
  };
  EXPECT_NEAR(share(apart.null_text), kRate, 0.03);
  EXPECT_NEAR(share(apart.null_pooled), kRate, 0.03);
  EXPECT_NEAR(share(apart.null_text & apart.null_pooled), 0.1, 0.02);
  EXPECT_TRUE(dropped(kRate).null_pooled.equal(apart.null_pooled));
}

TEST(TrainingStepTest, ImportanceHearsTheLossOfEachSample) {
  RunConfig config = tiny();
  config.objective.timesteps = 30;
  diffusion::LossSecondMoment importance(30);
  Tiny setup(config, {}, &importance);
  const data::Batch batch = samples(config.model, 0, 4);
  (void)setup.step.forward_backward({samples(config.model, 0, 2), samples(config.model, 2, 2)},
                                    kStep);
  EXPECT_EQ(importance.state().counts, diffusion::LossSecondMoment(30).state().counts);
  setup.step.update_importance();

  Tiny plain(config);
  const diffusion::Loss loss = plain_loss(plain, batch, 0.0);
  const at::Tensor t = at::cat({setup.watched.seen[0].t, setup.watched.seen[1].t});
  diffusion::LossSecondMoment want(30);
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t time = t[i].item<int64_t>();
    const double of_sample = loss.per_sample[i].item<double>();
    want.update(std::span(&time, 1), std::span(&of_sample, 1));
  }
  EXPECT_EQ(importance.state().counts, want.state().counts);
  for (size_t i = 0; i < want.state().history.size(); ++i) {
    EXPECT_NEAR(importance.state().history[i], want.state().history[i],
                tolerance::kOtherOrder * want.state().history[i]);
  }
}

}  // namespace training_step_test
}  // namespace kinora::train
