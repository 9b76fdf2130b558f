#pragma once

#include <cstdint>
#include <memory>

/// Where ranks find each other: a key-value store over TCP.
namespace kinora::comm {

/// A store in this process, for a launcher: as long as it lives, ranks with `store_is_hosted` meet
/// at its port, and the death of a rank, even of rank 0, leaves it whole.
class StoreServer {
 public:
  /// Listens on all interfaces, in a thread of its own; port 0 takes a free one. kComm if the port
  /// is taken.
  explicit StoreServer(int64_t port = 0);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  [[nodiscard]] int64_t port() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kinora::comm
