#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kinora {

/// Both ends of the way that this machine takes to another, as numbers ("10.0.0.3").
struct WayTo {
  std::string here;
  std::string there;
  bool is_loopback = false;  ///< it does not leave this machine by an address that others know
};

/// How `host`, a name or an address, is reached. Nothing is sent. None where the name is unknown or
/// no network leads there.
[[nodiscard]] std::optional<WayTo> way_to(const std::string& host, int64_t port);

}  // namespace kinora
