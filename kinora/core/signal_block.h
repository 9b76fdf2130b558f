#pragma once

#include <csignal>

namespace kinora {

/// While it lives, signals to this process wait: this thread takes none, nor do threads that it
/// starts meanwhile, for as long as they live.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &old_mask_);
  }
  ~SignalBlock() { ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t old_mask_;
};

}  // namespace kinora
