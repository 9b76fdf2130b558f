#include "kinora/core/config_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>

#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora::config_detail {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxNodes = 100000;

// A comment behind the text. yaml-cpp takes the end of the text for the end of a quoted value; so a
// value that holds this was never closed.
constexpr std::string_view kEnd = "\n# kinora: here ends the text #\n";
constexpr std::string_view kEndMark = kEnd.substr(1, kEnd.size() - 2);

/// Builds the tree from yaml-cpp's events rather than from its Node: that keeps repeated keys
/// visible, and lets the limits act while parsing.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& origin, bool one_line) : origin_(origin), one_line_(one_line) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    check(!started_, line(mark), "expected one YAML document, got a second one after ---");
    started_ = true;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, "", anchor, YamlNode::Kind::kNull);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    check(found != anchors_.end(), line(mark), "an alias must not lie inside what it names");
    attach(found->second, line(mark));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(value.find(kEndMark) == std::string::npos, line(mark),
          "a quote begins here and is never closed");
    YamlNode* node = create(mark, tag, YamlNode::Kind::kScalar);
    node->text = value;
    node->quoted = tag == "!";  // yaml-cpp's tag of all scalars that are not plain
    finish(node, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(create(mark, tag, YamlNode::Kind::kSequence), anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(create(mark, tag, YamlNode::Kind::kMapping), anchor);
  }
  void OnMapEnd() override { close(); }

  YamlDocument take() {
    if (document_.nodes.empty()) {
      document_.root = &document_.nodes.emplace_back();
    }
    return std::move(document_);
  }

  [[nodiscard]] int line(const YAML::Mark& mark) const {
    return one_line_ || mark.is_null() ? 0 : mark.line + 1;
  }

 private:
  struct Open {
    YamlNode* node;
    YAML::anchor_t anchor;
    const YamlNode* key = nullptr;  // of a mapping: waits for its value
  };

  template <typename... Parts>
  void check(bool holds, int line, const Parts&... parts) const {
    KINORA_CHECK(holds, kConfig, "[config] ", location(origin_, line), ": ", parts...);
  }

  YamlNode* create(const YAML::Mark& mark, const std::string& tag, YamlNode::Kind kind) {
    check(tag.empty() || tag == "?" || tag == "!", line(mark), "YAML tags are not used here, got ",
          quote(tag));
    check(document_.nodes.size() < kMaxNodes, line(mark), "a configuration has at most ", kMaxNodes,
          " values");
    YamlNode* node = &document_.nodes.emplace_back();
    node->kind = kind;
    node->line = line(mark);
    return node;
  }

  void add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
           YamlNode::Kind kind) {
    finish(create(mark, tag, kind), anchor);
  }

  void open(YamlNode* node, YAML::anchor_t anchor) {
    check(open_.size() < kMaxDepth, node->line, "values must not nest deeper than ", kMaxDepth,
          " levels");
    open_.push_back({node, anchor});
  }

  void close() {
    const Open done = open_.back();
    open_.pop_back();
    finish(done.node, done.anchor);
  }

  void finish(YamlNode* node, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) {
      anchors_[anchor] = node;
    }
    attach(node, node->line);
  }

  void attach(YamlNode* node, int line) {
    if (open_.empty()) {
      document_.root = node;
      return;
    }
    Open& parent = open_.back();
    if (parent.node->kind == YamlNode::Kind::kSequence) {
      parent.node->items.push_back(node);
    } else if (parent.key == nullptr) {
      check(node->kind == YamlNode::Kind::kScalar, line, "a key must be a word, got ",
            node->kind == YamlNode::Kind::kNull ? "null" : "a list or mapping");
      parent.key = node;
    } else {
      add_entry(*parent.node, *parent.key, node);
      parent.key = nullptr;
    }
  }

  void add_entry(YamlNode& mapping, const YamlNode& key, const YamlNode* value) {
    const auto [first, is_new] = key_lines_[&mapping].emplace(key.text, key.line);
    check(is_new, key.line, "the key ", key.text, " is here twice",
          key.line > 0 ? ", first in line " + std::to_string(first->second) : "");
    mapping.entries.push_back({key.text, key.line, value});
  }

  const std::string& origin_;
  const bool one_line_;
  bool started_ = false;
  YamlDocument document_;
  std::vector<Open> open_;
  std::unordered_map<YAML::anchor_t, YamlNode*> anchors_;
  std::unordered_map<const YamlNode*, std::unordered_map<std::string, int>> key_lines_;
};

/// The line of the first byte that YAML forbids. yaml-cpp takes some of them for the end of the
/// text, and would drop what follows without a word.
std::optional<int> find_control_character(std::string_view text) {
  int line = 1;
  for (const char c : text) {
    line += c == '\n' ? 1 : 0;
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f) {
      return line;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string location(std::string_view origin, int line) {
  std::string text(origin);
  return line > 0 ? text + ":" + std::to_string(line) : text;
}

YamlDocument parse_yaml(const std::string& text, const std::string& origin, bool one_line) {
  KINORA_CHECK(is_utf8(text), kConfig, "[config] ", origin, ": the text must be UTF-8");
  if (const std::optional<int> line = find_control_character(text)) {
    throw_error(ErrorKind::kConfig, "[config] ", location(origin, one_line ? 0 : *line),
                ": control characters are not allowed. Hint: write them as \"\\xNN\" in double "
                "quotes");
  }
  Builder builder(origin, one_line);
  try {
    std::istringstream stream(text + std::string(kEnd));
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    const auto last = static_cast<int>(1 + std::count(text.begin(), text.end(), '\n'));
    throw_error(ErrorKind::kConfig, "[config] ",
                location(origin, std::min(builder.line(error.mark), last)),
                ": invalid YAML: ", error.msg);
  }
  return builder.take();
}

}  // namespace kinora::config_detail
