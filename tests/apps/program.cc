#include "tests/apps/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "kinora/core/child_process.h"
#include "kinora/core/error.h"
#include "tests/apps/files.h"
#include "tests/apps/program_server.h"
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

/// The process that programs are forked from.
class ProgramServer {
 public:
  ProgramServer() {
    std::array<int, 2> ends{};
    KINORA_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, kIo,
                 "[program server] socketpair failed");
    socket_ = OpenDescriptor(ends[0]);
    process_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{build_path(kProgramServer).string()},
        std::vector<std::string>{std::string(kProgramServerVariable) + "=1"},
        OpenDescriptor(ends[1]), OpenDescriptor(::dup(STDERR_FILENO)));
  }

  /// Starts a program; -1 if it could not be started.
  [[nodiscard]] pid_t start(const std::vector<std::string>& arguments,
                            const std::filesystem::path& out, const std::filesystem::path& err) {
    std::string request;
    const auto add = [&request](const std::string& text) { request.append(text).push_back('\0'); };
    add(out);
    add(err);
    add(std::to_string(arguments.size() + 1));
    add("kinora");
    for (const std::string& argument : arguments) {
      add(argument);
    }
    for (char** variable = environ; *variable != nullptr; ++variable) {
      add(*variable);
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t program = -1;
    if (::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(socket_.get(), &program, sizeof(program), 0) != sizeof(program)) {
      program = -1;
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    return program;
  }

 private:
  OpenDescriptor socket_;
  std::unique_ptr<ChildProcess> process_;
};

}  // namespace

Program::Program(const std::filesystem::path& folder) {
  static std::atomic<int> counter{0};
  const std::string name = "program-" + std::to_string(counter++);
  out_ = folder / (name + ".out");
  err_ = folder / (name + ".err");
}

Program::Program(const std::vector<std::string>& arguments, const std::filesystem::path& folder)
    : Program(folder) {
  // Ranks are started by the command line of their launcher, and a fork has not one of its own.
  if (std::find(arguments.begin(), arguments.end(), "--ranks") != arguments.end()) {
    start(kinora_program(), arguments);
    return;
  }
  static ProgramServer server;
  process_ = server.start(arguments, out_, err_);
  KINORA_CHECK(process_ > 0, kIo, "[program server] the program could not be started");
}

Program::Program(const std::filesystem::path& command, const std::vector<std::string>& arguments,
                 const std::filesystem::path& folder)
    : Program(folder) {
  start(command, arguments);
}

void Program::start(const std::filesystem::path& command,
                    const std::vector<std::string>& arguments) {
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
  return Program(arguments, folder).wait();
}

}  // namespace kinora::apps
