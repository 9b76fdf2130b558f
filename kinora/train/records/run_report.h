#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kinora::train {

/// The text of a grid of samples (io/picture_texts.h) that has its prompts, a JSON array: row by
/// row they take turns.
inline constexpr const char* kPromptsOfGrid = "prompts";

/// A number of a run's log over its steps.
struct Metric {
  std::vector<double> steps;  ///< ascending
  std::vector<double> values;
};

/// The numbers of a log.jsonl by name; other values and damaged lines are left out. kIo if it
/// cannot be read.
[[nodiscard]] std::map<std::string, Metric> read_metrics(const std::filesystem::path& log);

/// A web page about a run: how it stands, where it ran and why it died, curves of loss, validation
/// by bands of t, learning rate, speed and memory, samples over time with their prompts,
/// checkpoints, its configuration. One file that needs no network and no script, for screens of 400
/// pixels and more. A picture that cannot be read is named in its place. kIo if the run cannot be
/// read.
[[nodiscard]] std::string report_page(const std::filesystem::path& run);

}  // namespace kinora::train
