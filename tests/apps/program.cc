#include "tests/apps/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/apps/files.h"
#include "tests/places.h"

namespace kinora::apps {
namespace {

using Clock = std::chrono::steady_clock;

void redirect(const std::filesystem::path& file, int descriptor) {
  const int opened = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) {
    ::_exit(126);
  }
}

}  // namespace

Program::Program(const std::filesystem::path& command, const std::vector<std::string>& arguments,
                 const std::filesystem::path& folder) {
  static std::atomic<int> counter{0};
  const std::string name = "program-" + std::to_string(counter++);
  out_ = folder / (name + ".out");
  err_ = folder / (name + ".err");
  std::vector<std::string> words = {command.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) {
    redirect("/dev/null", STDIN_FILENO);
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  EXPECT_GT(process_, 0) << "fork failed";
}

Program::~Program() {
  if (!is_done_ && process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, &status_, 0);
  }
}

void Program::send(int signal) const {
  ASSERT_FALSE(is_done_) << "the process has ended already";
  ASSERT_EQ(::kill(process_, signal), 0);
}

bool Program::is_running() {
  if (!is_done_) {
    is_done_ = ::waitpid(process_, &status_, WNOHANG) == process_;
  }
  return !is_done_;
}

std::string Program::error_text() const {
  return read_text(err_);
}

Outcome Program::wait(std::chrono::seconds limit) {
  const Clock::time_point end = Clock::now() + limit;
  while (is_running()) {
    if (Clock::now() > end) {
      ADD_FAILURE() << "the program took longer than " << limit.count() << " s:\n"
                    << read_text(err_);
      ::kill(process_, SIGKILL);
      ::waitpid(process_, &status_, 0);
      is_done_ = true;
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  Outcome outcome;
  if (WIFEXITED(status_)) {
    outcome.exit_code = WEXITSTATUS(status_);
  } else {
    outcome.signal = WTERMSIG(status_);
  }
  outcome.out = read_text(out_);
  outcome.err = read_text(err_);
  return outcome;
}

std::filesystem::path kinora_program() {
  return build_path("kinora");
}

Outcome run_kinora(const std::vector<std::string>& arguments, const std::filesystem::path& folder) {
  return Program(kinora_program(), arguments, folder).wait();
}

}  // namespace kinora::apps
