#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

/// How a run stands, told from outside by its folder.
namespace kinora::train {

enum class RunState : uint8_t {
  kTraining,
  kPaused,
  kStopped,   ///< ended and saved before train.steps
  kComplete,  ///< ended at train.steps
  kDied,      ///< its process ended without saving
};

/// "training", "paused", "stopped", "complete", "died".
[[nodiscard]] std::string_view to_string(RunState state);

/// What a run says of itself in state.json, with the host and number of its process, the commit of
/// the program, and when it began.
struct StateRecord {
  RunState state = RunState::kTraining;
  int64_t step = 0;         ///< optimizer updates done
  int64_t steps = 0;        ///< train.steps
  std::string device = {};  ///< that it computes on, in words
  std::string error = {};   ///< why it died; empty: it did not, or nobody could say
};

/// Writes it into the folder `run`, atomically. kIo.
void write_state(const std::filesystem::path& run, const StateRecord& record);

struct RunSummary {
  std::filesystem::path path;
  RunState state = RunState::kStopped;
  int64_t step = 0;        ///< of the log's last line
  int64_t steps = 0;       ///< train.steps; 0: not known
  int64_t checkpoint = 0;  ///< step of the newest; 0: there is none
  double loss = std::numeric_limits<double>::quiet_NaN();
  double samples_per_s = std::numeric_limits<double>::quiet_NaN();  ///< of the last steps
  double seconds_left = std::numeric_limits<double>::quiet_NaN();   ///< of one that trains
  std::string process;  ///< "host 1234" of one that trains or is paused
  // Empty: not known. Times are like "2026-01-31 23:59:59 UTC".
  std::string started = {};
  std::string ended = {};  ///< of one that does not train
  std::string host = {};
  std::string device = {};
  std::string commit = {};  ///< of the program
  std::string error = {};   ///< why it died
};

/// Whether the folder is that of a run.
[[nodiscard]] bool is_run(const std::filesystem::path& folder);

/// `folder` if it is a run, else the runs below it, by name. Runs do not hold runs. kIo if it
/// cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> find_runs(const std::filesystem::path& folder);

/// Reads the state, the end of the log and the names of checkpoints: quick for a log of any length.
/// kIo if the run cannot be read.
[[nodiscard]] RunSummary summarise(const std::filesystem::path& run);

}  // namespace kinora::train
