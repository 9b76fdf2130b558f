#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

/// What people ask of a run while it trains (`kinora runs pause`, ...): files in a folder of the
/// run, so that it works from every machine that sees the folder, and nothing listens to a network.
namespace kinora::train {

enum class RunCommand : uint8_t {
  kNone,
  kPause,         ///< hold still, with everything in memory, until kContinue
  kContinue,      ///< after kPause
  kSave,          ///< write a checkpoint now
  kSample,        ///< draw the run's samples now
  kStop,          ///< save and end
  kLearningRate,  ///< lr.value is `value` from now on
  kExtend,        ///< train.steps is `value` from now on
};

/// In the order of the enumerators.
inline constexpr std::array<std::string_view, 8> kRunCommandNames = {
    "none", "pause", "continue", "save", "sample", "stop", "lr", "extend"};

[[nodiscard]] constexpr std::string_view to_string(RunCommand command) {
  return kRunCommandNames[static_cast<size_t>(command)];
}

struct RunRequest {
  std::string id;  ///< names it in its box
  RunCommand command = RunCommand::kNone;
  double value = 0.0;  ///< kLearningRate, kExtend: finite and not negative
};

/// What a run says to a request.
struct RunAnswer {
  bool done = true;  ///< else it was refused, and `text` says why
  int64_t step = 0;  ///< optimizer updates done by then
  std::string text;
};

/// The folder that requests and answers lie in. Who asks writes a file of its own, which appears
/// whole; the run takes the oldest first. Any process may use the box at any time; one answers.
class RequestBox {
 public:
  explicit RequestBox(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Leaves a request and returns its id. kConfig for a value that no run could take; kIo if the
  /// file cannot be written.
  [[nodiscard]] std::string ask(RunCommand command, double value = 0.0) const;

  /// The answer, once there is one; it is then removed. kIo if it is damaged.
  [[nodiscard]] std::optional<RunAnswer> answer_to(const std::string& id) const;

  /// Takes a request back. False if the run has taken it already.
  bool withdraw(const std::string& id) const;

  /// The oldest request, which is removed. Files that are none are answered as refused. kIo if the
  /// folder cannot be read.
  [[nodiscard]] std::optional<RunRequest> take() const;

  void reply(const RunRequest& request, const RunAnswer& answer) const;

  /// Removes what an earlier run has left.
  void clear() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace kinora::train
