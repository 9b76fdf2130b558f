#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "kinora/core/error.h"
#include "kinora/io/pickle.h"

namespace kinora::io {
namespace {

size_t num_children(PickleRef value) {
  if (const auto* list = value->get_if<PickleList>()) {
    return list->items.size();
  }
  if (const auto* tuple = value->get_if<PickleTuple>()) {
    return tuple->items.size();
  }
  if (const auto* dict = value->get_if<PickleDict>()) {
    return 2 * dict->items.size();
  }
  return 0;
}

PickleRef child(PickleRef value, size_t i) {
  if (const auto* list = value->get_if<PickleList>()) {
    return list->items[i];
  }
  if (const auto* tuple = value->get_if<PickleTuple>()) {
    return tuple->items[i];
  }
  const auto& pair = value->get_if<PickleDict>()->items[i / 2];
  return i % 2 == 0 ? pair.first : pair.second;
}

}  // namespace

std::string_view type_name(const PickleValue& value) {
  constexpr std::string_view kNames[] = {
      "None",    "a bool",    "an integer",    "an integer above 2^63",
      "a float", "text",      "bytes",         "a list",
      "a tuple", "a dict",    "a tensor",      "a storage",
      "a name",  "an object", "a Python name",
  };
  static_assert(std::size(kNames) == std::variant_size_v<decltype(PickleValue::value)>);
  return kNames[value.value.index()];
}

PickleRef find(const PickleDict& dict, std::string_view key) {
  for (size_t i = dict.items.size(); i-- > 0;) {
    const auto* text = dict.items[i].first->get_if<std::string_view>();
    if (text != nullptr && *text == key) {
      return dict.items[i].second;
    }
  }
  return nullptr;
}

void check_pickle_tree(PickleRef root, const std::string& file) {
  // Containers may share parts (the memo), so a small pickle can hold itself or a tree of endless
  // size. One pass over all edges, with a stack of its own, finds depth and size of every
  // container.
  const auto check = [&](bool condition, std::string_view must, auto limit, std::string_view rest) {
    KINORA_CHECK(condition, kIo, "[torch_file] ", file, ": the pickle ", must, limit, rest);
  };
  struct Extent {
    int depth = 0;  // 0 while open
    int64_t size = 1;
  };
  struct Open {
    PickleRef value;
    size_t next;
    Extent extent;
  };
  std::unordered_map<PickleRef, Extent> extents{{root, {}}};
  std::vector<Open> open{{root, 0, {1, 1}}};
  while (!open.empty()) {
    Open& last = open.back();
    if (last.next == num_children(last.value)) {
      const Open closed = last;
      extents[closed.value] = closed.extent;
      open.pop_back();
      continue;
    }
    const PickleRef value = child(last.value, last.next);
    Extent inner{1, 1};
    if (num_children(value) > 0) {
      const auto [found, is_new] = extents.try_emplace(value);
      if (is_new) {
        check(open.size() < kMaxPickleDepth, "must nest at most ", kMaxPickleDepth,
              " levels deep, got more");
        open.push_back({value, 0, {1, 1}});
        continue;  // comes back here when it is closed
      }
      inner = found->second;
      check(inner.depth > 0, "must not hold a container that contains itself", "", "");
    }
    ++last.next;
    last.extent.depth = std::max(last.extent.depth, inner.depth + 1);
    last.extent.size += inner.size;
    check(last.extent.depth <= kMaxPickleDepth, "must nest at most ", kMaxPickleDepth,
          " levels deep, got more");
    check(last.extent.size <= kMaxPickleValues, "must have at most ", kMaxPickleValues,
          " values when shared ones are counted each time, got more");
  }
}

}  // namespace kinora::io
