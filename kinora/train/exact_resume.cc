#include "kinora/train/exact_resume.h"

#include <algorithm>
#include <set>

#include "kinora/core/build_info.h"
#include "kinora/core/cuda.h"
#include "kinora/core/error.h"
#include "kinora/core/log.h"
#include "kinora/core/text.h"
#include "kinora/kernels/matmul_cache.h"
#include "kinora/ops/fp8.h"

namespace kinora::train {
namespace {

std::map<std::string, std::string> versions(at::Device device, const ops::BlockKernels* kernels) {
  const BuildInfo& build = build_info();
  std::map<std::string, std::string> versions = {
      {"Kinora", std::string(build.version) + " of commit " + std::string(build.commit)},
      {"libtorch", std::string(build.libtorch)}};
  if (device.is_cuda()) {
    versions.emplace("the GPU", cuda_device(std::max<int>(device.index(), 0)).name);
  }
  if (kernels != nullptr) {
    versions.merge(kernels->library_versions());
  }
  return versions;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) {
    if (!line.empty()) {
      lines.emplace_back(line);
    }
  }
  return lines;
}

void check_products(const std::vector<std::string>& products) {
  for (const std::string& line : products) {
    KINORA_CHECK(kernels::parse_choice(line).has_value(), kIo,
                 "[train] the checkpoint pins an algorithm that cannot be read, got ", quote(line),
                 ". Hint: use another checkpoint of the run, or set train.deterministic to false");
  }
}

void pin(const checkpoint::PinnedChoices& pinned, at::Device device, ops::BlockKernels* kernels) {
  for (const std::string& change : version_changes(pinned.versions, versions(device, kernels))) {
    log_warn("[train] ", change,
             ": the steps from here on may differ in their last bits from those of a run that was "
             "not stopped");
  }
  if (kernels == nullptr) {
    return;
  }
  std::string text;
  for (const std::string& line : pinned.products) {
    text += line + '\n';
  }
  const size_t num_taken = kernels->pin_products(text);
  if (num_taken < pinned.products.size()) {
    log_warn("[train] ", pinned.products.size() - num_taken, " of the ", pinned.products.size(),
             " algorithms of matrix products that the checkpoint pins are of another GPU or "
             "cuBLASLt, or not used here: the library's first choices are taken");
  }
}

}  // namespace

void keep_for_resume(const RunConfig& config, at::Device device, const ops::BlockKernels* kernels,
                     checkpoint::TrainingState& state) {
  state.pinned.reset();
  if (config.deterministic) {
    state.pinned = {.versions = versions(device, kernels), .products = {}};
    if (kernels != nullptr) {
      state.pinned->products = lines_of(kernels->product_choices());
    }
  }
  state.fp8.reset();
  if (kernels != nullptr && kernels->fp8() != nullptr) {
    state.fp8 = kernels->fp8()->state();
  }
}

void resume_exactly(const RunConfig& config, at::Device device,
                    const checkpoint::TrainingState& state, ops::BlockKernels* kernels) {
  if (config.deterministic && state.pinned) {
    check_products(state.pinned->products);
  }
  if (kernels != nullptr && kernels->fp8() != nullptr &&
      kernels->fp8()->scaling() == ops::Fp8Scaling::kDelayed) {
    if (state.fp8) {
      kernels->fp8()->restore(*state.fp8);
    } else {
      log_warn(
          "[train] the checkpoint has no scales of fp8: the first step computes in "
          "train.precision and measures");
    }
  }
  if (config.deterministic) {
    if (state.pinned) {
      pin(*state.pinned, device, kernels);
    } else {
      log_warn(
          "[train] the checkpoint pins no algorithms: the libraries' first choices are taken, "
          "which need not be those of the run so far");
    }
  }
}

std::vector<std::string> version_changes(const std::map<std::string, std::string>& before,
                                         const std::map<std::string, std::string>& after) {
  std::set<std::string> names;
  for (const auto* versions : {&before, &after}) {
    for (const auto& [name, _] : *versions) {
      names.insert(name);
    }
  }
  const auto version = [](const std::map<std::string, std::string>& versions,
                          const std::string& name) {
    const auto found = versions.find(name);
    return found == versions.end() ? std::string("none") : found->second;
  };
  std::vector<std::string> changes;
  for (const std::string& name : names) {
    const std::string was = version(before, name);
    const std::string is = version(after, name);
    if (was != is) {
      changes.push_back(name + " was " + was + " and is now " + is);
    }
  }
  return changes;
}

}  // namespace kinora::train
