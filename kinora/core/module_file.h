#pragma once

#include <cstdint>
#include <string>

/// Modules: parts of Kinora in shared libraries of their own, kinora_NAME.so, because they want
/// libraries of others that not every machine has. They are loaded when first needed; the program
/// starts and works without them.
///
/// A module and the program share one header with a table of functions, in the C ABI: they throw
/// nothing, and what the module allocates the module frees. The module offers it as
///
///     extern "C" KINORA_MODULE_EXPORT const ParquetTable* kinora_parquet_3() { return &kTable; }
///
/// where 3 is the table's version: raise it with every change of the header, so that a file left
/// from an older build is recognised.
#define KINORA_MODULE_EXPORT __attribute__((visibility("default")))

namespace kinora {

/// Which module, and what to tell those who lack it.
struct ModuleInfo {
  std::string name;         ///< "parquet": the file is kinora_parquet.so
  int64_t version = 1;      ///< of its table
  std::string what;         ///< "Parquet": "this build has no Parquet module"
  std::string needed_for;   ///< "reads .parquet manifests"
  std::string how_to_have;  ///< the hint: "scripts/setup.sh --parquet, then build again."
};

/// The module's table, which stays valid until the process ends; `Table` is the type in the
/// module's header. The file lies beside the program, or in the folder that the environment
/// variable KINORA_MODULES names, which is then the only one looked in. Any thread. Errors: no such
/// file, or one of another version (kConfig); one whose own libraries cannot be loaded (kIo).
/// Nothing is remembered: keep the reference.
template <typename Table>
[[nodiscard]] const Table& load_module(const ModuleInfo& module);

/// Whether the module's file is there; load_module may still fail.
[[nodiscard]] bool has_module(const ModuleInfo& module);

/// What load_module returns, without its type; never null.
[[nodiscard]] const void* load_module_table(const ModuleInfo& module);

template <typename Table>
const Table& load_module(const ModuleInfo& module) {
  return *static_cast<const Table*>(load_module_table(module));
}

}  // namespace kinora
