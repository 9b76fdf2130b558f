#pragma once

namespace kinora {

/// A TCP port that nobody uses on any address of this machine. Another program can take it before
/// the caller does. kIo if there is none.
[[nodiscard]] int free_port();

}  // namespace kinora
