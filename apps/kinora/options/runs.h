#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kinora/train/records/run_requests.h"

namespace kinora::apps {

struct RunsArguments {
  /// What is wanted: a table, something of a run that trains (`command`), or a web page.
  enum class What { kList, kAsk, kReport } what = What::kList;
  train::RunCommand command = train::RunCommand::kNone;

  std::vector<std::string> folders = {"runs"};
  bool json = false;
  std::string run;
  double value = 0.0;
  double wait = 600.0;
  std::string out;
};

}  // namespace kinora::apps
