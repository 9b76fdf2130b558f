#include <set>

#include "kinora/core/config.h"
#include "kinora/core/config_value.h"
#include "kinora/core/text.h"

namespace kinora {
namespace {

/// Writes the keys below `prefix` as nested YAML; a section comes where its first key comes.
void dump_section(const Fields& fields, const std::string& prefix, size_t depth,
                  std::string& text) {
  const std::string indent(2 * depth, ' ');
  std::set<std::string> seen;
  for (const Field& field : fields.all()) {
    if (field.key.compare(0, prefix.size(), prefix) != 0) {
      continue;
    }
    const std::string rest = field.key.substr(prefix.size());
    const size_t dot = rest.find('.');
    if (dot == std::string::npos) {
      text += indent + rest + ": " + config_detail::format(field) + "\n";
    } else if (const std::string name = rest.substr(0, dot); seen.insert(name).second) {
      text += indent + name + ":\n";
      dump_section(fields, prefix + name + ".", depth + 1, text);
    }
  }
}

std::string_view section_of(std::string_view key) {
  const size_t dot = key.find('.');
  return dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
}

}  // namespace

std::string help(const Fields& fields) {
  constexpr size_t kWidth = 100;
  std::string text;
  std::set<std::string_view> done;
  for (const Field& first : fields.all()) {
    const std::string_view section = section_of(first.key);
    if (!done.insert(section).second) {
      continue;
    }
    text += text.empty() ? "" : "\n";
    text += section.empty() ? "" : std::string(section) + "\n";
    for (const Field& field : fields.all()) {
      if (section_of(field.key) != section) {
        continue;
      }
      const std::string fallback =
          field.is_required ? "required" : "default " + config_detail::format(field);
      text += wrap(field.key + ": " + config_detail::expected(field) + " (" + fallback + ")",
                   kWidth, 2);
      text += wrap(field.doc, kWidth, 6);
    }
  }
  return text;
}

std::string dump(const Fields& fields) {
  std::string text;
  dump_section(fields, "", 0, text);
  return text;
}

std::vector<std::pair<std::string, std::string>> flatten(const Fields& fields) {
  std::vector<std::pair<std::string, std::string>> result;
  for (const Field& field : fields.all()) {
    result.emplace_back(field.key, config_detail::format(field));
  }
  return result;
}

}  // namespace kinora
