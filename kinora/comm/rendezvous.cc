#include "kinora/comm/rendezvous.h"

#include <algorithm>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "kinora/comm/transport.h"
#include "kinora/core/error.h"
#include "kinora/core/text.h"
#include "kinora/core/way_to.h"

namespace kinora::comm {
namespace {

constexpr size_t kMostNames = 16;

double seconds(std::chrono::milliseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string arrival_key(int64_t rank) {
  return "arrived/" + std::to_string(rank);
}

/// The ranks that have not arrived, by number.
std::string missing_ranks(c10d::Store& store, int64_t size) {
  std::vector<std::string> missing;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (!store.check({arrival_key(rank)})) {
      missing.push_back(std::to_string(rank));
    }
  }
  return list_names(missing, kMostNames);
}

std::string way_key(int64_t rank) {
  return "way_to_store/" + std::to_string(rank);
}

}  // namespace

struct StoreServer::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(int64_t port) : impl_(std::make_unique<Impl>()) {
  KINORA_CHECK(port >= 0 && port <= UINT16_MAX, kConfig, "[comm] a port must be 0 to ", UINT16_MAX,
               ", got ", port, '.');
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    throw_error(ErrorKind::kComm, "[comm] no store could be kept at port ", port, ": ",
                first_line(error), ". Hint: is the port taken by another run?");
  }
}

StoreServer::~StoreServer() = default;

int64_t StoreServer::port() const {
  return impl_->store->getPort();
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

std::string world_prefix(const World& world) {
  return "kinora/" + world.store_prefix;
}

c10::intrusive_ptr<c10d::Store> connect_store(const World& world, std::chrono::milliseconds timeout,
                                              bool keep) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.store_port);
  options.isServer = keep && world.rank == 0 && !world.store_is_hosted;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(world.store_host, options);
  } catch (const std::exception& error) {
    if (options.isServer) {
      throw_error(ErrorKind::kComm, "[comm] rank 0 could not keep the store at ", world.store_host,
                  ':', world.store_port, ": ", first_line(error),
                  ". Hint: is the port taken by another run?");
    }
    throw_error(ErrorKind::kComm, "[comm] rank ", world.rank, " of ", world.size,
                " could not reach the store at ", world.store_host, ':', world.store_port,
                " within ", human_duration(seconds(timeout)), ": ",
                world.store_is_hosted ? "the launcher" : "rank 0", " is missing (",
                first_line(error),
                "). Hint: did it start, is the address right, is the port open?");
  }
}

std::string address_for_others(const World& world, c10d::Store& store) {
  if (world.local_size == world.size) {
    return "127.0.0.1";
  }
  const std::optional<WayTo> way = way_to(world.store_host, world.store_port);
  const bool leaves = way.has_value() && !way->is_loopback;
  const std::string seen = leaves ? way->there : "";
  store.set(way_key(world.rank), std::vector<uint8_t>(seen.begin(), seen.end()));
  if (leaves) {
    return way->here;
  }
  for (int64_t rank = 0; rank < world.size; ++rank) {
    const std::vector<uint8_t> address = store.get(way_key(rank));
    if (!address.empty()) {
      return {address.begin(), address.end()};
    }
  }
  return "";
}

c10::intrusive_ptr<c10d::Store> meet(const World& world, std::chrono::milliseconds timeout) {
  check_world(world);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto store = c10::make_intrusive<c10d::PrefixStore>(world_prefix(world),
                                                            connect_store(world, timeout, true));
  std::string missing;
  bool twice = false;
  try {
    twice = store->add(arrival_key(world.rank), 1) > 1;
    // The last one tells the others: one key to wait for, not as many as there are ranks.
    if (!twice && store->add("num_arrived", 1) == world.size) {
      store->set("all_arrived", std::vector<uint8_t>{1});
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    try {
      if (!twice) {
        store->wait({"all_arrived"}, std::max(left, std::chrono::milliseconds(1)));
      }
    } catch (const std::exception&) {
      missing = missing_ranks(*store, world.size);
      // None is missing if the last one came just now.
      if (!missing.empty()) {
        throw;
      }
    }
  } catch (const std::exception& error) {
    if (missing.empty()) {
      throw_error(ErrorKind::kComm, "[comm] rank ", world.rank, " of ", world.size,
                  " lost the store at ", world.store_host, ':', world.store_port, ": ",
                  first_line(error), ". Hint: look for the error of its keeper, ",
                  world.store_is_hosted ? "the launcher." : "rank 0.");
    }
    throw_error(ErrorKind::kComm, "[comm] rank ", world.rank, " of ", world.size, " waited ",
                human_duration(seconds(timeout)), " at ", world.store_host, ':', world.store_port,
                "; missing ranks: ", missing,
                ". Hint: look for their own errors; were all of them started, with one address?");
  }
  KINORA_CHECK(!twice, kComm, "[comm] two processes came to the store at ", world.store_host, ':',
               world.store_port, " as rank ", world.rank, " of ", world.size,
               ". Hint: is another run using this port?");
  return store;
}

}  // namespace kinora::comm
