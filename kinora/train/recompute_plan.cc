#include "kinora/train/recompute_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::train {
namespace {

constexpr std::string_view kBlock = "block";
constexpr std::string_view kOffload = "offload";
/// Of ops::Recompute, in order, without kBlock.
constexpr std::array<std::string_view, 3> kLevels = {"none", "elementwise", "mlp"};

/// Of "name:K" K, from 0 to `depth`; of "name" alone `depth`. Nothing: it is neither.
std::optional<int64_t> count_of(std::string_view part, std::string_view name, int64_t depth) {
  if (part == name) {
    return depth;
  }
  if (!part.starts_with(name) || part[name.size()] != ':') {
    return std::nullopt;
  }
  part.remove_prefix(name.size() + 1);
  int64_t count = -1;
  const auto parsed = std::from_chars(part.data(), part.data() + part.size(), count);
  const bool is_whole = parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
  return is_whole && count >= 0 && count <= depth ? std::optional(count) : std::nullopt;
}

std::optional<ops::Recompute> level_of(std::string_view name) {
  const auto* const found = std::ranges::find(kLevels, name);
  return found == kLevels.end()
             ? std::nullopt
             : std::optional(static_cast<ops::Recompute>(found - kLevels.begin()));
}

/// Nothing: it asks for none that there is.
std::optional<RecomputePlan> recompute_plan(std::string_view text, int64_t depth) {
  const std::vector<std::string_view> parts = split(text, ',');
  auto part = parts.begin();
  RecomputePlan plan;
  bool offloads_all = false;
  if (const auto count = count_of(*part, kOffload, depth)) {
    plan.offloaded_blocks = *count;
    offloads_all = *part++ == kOffload;
  }
  if (part != parts.end() && part->starts_with(kBlock)) {
    const auto count = count_of(*part, kBlock, depth);
    if (!count) {
      return std::nullopt;
    }
    plan.first_blocks = *count;
    if (*part++ == kBlock) {  // no others are left
      return part == parts.end() ? std::optional(plan) : std::nullopt;
    }
    const int64_t others = depth - plan.first_blocks;
    plan.offloaded_blocks = offloads_all ? others : plan.offloaded_blocks;
    KINORA_CHECK(plan.offloaded_blocks <= others, kConfig, "[train] train.recompute=", text,
                 " has ", plan.offloaded_blocks, " blocks wait at the host beside ",
                 plan.first_blocks, " that keep only their input: more than the ", depth,
                 " there are. Hint: offload:", others);
  }
  if (part != parts.end()) {
    const auto level = level_of(*part++);
    if (!level) {
      return std::nullopt;
    }
    plan.level = *level;
  }
  return part == parts.end() ? std::optional(plan) : std::nullopt;
}

}  // namespace

RecomputePlan parse_recompute(const std::string& recompute, int64_t depth) {
  const std::optional<RecomputePlan> plan = recompute_plan(recompute, depth);
  KINORA_CHECK(plan, kConfig,
               "[train] train.recompute must be none, elementwise, mlp, block, block:K, "
               "block:K,elementwise or block:K,mlp, or offload or offload:K, alone or followed by "
               "a comma and any of these, with K from 0 to ",
               depth, ", got ", recompute);
  return *plan;
}

int64_t others_of(const RecomputePlan& plan, int64_t depth) {
  return plan.first_blocks == depth ? depth : depth - plan.first_blocks;
}

std::string recompute_text(const RecomputePlan& plan, int64_t depth) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : ",") + part; };
  const auto add_count = [&add](std::string_view name, int64_t count, int64_t all) {
    if (count > 0) {
      add(std::string(name) + (count == all ? "" : ":" + std::to_string(count)));
    }
  };
  add_count(kOffload, plan.offloaded_blocks, others_of(plan, depth));
  add_count(kBlock, plan.first_blocks, depth);
  if (plan.first_blocks < depth && (plan.level != ops::Recompute::kNone || text.empty())) {
    add(std::string(kLevels.at(static_cast<size_t>(plan.level))));
  }
  return text;
}

}  // namespace kinora::train
