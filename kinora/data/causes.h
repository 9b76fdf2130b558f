#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kinora/data/source.h"

/// What is said of files that cannot be used, in training and by `kinora data check` alike.
namespace kinora::data {

/// A cause without the name and numbers in it and without its hint, so that like ones group.
[[nodiscard]] std::string cause_kind(std::string_view cause, std::string_view name);

/// Names of files by why they cannot be used.
using NamesByCause = std::map<std::string, std::vector<std::string_view>, std::less<>>;

/// The names of `all`, which must outlive the result.
[[nodiscard]] NamesByCause group_by_cause(const std::vector<PassedOver>& all);

/// "not a picture that Kinora reads: 37 (.avif: 30, .txt: 7)"; suffixes where these are the cause.
[[nodiscard]] std::string count_of(std::string_view cause,
                                   const std::vector<std::string_view>& names);

/// A line for each cause, with its count and an example; each begins with a line feed.
[[nodiscard]] std::string lines_of(const NamesByCause& groups);

/// Tells of what was found beside the samples of `source` and, where a quick look at the headers
/// shows them, of samples that cannot be read: each cause in a line. A set of many thousand files,
/// or of clips, is not looked at.
void announce_unusable(const Source& source);

}  // namespace kinora::data
