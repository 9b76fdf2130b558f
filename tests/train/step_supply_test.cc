#include "kinora/train/step_supply.h"

#include <gtest/gtest.h>

#include "kinora/core/error.h"
#include "kinora/data/source.h"

namespace kinora::train {
namespace step_supply_test {

/// Black images of 8 x 8, of which all or none can be read.
class Black : public data::Source {
 public:
  explicit Black(bool is_there) : is_there_(is_there) {}
  [[nodiscard]] int64_t size() const override { return 1000; }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return names_; }
  [[nodiscard]] std::string sample_name(int64_t index) const override {
    return std::to_string(index);
  }
  void read(int64_t /*index*/, data::Sample& sample) const override {
    KINORA_CHECK(is_there_, kIo, "the disk is gone");
    set_size(sample.image, 8, 8);
    sample.image.pixels.assign(sample.image.pixels.size(), 0);
  }

 private:
  bool is_there_;
  std::vector<std::string> names_ = {"black"};
};

StepSupply supply_of(const data::Source& source, const EncodeStage& latents) {
  RunConfig config;
  config.data.height = 8;
  config.data.width = 8;
  config.data.threads = 1;
  config.train.global_batch = 2;
  return {StepLoader(config, {.data = &source}, {}, {}, /*pinned=*/false), latents};
}

TEST(StepSupplyTest, GivesTheLoadersStepsInOrder) {
  const Black source(/*is_there=*/true);
  const EncodeStage latents(0, at::kCPU);
  StepSupply supply = supply_of(source, latents);
  for (int64_t step = 0; step < 5; ++step) {
    supply.fetch(5 - step);
    ASSERT_EQ(supply.error(), nullptr);
    const StepSamples samples = supply.take();
    EXPECT_EQ(samples.global_batch, 2);
    EXPECT_EQ(samples.batches.at(0).sample_index[0].item<int64_t>(), 2 * step);
  }
  EXPECT_EQ(supply.loader().stats().num_batches, 5) << "none of a step that is not to come";
}

TEST(StepSupplyTest, TakesTwoStepsAndNoMoreThanAreLeft) {
  const Black source(/*is_there=*/true);
  const EncodeStage latents(0, at::kCPU);
  StepSupply supply = supply_of(source, latents);
  supply.fetch(10);
  EXPECT_EQ(supply.loader().stats().num_batches, 2);
  supply.fetch(10);
  EXPECT_EQ(supply.loader().stats().num_batches, 2) << "they are still there";
  StepSupply last = supply_of(source, latents);
  last.fetch(1);
  EXPECT_EQ(last.loader().stats().num_batches, 1);
}

TEST(StepSupplyTest, KeepsTheErrorAndAsksNoMore) {
  const Black source(/*is_there=*/false);
  const EncodeStage latents(0, at::kCPU);
  StepSupply supply = supply_of(source, latents);
  supply.fetch(10);
  ASSERT_NE(supply.error(), nullptr);
  supply.fetch(10);
  try {
    std::rethrow_exception(supply.error());
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the disk is gone"), std::string::npos)
        << error.what();
  }
}

}  // namespace step_supply_test
}  // namespace kinora::train
