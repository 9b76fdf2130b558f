#include "kinora/train/records/run_requests.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/io/file.h"
#include "kinora/io/jsonl.h"

namespace kinora::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRequest = ".request";
constexpr const char* kAnswer = ".answer";
constexpr int64_t kMaxBytes = 4096;
constexpr size_t kTimeDigits = 20;

std::optional<RunCommand> parse_command(std::string_view name) {
  const auto* const found = std::find(kRunCommandNames.begin() + 1, kRunCommandNames.end(), name);
  if (found == kRunCommandNames.end()) {
    return std::nullopt;
  }
  return static_cast<RunCommand>(found - kRunCommandNames.begin());
}

/// Sorts by time, and is of one process at one moment.
std::string new_id() {
  static int64_t last = 0;
  const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  last = std::max(now, last + 1);
  const std::string digits = std::to_string(last);
  return std::string(kTimeDigits - std::min(digits.size(), kTimeDigits), '0') + digits + "-" +
         std::to_string(::getpid());
}

/// Nothing where it was removed by somebody else.
std::optional<std::string> read_small(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return std::nullopt;
  }
  return io::read_text(path, kMaxBytes);
}

/// Why `request` cannot be one; "" if it can.
std::string fault_of(const RunRequest& request) {
  if (!std::isfinite(request.value) || request.value < 0.0) {
    return "a value must be finite and not negative";
  }
  if (request.command == RunCommand::kExtend && request.value != std::floor(request.value)) {
    return "steps must be a whole number";
  }
  if (request.command == RunCommand::kExtend && request.value > 0x1p53) {
    return "steps must be at most 2^53";
  }
  return "";
}

std::optional<RunRequest> parse_request(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("command") || !json["command"].is_string()) {
    return std::nullopt;
  }
  const auto command = parse_command(json["command"].get<std::string>());
  if (!command) {
    return std::nullopt;
  }
  RunRequest request{.id = {}, .command = *command, .value = 0.0};
  if (json.contains("value")) {
    if (!json["value"].is_number()) {
      return std::nullopt;
    }
    request.value = json["value"].get<double>() + 0.0;  // no -0
  }
  if (!fault_of(request).empty()) {
    return std::nullopt;
  }
  return request;
}

}  // namespace

std::string RequestBox::ask(RunCommand command, double value) const {
  const RunRequest request{.id = new_id(), .command = command, .value = value};
  const std::string fault = fault_of(request);
  KINORA_CHECK(fault.empty(), kConfig, "[runs] ", fault, ", got ", value);
  std::error_code failure;
  fs::create_directories(folder_, failure);
  KINORA_CHECK(!failure, kIo, "[runs] cannot create ", folder_, ": ", failure.message());
  io::write_file_atomic(
      folder_ / (request.id + kRequest),
      io::JsonObject().add("command", to_string(command)).add("value", value).text());
  return request.id;
}

std::optional<RunAnswer> RequestBox::answer_to(const std::string& id) const {
  const fs::path path = folder_ / (id + kAnswer);
  const auto text = read_small(path);
  if (!text) {
    return std::nullopt;
  }
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const bool is_whole = json.is_object() && json.value("done", nlohmann::json()).is_boolean() &&
                        json.value("step", nlohmann::json()).is_number_integer() &&
                        json.value("text", nlohmann::json()).is_string();
  KINORA_CHECK(is_whole, kIo, "[runs] ", path, " must be an answer of a run");
  fs::remove(path);
  return RunAnswer{.done = json["done"].get<bool>(),
                   .step = json["step"].get<int64_t>(),
                   .text = json["text"].get<std::string>()};
}

bool RequestBox::withdraw(const std::string& id) const {
  std::error_code ignored;
  return fs::remove(folder_ / (id + kRequest), ignored);
}

std::optional<RunRequest> RequestBox::take() const {
  std::error_code failure;
  if (!fs::is_directory(folder_, failure)) {
    return std::nullopt;
  }
  std::vector<fs::path> requests;
  for (const auto& entry : fs::directory_iterator(folder_, failure)) {
    if (entry.path().extension() == kRequest) {
      requests.push_back(entry.path());
    }
  }
  std::sort(requests.begin(), requests.end());
  for (const fs::path& path : requests) {
    std::optional<RunRequest> request;
    std::string fault = "it is not a request that this version knows";
    try {
      const auto text = read_small(path);
      request = text ? parse_request(*text) : std::nullopt;
    } catch (const Error& error) {
      fault = error.what();
    }
    if (!fs::remove(path, failure)) {
      continue;  // it was withdrawn, or is not ours to remove
    }
    if (request) {
      request->id = path.stem().string();
      return request;
    }
    reply({.id = path.stem().string()}, {.done = false, .step = 0, .text = fault});
  }
  return std::nullopt;
}

void RequestBox::reply(const RunRequest& request, const RunAnswer& answer) const {
  io::write_file_atomic(folder_ / (request.id + kAnswer), io::JsonObject()
                                                              .add("done", answer.done)
                                                              .add("step", answer.step)
                                                              .add("text", answer.text)
                                                              .text());
}

void RequestBox::clear() const {
  std::error_code ignored;
  if (!fs::is_directory(folder_, ignored)) {
    return;
  }
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const fs::path extension = entry.path().extension();
    if (extension == kRequest || extension == kAnswer) {
      fs::remove(entry.path(), ignored);
    }
  }
}

}  // namespace kinora::train
