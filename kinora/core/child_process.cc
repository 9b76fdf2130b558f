#include "kinora/core/child_process.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "kinora/core/error.h"

namespace kinora {
namespace {

void check_system(bool succeeded, const char* what) {
  KINORA_CHECK(succeeded, kIo, "[launch] ", what, " failed: ", std::strerror(errno));
}

void close_on_exec(int descriptor) {
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

void never_block(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

std::string_view name_of(std::string_view variable) {
  return variable.substr(0, variable.find('='));
}

/// This process's environment, `variables` over it.
std::vector<std::string> merged_environment(const std::vector<std::string>& variables) {
  std::vector<std::string> merged = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool is_replaced = false;
    for (const std::string& variable : variables) {
      is_replaced = is_replaced || name_of(variable) == name_of(*entry);
    }
    if (!is_replaced) {
      merged.emplace_back(*entry);
    }
  }
  return merged;
}

std::vector<char*> c_strings(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildSetup {
  char** argv;
  char** environment;
  int standard_input;
  int standard_output;
  int standard_error;
  int failure;  // takes errno if the command cannot be run
  pid_t parent;
};

/// The child between fork and exec: only calls that are safe in a process with several threads.
[[noreturn]] void become(const ChildSetup& setup) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.parent) {
    ::_exit(1);  // the launcher died before the line above: nobody is left to tell
  }
  // What is ignored stays so over exec. A launcher started by "command &" of a script ignores
  // SIGINT, and its ranks shall hear it all the same.
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(setup.standard_input, STDIN_FILENO) >= 0 &&
      ::dup2(setup.standard_output, STDOUT_FILENO) >= 0 &&
      ::dup2(setup.standard_error, STDERR_FILENO) >= 0) {
    ::execvpe(setup.argv[0], setup.argv, setup.environment);
  }
  const int code = errno;
  // If even this fails, the parent sees an exit with 127, as from a shell.
  [[maybe_unused]] const ssize_t written = ::write(setup.failure, &code, sizeof(code));
  ::_exit(127);
}

}  // namespace

void OpenDescriptor::close() {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

OutputChannel open_pipe() {
  std::array<int, 2> ends{};
  check_system(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  never_block(ends[0]);
  return {OpenDescriptor(ends[0]), OpenDescriptor(ends[1])};
}

OutputChannel open_pseudo_terminal(int like) {
  termios settings{};
  winsize size{};
  check_system(::tcgetattr(like, &settings) == 0, "tcgetattr");
  check_system(::ioctl(like, TIOCGWINSZ, &size) == 0, "TIOCGWINSZ");
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // the real terminal turns \n into \r\n
  int master = -1;
  int slave = -1;
  check_system(::openpty(&master, &slave, nullptr, &settings, &size) == 0, "openpty");
  close_on_exec(master);
  close_on_exec(slave);
  never_block(master);
  return {OpenDescriptor(master), OpenDescriptor(slave)};
}

void copy_terminal_size(int like, const OpenDescriptor& pseudo_terminal) {
  winsize size{};
  if (::ioctl(like, TIOCGWINSZ, &size) == 0) {
    ::ioctl(pseudo_terminal.get(), TIOCSWINSZ, &size);
  }
}

ChildProcess::ChildProcess(const std::vector<std::string>& command,
                           const std::vector<std::string>& variables,
                           const OpenDescriptor& standard_output,
                           const OpenDescriptor& standard_error) {
  KINORA_CHECK(!command.empty(), kConfig, "[launch] a command is needed, got none");
  // All that allocates happens before the fork.
  std::vector<std::string> words = command;
  std::vector<std::string> environment = merged_environment(variables);
  std::vector<char*> argv = c_strings(words);
  std::vector<char*> envp = c_strings(environment);
  const OpenDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  check_system(nothing.is_open(), "opening /dev/null");
  std::array<int, 2> ends{};
  check_system(::pipe2(ends.data(), O_CLOEXEC) == 0, "pipe2");
  const OpenDescriptor failure_read(ends[0]);
  OpenDescriptor failure_write(ends[1]);
  const ChildSetup setup{
      argv.data(),          envp.data(),         nothing.get(), standard_output.get(),
      standard_error.get(), failure_write.get(), ::getpid()};
  pid_ = ::fork();
  if (pid_ == 0) {
    become(setup);
  }
  check_system(pid_ > 0, "fork");
  failure_write.close();

  // Returns at exec, which closes the other end.
  int code = 0;
  ssize_t size = -1;
  do {
    size = ::read(failure_read.get(), &code, sizeof(code));
  } while (size < 0 && errno == EINTR);
  if (size == sizeof(code)) {
    reap();
    throw_error(ErrorKind::kConfig, "[launch] cannot run ", command[0], ": ", std::strerror(code));
  }

  // By number, since glibc knows its name only from 2.36 on.
  end_ = OpenDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!end_.is_open()) {
    const int why = errno;
    reap();
    throw_error(ErrorKind::kIo, "[launch] pidfd_open failed: ", std::strerror(why),
                ". Hint: it needs Linux 5.3");
  }
}

ChildProcess::~ChildProcess() {
  if (is_running()) {
    reap();
  }
}

void ChildProcess::send(int signal) const {
  ::kill(-pid_, signal);
}

ProcessEnd ChildProcess::reap() {
  // Before waitpid: until then the process, even dead, keeps the number of its group from others.
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  end_.close();
  ProcessEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  return end;
}

}  // namespace kinora
