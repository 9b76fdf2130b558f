#include "kinora/core/module_file.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "kinora/core/error.h"

namespace kinora {
namespace {

namespace fs = std::filesystem;

fs::path file_of(const ModuleInfo& module) {
  const std::string name = "kinora_" + module.name + ".so";
  if (const char* folder = std::getenv("KINORA_MODULES")) {
    return fs::path(folder) / name;
  }
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  KINORA_CHECK(!error, kIo, "[module] cannot find the folder of the program, where ", name,
               " is looked for: ", error.message(), ". Hint: name it by KINORA_MODULES");
  return program.parent_path() / name;
}

std::string last_reason() {
  const char* reason = ::dlerror();
  return reason != nullptr ? reason : "no reason given";
}

}  // namespace

bool has_module(const ModuleInfo& module) {
  std::error_code ignored;
  return fs::is_regular_file(file_of(module), ignored);
}

const void* load_module_table(const ModuleInfo& module) {
  const fs::path file = file_of(module);
  KINORA_CHECK(has_module(module), kConfig, "[module] this build has no ", module.what,
               " module, which ", module.needed_for, "; looked for ", file.string(),
               ". Hint: ", module.how_to_have);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  KINORA_CHECK(library != nullptr, kIo, "[module] the ", module.what, " module, which ",
               module.needed_for, ", cannot be loaded: ", last_reason(),
               ". Hint: ", module.how_to_have);
  const std::string symbol = "kinora_" + module.name + "_" + std::to_string(module.version);
  // A C function that returns the table: see the top of the header.
  const auto get_table = reinterpret_cast<const void* (*)()>(::dlsym(library, symbol.c_str()));
  KINORA_CHECK(get_table != nullptr, kConfig, "[module] ", file.string(),
               " must be of the same build as the program, got one without ", symbol,
               ". Hint: build it again with the program, or remove it");
  return get_table();
}

}  // namespace kinora
