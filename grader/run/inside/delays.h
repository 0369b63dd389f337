// Holds up whichever thread is running, again and again during a call: grader/run/delays.py says why. The timer
// has no settings of its own (the third argument's place is empty), so all that it can send is SIGALRM: the filter of
// system calls lets no other timer be made.
#ifndef GPT149_INSIDE_DELAYS_H
#define GPT149_INSIDE_DELAYS_H

#if defined(__linux__)
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpt149_inside {

class Delays {
 public:
  explicit Delays(bool wanted) {
    if (!wanted || !made()) return;
    struct sigaction action = {};
    action.sa_handler = hold_up;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    often_ = kOften;
    repeat(kOftenNs);
    running_ = true;
  }
  ~Delays() {
    if (running_) repeat(0);
  }
  Delays(const Delays &) = delete;
  Delays &operator=(const Delays &) = delete;

 private:
  static constexpr long kEveryNs = 200000, kHeldUpNs = 27000;
  // A call begins with delays in quick succession, since it may be over before the first of the others.
  static constexpr long kOftenNs = 20000;
  static constexpr int kOften = 200;

  // The kernel adds what it takes to wake a sleeper: 50 us and more.
  static void hold_up(int) {
    const int before = errno;
    if (--often_ == 0) repeat(kEveryNs);
    const timespec held_up = {0, kHeldUpNs};
    nanosleep(&held_up, nullptr);
    errno = before;
  }
  static bool made() {
    // The C library's own timer_create fills in settings.
    if (!tried_) possible_ = syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &timer_) == 0;
    tried_ = true;
    return possible_;
  }
  static void repeat(long nanoseconds) {
    const itimerspec times = {{0, nanoseconds}, {0, nanoseconds}};
    syscall(SYS_timer_settime, timer_, 0, &times, nullptr);
  }

  static inline bool tried_ = false, possible_ = false;
  static inline int timer_ = 0;
  static inline std::atomic<int> often_{0};
  bool running_ = false;
};

}  // namespace gpt149_inside

#else

namespace gpt149_inside {
// macOS has no such timers.
struct Delays {
  explicit Delays(bool) {}
};
}  // namespace gpt149_inside

#endif
#endif
