// kinora data check RECIPE|PATH: what of a set can be used, and what not, and why.

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/config.h"
#include "kinora/core/counted.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/progress.h"
#include "kinora/core/rank_limit.h"
#include "kinora/core/stop_signal.h"
#include "kinora/data/bucket_report.h"
#include "kinora/data/data_config.h"
#include "kinora/data/epoch_order.h"
#include "kinora/data/guess_set.h"
#include "kinora/data/index.h"
#include "kinora/data/loader.h"
#include "kinora/data/screened.h"
#include "kinora/data/set_report.h"
#include "kinora/data/subset.h"
#include "kinora/train/run_config.h"
#include "kinora/train/setup.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;

/// What is checked, and the batches that a run makes of it.
struct Checked {
  data::DataConfig config;
  data::BatchChoice batch;
  uint64_t seed = 0;  ///< of the run
};

/// The set at a path, with what the command line says of it.
data::DataConfig guessed(const DataCheckArguments& arguments) {
  data::DataConfig config = data::guess_set(arguments.set);
  const data::SourceKind kind = config.source;
  Fields fields;
  describe(fields, config);
  parse(fields, {.text = "", .origin = arguments.set}, arguments.overrides);
  if (config.source == kind) {
    log_info("[data] ", arguments.set, " is read as ", data::layout_text(kind),
             ". Hint: to read it in another way add data.source=NAME");
  }
  return config;
}

Checked what_to_check(const DataCheckArguments& arguments) {
  const fs::path path = arguments.set;
  if (path.extension() != ".yaml" && path.extension() != ".yml") {
    return {.config = guessed(arguments), .batch = {.global_batch = 64, .is_configured = false}};
  }
  const auto config = load_config<train::RunConfig>(arguments.set, arguments.overrides);
  train::check_model_takes(config.data, config.model, "data");
  return {.config = config.data,
          .batch = {.global_batch = config.train.global_batch,
                    .num_held_out = config.data.validation,
                    .buckets = {}},
          .seed = static_cast<uint64_t>(config.train.seed)};
}

/// Samples that cannot be used join those that are in quarantine already.
void put_in_quarantine(const fs::path& path, const data::SetReport& report,
                       data::Quarantine quarantine) {
  quarantine.insert(report.rejected.begin(), report.rejected.end());
  data::write_quarantine(path, quarantine);
  log_info("[data] ", counted(std::ssize(quarantine), "name"), " in ", path.string(),
           "; use it by data.quarantine");
}

/// What buckets take of the samples that training would see: those that data.quarantine and, where
/// there is a data.index, the index at `path` leave it, without those of validation. Nothing is
/// refused that training would only count.
data::BucketReport check_buckets(std::unique_ptr<data::Source> whole, const Checked& checked,
                                 const fs::path& path, data::Index index) {
  const data::DataConfig& config = checked.config;
  const bool has_list = fs::exists(config.quarantine);
  const bool has_index = !config.index.empty() && fs::exists(path);
  const int64_t any = whole->size() + std::ssize(whole->passed_over());
  const std::unique_ptr<data::Source> source = data::with_known_facts(
      data::screen(std::move(whole), {.quarantine = has_list ? config.quarantine : "",
                                      .index = has_index ? path : "",
                                      .max_bad = any}),
      std::move(index));
  const data::SubsetSource part(
      *source,
      data::split(source->size(), config.validation, static_cast<uint64_t>(config.seed)).train);
  const data::LoaderOptions options = data::loader_options(config);
  return data::report_on_buckets(part,
                                 {.table = options.buckets,
                                  .batches_per_step = std::max<int64_t>(options.bucket_batches, 1),
                                  .seed = checked.seed,
                                  .num_threads = data::thread_count(config.threads),
                                  .max_bad = any});
}

}  // namespace

int run(const DataCheckArguments& arguments) {
  check_num_threads(arguments.threads, num_cores());
  Checked checked = what_to_check(arguments);
  const data::DataConfig& config = checked.config;
  fs::path path = arguments.index.empty() ? config.index : arguments.index;
  if (path.empty()) {
    path = data::default_index_path(data::set_identity(config));
  }
  const fs::path quarantine_path =
      arguments.quarantine.empty() ? config.quarantine : arguments.quarantine;
  data::Quarantine quarantine;
  if (fs::exists(quarantine_path)) {
    quarantine = data::read_quarantine(quarantine_path);
  }
  std::unique_ptr<data::Source> source = data::open_whole_source(config);
  const StopSignal stop;
  Progress progress(source->size(), "samples");
  data::IndexUpdate update =
      data::update_index(*source, path,
                         {.full = arguments.full,
                          .num_threads = arguments.threads,
                          .on_progress = [&progress](int64_t done) { progress.update(done); },
                          .wants_stop = [&stop] { return stop.requested(); }});
  progress.finish();
  log_info("[data] ", counted(update.num_read, "sample was", "samples were"), " looked at, ",
           counted(update.num_reused, "was", "were"), " known",
           update.is_kept ? "; the index is " + path.string() : "");
  KINORA_CHECK(update.is_complete, kIo, "[data] stopped by ", stop.name(),
               ". Hint: the same command goes on where this one was");

  const data::SetReport report = data::report_on(*source, update.index, quarantine);
  if (!config.buckets.empty()) {
    checked.batch.buckets =
        check_buckets(std::move(source), checked, path, std::move(update.index));
  }
  if (arguments.json) {
    std::cout << data::to_json(report, checked.batch) << '\n';
  } else {
    constexpr int64_t kMostNames = 10;
    std::cout << arguments.set << ": ";
    data::print(std::cout, report, checked.batch, arguments.all ? report.num_samples : kMostNames);
  }
  if (!arguments.quarantine.empty()) {
    put_in_quarantine(quarantine_path, report, std::move(quarantine));
    return 0;
  }
  const int64_t limit = data::allowed_bad(report.num_samples, config.max_bad);
  KINORA_CHECK(
      std::cmp_less_equal(report.rejected.size(), limit), kIo, "[data] at most ",
      counted(limit, "sample"), " may be unusable, got ", report.rejected.size(),
      ". Hint: mend or remove them, put them into quarantine (--quarantine FILE), or raise "
      "data.max_bad");
  return 0;
}

}  // namespace kinora::apps
