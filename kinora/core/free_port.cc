#include "kinora/core/free_port.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "kinora/core/child_process.h"
#include "kinora/core/error.h"

namespace kinora {
namespace {

/// One of this family, or 0 where there is no such family.
int port_of(int family, const sockaddr* any, socklen_t size) {
  const OpenDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t bound_size = sizeof(bound);
  if (!socket.is_open() || ::bind(socket.get(), any, size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &bound_size) != 0) {
    return 0;
  }
  return ntohs(family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                  : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

}  // namespace

int free_port() {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;  // takes IPv4's port with it
  int port = port_of(AF_INET6, reinterpret_cast<const sockaddr*>(&any6), sizeof(any6));
  if (port == 0) {
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    port = port_of(AF_INET, reinterpret_cast<const sockaddr*>(&any4), sizeof(any4));
  }
  KINORA_CHECK(port != 0, kIo, "[free_port] no free TCP port: ", std::strerror(errno));
  return port;
}

}  // namespace kinora
