#include "tests/apps/program_server.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/kinora/program.h"
#include "kinora/core/error.h"

namespace kinora::apps {
namespace {

void redirect(const char* file, int descriptor) {
  const int opened = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (opened < 0 || ::dup2(opened, descriptor) < 0) {
    ::_exit(126);
  }
  ::close(opened);
}

/// The fork that is to be the program.
[[noreturn]] void become_program(std::string& request) {
  std::vector<char*> strings;
  for (size_t at = 0; at < request.size(); at = request.find('\0', at) + 1) {
    strings.push_back(request.data() + at);
  }
  redirect(strings.at(0), STDOUT_FILENO);
  redirect(strings.at(1), STDERR_FILENO);
  const auto first_word = strings.begin() + 3;
  const auto first_variable = first_word + std::atoi(strings.at(2));
  std::vector<char*> argv(first_word, first_variable);
  argv.push_back(nullptr);
  ::clearenv();
  for (auto variable = first_variable; variable != strings.end(); ++variable) {
    ::putenv(*variable);
  }
  run_program(static_cast<int>(argv.size()) - 1, argv.data());
}

/// Starts programs as long as there is somebody who asks for them.
[[noreturn]] void serve() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  KINORA_CHECK(std::distance(begin(tasks), end(tasks)) == 1, kInternal,
               "[program server] a process that is forked must have one thread");
  auto* const program = static_cast<pid_t*>(
      ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  KINORA_CHECK(program != MAP_FAILED, kIo, "[program server] mmap failed");
  for (std::string request;;) {
    request.resize(1 << 18);
    const ssize_t size = ::recv(STDOUT_FILENO, request.data(), request.size(), 0);
    if (size <= 0) {
      std::_Exit(0);
    }
    request.resize(static_cast<size_t>(size));
    *program = -1;
    // Once the process between has ended, the program is a child of the test, a subreaper now.
    const pid_t between = ::fork();
    if (between == 0) {
      const pid_t forked = ::fork();
      if (forked == 0) {
        become_program(request);
      }
      *program = forked;
      ::_exit(0);
    }
    ::waitpid(between, nullptr, 0);
    ::send(STDOUT_FILENO, program, sizeof(pid_t), 0);
  }
}

}  // namespace
}  // namespace kinora::apps

int main(int argc, char** argv) {
  if (std::getenv(kinora::apps::kProgramServerVariable) != nullptr) {
    kinora::apps::serve();
  }
  kinora::apps::run_program(argc, argv);  // a rank, which the program starts by /proc/self/exe
}
