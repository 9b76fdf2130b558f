#include "kinora/train/records/run_state.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "kinora/checkpoint/step_folders.h"
#include "kinora/core/build_info.h"
#include "kinora/core/error.h"
#include "kinora/core/printable.h"
#include "kinora/io/file.h"
#include "kinora/io/file_lock.h"
#include "kinora/io/jsonl.h"
#include "kinora/train/records/run_directory.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kRunStateNames = {"training", "paused", "stopped",
                                                            "complete", "died"};
constexpr int64_t kMaxStateBytes = 65536;
constexpr size_t kMaxErrorBytes = 4096;         // of the reason for an end
constexpr int64_t kLogTail = int64_t{1} << 16;  // bytes: about a hundred steps
constexpr int kMostDepth = 4;                   // of folders of runs
constexpr size_t kHostNameBytes = 256;

std::string host_name() {
  std::array<char, kHostNameBytes> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

/// "2026-01-31 23:59:59 UTC".
std::string text_of(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &utc)};
}

/// When the file was written; empty without one.
std::string time_of(const fs::path& file) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(file, error);
  return error ? ""
               : text_of(std::chrono::file_clock::to_sys(
                     std::chrono::time_point_cast<std::chrono::seconds>(time)));
}

nlohmann::json parse(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

/// What state.json says; nothing where there is none, as of runs of older versions, or where it
/// makes no sense.
struct Said {
  StateRecord record;
  std::string host;
  std::string process;
  std::string started;
  std::string time;
  std::string commit;
};

std::optional<Said> read_state(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return std::nullopt;
  }
  const nlohmann::json json = parse(io::read_text(file, kMaxStateBytes));
  const auto text = [&json](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  const auto number = [&json](const char* key) {
    return json.contains(key) && json[key].is_number_integer() ? json[key].get<int64_t>() : 0;
  };
  if (!json.is_object()) {
    return std::nullopt;
  }
  const auto* const name = std::find(kRunStateNames.begin(), kRunStateNames.end(), text("state"));
  if (name == kRunStateNames.end()) {
    return std::nullopt;
  }
  return Said{.record = {.state = static_cast<RunState>(name - kRunStateNames.begin()),
                         .step = number("step"),
                         .steps = number("steps"),
                         .device = text("device"),
                         .error = text("error")},
              .host = text("host"),
              .process = text("host") + " " + std::to_string(number("process")),
              .started = text("started"),
              .time = text("time"),
              .commit = text("commit")};
}

/// The last steps of a log.
struct LogEnd {
  int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double samples_per_s = std::numeric_limits<double>::quiet_NaN();
  double step_seconds = std::numeric_limits<double>::quiet_NaN();
};

LogEnd read_end(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return {};
  }
  const io::FileReader reader(file);
  const int64_t begin = std::max<int64_t>(reader.size() - kLogTail, 0);
  std::string text(static_cast<size_t>(reader.size() - begin), '\0');
  reader.read_at(begin, std::as_writable_bytes(std::span(text)));
  LogEnd end;
  double seconds = 0.0;
  double samples = 0.0;
  int64_t num_steps = 0;
  size_t at = begin == 0 ? 0 : text.find('\n') + 1;  // the first line may be cut
  for (size_t line_end = text.find('\n', at); line_end != std::string::npos;
       at = line_end + 1, line_end = text.find('\n', at)) {
    const nlohmann::json line = parse(std::string_view(text).substr(at, line_end - at));
    const auto number = [&line](const char* key) {
      return line.is_object() && line.contains(key) && line[key].is_number()
                 ? line[key].get<double>()
                 : std::numeric_limits<double>::quiet_NaN();
    };
    const double step_seconds = number("step_s");
    const double samples_per_s = number("samples_per_s");
    if (step_seconds > 0.0 && samples_per_s > 0.0) {
      seconds += step_seconds;
      samples += samples_per_s * step_seconds;
      ++num_steps;
    }
    if (const double step = number("step"); step > 0.0) {
      end.step = static_cast<int64_t>(step);
      end.loss = number("loss");
    }
  }
  if (num_steps > 0) {
    end.samples_per_s = samples / seconds;
    end.step_seconds = seconds / static_cast<double>(num_steps);
  }
  return end;
}

void add_runs(const fs::path& folder, int depth, std::vector<fs::path>& runs) {
  if (is_run(folder)) {
    runs.push_back(folder);
    return;
  }
  if (depth == kMostDepth) {
    return;
  }
  std::vector<fs::path> folders;
  for (const auto& entry :
       fs::directory_iterator(folder, fs::directory_options::skip_permission_denied)) {
    std::error_code ignored;
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored)) {
      folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  for (const fs::path& inner : folders) {
    add_runs(inner, depth + 1, runs);
  }
}

}  // namespace

std::string_view to_string(RunState state) {
  return kRunStateNames[static_cast<size_t>(state)];
}

void write_state(const fs::path& run, const StateRecord& record) {
  const fs::path file = RunDirectory(run).state_file();
  const std::string now = text_of(std::chrono::system_clock::now());
  const std::optional<Said> before = read_state(file);
  io::JsonObject state;
  state.add("state", to_string(record.state))
      .add("step", record.step)
      .add("steps", record.steps)
      .add("started", before && !before->started.empty() ? before->started : now)
      .add("time", now)
      .add("host", host_name())
      .add("process", ::getpid())
      .add("device", record.device)
      .add("commit", build_info().commit);
  if (!record.error.empty()) {
    state.add("error", printable(record.error.substr(0, kMaxErrorBytes)));
  }
  io::write_file_atomic(file, state.text() + "\n");
}

bool is_run(const fs::path& folder) {
  const RunDirectory run(folder);
  std::error_code ignored;
  return fs::is_regular_file(run.config_file(), ignored) && fs::exists(run.lock_file(), ignored);
}

std::vector<fs::path> find_runs(const fs::path& folder) {
  std::error_code ignored;
  KINORA_CHECK(fs::is_directory(folder, ignored), kIo, "[runs] ", folder,
               " is no folder. Hint: name a run, or the folder that runs are in");
  std::vector<fs::path> runs;
  add_runs(folder, 0, runs);
  return runs;
}

RunSummary summarise(const fs::path& folder) {
  const RunDirectory run(folder);
  RunSummary summary{.path = folder, .process = {}};
  const bool is_alive = io::FileLock::is_held(run.lock_file());
  const std::optional<Said> said = read_state(run.state_file());
  const LogEnd end = read_end(run.log_file());
  summary.step = end.step;
  summary.loss = end.loss;
  summary.samples_per_s = end.samples_per_s;
  const auto checkpoints = checkpoint::list_checkpoints(run.checkpoints());
  summary.checkpoint = checkpoints.empty() ? 0 : *checkpoint::step_of(checkpoints.back());
  if (said) {
    summary.state = said->record.state;
    summary.step = std::max(summary.step, said->record.step);
    summary.steps = said->record.steps;
    summary.started = said->started;
    summary.host = said->host;
    summary.device = said->record.device;
    summary.commit = said->commit;
  }
  const bool says_alive =
      said && (summary.state == RunState::kTraining || summary.state == RunState::kPaused);
  if (is_alive) {
    summary.state = says_alive ? summary.state : RunState::kTraining;  // it starts
    summary.process = said ? said->process : "";
  } else if (says_alive) {
    summary.state = RunState::kDied;
  }
  if (!is_alive) {
    // One that died without a word wrote its log last.
    summary.ended = std::max(said ? said->time : "", time_of(run.log_file()));
    summary.error = said ? said->record.error : "";
  }
  if (is_alive && summary.state == RunState::kTraining && summary.steps > 0) {
    summary.seconds_left = end.step_seconds * static_cast<double>(summary.steps - summary.step);
  }
  return summary;
}

}  // namespace kinora::train
