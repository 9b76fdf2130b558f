#include "kinora/tokenizers/json_value.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "kinora/core/printable.h"
#include "kinora/core/text.h"

namespace kinora::tokenizers {
namespace {

using nlohmann::json;

constexpr int kMaxJsonDepth = 32;

const json& node_of(const void* value) {
  return *static_cast<const json*>(value);
}

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return quote(value.get_ref<const std::string&>().substr(0, 60));
    default:
      return value.dump();
  }
}

}  // namespace

struct JsonFile::Tree {
  json root;
};

JsonFile::JsonFile(std::string_view text, const std::string& name)
    : tree_(std::make_unique<Tree>()),
      name_(std::make_shared<std::string>("[tokenizer] " + printable_line(name) + ":")) {
  try {
    tree_->root =
        json::parse(text, [this](int depth, json::parse_event_t /*event*/, const json& /*value*/) {
          KINORA_CHECK(depth <= kMaxJsonDepth, kIo, *name_, " JSON must have at most ",
                       kMaxJsonDepth, " levels");
          return true;
        });
  } catch (const json::exception& error) {
    throw_error(ErrorKind::kIo, *name_, " must be JSON, got: ", printable_line(error.what()));
  }
}

JsonFile::~JsonFile() = default;

JsonValue JsonFile::root() const {
  return {&tree_->root, name_, ""};
}

std::string JsonValue::where() const {
  return *file_ + (path_.empty() ? "" : " ") + path_;
}

bool JsonValue::is_text() const {
  return node_of(value_).is_string();
}

bool JsonValue::is_object() const {
  return node_of(value_).is_object();
}

bool JsonValue::is_array() const {
  return node_of(value_).is_array();
}

std::string_view JsonValue::text() const {
  const json& node = node_of(value_);
  if (!node.is_string()) {
    refuse("must be text, got ", kind_of(node));
  }
  return node.get_ref<const std::string&>();
}

bool JsonValue::flag() const {
  const json& node = node_of(value_);
  if (!node.is_boolean()) {
    refuse("must be true or false, got ", kind_of(node));
  }
  return node.get<bool>();
}

int64_t JsonValue::integer() const {
  const json& node = node_of(value_);
  const bool fits =
      node.is_number_integer() &&
      !(node.is_number_unsigned() && node.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  if (!fits) {
    refuse("must be an integer, got ", kind_of(node));
  }
  return node.get<int64_t>();
}

double JsonValue::number() const {
  const json& node = node_of(value_);
  if (!node.is_number()) {
    refuse("must be a number, got ", kind_of(node));
  }
  return node.get<double>();
}

size_t JsonValue::size() const {
  return node_of(value_).size();
}

std::optional<JsonValue> JsonValue::find(std::string_view name) const {
  const json& node = node_of(value_);
  if (!node.is_object()) {
    refuse("must be an object, got ", kind_of(node));
  }
  const auto found = node.find(name);
  if (found == node.end() || found->is_null()) {
    return std::nullopt;
  }
  return JsonValue(&*found, file_, path_ + (path_.empty() ? "" : ".") + std::string(name));
}

JsonValue JsonValue::at(std::string_view name) const {
  const auto found = find(name);
  if (!found) {
    refuse("must have ", quote(name), ", got none");
  }
  return *found;
}

std::string JsonValue::text_or(std::string_view name, std::string_view otherwise) const {
  const auto found = find(name);
  return std::string(found ? found->text() : otherwise);
}

bool JsonValue::flag_or(std::string_view name, bool otherwise) const {
  const auto found = find(name);
  return found ? found->flag() : otherwise;
}

JsonValue JsonValue::element(size_t index) const {
  const json& node = node_of(value_);
  if (!node.is_array() || index >= node.size()) {
    refuse("must have at least ", index + 1, index == 0 ? " element" : " elements", ", got ",
           node.is_array() ? std::to_string(node.size()) : kind_of(node));
  }
  return {&node[index], file_, path_ + "[" + std::to_string(index) + "]"};
}

void JsonValue::each(const std::function<void(const JsonValue&)>& use) const {
  const json& node = node_of(value_);
  if (!node.is_array()) {
    refuse("must be an array, got ", kind_of(node));
  }
  JsonValue child(nullptr, file_, path_ + "[]");
  for (const json& each : node) {
    child.value_ = &each;
    use(child);
  }
}

void JsonValue::each_member(
    const std::function<void(std::string_view, const JsonValue&)>& use) const {
  const json& node = node_of(value_);
  if (!node.is_object()) {
    refuse("must be an object, got ", kind_of(node));
  }
  JsonValue child(nullptr, file_, path_ + ".*");
  for (auto each = node.begin(); each != node.end(); ++each) {
    child.value_ = &each.value();
    use(each.key(), child);
  }
}

}  // namespace kinora::tokenizers
