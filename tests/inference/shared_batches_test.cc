// Requests of several users in one batch, each against the same drawn alone.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kinora/pipelines/decode.h"
#include "tests/error_of.h"
#include "tests/inference/family_models.h"
#include "tests/pipelines/patch_autoencoder.h"

namespace kinora::inference {
namespace shared_batches_test {

using testing::HasSubstr;

class SharedBatchesTest : public testing::TestWithParam<std::string> {
 protected:
  SharedBatchesTest() : trained_(tiny_model(family_named(GetParam()), at::kCPU)) {
    // Clips that go on from their own frames are drawn with them as conditions.
    const bool takes_frames =
        models::shape_of(trained_.recipe.model).given_way != diffusion::GivenWay::kNone;
    options_.pieces = takes_frames ? 2 : 1;
    options_.overlap = takes_frames ? 1 : 0;
  }

  [[nodiscard]] static const models::Family& family() { return family_named(GetParam()); }

  void set_batch_invariant(bool on) { trained_.recipe.sample.sampling.batch_invariant = on; }

  std::vector<at::Tensor> drawn(const std::vector<Request>& requests, int64_t batch = 64) {
    DrawOptions options = options_;
    options.batch = batch;
    return Drawing(trained_, requests, options).draw_each();
  }

  TrainedModel trained_;
  DrawOptions options_;
};

// Batches of four, of which the last is of two.
TEST_P(SharedBatchesTest, EachIsAsAloneInEveryBitWithBatchInvariant) {
  set_batch_invariant(true);
  const std::vector<Request> requests = requests_of_users(family());
  const std::vector<at::Tensor> together = drawn(requests, 4);
  ASSERT_EQ(together.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(at::equal(together[i], drawn({requests[i]})[0])) << i;
  }
  EXPECT_FALSE(at::equal(together[0][0], together[2][0])) << "the same noise shows other things";
}

// Pixels in [-1, 1]: a level is 2 / 255.
TEST_P(SharedBatchesTest, EachIsAsAloneWithinALevelWithout) {
  const std::vector<Request> requests = requests_of_users(family());
  const std::vector<at::Tensor> together = drawn(requests, 4);
  set_batch_invariant(true);
  const std::vector<at::Tensor> one_by_one = drawn(requests, 4);
  set_batch_invariant(false);
  for (size_t i = 0; i < requests.size(); ++i) {
    const at::Tensor alone = drawn({requests[i]})[0];
    EXPECT_LT((together[i] - alone).abs().max().item<double>(), 1.0 / 255.0) << i;
    EXPECT_LT((one_by_one[i] - alone).abs().max().item<double>(), 1.0 / 255.0) << i;
  }
}

TEST_P(SharedBatchesTest, SizesAreGroupedWhereTheModelTakesThem) {
  std::vector<Request> requests = requests_of_users(family());
  requests[1].size = {.height = 64, .width = 128};
  if (!family().takes_any_size) {
    EXPECT_THAT(error_of(ErrorKind::kConfig, [&] { return drawn(requests); }),
                HasSubstr("height must be 96, which this model was made for, got 64"));
    return;
  }
  set_batch_invariant(true);
  const std::vector<at::Tensor> together = drawn(requests, 2);
  const int64_t frames = 4 * options_.pieces - options_.overlap;
  const auto sizes = [&](int64_t count, int64_t height, int64_t width) {
    return family().is_video ? std::vector<int64_t>{count, 4, frames, height, width}
                             : std::vector<int64_t>{count, 4, height, width};
  };
  EXPECT_EQ(together[0].sizes(), at::IntArrayRef(sizes(2, 12, 8)));
  EXPECT_EQ(together[1].sizes(), at::IntArrayRef(sizes(3, 8, 16)));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(at::equal(together[i], drawn({requests[i]})[0])) << i;
  }
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return Drawing(trained_, requests, options_).draw(); }),
      HasSubstr("got 2 sizes. Hint: draw_each()"));
}

INSTANTIATE_TEST_SUITE_P(Families, SharedBatchesTest, testing::ValuesIn(family_keys()),
                         [](const auto& of) { return of.param; });

class DrawnSizesTest : public testing::Test {
 protected:
  [[nodiscard]] static const models::Family& family() { return family_named("stdit2"); }

  TrainedModel trained_ = tiny_model(family(), at::kCPU);
};

// The samples of the second request lie between those of the others, which share a batch.
TEST_F(DrawnSizesTest, EventsNameSamplesInTheOrderOfTheRequests) {
  std::vector<Request> requests = requests_of_users(family());
  requests[1].size.frames = 2;
  Drawing drawing(trained_, requests, {.batch = 64});
  std::vector<std::pair<int64_t, int64_t>> heard;  // first, frames
  std::vector<double> parts;
  pipelines::DrawEvents events{.done = [&](int64_t first, const at::Tensor& samples) {
    for (int64_t i = 0; i < samples.size(0); ++i) {
      heard.emplace_back(first + i, samples.size(2));
    }
  }};
  events.progress = [&](const pipelines::DrawProgress& progress) {
    parts.push_back(progress.part);
  };
  EXPECT_TRUE(drawing.draw_batches({}, events));
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_THAT(heard, testing::ElementsAre(Pair{0, 4}, Pair{1, 4}, Pair{5, 4}, Pair{2, 2},
                                          Pair{3, 2}, Pair{4, 2}));
  EXPECT_TRUE(std::ranges::is_sorted(parts));
  EXPECT_DOUBLE_EQ(parts.back(), 1.0);
  heard.clear();
  EXPECT_TRUE(drawing.draw_batches({}, events, {true, true, false, true, true, true}));
  EXPECT_THAT(heard, testing::ElementsAre(Pair{2, 2}, Pair{3, 2}, Pair{4, 2}))
      << "batches that are there are left out";
}

TEST_F(DrawnSizesTest, SizesThatAreTheModelsOwnShareItsBatches) {
  std::vector<Request> requests = requests_of_users(family());
  requests[1].size = {.frames = 4, .height = 96, .width = 64};
  Drawing drawing(trained_, requests, {.size = {.height = 96}});
  EXPECT_EQ(drawing.draw().size(0), 6);
  requests[1].size.width = -1;
  EXPECT_THAT(
      error_of(ErrorKind::kConfig, [&] { return Drawing(trained_, requests, {}).recipe(); }),
      HasSubstr("width must be between 0 and 1e+06, got -1"));
}

// Every kind of sampler: noise in each step, a learned variance's place, thresholds, history.
TEST(BatchInvariantTest, HoldsForEverySampler) {
  using Method = pipelines::SamplingConfig::Method;
  TrainedModel trained = tiny_model(models::families().front(), at::kCPU);
  trained.recipe.objective.kind = diffusion::ObjectiveConfig::Kind::kIddpm;
  trained.objective =
      diffusion::make_objective(trained.recipe.objective, /*learned_variance=*/false);
  pipelines::SamplingConfig& sampling = trained.recipe.sample.sampling;
  sampling.batch_invariant = true;
  const std::vector<Request> requests = requests_of_users(models::families().front());
  for (const Method method : {Method::kDdpm, Method::kDdim, Method::kPlms, Method::kDpmSde,
                              Method::kUniPc, Method::kEulerAncestral, Method::kHeun}) {
    sampling.method = method;
    sampling.threshold = method == Method::kDpmSde || method == Method::kHeun ? 0.9 : 0.0;
    sampling.eta = method == Method::kDdim ? 0.5 : 0.0;
    sampling.guidance_interval = {0.1, 0.8};
    const std::vector<at::Tensor> together = Drawing(trained, requests, {.batch = 4}).draw_each();
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_TRUE(at::equal(together[i], Drawing(trained, {requests[i]}, {}).draw()))
          << static_cast<int>(method) << " " << i;
    }
  }
}

// The decoder's products would follow the number of pictures, too.
TEST(BatchInvariantTest, LatentsAreDecodedOneByOne) {
  class Batches : public PatchAutoencoder {
   public:
    at::Tensor decode(const at::Tensor& latents) override {
      sizes.push_back(latents.size(0));
      return 2.0 * latents;
    }
    std::vector<int64_t> sizes;
  };
  Batches autoencoder;
  const at::Tensor latents = at::arange(5 * 3 * 2 * 2, at::kFloat).view({5, 3, 2, 2});
  const at::Tensor pixels = pipelines::decode_latents(autoencoder, latents, at::kCPU);
  EXPECT_THAT(autoencoder.sizes, testing::ElementsAre(4, 1));
  autoencoder.sizes.clear();
  const at::Tensor alone = pipelines::decode_latents(autoencoder, latents, at::kCPU, true);
  EXPECT_THAT(autoencoder.sizes, testing::ElementsAre(1, 1, 1, 1, 1));
  EXPECT_TRUE(at::equal(pixels, alone));
}

TEST(BatchInvariantTest, ItsCostIsMeasured) {
  const models::Family& family = models::families().front();
  TrainedModel trained = tiny_model(family, at::kCPU);
  Drawing drawing(trained, requests_of_users(family), {.batch = 4});
  const pipelines::BatchCost cost = drawing.batch_cost();
  EXPECT_EQ(cost.size, 4);
  EXPECT_GT(cost.together, 0.0);
  EXPECT_GT(cost.one_by_one, 0.0);
  EXPECT_EQ((pipelines::BatchCost{.size = 8, .together = 0.04, .one_by_one = 0.06}).describe(),
            "1.5 times the time of batches: 60 ms an evaluation of 8 samples one by one, 40 ms "
            "together");
}

}  // namespace shared_batches_test
}  // namespace kinora::inference
