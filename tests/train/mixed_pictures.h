#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kinora/core/config.h"
#include "kinora/io/image.h"
#include "kinora/train/run_config.h"
#include "tests/data/files.h"
#include "tests/places.h"

namespace kinora::train {

/// 24 pictures of three sizes, and runs on them with a number of ranks for each size.
class MixedPicturesTest : public testing::Test {
 protected:
  MixedPicturesTest() {
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t height = i < 8 ? 40 : (i < 12 ? 32 : 16);
      io::Image image = data::grey_image(static_cast<uint8_t>(8 * i), height, i < 8 ? 40 : height);
      for (size_t place = 0; place < image.pixels.size(); place += 7) {
        image.pixels[place] = static_cast<uint8_t>(place * static_cast<size_t>(i + 3));
      }
      folder_.write("set/c" + std::to_string(10 + i) + "/picture.png", io::encode_png(image));
    }
  }

  [[nodiscard]] static RunConfig config(const std::filesystem::path& folder, const std::string& run,
                                        const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {
        "run.dir=" + (folder / run).string(),
        "data.source=folder",
        "data.path=[" + (folder / "set").string() + "]",
        R"(data.buckets={"36px": {1: [1.0, 2]}, "16px": {1: [1.0, 3]}})",
        "data.bucket_multiple=4",
        "data.bucket_ratios=square",
        "data.bucket_batches=3",
        "data.threads=1",
        "data.text=tokens",
        "text.tokenizer=" + source_path("configs/captions/spiece.model").string(),
        "model.architecture=stdit3",
        "model.depth=1",
        "model.hidden=48",
        "model.heads=4",
        "model.patch=4",
        "model.text_tokens=8",
        "model.text_encoder.layers=1",
        "model.text_encoder.width=16",
        "model.learn_sigma=false",
        "objective.kind=flow",
        "optim.eps=1e-2",
        "optim.max_grad_norm=0.5",
        "lr.value=1e-2",
        "train.steps=6",
        "train.device=cpu",
        "train.threads=1",
        "train.seed=5",
        "parallel.dynamic_sequence=true",
        "checkpoint.every=3",
        "sample.every=0",
        "sample.steps=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_config<RunConfig>({"{}", "the test"}, overrides);
  }

  static void expect_same(const std::vector<nlohmann::json>& got,
                          const std::vector<nlohmann::json>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].at("samples"), want[i].at("samples"));
      EXPECT_EQ(got[i].at("batches"), 3);
      for (const char* key : {"loss", "grad_norm"}) {
        EXPECT_NEAR(got[i].at(key), want[i].at(key), 1e-5 * want[i].at(key).get<double>()) << key;
      }
    }
  }

  data::TemporaryFolder folder_;
};

}  // namespace kinora::train
