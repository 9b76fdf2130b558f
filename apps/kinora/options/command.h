#pragma once

#include <optional>
#include <variant>

#include "apps/kinora/options/bench.h"
#include "apps/kinora/options/bench_decode.h"
#include "apps/kinora/options/bench_load.h"
#include "apps/kinora/options/bench_sequence.h"
#include "apps/kinora/options/bench_simulate.h"
#include "apps/kinora/options/bench_text.h"
#include "apps/kinora/options/compare.h"
#include "apps/kinora/options/convert.h"
#include "apps/kinora/options/data_check.h"
#include "apps/kinora/options/data_encode.h"
#include "apps/kinora/options/data_encode_texts.h"
#include "apps/kinora/options/data_search_batch.h"
#include "apps/kinora/options/demo.h"
#include "apps/kinora/options/doctor.h"
#include "apps/kinora/options/eval.h"
#include "apps/kinora/options/plan.h"
#include "apps/kinora/options/runs.h"
#include "apps/kinora/options/sample.h"
#include "apps/kinora/options/train.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's
class App;
}

/// The subcommands' options, one file each. They are declared here alone, without what the
/// subcommands do (apps/kinora/commands.h), so that the launcher knows them without libtorch: what
/// is called here must not need it.
namespace kinora::apps {

/// What the command line asks for: the options of one subcommand.
using Command =
    std::variant<BenchArguments, BenchDecodeArguments, BenchLoadArguments, BenchSequenceArguments,
                 BenchTextArguments, CompareArguments, ConvertArguments, DataCheckArguments,
                 DemoArguments, DoctorArguments, EncodeArguments, EncodeTextsArguments,
                 EvalArguments, PlanArguments, RunsArguments, SampleArguments, SearchBatchArguments,
                 SimulateArguments, TrainArguments>;
using Chosen = std::optional<Command>;

/// Each adds its subcommand, which keeps its options in `chosen` if it is the one.
void add_train(CLI::App& app, Chosen& chosen);
void add_plan(CLI::App& app, Chosen& chosen);
void add_sample(CLI::App& app, Chosen& chosen);
void add_bench(CLI::App& app, Chosen& chosen);
void add_runs(CLI::App& app, Chosen& chosen);
void add_doctor(CLI::App& app, Chosen& chosen);
void add_compare(CLI::App& app, Chosen& chosen);
void add_convert(CLI::App& app, Chosen& chosen);
void add_data(CLI::App& app, Chosen& chosen);
void add_eval(CLI::App& app, Chosen& chosen);
void add_demo(CLI::App& app, Chosen& chosen);

/// Those of "kinora bench" and "kinora data".
void add_bench_decode(CLI::App& bench, Chosen& chosen);
void add_bench_load(CLI::App& bench, Chosen& chosen);
void add_bench_sequence(CLI::App& bench, Chosen& chosen);
void add_bench_simulate(CLI::App& bench, Chosen& chosen);
void add_bench_text(CLI::App& bench, Chosen& chosen);
void add_data_check(CLI::App& data, Chosen& chosen);
void add_data_encode(CLI::App& data, Chosen& chosen);
void add_data_encode_texts(CLI::App& data, Chosen& chosen);
void add_data_search_batch(CLI::App& data, Chosen& chosen);

}  // namespace kinora::apps
