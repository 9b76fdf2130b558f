#pragma once

/// The program that kinora becomes.
namespace kinora::apps {

/// Reads the arguments, does what they ask for, and ends the process.
[[noreturn]] void run_program(int argc, char** argv);

}  // namespace kinora::apps
