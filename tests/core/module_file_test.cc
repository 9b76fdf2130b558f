#include "kinora/core/module_file.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include "tests/core/example_module.h"
#include "tests/error_of.h"
#include "tests/places.h"

namespace kinora {
namespace module_file_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModuleInfo example(int64_t version = 7) {
  return {.name = "example",
          .version = version,
          .what = "Example",
          .needed_for = "doubles numbers",
          .how_to_have = "build the tests."};
}

// Names the folder of modules; the environment is as before at the end.
class ModuleFolder {
 public:
  explicit ModuleFolder(const std::filesystem::path& folder) {
    ::setenv("KINORA_MODULES", folder.c_str(), 1);
  }
  ~ModuleFolder() { ::unsetenv("KINORA_MODULES"); }
  ModuleFolder(const ModuleFolder&) = delete;
  ModuleFolder& operator=(const ModuleFolder&) = delete;
};

TEST(ModuleFileTest, FindsTheFileBesideTheProgram) {
  EXPECT_TRUE(has_module(example()));
  EXPECT_EQ(load_module<ExampleTable>(example()).twice(21), 42);
}

TEST(ModuleFileTest, LooksOnlyInTheFolderThatTheEnvironmentNames) {
  {
    const ModuleFolder folder(build_path("."));
    EXPECT_EQ(load_module<ExampleTable>(example()).twice(4), 8);
  }
  const ModuleFolder folder("/nowhere");
  EXPECT_FALSE(has_module(example()));
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return load_module_table(example()); }),
              AllOf(HasSubstr("this build has no Example module, which doubles numbers; looked for "
                              "/nowhere/kinora_example.so. Hint: build the tests.")));
}

TEST(ModuleFileTest, AFileOfAnotherVersionIsRefused) {
  EXPECT_THAT(error_of(ErrorKind::kConfig, [] { return load_module_table(example(8)); }),
              AllOf(HasSubstr("kinora_example.so must be of the same build as the program"),
                    HasSubstr("without kinora_example_8")));
}

TEST(ModuleFileTest, AFileThatCannotBeLoadedIsNamed) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("kinora_module_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "kinora_example.so") << "no library";
  {
    const ModuleFolder modules(folder);
    EXPECT_THAT(error_of(ErrorKind::kIo, [] { return load_module_table(example()); }),
                AllOf(HasSubstr("the Example module, which doubles numbers, cannot be loaded: "),
                      HasSubstr("kinora_example.so")));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace module_file_test
}  // namespace kinora
