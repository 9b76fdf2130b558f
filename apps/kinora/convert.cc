// kinora convert FROM --to FILE_OR_FOLDER

#include <ATen/Parallel.h>

#include <iostream>
#include <string>

#include "apps/kinora/commands.h"
#include "kinora/core/text.h"
#include "kinora/inference/convert_weights.h"

namespace kinora::apps {
namespace {

constexpr size_t kMaxNames = 4;

at::ScalarType type_of(const std::string& dtype) {
  if (dtype == "bf16") {
    return at::kBFloat16;
  }
  return dtype == "fp16" ? at::kHalf : at::kFloat;
}

/// "3 missing [a, b, c]" on a line, if there are any.
void list(const std::vector<std::string>& names, const char* what) {
  if (!names.empty()) {
    std::cout << "  " << names.size() << ' ' << what << " [" << list_names(names, kMaxNames)
              << "]\n";
  }
}

}  // namespace

int run(const ConvertArguments& arguments) {
  inference::ConvertOptions options = arguments.options;
  options.max_shard_bytes = static_cast<int64_t>(arguments.max_shard_bytes);
  if (!arguments.dtype.empty()) {
    options.type = type_of(arguments.dtype);
  }
  if (!arguments.updates.empty()) {
    using Updates = inference::ConvertOptions::Updates;
    options.updates = arguments.updates == "own"     ? Updates::kOwn
                      : arguments.updates == "kohya" ? Updates::kKohya
                                                     : Updates::kDiffusers;
  }
  at::set_num_threads(1);  // pieces are small: threads would mostly wait for each other
  const inference::Converted converted = inference::convert_weights(options);
  std::cout << converted.what << " in " << options.to.string() << ": " << converted.num_tensors
            << " tensors";
  if (converted.has_model) {
    std::cout << ", " << converted.fit.matched.size() << " matched, "
              << converted.fit.missing.size() << " missing, " << converted.fit.unexpected.size()
              << " unexpected";
  }
  std::cout << '\n';
  list(converted.fit.missing, "missing");
  list(converted.fit.unexpected, "unexpected and left out");
  list(converted.made, "not in the file, as the model makes them");
  for (const std::string& note : converted.notes) {
    std::cout << "  " << note << '\n';
  }
  return 0;
}

}  // namespace kinora::apps
