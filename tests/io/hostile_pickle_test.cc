// Pickles that would run code in Python: every opcode that can import or call something, in both of
// torch.save's formats. CPython 3.11's pickle.loads() runs the command of those of GLOBAL,
// STACK_GLOBAL, INST, OBJ, BYTEARRAY8 and NEXT_BUFFER; the others want more than a file to do harm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kinora/io/torch_file.h"
#include "tests/io/io_testing.h"
#include "tests/io/zip_builder.h"

namespace kinora::io {
namespace hostile_pickle_test {

using test::error_message;
using test::le;
using test::make_zip;
using test::TemporaryFolder;
using ::testing::AnyOf;
using ::testing::HasSubstr;

/// Of Lib/pickletools.py, CPython 3.11.
constexpr size_t kNumOpcodes = 68;
/// Those that make plain data, push what was made, or refer to what is on a list; all that Kinora
/// reads.
constexpr std::string_view kRead =
    ".012(JKMNQRTUXGabcehjqrstu]})BC"
    "\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x93\x94\x95";
/// The others.
constexpr std::string_view kRefused = "ILSVFldgpPio\x82\x83\x84\x8f\x90\x91\x92\x96\x97\x98";

std::string text(const std::string& value) {
  return "X" + le(4, value.size()) + value;
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string stack_global(const std::string& module, const std::string& name) {
  return text(module) + text(name) + "\x93";
}

class HostilePickleTest : public ::testing::Test {
 protected:
  /// The message with which a file of this pickle is refused; nothing was run.
  std::string refusal(const std::string& program) {
    const std::string pickle = "\x80\x04" + program + ".";
    std::string zipped = refusal_of(make_zip({{"archive/data.pkl", pickle}}));
    const std::string bare = refusal_of(pickle);  // where the older format begins
    EXPECT_EQ(zipped.substr(0, zipped.find("(at byte")), bare.substr(0, bare.find("(at byte")));
    EXPECT_FALSE(std::filesystem::exists(trace_));
    return zipped;
  }

  TemporaryFolder folder_;
  const std::filesystem::path trace_ = folder_ / "trace";
  const std::string command_ = text("touch " + trace_.string());

 private:
  std::string refusal_of(const std::string& content) {
    const std::filesystem::path path = folder_ / "hostile.pt";
    std::ofstream(path, std::ios::binary) << content;
    std::string message = error_message(ErrorKind::kIo, [&] { (void)TorchFile::open(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message;
  }
};

TEST_F(HostilePickleTest, EveryOpcodeIsReadOrRefused) {
  std::set<char> known(kRead.begin(), kRead.end());
  known.insert(kRefused.begin(), kRefused.end());
  EXPECT_EQ(known.size(), kNumOpcodes);
  EXPECT_EQ(kRead.size() + kRefused.size(), kNumOpcodes);
  for (int byte = 0; byte < 256; ++byte) {
    const char opcode = static_cast<char>(byte);
    if (kRead.find(opcode) == std::string_view::npos) {
      // Behind plain values and a mark, so that nothing else is missing.
      EXPECT_THAT(refusal("N(" + text("os") + text("system") + std::string(1, opcode) + "1\n2\n" +
                          std::string(8, '\0')),
                  HasSubstr("got opcode " + std::to_string(byte) + "."))
          << byte;
    }
  }
}

TEST_F(HostilePickleTest, ImportsAndCallsAreRefused) {
  const std::string one = command_ + "\x85";  // a tuple
  for (const auto& [opcode, program] : std::vector<std::pair<std::string, std::string>>{
           {"GLOBAL, REDUCE", global("os", "system") + one + "R"},
           {"STACK_GLOBAL, REDUCE", stack_global("os", "system") + one + "R"},
           {"INST", "(" + command_ + "ios\nsystem\n"},
           {"OBJ", "(" + global("os", "system") + command_ + "o"},
           {"NEWOBJ", global("subprocess", "Popen") + "(" + command_ + "t\x81"},
           {"NEWOBJ_EX", stack_global("subprocess", "Popen") + "(" + command_ + "t}\x92"},
           {"BUILD", global("torch.nn", "Module") + ")\x81}" + text("__setstate__") +
                         global("os", "system") + "sb"},
           {"EXT1", "\x82\x01" + one + "R"},
           {"EXT2", "\x83" + le(2, 1) + one + "R"},
           {"EXT4", "\x84" + le(4, 1) + one + "R"},
           {"PERSID", "Pos.system\n"},
           {"BINPERSID", global("os", "system") + command_ + "\x86Q"},
           {"BYTEARRAY8", "\x96" + le(8, 2) + "ab" + global("os", "system") + one + "R"},
           {"NEXT_BUFFER", "\x97" + global("os", "system") + one + "R"},
           {"READONLY_BUFFER", "\x97\x98" + global("os", "system") + one + "R"}}) {
    EXPECT_THAT(refusal(program),
                AnyOf(HasSubstr("None of its code was run"), HasSubstr("opcodes for plain data"),
                      HasSubstr("must name a storage")))
        << opcode;
  }
}

TEST_F(HostilePickleTest, NamesThatLeadToCodeAreRefused) {
  for (const auto& [module, name] : std::vector<std::pair<std::string, std::string>>{
           {"os", "system"},
           {"posix", "system"},
           {"nt", "system"},
           {"subprocess", "Popen"},
           {"builtins", "eval"},
           {"builtins", "exec"},
           {"builtins", "getattr"},
           {"builtins", "__import__"},
           {"__builtin__", "eval"},
           {"importlib", "import_module"},
           {"runpy", "run_path"},
           {"functools", "partial"},
           {"operator", "attrgetter"},
           {"operator", "methodcaller"},
           {"copyreg", "_reconstructor"},
           {"copyreg", "__newobj__"},
           {"pickle", "loads"},
           {"torch", "load"},
           {"torch.hub", "load"},
           {"torch.storage", "_load_from_bytes"},
           {"torch.jit", "load"},
           {"torch._utils", "_rebuild_wrapper_subclass"},
           {"torch._tensor", "_rebuild_from_type_v2"},
           {"numpy", "load"},
           {"collections", "OrderedDict.__class__"},
           {"collections", "OrderedDict.__init__.__globals__"},
           {"collections.OrderedDict", "__reduce__"},
           {"argparse", "Namespace.__init__.__globals__"},
           {"argparse", "os"},
           {"torch", "Size.__class__"},
           {"torch", "device.__class__"},
           {"torch.cuda", "_os.system"},
           {"", ""},
           {"torch", std::string("FloatStorage\0", 13)},
           {" os", "system"}}) {
    EXPECT_THAT(refusal(stack_global(module, name) + command_ + "\x85R"),
                HasSubstr("None of its code was run"))
        << module << '.' << name;
    if ((module + name).find('\0') == std::string::npos) {
      EXPECT_THAT(refusal(global(module, name) + command_ + "\x85R"),
                  HasSubstr("None of its code was run"))
          << module << '.' << name;
    }
  }
}

TEST_F(HostilePickleTest, WhatIsOnTheListCallsNothingElse) {
  // Objects that are made do not take state, items or arguments that Python would act on.
  const std::string system = global("os", "system");
  EXPECT_THAT(refusal(global("collections", "OrderedDict") + "(" + system + "tR"),
              HasSubstr("OrderedDict empty"));
  EXPECT_THAT(refusal(text("os.system") + command_ + "\x85R"), HasSubstr("a function"));
  EXPECT_THAT(refusal(global("torch", "device") + command_ + "\x85\x81"),
              HasSubstr("plain containers"));
  EXPECT_THAT(refusal(global("torch", "Size") + command_ + "\x85R"), HasSubstr("a tuple"));
  EXPECT_THAT(refusal(global("numpy", "dtype") + command_ + "\x85R" + command_ + "a"),
              HasSubstr("a list to append to"));
  EXPECT_THAT(refusal(global("argparse", "Namespace") + command_ + "\x85\x81"),
              HasSubstr("plain containers only"));
  EXPECT_THAT(refusal(global("argparse", "Namespace") + ")R"), HasSubstr("known functions"));
  EXPECT_THAT(refusal(global("torch._utils", "_rebuild_tensor_v2") + "}b"),
              HasSubstr("OrderedDict and Namespace only"));
  EXPECT_THAT(refusal(global("torch._utils", "_rebuild_tensor_v2") + command_ + "\x85R"),
              HasSubstr("at least 4 values"));
  EXPECT_THAT(refusal("(" + text("module") + global("torch", "FloatStorage") + text("0") +
                      text("cpu") + "K\x01tQ"),
              HasSubstr("refer to storages only"));
}

}  // namespace hostile_pickle_test
}  // namespace kinora::io
