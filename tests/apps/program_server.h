#pragma once

/// The program in processes that have loaded libtorch already, which takes longer than most of what
/// tests ask of it: forks of a process of kinora_apps_program that has loaded it and done nothing
/// else, as tests/comm/ranks.cc has it for ranks.
///
/// Its standard output is a socket for packets. A test sends strings, each with a zero byte at its
/// end: the files that take what the program says on its two streams, the number of its words, the
/// words, and its environment. It answers with the process, whose parent is the test.
namespace kinora::apps {

/// Set in the process that programs are forked from.
inline constexpr const char* kProgramServerVariable = "KINORA_TEST_PROGRAM_SERVER";

/// Its file, in the folder of the build.
inline constexpr const char* kProgramServer = "kinora_apps_program";

}  // namespace kinora::apps
