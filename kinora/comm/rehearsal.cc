#include "kinora/comm/rehearsal.h"

#include <utility>

#include "kinora/comm/transport.h"

namespace kinora::comm {
namespace {

class Rehearsal : public HostTransport {
 public:
  Rehearsal(std::vector<int64_t> world_ranks, std::shared_ptr<RehearsedCalls> calls)
      : world_ranks_(std::move(world_ranks)), calls_(std::move(calls)) {}

  Work all_reduce(const Call& call, const at::Tensor& tensor, Reduction /*reduction*/,
                  bool /*async*/) override {
    return note(call, tensor);
  }
  Work all_gather(const Call& call, const at::Tensor& output, const at::Tensor& /*input*/,
                  bool /*async*/) override {
    return note(call, output);
  }
  Work reduce_scatter(const Call& call, const at::Tensor& /*output*/, const at::Tensor& input,
                      Reduction /*reduction*/, bool /*async*/) override {
    return note(call, input);
  }
  Work all_to_all(const Call& call, const at::Tensor& /*output*/, const at::Tensor& input,
                  bool /*async*/) override {
    return note(call, input);
  }
  Work broadcast(const Call& call, const at::Tensor& tensor, int64_t /*root*/,
                 bool /*async*/) override {
    return note(call, tensor);
  }
  Work send(const Call& call, const at::Tensor& tensor, int64_t to) override {
    return note(call, tensor, -1, to);
  }
  Work receive(const Call& call, const at::Tensor& tensor, int64_t from) override {
    return note(call, tensor, from);
  }
  Work exchange(const Call& call, const at::Tensor& /*output*/, int64_t from,
                const at::Tensor& input, int64_t to) override {
    return note(call, input, from, to);
  }
  Work barrier(const Call& call) override {
    calls_->push_back({call.operation, 0, world_ranks_, -1, -1});
    return {};
  }

 private:
  /// whole: the larger tensor.
  Work note(const Call& call, const at::Tensor& whole, int64_t from = -1, int64_t to = -1) {
    calls_->push_back(
        {call.operation, static_cast<int64_t>(whole.nbytes()), world_ranks_, from, to});
    return {};
  }

  const std::vector<int64_t> world_ranks_;
  const std::shared_ptr<RehearsedCalls> calls_;
};

}  // namespace

std::unique_ptr<HostTransport> make_rehearsal(const std::vector<int64_t>& world_ranks,
                                              const std::shared_ptr<RehearsedCalls>& calls) {
  return std::make_unique<Rehearsal>(world_ranks, calls);
}

}  // namespace kinora::comm
