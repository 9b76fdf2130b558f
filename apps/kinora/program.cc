#include "apps/kinora/program.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "apps/kinora/options/command_line.h"
#include "kinora/core/printable.h"

namespace kinora::apps {
namespace {

int run_line(int argc, char** argv) {
  // A file at the limit of its size (ulimit -f) is an error to report, not the end.
  (void)std::signal(SIGXFSZ, SIG_IGN);
  static const PrintableStream kOut(std::cout);  // also where something calls exit
  static const PrintableStream kErrors(std::cerr);
  try {
    const CommandLine line = read_command_line(argc, argv);
    return line.command
               ? std::visit([](const auto& arguments) { return run(arguments); }, *line.command)
               : line.exit_code;
  } catch (const std::exception&) {
    const ErrorReport report = report_current_error();
    std::cerr << "kinora: " << report.text << '\n';
    return report.exit_code;
  }
}

}  // namespace

void run_program(int argc, char** argv) {
  const int exit_code = run_line(argc, argv);
  // All is done and closed. libtorch's destructors would take half as long as loading it.
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace kinora::apps
