#include "tests/apps/run_folder.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe = R"(# a run that takes half a second
model:
  depth: 2
  hidden: 32
  heads: 2
  patch: 4
  mlp_ratio: 2
data:
  source: shapes
  height: 16
  width: 16
  count: 256
  threads: 1
train:
  steps: 20
  global_batch: 8
  threads: 1
  device: cpu
lr:
  value: 1.0e-3
checkpoint:
  every: 10
sample:
  steps: 3
)";

nlohmann::json state_of(const fs::path& checkpoint) {
  nlohmann::json state = nlohmann::json::parse(read_text(checkpoint / "manifest.json")).at("state");
  state.erase("config");  // names the run directory
  return state;
}

bool is_measured(const std::string& key) {
  return key == "samples_per_s" || key.starts_with("step_s") || key.starts_with("compute_s") ||
         key.starts_with("communication_s") || key.starts_with("data_wait_s") ||
         key.starts_with("slowest_sample") || key == "peak_memory" || key == "slow_rank" ||
         key == "slowness" || key == "ranks_step";
}

}  // namespace

std::vector<LogLine> read_log(const fs::path& run) {
  std::vector<LogLine> lines;
  std::istringstream text(read_text(run / "log.jsonl"));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

void wait_for_log(Program& program, const fs::path& run, int64_t lines) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(program.is_running()) << program.error_text();
    const std::string text = fs::exists(run / "log.jsonl") ? read_text(run / "log.jsonl") : "";
    if (std::count(text.begin(), text.end(), '\n') >= lines) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FAIL() << "step " << lines << " was not logged: " << program.error_text();
}

std::vector<int64_t> checkpoint_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  if (fs::exists(run / "checkpoints")) {
    for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-")) {
        steps.push_back(std::stoll(name.substr(5)));
      }
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::map<std::string, std::string> arrays_of(const fs::path& checkpoint) {
  std::map<std::string, std::string> arrays;
  EXPECT_TRUE(fs::is_directory(checkpoint)) << checkpoint;
  if (fs::is_directory(checkpoint)) {
    for (const auto& entry : fs::directory_iterator(checkpoint)) {
      if (entry.path().extension() == ".safetensors") {
        arrays[entry.path().filename().string()] = read_text(entry.path());
      }
    }
  }
  return arrays;
}

void expect_same_state(const fs::path& left, const fs::path& right) {
  const auto left_arrays = arrays_of(left);
  const auto right_arrays = arrays_of(right);
  EXPECT_GE(left_arrays.size(), 3U) << left;  // weights and two moments
  EXPECT_EQ(left_arrays.size(), right_arrays.size());
  for (const auto& [name, bytes] : left_arrays) {
    const auto found = right_arrays.find(name);
    // Not EXPECT_EQ, which would print both files.
    EXPECT_TRUE(found != right_arrays.end() && found->second == bytes)
        << name << " of " << left << " and " << right << " differ";
  }
  EXPECT_EQ(state_of(left), state_of(right));
}

void expect_same_log(const fs::path& left, const fs::path& right, int64_t steps) {
  const std::vector<LogLine> left_log = read_log(left);
  const std::vector<LogLine> right_log = read_log(right);
  ASSERT_EQ(left_log.size(), static_cast<size_t>(steps));
  ASSERT_EQ(right_log.size(), static_cast<size_t>(steps));
  for (size_t i = 0; i < left_log.size(); ++i) {
    EXPECT_EQ(left_log[i].at("step"), static_cast<int64_t>(i) + 1);
    for (const auto& [key, value] : left_log[i].items()) {
      if (!is_measured(key)) {
        EXPECT_EQ(value, right_log[i].value(key, nlohmann::json())) << key << " of step " << i + 1;
      }
    }
  }
}

void expect_close_losses(const fs::path& left, const fs::path& right, int64_t steps,
                         double tolerance) {
  const std::vector<LogLine> left_log = read_log(left);
  const std::vector<LogLine> right_log = read_log(right);
  ASSERT_EQ(left_log.size(), static_cast<size_t>(steps));
  ASSERT_EQ(right_log.size(), static_cast<size_t>(steps));
  for (size_t i = 0; i < left_log.size(); ++i) {
    for (const char* key : {"loss", "validation_raw"}) {
      ASSERT_EQ(left_log[i].contains(key), right_log[i].contains(key))
          << key << " of step " << i + 1;
      if (left_log[i].contains(key)) {
        const double value = left_log[i].at(key);
        EXPECT_NEAR(right_log[i].at(key), value, tolerance * value) << key << " of step " << i + 1;
      }
    }
  }
}

RunTest::RunTest() : recipe_(folder_.path() / "tiny.yaml") {
  write_text(recipe_, kRecipe);
}

Arguments RunTest::train_command(const fs::path& run, const Arguments& more) const {
  Arguments arguments = {"train", recipe_.string(), "run.dir=" + run.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Outcome RunTest::train(const fs::path& run, const Arguments& more) const {
  return run_kinora(train_command(run, more), folder());
}

void RunTest::train_well(const fs::path& run, const Arguments& more) const {
  const Outcome outcome = train(run, more);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

void RunTest::run_well(const Arguments& arguments) const {
  const Outcome outcome = run_kinora(arguments, folder());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace kinora::apps
