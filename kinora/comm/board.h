#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kinora/comm/world.h"

namespace kinora::comm {

/// Short texts that the ranks of a world leave for each other at the store, by key. It is a
/// connection of its own, so a thread may use one while another waits in a Group; each Board
/// belongs to one thread at a time.
///
/// Errors: kComm if the store is lost.
class Board {
 public:
  /// For a world of several whose ranks have met (connect()), or whose launcher keeps the store.
  /// kComm if the store is not reached within `timeout`.
  explicit Board(const World& world, std::chrono::milliseconds timeout = std::chrono::seconds(10));
  ~Board();
  Board(Board&&) noexcept;
  Board& operator=(Board&&) noexcept;

  /// `text`, over what was there; not empty.
  void put(const std::string& key, const std::string& text);

  /// `text`, unless there is one already. Returns the one that is there then.
  std::string put_first(const std::string& key, const std::string& text);

  /// The texts at `keys`, awaited for `patience` in all; none where there is none by then.
  [[nodiscard]] std::vector<std::optional<std::string>> read_all(
      const std::vector<std::string>& keys,
      std::chrono::milliseconds patience = std::chrono::milliseconds(0));
  [[nodiscard]] std::optional<std::string> read(
      const std::string& key, std::chrono::milliseconds patience = std::chrono::milliseconds(0));

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Tells all ranks of the world, once, why it is at an end; Watchdogs hear it (train/watchdog.h).
/// Only the first failure is kept.
void put_failure(Board& board, const std::string& what);

/// What put_failure() was told first.
[[nodiscard]] std::optional<std::string> failure(Board& board);

}  // namespace kinora::comm
