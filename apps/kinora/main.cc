// kinora: answers a wrong command line, --help and --version at once, since it does without
// libtorch, and becomes the program beside it for all else.

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "apps/kinora/options/command_line.h"
#include "apps/kinora/options/user_error.h"
#include "kinora/core/printable.h"

namespace {

constexpr const char* kProgram = "kinora-program";

/// How long threads of libgomp, which computes with them on the CPU, spin before they sleep. Its
/// default spins for milliseconds: where something else runs, that takes the processor from what
/// they wait for. libgomp reads it when it is loaded.
constexpr const char* kSpinCount = "10000";

void choose_waiting() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) {
    ::setenv("GOMP_SPINCOUNT", kSpinCount, /*overwrite=*/0);
  }
}

/// Runs the program in this process, with the same arguments. Returns only if it cannot be run.
void become_program(char** argv) {
  std::error_code error;
  const auto launcher = std::filesystem::read_symlink("/proc/self/exe", error);
  KINORA_CHECK(!error, kIo, "[kinora] cannot find its own file: ", error.message());
  const std::string program = launcher.parent_path() / kProgram;
  ::execv(program.c_str(), argv);
  kinora::throw_error(kinora::ErrorKind::kIo, "[kinora] cannot run ", program, ": ",
                      std::strerror(errno), ". Hint: it belongs beside ", launcher.string());
}

}  // namespace

int main(int argc, char** argv) {
  const kinora::PrintableStream out(std::cout);
  const kinora::PrintableStream errors(std::cerr);
  const kinora::apps::CommandLine line = kinora::apps::read_command_line(argc, argv);
  if (!line.command) {
    return line.exit_code;
  }
  try {
    choose_waiting();
    become_program(argv);
  } catch (const kinora::Error& error) {
    std::cerr << "kinora: " << kinora::apps::error_text(error) << '\n';
    return kinora::apps::exit_code(error.kind());
  }
}
