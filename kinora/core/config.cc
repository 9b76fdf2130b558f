#include "kinora/core/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "kinora/core/config_value.h"
#include "kinora/core/config_yaml.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"

namespace kinora {
namespace {

using config_detail::location;
using config_detail::YamlNode;
using Kind = YamlNode::Kind;

bool is_word_path(std::string_view key) {
  for (const std::string_view word : split(key, '.')) {
    const bool good = std::all_of(word.begin(), word.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (word.empty() || !good) {
      return false;
    }
  }
  return true;
}

std::string_view last_word(std::string_view key) {
  return key.substr(key.rfind('.') + 1);
}

/// Applies one YAML tree to the fields.
class Reader {
 public:
  /// `is_file`: a key that comes twice is an error, also when written in two ways.
  Reader(Fields& fields, const std::string& origin, bool is_file)
      : fields_(fields), origin_(origin), is_file_(is_file) {
    for (Field& field : fields.all()) {
      by_key_[field.key] = &field;
      for (size_t dot = field.key.find('.'); dot != std::string::npos;
           dot = field.key.find('.', dot + 1)) {
        sections_.insert(field.key.substr(0, dot));
      }
    }
  }

  void read_mapping(const YamlNode& mapping, const std::string& prefix) {
    for (const YamlNode::Entry& entry : mapping.entries) {
      read_entry(prefix + entry.key, entry.line, *entry.value);
    }
  }

  [[nodiscard]] bool knows(const std::string& key) const {
    return by_key_.count(key) > 0 || sections_.count(key) > 0;
  }

  // Sections and keys that exist bound the recursion, so aliases cannot blow it up.
  void read_entry(const std::string& key, int line, const YamlNode& value) {
    const std::string where = location(origin_, line);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      const auto [first, is_new] = lines_.emplace(key, line);
      KINORA_CHECK(is_new || !is_file_, kConfig, "[config] ", where, ": ", key,
                   " is set twice, first in line ", first->second);
      const RetiredKey* gone = find_retired(key);
      KINORA_CHECK(gone == nullptr || value.kind != Kind::kScalar || value.text != gone->value,
                   kConfig, "[config] ", where, ": ", key, " can be ", gone->value,
                   " no more, since ", gone->because);
      config_detail::assign(*found->second, value, where);
    } else if (sections_.count(key) > 0) {
      KINORA_CHECK(value.kind == Kind::kMapping || value.kind == Kind::kNull, kConfig, "[config] ",
                   where, ": ", key, " is a section and must hold keys, got ",
                   value.kind == Kind::kScalar ? value.text : "a list", ". Hint: its keys are ",
                   keys_of(key));
      read_mapping(value, key + ".");
    } else if (const RetiredKey* retired = find_retired(key); retired != nullptr) {
      KINORA_CHECK(value.kind == Kind::kScalar && value.text == retired->value, kConfig,
                   "[config] ", where, ": ", key, " is no more, since ", retired->because,
                   ". Hint: leave it out; of older files only ", retired->value, " is read");
    } else if (!fields_.is_skipped(key)) {
      refuse_unknown(key, where, value.kind == Kind::kMapping);
    }
  }

  [[noreturn]] void refuse_unknown(const std::string& key, const std::string& where,
                                   bool is_section) const {
    std::string hint = nearest(key, is_section);
    if (last_word(key) == "<<") {
      hint = "merge keys are not supported; repeat the keys";
    } else if (!hint.empty()) {
      hint = "did you mean " + hint + "?";
    } else if (const size_t dot = key.rfind('.');
               dot != std::string::npos && sections_.count(key.substr(0, dot)) > 0) {
      hint = "the keys of this section are " + keys_of(key.substr(0, dot));
    } else {
      hint = "--help-config lists all keys";
    }
    throw_error(ErrorKind::kConfig, "[config] ", where, ": unknown ",
                is_section ? "section " : "key ", is_utf8(key) ? key : quote(key),
                ". Hint: ", hint);
  }

 private:
  [[nodiscard]] const RetiredKey* find_retired(const std::string& key) const {
    const std::vector<RetiredKey>& all = fields_.retired();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.key == key; });
    return found == all.end() ? nullptr : &*found;
  }

  [[nodiscard]] std::string keys_of(const std::string& section) const {
    std::string text;
    for (const Field& field : fields_.all()) {
      if (field.key.compare(0, section.size() + 1, section + ".") == 0) {
        text += (text.empty() ? "" : ", ") + field.key;
      }
    }
    return text;
  }

  /// The known keys (or sections) most like `key`, as "a or b"; empty if none is like it. A key in
  /// the wrong section, or without one, counts as one edit more than its last word has.
  [[nodiscard]] std::string nearest(const std::string& key, bool is_section) const {
    constexpr size_t kMostNamed = 3;
    const std::string_view word = last_word(key);
    std::vector<std::string> best;
    int64_t best_distance = 1 + static_cast<int64_t>(word.size()) / 3;
    const auto consider = [&](const std::string& candidate) {
      const std::string_view other = last_word(candidate);
      const bool same_place = key.substr(0, key.size() - word.size()) ==
                              candidate.substr(0, candidate.size() - other.size());
      const int64_t distance = std::min(edit_distance(key, candidate),
                                        edit_distance(word, other) + (same_place ? 0 : 1));
      if (distance < best_distance) {
        best.clear();
      }
      if (distance <= best_distance) {
        best_distance = distance;
        best.push_back(candidate);
      }
    };
    if (is_section) {
      std::for_each(sections_.begin(), sections_.end(), consider);
    } else {
      for (const Field& field : fields_.all()) {
        consider(field.key);
      }
    }
    std::string text;
    for (size_t i = 0; i < std::min(best.size(), kMostNamed); ++i) {
      text += (i == 0 ? "" : " or ") + best[i];
    }
    return text;
  }

  Fields& fields_;
  const std::string& origin_;
  const bool is_file_;
  std::map<std::string, Field*> by_key_;
  std::set<std::string> sections_;
  std::map<std::string, int> lines_;
};

/// Whether a key stands in the mapping, below other keys or with dots.
bool holds(const YamlNode& mapping, std::string_view key) {
  return std::any_of(mapping.entries.begin(), mapping.entries.end(), [&](const auto& entry) {
    return entry.key == key || (key.starts_with(entry.key + ".") &&
                                holds(*entry.value, key.substr(entry.key.size() + 1)));
  });
}

/// `root`: what the override is over.
void read_override(Fields& fields, const std::string& text, const YamlNode& root) {
  static const std::string kOrigin = "command line";
  const size_t equals = text.find('=');
  const std::string key(trim(std::string_view(text).substr(0, equals)));
  KINORA_CHECK(equals != std::string::npos && !key.empty(), kConfig, "[config] ", kOrigin,
               ": a setting must look like key.path=value, got ", text);
  const auto document = config_detail::parse_yaml(text.substr(equals + 1), kOrigin, true);
  Reader reader(fields, kOrigin, false);
  reader.read_entry(key, 0, *document.root);
  if (fields.is_skipped(key) && !reader.knows(key) && !holds(root, key)) {
    reader.refuse_unknown(key, kOrigin, document.root->kind == Kind::kMapping);
  }
}

}  // namespace

Fields::Scope::Scope(Fields& fields, std::string_view name)
    : fields_(fields), outer_size_(fields.prefix_.size()) {
  fields.prefix_.append(name).append(".");
}

Fields::Scope::~Scope() {
  fields_.prefix_.resize(outer_size_);
}

bool Fields::is_skipped(std::string_view key) const {
  return std::any_of(skipped_.begin(), skipped_.end(), [key](const std::string& skipped) {
    return key == skipped || key.starts_with(skipped + ".");
  });
}

Field& Fields::add_target(std::string_view key, Field::Target target, std::string_view doc,
                          Range range) {
  const std::string full = prefix_ + std::string(key);
  KINORA_CHECK(is_word_path(full), kInternal,
               "[config] a key must be words of a-z, 0-9 and _, got ", full);
  for (const Field& other : fields_) {
    const std::string_view shorter = full.size() < other.key.size() ? full : other.key;
    const std::string_view longer = full.size() < other.key.size() ? other.key : full;
    KINORA_CHECK(
        longer != shorter && longer.substr(0, shorter.size() + 1) != std::string(shorter) + ".",
        kInternal, "[config] the keys ", other.key, " and ", full, " exclude each other");
  }
  Field& field = fields_.emplace_back();
  field.key = full;
  field.target = std::move(target);
  field.doc = doc;
  field.range = range;
  return field;
}

Field& Fields::add(std::string_view key, bool& value, std::string_view doc) {
  return add_target(key, &value, doc, {});
}

Field& Fields::add(std::string_view key, int64_t& value, std::string_view doc, Range range) {
  return add_target(key, &value, doc, range);
}

Field& Fields::add(std::string_view key, double& value, std::string_view doc, Range range) {
  return add_target(key, &value, doc, range);
}

Field& Fields::add(std::string_view key, std::string& value, std::string_view doc) {
  return add_target(key, &value, doc, {});
}

Field& Fields::add(std::string_view key, std::vector<int64_t>& value, std::string_view doc,
                   Range range) {
  return add_target(key, &value, doc, range);
}

Field& Fields::add(std::string_view key, std::vector<double>& value, std::string_view doc,
                   Range range) {
  return add_target(key, &value, doc, range);
}

Field& Fields::add(std::string_view key, std::vector<std::string>& value, std::string_view doc) {
  return add_target(key, &value, doc, {});
}

Field& Fields::add(std::string_view key, ConfigTable& value, std::string_view doc) {
  return add_target(key, &value, doc, {});
}

void Fields::retire(std::string_view key, std::string_view value, std::string_view because) {
  retired_.push_back({prefix_ + std::string(key), std::string(value), std::string(because)});
}

Field& Fields::add(std::string_view key, std::string& value, std::vector<std::string> choices,
                   std::string_view doc) {
  Field::EnumTarget target;
  target.names = std::move(choices);
  target.get = [&value, names = target.names] {
    return static_cast<size_t>(std::ranges::find(names, value) - names.begin());
  };
  target.set = [&value, names = target.names](size_t index) { value = names[index]; };
  return add_target(key, std::move(target), doc, {});
}

ConfigText read_config_file(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  KINORA_CHECK(type != std::filesystem::file_type::directory, kIo, "[config] ", path.string(),
               " must be a YAML file, got a folder");
  // The open of a named pipe would wait for a writer.
  KINORA_CHECK(type == std::filesystem::file_type::regular ||
                   type == std::filesystem::file_type::not_found ||
                   type == std::filesystem::file_type::none,
               kIo, "[config] ", path.string(), " must be a YAML file, got a pipe or a device");
  std::ifstream file(path, std::ios::binary);
  KINORA_CHECK(file, kIo, "[config] cannot open ", path.string(), ": ", std::strerror(errno));
  ConfigText result{std::string(kMaxBytes + 1, '\0'), path.string()};
  file.read(result.text.data(), static_cast<std::streamsize>(result.text.size()));
  KINORA_CHECK(!file.bad(), kIo, "[config] cannot read ", path.string());
  result.text.resize(static_cast<size_t>(file.gcount()));
  KINORA_CHECK(result.text.size() <= kMaxBytes, kIo, "[config] ", path.string(),
               " must be a configuration of at most 1 MiB, got more");
  return result;
}

void parse(Fields& fields, const ConfigText& text, const std::vector<std::string>& overrides) {
  const auto document = config_detail::parse_yaml(text.text, text.origin);
  const YamlNode& root = *document.root;
  KINORA_CHECK(root.kind == Kind::kMapping || root.kind == Kind::kNull, kConfig, "[config] ",
               location(text.origin, root.line),
               ": a configuration must be a mapping of keys, got ",
               root.kind == Kind::kScalar ? "a single value" : "a list");
  Reader(fields, text.origin, true).read_mapping(root, "");
  for (const std::string& setting : overrides) {
    read_override(fields, setting, root);
  }
  for (const Field& field : fields.all()) {
    KINORA_CHECK(!field.is_required || !field.origin.empty(), kConfig, "[config] ", text.origin,
                 ": ", field.key, " must be given, it has no default. Hint: it is ",
                 config_detail::expected(field), ": ", field.doc);
  }
  check_values(fields);
}

void check_values(const Fields& fields) {
  const auto where = [](const Field& field) {
    return field.origin.empty() ? field.key : field.origin + ": " + field.key;
  };
  for (const Field& field : fields.all()) {
    KINORA_CHECK(config_detail::in_range(field), kConfig, "[config] ", where(field), " must be ",
                 config_detail::expected(field), ", got ", config_detail::format(field));
  }
  for (const Field& field : fields.all()) {
    for (const Field::Check& check : field.checks) {
      KINORA_CHECK(check.holds(), kConfig, "[config] ", where(field), " must ", check.must,
                   ", got ", config_detail::format(field));
    }
  }
}

}  // namespace kinora
