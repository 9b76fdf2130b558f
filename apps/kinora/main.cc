// The command line of Kinora: reads arguments, calls the library, prints.

#include <c10/util/Exception.h>
#include <CLI/CLI.hpp>

#include <exception>
#include <iostream>
#include <new>
#include <sstream>
#include <string>

#include "apps/kinora/commands.h"
#include "kinora/core/build_info.h"
#include "kinora/core/error.h"

namespace {

// Exit codes by kind of error; docs/configuration.md lists them.
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitOutOfMemory = 8;

int exit_code(kinora::ErrorKind kind) {
  switch (kind) {
    case kinora::ErrorKind::kConfig:
      return kExitUsage;
    case kinora::ErrorKind::kShape:
      return 3;
    case kinora::ErrorKind::kIo:
      return 4;
    case kinora::ErrorKind::kCuda:
      return 5;
    case kinora::ErrorKind::kComm:
      return 6;
    case kinora::ErrorKind::kInternal:
      return 7;
  }
  return kExitFailure;
}

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
  kinora::apps::add_sample(app, action);
  kinora::apps::add_bench(app, action);
  kinora::apps::add_demo(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const kinora::Error& error) {
    std::cerr << "kinora: " << to_string(error.kind()) << " error: " << error.what() << '\n';
    return exit_code(error.kind());
  } catch (const c10::OutOfMemoryError& error) {
    std::cerr << "kinora: out of GPU memory: " << error.what_without_backtrace()
              << "\nHint: a smaller train.micro_batch (the global batch stays), or "
                 "train.recompute=block\n";
    return kExitOutOfMemory;
  } catch (const std::bad_alloc&) {
    std::cerr << "kinora: out of memory. Hint: a smaller train.micro_batch\n";
    return kExitOutOfMemory;
  } catch (const c10::Error& error) {
    std::cerr << "kinora: error in libtorch: " << error.what_without_backtrace() << '\n';
    return kExitFailure;
  } catch (const std::exception& error) {
    std::cerr << "kinora: error: " << error.what() << '\n';
    return kExitFailure;
  }
}
