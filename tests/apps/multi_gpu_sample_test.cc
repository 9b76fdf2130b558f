// kinora sample on several GPUs, through NCCL, against one.

#include <gtest/gtest.h>

#include <string>

#include "kinora/core/cuda.h"
#include "tests/apps/clips.h"

namespace kinora::apps {
namespace multi_gpu_sample_test {

class MultiGpuSampleTest : public RunTest {
 protected:
  void SetUp() override {
    gpus_ = cuda_available() ? cuda_device_count() : 0;
    if (gpus_ < 2) {
      GTEST_SKIP() << "there are " << gpus_ << " GPUs, and it needs two";
    }
  }

  [[nodiscard]] int64_t gpus() const { return gpus_; }

  /// All samples in one picture.
  [[nodiscard]] io::Image picture(const std::string& out, const Arguments& more) const {
    const Outcome outcome =
        run_kinora(joined({"sample", "--run", run_dir("run").string(), "--out",
                           (folder() / out).string(), "--device", "cuda", "--steps", "4"},
                          more),
                   folder());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return read_image(folder() / out / "grid.png");
  }

 private:
  int64_t gpus_ = 0;
};

TEST_F(MultiGpuSampleTest, ClipsAreThoseOfOneGpu) {
  train_well(run_dir("run"),
             joined(kClips, {"train.device=cuda", "model.architecture=stdit", "train.steps=8",
                             "lr.value=1e-2", "ema.decays=[0.1]", "train.self_test=false"}));
  const Arguments captions = {"--captions", "a red circle moving to the left",
                              "a blue cross moving up"};
  const io::Image one = picture("one", captions);
  std::vector<Arguments> ways = {
      {"--ranks", "2"},
      {"--ranks", "2", "--guidance-ranks", "2"},
      {"--ranks", "2", "--sequence", "2", "--sequence-scheme", "dsp"},
      {"--ranks", "2", "--sequence", "2", "--sequence-scheme", "ulysses"}};
  if (gpus() >= 4) {
    ways.push_back({"--ranks", "4", "--guidance-ranks", "2", "--sequence", "2"});
    ways.push_back({"--ranks", "4", "--guidance-ranks", "2", "--sequence", "1"});
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    // fp32, whose products may be of fewer bits on a GPU.
    const io::Image several = picture("way-" + std::to_string(i), joined(captions, ways[i]));
    EXPECT_LE(difference_of(one, several).most, 3) << i;
  }
}

// Several batches of a size: the loop is recorded, with what the ranks exchange in it.
TEST_F(MultiGpuSampleTest, RecordedGuidanceOnTwoGpus) {
  train_well(run_dir("run"), {"train.device=cuda", "train.precision=bf16", "lr.value=1e-2",
                              "ema.decays=[0.1]", "train.self_test=false"});
  const Arguments many = {"--classes", "0,1", "--count", "8", "--batch", "2", "--guidance", "3"};
  const io::Image one = picture("one", many);
  const io::Image two = picture("two", joined(many, {"--ranks", "2", "--guidance-ranks", "2"}));
  EXPECT_LE(difference_of(one, two).mean, 2.0);
  EXPECT_GT(difference_of(one, picture("other", joined(many, {"--seed", "1"}))).mean, 10.0);
}

// The same of clips whose tokens are divided.
TEST_F(MultiGpuSampleTest, RecordedSequencesAreThoseOfOneGpu) {
  train_well(run_dir("run"), joined(kClips, {"train.device=cuda", "model.architecture=stdit",
                                             "train.steps=8", "lr.value=1e-2", "ema.decays=[0.1]",
                                             "train.self_test=false", "train.precision=bf16"}));
  const Arguments many = {"--captions",
                          "a red circle moving to the left",
                          "a blue cross moving up",
                          "--count",
                          "8",
                          "--batch",
                          "2"};
  const io::Image one = picture("one", many);
  std::vector<Arguments> ways = {{"--ranks", "2", "--sequence", "2", "--sequence-scheme", "dsp"},
                                 {"--ranks", "2", "--sequence", "2", "--sequence-scheme", "ring"}};
  if (gpus() >= 4) {
    ways.push_back({"--ranks", "4", "--guidance-ranks", "2", "--sequence", "2"});
  }
  for (size_t i = 0; i < ways.size(); ++i) {
    const io::Image several = picture("way-" + std::to_string(i), joined(many, ways[i]));
    EXPECT_LE(difference_of(one, several).mean, 2.0) << i;
  }
  EXPECT_GT(difference_of(one, picture("other", joined(many, {"--seed", "1"}))).mean, 10.0);
}

}  // namespace multi_gpu_sample_test
}  // namespace kinora::apps
