#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// The YAML that configurations are written in, as a plain tree with line numbers. Internal to
/// core.
namespace kinora::config_detail {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  struct Entry {
    std::string key;
    int line;
    const YamlNode* value;
  };

  Kind kind = Kind::kNull;
  int line = 0;         // from 1
  std::string text;     // of a scalar
  bool quoted = false;  // the scalar is a string for certain: in quotes or a block
  std::vector<const YamlNode*> items;
  std::vector<Entry> entries;
};

/// The nodes of one document, which point at each other; aliases share a node.
struct YamlDocument {
  std::deque<YamlNode> nodes;
  const YamlNode* root = nullptr;  // a null node for an empty text
};

/// "a.yaml:3"; just the origin where there are no lines (line 0).
[[nodiscard]] std::string location(std::string_view origin, int line);

/// Reads one document. Errors (kConfig) name the origin and the line, without the line if
/// `one_line`: invalid YAML or UTF-8, repeated keys, tags, several documents, or more nesting and
/// nodes than any configuration needs.
[[nodiscard]] YamlDocument parse_yaml(const std::string& text, const std::string& origin,
                                      bool one_line = false);

}  // namespace kinora::config_detail
