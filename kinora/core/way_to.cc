#include "kinora/core/way_to.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "kinora/core/child_process.h"

namespace kinora {
namespace {

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses look_up(const std::string& host, int64_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    found = nullptr;
  }
  return {found, [](addrinfo* list) {
            if (list != nullptr) {
              ::freeaddrinfo(list);
            }
          }};
}

std::string numbers_of(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int failed =
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? text.data() : "";
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  }
  constexpr uint32_t kNetwork = 127;
  return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24U == kNetwork;
}

}  // namespace

std::optional<WayTo> way_to(const std::string& host, int64_t port) {
  const Addresses addresses = look_up(host, port);
  for (const addrinfo* there = addresses.get(); there != nullptr; there = there->ai_next) {
    // To connect a datagram's socket sends nothing, but chooses the way.
    const OpenDescriptor socket(::socket(there->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage here{};
    socklen_t size = sizeof(here);
    auto* const address = reinterpret_cast<sockaddr*>(&here);
    if (socket.is_open() && ::connect(socket.get(), there->ai_addr, there->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), address, &size) == 0) {
      return WayTo{numbers_of(address, size), numbers_of(there->ai_addr, there->ai_addrlen),
                   is_loopback(here)};
    }
  }
  return std::nullopt;
}

}  // namespace kinora
