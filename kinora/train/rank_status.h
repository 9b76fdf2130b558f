#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What ranks tell each other about where they are, and what follows from it when nothing moves.
/// Functions of data only; watchdog.h gathers the data.
namespace kinora::train {

/// What the training loop of a rank is at.
enum class Phase {
  kStart,            ///< before the first step
  kData,             ///< waits for a batch
  kForwardBackward,  ///< on a GPU: puts it on the device's queue
  kUpdate,           ///< the optimizer's, and the wait for the device
  kCheckpoint,
  kValidation,
  kSampling,
  kPaused,  ///< as somebody asked for
};
inline constexpr int64_t kNumPhases = 8;

/// "start", "data", "forward and backward", ...
[[nodiscard]] std::string_view to_string(Phase phase);

struct RankStatus {
  int64_t rank = 0;
  std::string host;
  int64_t step = 0;      ///< that the host is at, from 1; 0: none yet
  int64_t finished = 0;  ///< step that the device has finished; 0: none yet
  Phase phase = Phase::kStart;
  double in_phase = 0.0;   ///< seconds in the phase of the step
  double unmoved = 0.0;    ///< seconds since anything here changed
  double limit = 0.0;      ///< seconds: to be unmoved for as long is a stall
  int64_t num_calls = 0;   ///< of collectives, by any group
  std::string collective;  ///< the last one, for people; empty: none yet
  std::string data_file;   ///< that a batch is waited for; empty: none, or not known
  /// Set by who reads it: seconds for which nothing came from the rank although it should have,
  /// 0 if all is well.
  double silent = 0.0;
};

/// One line, and back; none if `text` is not of that form.
[[nodiscard]] std::string encode(const RankStatus& status);
[[nodiscard]] std::optional<RankStatus> decode_status(const std::string& text);

/// Whether the rank keeps the others from calling it a stall: it is heard of, and within its limit.
[[nodiscard]] bool may_still_move(const RankStatus& status);

/// Who seems to hold up the others: ranks that are silent; else, unless all are equally far, those
/// with the smallest step and number of collectives; else those that wait for data while others do
/// not; else nobody. Indices into `all`.
[[nodiscard]] std::vector<size_t> ranks_behind(const std::vector<RankStatus>& all);

/// A line of headings and a line a rank; `behind` as above.
[[nodiscard]] std::string status_table(const std::vector<RankStatus>& all,
                                       const std::vector<size_t>& behind);

}  // namespace kinora::train
