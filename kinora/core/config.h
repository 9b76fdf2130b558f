#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "kinora/core/config_table.h"

/// Typed configuration from YAML. A configuration is an aggregate with its defaults in the struct,
/// and one function beside it that names every key once; parsing, checks, help and dump all read
/// that description:
///
///     struct TrainConfig { int64_t steps = 1000; Precision precision = Precision::kFp32; };
///
///     void describe(Fields& fields, TrainConfig& c) {
///       const auto scope = fields.scope("train");
///       fields.add("steps", c.steps, "Optimizer step at which training stops.", at_least(1));
///       fields.add("precision", c.precision, {{"fp32", Precision::kFp32}, {"bf16",
///       Precision::kBf16}},
///                  "Type of the forward and backward pass.");
///     }
///
///     const auto config = load_config<TrainConfig>("configs/demo.yaml", {"train.steps=20"});
///
/// Errors of the user are ErrorKind::kConfig (kIo: a file that cannot be read) and name file and
/// line, key, what was expected and what was got. Values are strict: `true`/`false`; integers in
/// decimal or as exact powers like 1e6; finite numbers; a quoted value is a string; null is never a
/// value.
namespace kinora {

/// The allowed interval of a number, or of each number of a list. The ends belong to it unless
/// open.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_open = false;
  bool max_open = false;
};

[[nodiscard]] constexpr Range at_least(double min) {
  return {.min = min};
}
[[nodiscard]] constexpr Range above(double min,
                                    double max = std::numeric_limits<double>::infinity()) {
  return {.min = min, .max = max, .min_open = true};
}
[[nodiscard]] constexpr Range between(double min, double max) {
  return {.min = min, .max = max};
}

/// Whether a number, which is finite, lies in the range.
[[nodiscard]] bool contains(const Range& range, long double value);

/// What lies in the range, as messages and help say it: "an integer of 1 or more", "a number from 0
/// to 1", "a number above 0", "an integer".
[[nodiscard]] std::string integers_in(const Range& range);
[[nodiscard]] std::string numbers_in(const Range& range);

/// A name of an enumerator in configuration files.
template <typename Enum>
struct Choice {
  std::string_view name;
  Enum value;
};

/// One key: where its value lives and what it accepts. Made by Fields::add.
struct Field {
  /// One of some names, an enum's or a string: its value as a position in `names`.
  struct EnumTarget {
    std::vector<std::string> names;
    std::function<size_t()> get;  ///< names.size() if the value has no name
    std::function<void(size_t)> set;
  };
  using Target =
      std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                   std::vector<double>*, std::vector<std::string>*, ConfigTable*, EnumTarget>;
  struct Check {
    std::string must;
    std::function<bool()> holds;
  };

  /// The struct's default is no answer: parsing fails unless the key is given.
  Field& required() {
    is_required = true;
    return *this;
  }

  /// A condition beyond type and range, which may look at other values too: it runs after all are
  /// set. `must` completes the message "KEY must ..., got VALUE".
  Field& check(std::string must, std::function<bool()> holds) {
    checks.push_back({std::move(must), std::move(holds)});
    return *this;
  }

  std::string key;  ///< with all scopes
  Target target;
  std::string doc;
  Range range;
  bool is_required = false;
  std::vector<Check> checks;
  std::string origin;  ///< who set the value: "a.yaml:3", "command line"; empty: the default
};

/// A key that is no more. Made by Fields::retire.
struct RetiredKey {
  std::string key;  ///< with all scopes
  std::string value;
  std::string because;
};

/// The description of one configuration object, which it borrows: the object must outlive it.
class Fields {
 public:
  /// Until it is destroyed, added keys lie under `name` (and under the scopes around it).
  class [[nodiscard]] Scope {
   public:
    Scope(Fields& fields, std::string_view name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Fields& fields_;
    size_t outer_size_;
  };

  Fields() = default;
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  /// Registers `key` (words [a-z0-9_] joined by dots, relative to the scope). `doc` says what the
  /// value means, with its unit. kInternal for a malformed or repeated key, or one that is also a
  /// section.
  Field& add(std::string_view key, bool& value, std::string_view doc);
  Field& add(std::string_view key, int64_t& value, std::string_view doc, Range range = {});
  Field& add(std::string_view key, double& value, std::string_view doc, Range range = {});
  Field& add(std::string_view key, std::string& value, std::string_view doc);
  Field& add(std::string_view key, std::vector<int64_t>& value, std::string_view doc,
             Range range = {});
  Field& add(std::string_view key, std::vector<double>& value, std::string_view doc,
             Range range = {});
  Field& add(std::string_view key, std::vector<std::string>& value, std::string_view doc);
  Field& add(std::string_view key, ConfigTable& value, std::string_view doc);

  /// A string that is one of `choices`.
  Field& add(std::string_view key, std::string& value, std::vector<std::string> choices,
             std::string_view doc);

  /// An enum by the names of its enumerators.
  template <typename Enum>
  requires std::is_enum_v<Enum> Field& add(std::string_view key, Enum& value,
                                           std::type_identity_t<std::vector<Choice<Enum>>> choices,
                                           std::string_view doc) {
    Field::EnumTarget target;
    for (const Choice<Enum>& choice : choices) {
      target.names.emplace_back(choice.name);
    }
    target.get = [&value, choices] {
      size_t index = 0;
      while (index < choices.size() && choices[index].value != value) {
        ++index;
      }
      return index;
    };
    target.set = [&value, choices](size_t index) { value = choices[index].value; };
    return add_target(key, std::move(target), doc, {});
  }

  /// A key of earlier versions that took `value` alone: files that have it so are read as before,
  /// others refused, with `because`. Of a key that is there: a choice that is no more, and refused.
  void retire(std::string_view key, std::string_view value, std::string_view because);

  Scope scope(std::string_view name) { return Scope(*this, name); }

  /// Lets a text hold a section, or a key of a section that has described ones, without knowing it:
  /// it is somebody else's, who wrote a larger configuration. Described keys count as ever. An
  /// override must name a described key, or one that the text holds.
  void skip(std::string_view key) { skipped_.emplace_back(prefix_ + std::string(key)); }
  [[nodiscard]] bool is_skipped(std::string_view key) const;

  [[nodiscard]] const std::deque<Field>& all() const { return fields_; }
  [[nodiscard]] std::deque<Field>& all() { return fields_; }
  [[nodiscard]] const std::vector<RetiredKey>& retired() const { return retired_; }

 private:
  Field& add_target(std::string_view key, Field::Target target, std::string_view doc, Range range);

  std::deque<Field> fields_;  // references to its elements stay valid
  std::vector<RetiredKey> retired_;
  std::string prefix_;                // "train." inside the scope train
  std::vector<std::string> skipped_;  // keys and sections
};

/// YAML text and the name that errors give it: a path, or "config of checkpoint X".
struct ConfigText {
  std::string text;
  std::string origin;
};

/// The file's text, with the path as its origin; kIo if it cannot be read or is larger than 1 MiB.
[[nodiscard]] ConfigText read_config_file(const std::filesystem::path& path);

/// Sets the described values from the YAML text, then from `overrides`, each "key.path=value" with
/// a YAML value (the last of one key wins), then runs every check. After an error the values are
/// unspecified.
void parse(Fields& fields, const ConfigText& text, const std::vector<std::string>& overrides = {});

/// Runs the ranges and checks on values that a program set.
void check_values(const Fields& fields);

/// Every key with what it accepts, default and meaning, grouped by section, at most 100 columns
/// wide.
[[nodiscard]] std::string help(const Fields& fields);

/// The complete YAML, which parses back to the same values bit for bit. kConfig if a value cannot
/// be written: a number that is not finite, a string that is not UTF-8.
[[nodiscard]] std::string dump(const Fields& fields);

/// Every key with its value as in dump, in the order of description.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> flatten(const Fields& fields);

/// The configuration in `text` and `overrides` over the defaults.
template <typename Config>
[[nodiscard]] Config parse_config(const ConfigText& text,
                                  const std::vector<std::string>& overrides = {}) {
  Config config;
  Fields fields;
  describe(fields, config);
  parse(fields, text, overrides);
  return config;
}

/// The configuration in the file at `path` and `overrides` over the defaults.
template <typename Config>
[[nodiscard]] Config load_config(const std::filesystem::path& path,
                                 const std::vector<std::string>& overrides = {}) {
  return parse_config<Config>(read_config_file(path), overrides);
}

/// check_values, dump and flatten of a configuration; by value, since a description may write.
template <typename Config>
void check_config(Config config) {
  Fields fields;
  describe(fields, config);
  check_values(fields);
}

template <typename Config>
[[nodiscard]] std::string dump_config(Config config) {
  Fields fields;
  describe(fields, config);
  return dump(fields);
}

template <typename Config>
[[nodiscard]] std::vector<std::pair<std::string, std::string>> flatten_config(Config config) {
  Fields fields;
  describe(fields, config);
  return flatten(fields);
}

/// The help text of a type of configuration.
template <typename Config>
[[nodiscard]] std::string help_config() {
  Config config;
  Fields fields;
  describe(fields, config);
  return help(fields);
}

}  // namespace kinora
