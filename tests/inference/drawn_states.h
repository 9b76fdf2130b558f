#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kinora/checkpoint/weights_file.h"
#include "kinora/inference/prompts.h"

/// Comparisons with what diffusers made of a tiny pipeline
/// (tools/reference/make_pipeline_fixtures.py).
namespace kinora::inference {

inline double distance(const at::Tensor& ours, const at::Tensor& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

/// The states of the captions, one behind the other, and of the negative one are those of `drawn`;
/// of a model that reads a vector of each, the vectors, too.
inline void expect_states(const Prompts& ours, const checkpoint::WeightsFile& drawn,
                          bool has_vectors = false) {
  const at::Tensor states = drawn.read("states");
  const at::Tensor lengths = drawn.read("lengths");
  std::vector<data::Text> texts;
  for (const Prompt& prompt : ours.all) {
    texts.push_back(prompt.text);
  }
  texts.push_back(ours.negative.value());
  ASSERT_EQ(std::ssize(texts), lengths.numel());
  int64_t first = 0;
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    const data::Text& text = texts[static_cast<size_t>(i)];
    const auto length = lengths[i].item<int64_t>();
    ASSERT_EQ(text.length, length) << i;
    EXPECT_LT(distance(at::tensor(text.tokens).view({ours.shape.length, -1}).narrow(0, 0, length),
                       states.narrow(0, first, length)),
              5e-6)
        << i;
    if (has_vectors) {
      EXPECT_LT(distance(at::tensor(text.pooled), drawn.read("pooled")[i]), 5e-6) << i;
    }
    first += length;
  }
}

/// Every tensor of the weights `first` is in `second`, to the bit.
inline void expect_tensors_of(const std::filesystem::path& first,
                              const std::filesystem::path& second) {
  const auto want = checkpoint::WeightsFile::open(first);
  const auto got = checkpoint::WeightsFile::open(second);
  for (const std::string& name : want.names()) {
    EXPECT_TRUE(want.read(name).equal(got.read(name))) << name;
  }
}

}  // namespace kinora::inference
