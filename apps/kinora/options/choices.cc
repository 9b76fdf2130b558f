#include "apps/kinora/options/choices.h"

#include <CLI/CLI.hpp>

namespace kinora::apps {

void add_device_option(CLI::App& command, DeviceChoice& device) {
  command.add_option("--device", device, "auto, cpu or cuda; default: auto")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, DeviceChoice>{{"auto", DeviceChoice::kAuto},
                                              {"cpu", DeviceChoice::kCpu},
                                              {"cuda", DeviceChoice::kCuda}}));
}

const std::map<std::string, Precision>& precisions() {
  static const std::map<std::string, Precision> kPrecisions = {
      {"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}};
  return kPrecisions;
}

}  // namespace kinora::apps
