#include "apps/kinora/options/choices.h"

namespace kinora::apps {

void add_device_option(CLI::App& command, DeviceChoice& device) {
  add_choice(
      command, "--device", device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}},
      "auto, cpu or cuda; default: auto");
}

const Choices<Precision>& precisions() {
  static const Choices<Precision> kPrecisions = {
      {"fp32", Precision::kFp32}, {"bf16", Precision::kBf16}, {"fp16", Precision::kFp16}};
  return kPrecisions;
}

const Choices<kernels::WeightFormat>& weight_formats() {
  static const Choices<kernels::WeightFormat> kFormats = {{"int8", kernels::WeightFormat::kInt8},
                                                          {"fp8", kernels::WeightFormat::kFp8},
                                                          {"nf4", kernels::WeightFormat::kNf4}};
  return kFormats;
}

}  // namespace kinora::apps
