// The command line of Kinora: reads arguments, calls the library, prints.

#include <CLI/CLI.hpp>

#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "apps/kinora/commands.h"
#include "apps/kinora/error_report.h"
#include "kinora/core/build_info.h"

namespace {

std::string version_text() {
  const kinora::BuildInfo& info = kinora::build_info();
  std::ostringstream text;
  text << "kinora " << info.version << "\ncommit        " << info.commit << "\ncompiler      "
       << info.compiler << ", " << info.build_type << "\nlibtorch      " << info.libtorch
       << "\nGPU support   " << (info.has_cuda ? "yes" : "no") << "\nown kernels   "
       << (info.has_own_kernels ? info.cuda_architectures : "none: libtorch's serve on GPUs");
  return text.str();
}

int run(int argc, char** argv) {
  CLI::App app{"Kinora trains and runs diffusion transformers.", "kinora"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  kinora::apps::Action action;
  kinora::apps::add_train(app, action);
  kinora::apps::add_plan(app, action);
  kinora::apps::add_sample(app, action);
  kinora::apps::add_bench(app, action);
  kinora::apps::add_runs(app, action);
  kinora::apps::add_doctor(app, action);
  kinora::apps::add_compare(app, action);
  kinora::apps::add_convert(app, action);
  kinora::apps::add_data(app, action);
  kinora::apps::add_eval(app, action);
  kinora::apps::add_demo(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kinora::apps::kExitUsage;
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception&) {
    const kinora::apps::ErrorReport report = kinora::apps::report_current_error();
    std::cerr << "kinora: " << report.text << '\n';
    return report.exit_code;
  }
}
