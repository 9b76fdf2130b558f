#pragma once

namespace kinora {

/// What module_file_test.cc and the module that it loads share.
struct ExampleTable {
  int (*twice)(int);
};

}  // namespace kinora
