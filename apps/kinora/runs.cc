// kinora runs: how runs stand, and what is asked of one that trains.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "apps/kinora/commands.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/core/text_table.h"
#include "kinora/io/file.h"
#include "kinora/io/file_lock.h"
#include "kinora/io/jsonl.h"
#include "kinora/train/records/run_directory.h"
#include "kinora/train/records/run_report.h"
#include "kinora/train/records/run_requests.h"
#include "kinora/train/records/run_state.h"

namespace kinora::apps {
namespace {

namespace fs = std::filesystem;
using train::RunSummary;

constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr int kDigits = 4;

std::vector<std::string> row_of(const RunSummary& run) {
  const auto or_dash = [](bool known, const std::string& text) { return known ? text : "-"; };
  return {run.path.string(),
          std::string(to_string(run.state)),
          std::to_string(run.step) + (run.steps > 0 ? "/" + std::to_string(run.steps) : ""),
          or_dash(std::isfinite(run.loss), human_number(run.loss, kDigits)),
          or_dash(std::isfinite(run.samples_per_s), human_rate(run.samples_per_s)),
          or_dash(std::isfinite(run.seconds_left), human_duration(run.seconds_left)),
          or_dash(run.checkpoint > 0, std::to_string(run.checkpoint)),
          run.process};
}

void print_table(const std::vector<RunSummary>& runs) {
  std::vector<std::vector<std::string>> rows = {
      {"run", "state", "step", "loss", "samples/s", "left", "checkpoint", "process"}};
  for (const RunSummary& run : runs) {
    rows.push_back(row_of(run));
  }
  std::cout << text_table(rows) << '\n';
}

void print_json(const RunSummary& run) {
  io::JsonObject line;
  line.add("run", run.path.string())
      .add("state", to_string(run.state))
      .add("step", run.step)
      .add("steps", run.steps)
      .add("checkpoint", run.checkpoint);
  for (const auto& [name, value] :
       {std::pair("loss", run.loss), std::pair("samples_per_s", run.samples_per_s),
        std::pair("seconds_left", run.seconds_left)}) {
    if (std::isfinite(value)) {
      line.add(name, value);
    }
  }
  std::cout << line.text() << '\n';
}

int list(const RunsArguments& arguments) {
  std::vector<RunSummary> runs;
  for (const std::string& folder : arguments.folders) {
    for (const fs::path& run : train::find_runs(folder)) {
      runs.push_back(train::summarise(run));
    }
  }
  if (arguments.json) {
    std::for_each(runs.begin(), runs.end(), print_json);
  } else if (runs.empty()) {
    std::cout << "no runs in " << arguments.folders.front() << '\n';
  } else {
    print_table(runs);
  }
  return 0;
}

int ask(const RunsArguments& arguments) {
  const train::RunDirectory run(arguments.run);
  KINORA_CHECK(train::is_run(run.path()), kIo, "[runs] ", run.path(),
               " is no run's folder. Hint: kinora runs lists them");
  KINORA_CHECK(io::FileLock::is_held(run.lock_file()), kConfig, "[runs] no process trains in ",
               run.path(), " now. Hint: kinora train ", run.config_file().string(),
               " --resume auto goes on with it");
  const train::RequestBox box(run.requests());
  const std::string id = box.ask(arguments.command, arguments.value);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(arguments.wait);
  auto answer = box.answer_to(id);
  bool is_alive = true;
  while (!answer && is_alive && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kBetweenLooks);
    is_alive = io::FileLock::is_held(run.lock_file());
    answer = box.answer_to(id);  // looked for after that, so that a last word is not missed
  }
  if (!answer) {
    const bool withdrawn = box.withdraw(id);
    KINORA_CHECK(is_alive, kIo, "[runs] the process that trained in ", run.path(),
                 " ended without an answer");
    throw_error(ErrorKind::kIo, "[runs] no answer in ", human_duration(arguments.wait), ": ",
                withdrawn ? "the run did not take the request, which is withdrawn"
                          : "the run took the request and is still at it",
                ". Hint: --wait SECONDS waits longer");
  }
  KINORA_CHECK(answer->done, kConfig, "[runs] refused: ", answer->text);
  std::cout << run.path().string() << ": " << answer->text << '\n';
  return 0;
}

int report(const RunsArguments& arguments) {
  KINORA_CHECK(train::is_run(arguments.run), kIo, "[runs] ", arguments.run,
               " is no run's folder. Hint: kinora runs lists them");
  const fs::path out =
      arguments.out.empty() ? fs::path(arguments.run) / "report.html" : fs::path(arguments.out);
  io::write_file_atomic(out, train::report_page(arguments.run));
  std::cout << out.string() << '\n';
  return 0;
}

}  // namespace

int run(const RunsArguments& arguments) {
  switch (arguments.what) {
    case RunsArguments::What::kList:
      return list(arguments);
    case RunsArguments::What::kAsk:
      return ask(arguments);
    case RunsArguments::What::kReport:
      return report(arguments);
  }
  KINORA_UNREACHABLE("[runs] what is wanted");
}

}  // namespace kinora::apps
