// A CPU-only build: everything is done at once.
#include "kinora/device/side_stream.h"

namespace kinora::device {

struct SideStream::Impl {};

SideStream::SideStream(c10::Device /*device*/, size_t /*num_marks*/) {}
SideStream::~SideStream() = default;

void SideStream::run(const std::function<void()>& work) {
  work();
}

void SideStream::mark(size_t /*i*/) {}

void SideStream::wait(size_t /*i*/) const {}

void SideStream::wait_for_all() const {}

}  // namespace kinora::device
