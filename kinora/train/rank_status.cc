#include "kinora/train/rank_status.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <tuple>

#include "kinora/core/text.h"
#include "kinora/core/text_table.h"

namespace kinora::train {
namespace {

constexpr char kSeparator = '\t';
constexpr double kMilliseconds = 1e3;

/// Texts come from files' names, which may hold anything.
std::string one_field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  return text;
}

int64_t milliseconds(double seconds) {
  return static_cast<int64_t>(seconds * kMilliseconds);
}

/// The fields of a line, one after the other.
class Reader {
 public:
  explicit Reader(std::string_view line) : fields_(split(line, kSeparator)) {}

  std::string_view text() { return next_ < fields_.size() ? fields_[next_++] : fail(); }

  int64_t number() {
    const std::string_view field = text();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc() || end != field.data() + field.size()) {
      fail();
    }
    return value;
  }

  double seconds() { return static_cast<double>(number()) / kMilliseconds; }

  [[nodiscard]] bool read_all() const { return !failed_ && next_ == fields_.size(); }

 private:
  std::string_view fail() {
    failed_ = true;
    return {};
  }

  std::vector<std::string_view> fields_;
  size_t next_ = 0;
  bool failed_ = false;
};

std::string number_or_dash(int64_t number) {
  return number > 0 ? std::to_string(number) : "-";
}

std::string remark(const RankStatus& status, bool is_behind) {
  std::string text = is_behind ? "<- behind" : "";
  if (status.silent > 0.0) {
    text += (text.empty() ? "" : ", ");
    text += "silent for " + human_duration(status.silent);
  }
  return text;
}

}  // namespace

std::string_view to_string(Phase phase) {
  constexpr std::array<std::string_view, kNumPhases> kNames = {
      "start",    "data",  "forward and backward", "update", "checkpoint", "validation",
      "sampling", "paused"};
  return kNames[static_cast<size_t>(phase)];
}

std::string encode(const RankStatus& status) {
  std::ostringstream line;
  line << status.rank << kSeparator << one_field(status.host) << kSeparator << status.step
       << kSeparator << status.finished << kSeparator << static_cast<int64_t>(status.phase)
       << kSeparator << milliseconds(status.in_phase) << kSeparator << milliseconds(status.unmoved)
       << kSeparator << milliseconds(status.limit) << kSeparator << status.num_calls << kSeparator
       << one_field(status.collective) << kSeparator << one_field(status.data_file);
  return line.str();
}

std::optional<RankStatus> decode_status(const std::string& text) {
  Reader reader(text);
  RankStatus status;
  status.rank = reader.number();
  status.host = reader.text();
  status.step = reader.number();
  status.finished = reader.number();
  const int64_t phase = reader.number();
  status.in_phase = reader.seconds();
  status.unmoved = reader.seconds();
  status.limit = reader.seconds();
  status.num_calls = reader.number();
  status.collective = reader.text();
  status.data_file = reader.text();
  if (!reader.read_all() || phase < 0 || phase >= kNumPhases) {
    return std::nullopt;
  }
  status.phase = static_cast<Phase>(phase);
  return status;
}

bool may_still_move(const RankStatus& status) {
  return status.silent == 0.0 && status.unmoved < status.limit;
}

std::vector<size_t> ranks_behind(const std::vector<RankStatus>& all) {
  const auto which = [&all](const auto& is_behind) {
    std::vector<size_t> found;
    for (size_t i = 0; i < all.size(); ++i) {
      if (is_behind(all[i])) {
        found.push_back(i);
      }
    }
    return found;
  };
  std::vector<size_t> behind = which([](const RankStatus& s) { return s.silent > 0.0; });
  if (!behind.empty()) {
    return behind;
  }
  const auto how_far = [](const RankStatus& s) {
    return std::tuple(s.step, s.finished, s.num_calls);
  };
  const auto by_progress = [&](const RankStatus& a, const RankStatus& b) {
    return how_far(a) < how_far(b);
  };
  const RankStatus& least = *std::min_element(all.begin(), all.end(), by_progress);
  behind = which([&](const RankStatus& s) { return how_far(s) == how_far(least); });
  if (behind.size() == all.size()) {
    behind = which([](const RankStatus& s) { return s.phase == Phase::kData; });
  }
  return behind.size() == all.size() ? std::vector<size_t>() : behind;
}

std::string status_table(const std::vector<RankStatus>& all, const std::vector<size_t>& behind) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "host", "step", "finished", "phase", "for", "last collective", "data file", ""}};
  for (size_t i = 0; i < all.size(); ++i) {
    const RankStatus& status = all[i];
    const bool is_behind = std::find(behind.begin(), behind.end(), i) != behind.end();
    rows.push_back({std::to_string(status.rank), status.host, number_or_dash(status.step),
                    number_or_dash(status.finished), std::string(to_string(status.phase)),
                    human_duration(status.in_phase),
                    status.collective.empty() ? "-" : status.collective,
                    status.data_file.empty() ? "-" : status.data_file, remark(status, is_behind)});
  }
  return text_table(rows);
}

}  // namespace kinora::train
