#include "tests/core/example_module.h"

#include "kinora/core/module_file.h"

namespace {

constexpr kinora::ExampleTable kTable{.twice = [](int value) { return 2 * value; }};

}  // namespace

extern "C" KINORA_MODULE_EXPORT const kinora::ExampleTable* kinora_example_7() {
  return &kTable;
}
