#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kinora/core/compute_choice.h"
#include "kinora/kernels/weight_codes.h"
#include "kinora/train/boost/booster_options.h"

/// Options that name one of a few things.
namespace kinora::apps {

/// By their names.
template <typename Value>
using Choices = std::map<std::string, Value>;

template <typename Target>
struct Chooses {
  using Value = Target;
};
template <typename Target>
struct Chooses<std::optional<Target>> {
  using Value = Target;
};

/// An option whose value is the name of one of `choices`. Its results are that word, where CLI11's
/// transformers would make them a number, which the files of samples would keep.
template <typename Target>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Target& target,
                        const Choices<typename Chooses<Target>::Value>& choices,
                        const std::string& help) {
  std::vector<std::string> names;
  for (const auto& [word, value] : choices) {
    names.push_back(word);
  }
  return command
      .add_option_function<std::string>(
          name, [&target, choices](const std::string& word) { target = choices.at(word); }, help)
      ->check(CLI::IsMember(names));
}

/// --device.
void add_device_option(CLI::App& command, DeviceChoice& device);

/// "fp32", "bf16", "fp16".
[[nodiscard]] const Choices<Precision>& precisions();

/// "int8", "fp8", "nf4".
[[nodiscard]] const Choices<kernels::WeightFormat>& weight_formats();

}  // namespace kinora::apps
