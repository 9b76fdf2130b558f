#include "kinora/diffusion/spacing.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "kinora/core/error.h"
#include "kinora/core/rounding.h"

namespace kinora::diffusion {
namespace {

constexpr std::string_view kStridePrefix = "ddim";

std::vector<int64_t> space_sections(int64_t num_timesteps, std::span<const int64_t> counts) {
  const int64_t num_sections = static_cast<int64_t>(counts.size());
  std::vector<int64_t> steps;
  int64_t start = 0;
  for (int64_t i = 0; i < num_sections; ++i) {
    const int64_t size = num_timesteps / num_sections + (i < num_timesteps % num_sections ? 1 : 0);
    const int64_t count = counts[i];
    KINORA_CHECK(count >= 1 && count <= size, kConfig, "[spacing] section ", i, " must have 1 to ",
                 size, " steps, got ", count, ". Hint: the ", num_timesteps,
                 " timesteps are cut into ", num_sections,
                 " sections; ask for at most as many steps as a section has timesteps.");
    const double stride =
        count == 1 ? 1.0 : static_cast<double>(size - 1) / static_cast<double>(count - 1);
    // Added up as the original does it: k * stride rounds differently for some counts.
    double position = 0.0;
    for (int64_t k = 0; k < count; ++k) {
      steps.push_back(start + round_half_even(position));
      position += stride;
    }
    start += size;
  }
  return steps;
}

/// A whole positive number, or nothing.
std::optional<int64_t> parse_count(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    return std::nullopt;
  }
  return value;
}

std::vector<int64_t> integer_stride(int64_t num_timesteps, int64_t count) {
  for (int64_t stride = 1; stride <= num_timesteps; ++stride) {
    if (ceil_div(num_timesteps, stride) == count) {
      std::vector<int64_t> steps;
      for (int64_t t = 0; t < num_timesteps; t += stride) {
        steps.push_back(t);
      }
      return steps;
    }
  }
  throw_error(ErrorKind::kConfig,
              "[spacing] an integer stride must give exactly the asked steps of ", num_timesteps,
              " timesteps, got \"ddim", count,
              "\". Hint: ask for a divisor of the number of timesteps.");
}

}  // namespace

int64_t round_half_even(double value) {
  // std::nearbyint does the same in the default rounding mode, which a library must not rely on.
  const double below = std::floor(value);
  const double rest = value - below;
  const int64_t integer = static_cast<int64_t>(below);
  if (rest < 0.5) {
    return integer;
  }
  if (rest > 0.5) {
    return integer + 1;
  }
  return integer % 2 == 0 ? integer : integer + 1;
}

std::string_view to_string(Spacing spacing) {
  switch (spacing) {
    case Spacing::kDit:
      return "dit";
    case Spacing::kLeading:
      return "leading";
    case Spacing::kTrailing:
      return "trailing";
    case Spacing::kLinspace:
      return "linspace";
  }
  KINORA_UNREACHABLE("[spacing] unknown enumerator");
}

std::optional<Spacing> parse_spacing(std::string_view name) {
  for (const Spacing spacing :
       {Spacing::kDit, Spacing::kLeading, Spacing::kTrailing, Spacing::kLinspace}) {
    if (name == to_string(spacing)) {
      return spacing;
    }
  }
  return std::nullopt;
}

std::vector<int64_t> spaced_timesteps(int64_t num_timesteps, Spacing spacing, int64_t num_steps) {
  KINORA_CHECK(num_steps >= 1 && num_steps <= num_timesteps, kConfig,
               "[spacing] the number of sampling steps must lie in 1..", num_timesteps,
               " (the schedule's timesteps), got ", num_steps, ".");
  const double total = static_cast<double>(num_timesteps);
  const double count = static_cast<double>(num_steps);
  std::vector<int64_t> steps;
  switch (spacing) {
    case Spacing::kDit:
      return space_sections(num_timesteps, std::span(&num_steps, 1));
    case Spacing::kLeading:
      for (int64_t k = 0; k < num_steps; ++k) {
        steps.push_back(k * (num_timesteps / num_steps));
      }
      return steps;
    case Spacing::kTrailing: {
      // numpy.arange(T, 0, -ratio) takes the difference of its first two values as the stride.
      const double stride = (total - total / count) - total;
      for (int64_t k = num_steps - 1; k >= 0; --k) {
        steps.push_back(round_half_even(total + static_cast<double>(k) * stride) - 1);
      }
      return steps;
    }
    case Spacing::kLinspace: {
      const double stride = num_steps == 1 ? 0.0 : (total - 1.0) / (count - 1.0);
      for (int64_t k = 0; k < num_steps; ++k) {
        steps.push_back(round_half_even(static_cast<double>(k) * stride));
      }
      return steps;
    }
  }
  KINORA_UNREACHABLE("[spacing] unknown enumerator");
}

std::vector<int64_t> spaced_timesteps(int64_t num_timesteps, std::string_view sections) {
  const bool stride = sections.starts_with(kStridePrefix);
  std::string_view rest = stride ? sections.substr(kStridePrefix.size()) : sections;
  std::vector<int64_t> counts;
  while (true) {
    const size_t comma = rest.find(',');
    const std::optional<int64_t> count = parse_count(rest.substr(0, comma));
    KINORA_CHECK(count.has_value(), kConfig,
                 "[spacing] steps must be a count (\"250\"), counts of sections (\"10,15,20\") or "
                 "\"ddimN\", got \"",
                 sections, "\".");
    counts.push_back(*count);
    if (comma == std::string_view::npos) {
      break;
    }
    rest.remove_prefix(comma + 1);
  }
  if (!stride) {
    return space_sections(num_timesteps, counts);
  }
  KINORA_CHECK(counts.size() == 1, kConfig, "[spacing] \"ddimN\" takes one count, got \"", sections,
               "\".");
  return integer_stride(num_timesteps, counts[0]);
}

}  // namespace kinora::diffusion
