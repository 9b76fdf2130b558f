#include "kinora/comm/board.h"

#include <exception>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "kinora/comm/transport.h"
#include "kinora/core/error.h"

namespace kinora::comm {
namespace {

constexpr const char* kFailureKey = "failure";

std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

struct Board::Impl {
  c10::intrusive_ptr<c10d::Store> store;

  /// What the store answers to `ask`.
  template <typename Ask>
  auto asked(const Ask& ask) const {
    try {
      return ask(*store);
    } catch (const std::exception& error) {
      throw_error(ErrorKind::kComm, "[comm] the store was lost: ", first_line(error),
                  ". Hint: look for the error of its keeper, the launcher or rank 0.");
    }
  }

  /// Whether all keys are there, within `patience`.
  [[nodiscard]] bool has_all(const std::vector<std::string>& keys,
                             std::chrono::milliseconds patience) const {
    if (patience.count() > 0) {
      try {
        store->wait(keys, patience);
        return true;
      } catch (const std::exception&) {
        // Too late, or the store is lost; the check below knows.
      }
    }
    return asked([&](c10d::Store& asked_store) { return asked_store.check(keys); });
  }
};

Board::Board(const World& world, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  check_world(world);
  impl_->store = c10::make_intrusive<c10d::PrefixStore>(world_prefix(world) + "/board",
                                                        connect_store(world, timeout, false));
}

Board::~Board() = default;
Board::Board(Board&&) noexcept = default;
Board& Board::operator=(Board&&) noexcept = default;

void Board::put(const std::string& key, const std::string& text) {
  impl_->asked([&](c10d::Store& store) { store.set(key, text); });
}

std::string Board::put_first(const std::string& key, const std::string& text) {
  // What is expected, nothing, is no text, so an old one stays.
  return impl_->asked([&](c10d::Store& store) { return store.compareSet(key, "", text); });
}

std::vector<std::optional<std::string>> Board::read_all(const std::vector<std::string>& keys,
                                                        std::chrono::milliseconds patience) {
  std::vector<std::optional<std::string>> texts;
  if (impl_->has_all(keys, patience)) {
    const auto all = impl_->asked([&](c10d::Store& store) { return store.multiGet(keys); });
    for (const std::vector<uint8_t>& bytes : all) {
      texts.emplace_back(text_of(bytes));
    }
    return texts;
  }
  for (const std::string& key : keys) {
    texts.push_back(impl_->asked([&](c10d::Store& store) -> std::optional<std::string> {
      return store.check({key}) ? std::optional(text_of(store.get(key))) : std::nullopt;
    }));
  }
  return texts;
}

std::optional<std::string> Board::read(const std::string& key, std::chrono::milliseconds patience) {
  return read_all({key}, patience).front();
}

void put_failure(Board& board, const std::string& what) {
  board.put_first(kFailureKey, what);
}

std::optional<std::string> failure(Board& board) {
  return board.read(kFailureKey);
}

}  // namespace kinora::comm
