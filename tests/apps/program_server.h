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

/// The word in recipes of a DiT on the CPU that finds no memory in the step of the process that
/// kHungryStep says, for the first kHungryOperation in it ("aten::logical_or_"), on the rank of
/// kHungryRank (unset: 0), unless ranks have started again. Of step 0 it is the first such
/// operation of any program, whatever its model.
inline constexpr const char* kHungryFamily = "hungry";
inline constexpr const char* kHungryStep = "KINORA_TEST_HUNGRY_STEP";
inline constexpr const char* kHungryOperation = "KINORA_TEST_HUNGRY_OPERATION";
inline constexpr const char* kHungryRank = "KINORA_TEST_HUNGRY_RANK";

/// That of a DiT that keeps 16 KiB of each step.
inline constexpr const char* kLeakyFamily = "leaky";

/// Its file, in the folder of the build.
inline constexpr const char* kProgramServer = "kinora_apps_program";

}  // namespace kinora::apps
