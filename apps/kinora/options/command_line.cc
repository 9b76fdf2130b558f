#include "apps/kinora/options/command_line.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/kinora/options/user_error.h"
#include "kinora/core/build_info.h"
#include "kinora/core/nearest_name.h"

namespace kinora::apps {
namespace {

std::string version_text() {
  const BuildInfo& info = build_info();
  std::ostringstream text;
  text << "kinora " << info.version << "\ncommit        " << info.commit << "\ncompiler      "
       << info.compiler << ", " << info.build_type << "\nlibtorch      " << info.libtorch
       << "\nGPU support   " << (info.has_cuda ? "yes" : "no") << "\nown kernels   "
       << (info.has_own_kernels ? info.cuda_architectures : "none: libtorch's serve on GPUs");
  return text.str();
}

/// What was probably meant by the first word that nothing takes: "Hint: did you mean train?".
std::string hint(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  if (words.empty()) {
    return "";
  }
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
  }
  std::vector<std::string> names;
  for (const CLI::App* known : command->get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(known->get_name());
  }
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  const std::string nearest = nearest_name(words.front(), names);
  return nearest.empty() ? "" : "Hint: did you mean " + nearest + "?\n";
}

/// What only several options together can have wrong, where a subcommand has such options.
struct CheckRanks {
  template <typename Arguments>
  void operator()(const Arguments& arguments) const {
    if constexpr (requires { check(arguments.ranks); }) {
      check(arguments.ranks);
    }
  }
};

}  // namespace

CommandLine read_command_line(int argc, const char* const* argv) {
  CLI::App app{"Kinora trains and runs diffusion transformers.", "kinora"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  CommandLine line;
  add_train(app, line.command);
  add_plan(app, line.command);
  add_sample(app, line.command);
  add_bench(app, line.command);
  add_runs(app, line.command);
  add_doctor(app, line.command);
  add_compare(app, line.command);
  add_convert(app, line.command);
  add_data(app, line.command);
  add_eval(app, line.command);
  add_demo(app, line.command);
  try {
    app.parse(argc, argv);
    std::visit(CheckRanks(), *line.command);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words = app.remaining();
    if (app.get_subcommands().empty() && !words.empty() && !words.front().starts_with('-')) {
      std::cerr << "kinora: there is no command " << words.front() << '\n'
                << hint(app) << "Run kinora --help for more information.\n";
      return {.command = {}, .exit_code = kExitUsage};
    }
    const bool is_answer = app.exit(error) == 0;  // help or the version
    if (!is_answer) {
      std::cerr << hint(app);
    }
    return {.command = {}, .exit_code = is_answer ? 0 : kExitUsage};
  } catch (const Error& error) {
    std::cerr << "kinora: " << error_text(error) << '\n';
    return {.command = {}, .exit_code = exit_code(error.kind())};
  }
  return line;
}

}  // namespace kinora::apps
