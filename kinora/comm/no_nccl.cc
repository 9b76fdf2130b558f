// A CPU-only build: there are no CUDA tensors.
#include "kinora/comm/transport.h"
#include "kinora/core/error.h"

namespace kinora::comm {

std::unique_ptr<Transport> make_nccl(const Membership& /*membership*/, at::Device device) {
  throw_error(ErrorKind::kCuda, "[comm] this build has no GPU support, got device ", device,
              ". Hint: build with -DKINORA_CUDA=ON, or compute on the CPU.");
}

}  // namespace kinora::comm
