#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/files.h"
#include "tests/apps/program.h"
#include "tests/places.h"

namespace kinora::apps {

using Arguments = std::vector<std::string>;

/// A text encoder of the model's own, and the tokens that it reads.
inline const Arguments kReads = {
    "data.text=tokens",
    "text.tokenizer=" + source_path("configs/captions/spiece.model").string(),
    "model.text_tokens=16",
    "model.text_encoder.layers=1",
    "model.text_encoder.width=16",
    "model.text_encoder.heads=2",
    "model.text_encoder.mlp=32"};

inline Arguments joined(Arguments left, const Arguments& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// One line of log.jsonl.
using LogLine = nlohmann::json;

/// The log of a run, in the order of the file.
[[nodiscard]] std::vector<LogLine> read_log(const std::filesystem::path& run);

/// Waits until the run has logged `lines` steps; the test fails if it ends before or takes minutes.
void wait_for_log(Program& program, const std::filesystem::path& run, int64_t lines);

/// Steps of the checkpoints of a run, in rising order.
[[nodiscard]] std::vector<int64_t> checkpoint_steps(const std::filesystem::path& run);

/// Name and content of the .safetensors files of a checkpoint: everything that training computed.
[[nodiscard]] std::map<std::string, std::string> arrays_of(const std::filesystem::path& checkpoint);

/// Passes if two checkpoints hold the same bits: every array, and of the manifest the state (steps,
/// position in the data, loss scale, importance sampling).
void expect_same_state(const std::filesystem::path& left, const std::filesystem::path& right);

/// Passes if the two runs logged the same bits in `steps` steps: loss, learning rate, gradient norm
/// and validation losses.
void expect_same_log(const std::filesystem::path& left, const std::filesystem::path& right,
                     int64_t steps);

/// Passes if the two runs logged `steps` losses, and validation losses in the same of them, that
/// differ by at most `tolerance` of themselves.
void expect_close_losses(const std::filesystem::path& left, const std::filesystem::path& right,
                         int64_t steps, double tolerance);

/// Tests that train a tiny model: a recipe in a temporary folder, on one thread of the CPU.
class RunTest : public testing::Test {
 protected:
  RunTest();

  /// A run directory, which does not exist yet.
  [[nodiscard]] std::filesystem::path run_dir(const std::string& name) const {
    return folder() / name;
  }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_.path(); }
  /// Of a file in it, as arguments have it.
  [[nodiscard]] std::string path(const std::string& name) const {
    return (folder() / name).string();
  }
  [[nodiscard]] const std::filesystem::path& recipe() const { return recipe_; }

  /// The command line of training in `run`.
  [[nodiscard]] Arguments train_command(const std::filesystem::path& run,
                                        const Arguments& more = {}) const;
  /// Trains to the end.
  Outcome train(const std::filesystem::path& run, const Arguments& more = {}) const;
  /// The same, which must succeed.
  void train_well(const std::filesystem::path& run, const Arguments& more = {}) const;
  /// Any command of the program, in the folder, which must succeed.
  void run_well(const Arguments& arguments) const;

 private:
  TemporaryFolder folder_;
  std::filesystem::path recipe_;
};

}  // namespace kinora::apps
