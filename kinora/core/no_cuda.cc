#include "kinora/core/cuda.h"
#include "kinora/core/error.h"

namespace kinora {

bool cuda_available() {
  return false;
}

std::string cuda_unavailable_reason() {
  return "this build has no GPU support";
}

int cuda_device_count() {
  return 0;
}

CudaDevice cuda_device(int index) {
  throw_error(ErrorKind::kCuda, "[cuda] ", cuda_unavailable_reason(), ", got device index ", index,
              ". Hint: configure with KINORA_CUDA=AUTO and a libtorch with CUDA");
}

int64_t cuda_free_memory(int index) {
  static_cast<void>(cuda_device(index));
  return 0;
}

bool cuda_reaches(int from, int /*to*/) {
  static_cast<void>(cuda_device(from));
  return false;
}

void cuda_check(int error, const char* what) {
  KINORA_CHECK(error == 0, kCuda, "[cuda] ", what, " failed with code ", error);
}

}  // namespace kinora
