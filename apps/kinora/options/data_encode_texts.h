#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/compute_choice.h"

namespace kinora::apps {

struct EncodeTextsArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string out;
  std::string text_encoder;
  std::string tokenizer;
  std::string captions_file;
  std::optional<bool> clean;  ///< none: as models of the recipe's family were published
  int64_t max_tokens = 0;     ///< 0: as many as recipe and tokenizer allow
  int64_t batch = 64;
  Precision dtype = Precision::kBf16;
  Precision precision = Precision::kBf16;
  std::string eight_bits;  ///< "int8", "fp8"; empty: none
  bool streamed = false;
  double save_every = 10.0;
  DeviceChoice device = DeviceChoice::kAuto;  ///< auto: as the recipe says
};

}  // namespace kinora::apps
