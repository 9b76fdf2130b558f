#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/core/config.h"

namespace sample {

enum class Precision { kFp32, kBf16, kFp16 };

/// A configuration with a field of every type.
struct SampleConfig {
  int64_t steps = 1000;
  int64_t micro_batch = 8;
  int64_t global_batch = 16;
  Precision precision = Precision::kFp32;
  bool deterministic = false;
  double learning_rate = 1e-4;
  double dropout = 0.1;
  std::string path = "data/train";
  std::vector<int64_t> input_size = {32, 32};
  std::vector<double> decays = {0.9999};
  std::vector<std::string> sources;
  int64_t top = 0;
};

inline void describe(kinora::Fields& fields, SampleConfig& c) {
  {
    const auto scope = fields.scope("train");
    fields.add("steps", c.steps, "Optimizer step at which training stops.", kinora::at_least(1));
    fields.add("global_batch", c.global_batch, "Samples of one optimizer step.", {1, 65536});
    fields.add("micro_batch", c.micro_batch, "Samples of one pass.", kinora::at_least(1))
        .check("divide train.global_batch", [&c] { return c.global_batch % c.micro_batch == 0; });
    fields.add("precision", c.precision,
               {{"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}},
               "Type of the forward and backward pass; weights, moments and averages are always "
               "fp32, whatever is chosen here.");
    fields.add("deterministic", c.deterministic, "Give the same bits at every run.");
    {
      const auto inner = fields.scope("lr");
      fields.add("value", c.learning_rate, "Peak learning rate.", kinora::above(0.0));
    }
    fields.add("dropout", c.dropout, "Probability that a label is dropped.",
               {.min = 0.0, .max = 1.0, .max_open = true});
    fields.retire("stages", "1", "there are no stages");
  }
  fields.add("data.path", c.path, "Folder of the images.");
  fields.add("data.input_size", c.input_size, "Height and width in pixels.", kinora::at_least(1))
      .check("have 2 numbers", [&c] { return c.input_size.size() == 2; });
  fields.add("data.sources", c.sources, "More folders.");
  fields.add("ema.decays", c.decays, "Decay of each average.", kinora::between(0.0, 1.0));
  fields.add("top", c.top, "A key outside the sections.");
}

}  // namespace sample
