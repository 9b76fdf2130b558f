#pragma once

#include "apps/kinora/options/command.h"

/// What the subcommands do, one file each. All return the exit code.
namespace kinora::apps {

int run(const BenchArguments& arguments);
int run(const BenchDecodeArguments& arguments);
int run(const BenchLoadArguments& arguments);
int run(const BenchSequenceArguments& arguments);
int run(const BenchTextArguments& arguments);
int run(const CompareArguments& arguments);
int run(const ConvertArguments& arguments);
int run(const DataCheckArguments& arguments);
int run(const DemoArguments& arguments);
int run(const DoctorArguments& arguments);
int run(const EncodeArguments& arguments);
int run(const EncodeTextsArguments& arguments);
int run(const EvalArguments& arguments);
int run(const PlanArguments& arguments);
int run(const RunsArguments& arguments);
int run(const SampleArguments& arguments);
int run(const SearchBatchArguments& arguments);
int run(const SimulateArguments& arguments);
int run(const TrainArguments& arguments);

}  // namespace kinora::apps
