#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

/// The program `kinora`, as a process of its own.
namespace kinora::apps {

// Exit codes (docs/configuration.md).
inline constexpr int kUsage = 2;
inline constexpr int kIo = 4;
inline constexpr int kCuda = 5;
inline constexpr int kOutOfMemory = 8;
inline constexpr int kDiverged = 10;

/// How a process ended and what it said.
struct Outcome {
  int exit_code = -1;  ///< -1: a signal ended it
  int signal = 0;      ///< 0: it ended by itself
  std::string out;
  std::string err;
};

/// A running kinora. Its output goes into files in `folder`, whose names no other Program uses.
class Program {
 public:
  /// Starts `command`, found by its path, or by its name in PATH.
  Program(const std::filesystem::path& command, const std::vector<std::string>& arguments,
          const std::filesystem::path& folder);
  /// Starts kinora: in a fork of a process that has loaded libtorch (program_server.h), or, if it
  /// is to start ranks, as a user does.
  Program(const std::vector<std::string>& arguments, const std::filesystem::path& folder);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  /// Kills it if it still runs.
  ~Program();

  void send(int signal) const;
  [[nodiscard]] bool is_running();
  /// What it has said on standard error so far.
  [[nodiscard]] std::string error_text() const;
  /// Waits for the end; a process that takes longer than `limit` is killed, and the test fails.
  Outcome wait(std::chrono::seconds limit = std::chrono::seconds(300));

 private:
  explicit Program(const std::filesystem::path& folder);
  void start(const std::filesystem::path& command, const std::vector<std::string>& arguments);

  std::filesystem::path out_;
  std::filesystem::path err_;
  pid_t process_ = -1;
  bool is_done_ = false;
  int status_ = 0;
};

/// The program under test, for a Program that is started as a user starts it.
[[nodiscard]] std::filesystem::path kinora_program();

/// Runs kinora to its end, without the time that libtorch takes to load (program_server.h).
Outcome run_kinora(const std::vector<std::string>& arguments, const std::filesystem::path& folder);

}  // namespace kinora::apps
