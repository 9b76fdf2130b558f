#include "kinora/parallel/ring.h"

#include <ATen/ops/empty_like.h>

#include <utility>

namespace kinora::parallel {
namespace {

/// Sends to the next rank of the ring and receives from the one before.
comm::Work pass_on(const comm::Group& ring, const at::Tensor& received, const at::Tensor& sent) {
  const int64_t size = ring.size();
  return ring.exchange_async(received, (ring.rank() + size - 1) % size, sent,
                             (ring.rank() + 1) % size);
}

}  // namespace

PassingParts::PassingParts(Rings rings, at::Tensor mine)
    : rings_(std::move(rings)), here_(std::move(mine)) {
  set_out();
}

int64_t PassingParts::owner() const {
  const int64_t num_inside = rings_.inside.size();
  const int64_t num_across = rings_.across.size();
  const int64_t inside = (rings_.inside.rank() + num_inside - step_ % num_inside) % num_inside;
  const int64_t across = (rings_.across.rank() + num_across - step_ / num_inside) % num_across;
  return across * num_inside + inside;
}

void PassingParts::set_out() {
  const int64_t step = step_ % rings_.inside.size();
  if (step == 0 && step_ + rings_.inside.size() < rings_.size()) {
    sent_across_ = here_;
    from_across_ = at::empty_like(here_);
    across_ = pass_on(rings_.across, from_across_, sent_across_);
  }
  if (step + 1 < rings_.inside.size()) {
    from_inside_ = at::empty_like(here_);
    inside_ = pass_on(rings_.inside, from_inside_, here_);
  }
}

void PassingParts::next() {
  ++step_;
  if (step_ % rings_.inside.size() != 0) {
    inside_.wait();
    here_ = std::move(from_inside_);
  } else if (!done()) {
    across_.wait();
    here_ = std::move(from_across_);
  }
  if (!done()) {
    set_out();
  }
}

void SummedParts::Level::add(const comm::Group& ring, at::Tensor contribution) {
  if (!own.defined()) {
    own = std::move(contribution);
    return;
  }
  if (sent.defined()) {
    work.wait();
    contribution.add_(arrived);
  }
  sent = std::move(contribution);
  arrived = at::empty_like(sent);
  work = pass_on(ring, arrived, sent);
}

at::Tensor SummedParts::Level::finish() {
  if (sent.defined()) {
    work.wait();
    own.add_(arrived);
  }
  at::Tensor result = std::move(own);
  *this = {};
  return result;
}

void SummedParts::add(at::Tensor contribution) {
  if (step_ > 0 && step_ % rings_.inside.size() == 0) {
    finish_round();
  }
  inside_.add(rings_.inside, std::move(contribution));
  ++step_;
}

void SummedParts::finish_round() {
  across_.add(rings_.across, inside_.finish());
}

at::Tensor SummedParts::finish() {
  finish_round();
  return across_.finish();
}

}  // namespace kinora::parallel
