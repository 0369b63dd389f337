// Holds up whichever thread is running, again and again during a call: grader/backends/torch/delays.py says why. The timer
// has no settings of its own (the third argument's place is empty), so all that it can send is SIGALRM: the filter of
// system calls lets no other timer be made.
//
// A kernel that could see whether a call is delayed would be serial in delayed calls and race in timed ones. So the
// handler, the mask and the timer are the same in every call, and the filter lets nobody ask for a timer's state.
#ifndef GPT149_INSIDE_DELAYS_H
#define GPT149_INSIDE_DELAYS_H

#if defined(__linux__)
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpt149_inside {
// Without a name that a student's file could use.
namespace {

class Delays {
 public:
  explicit Delays(bool wanted) {
    // In every call, as the call before may have changed them.
    set_signal();
    if (!wanted || !possible_) return;
    often_ = kOften;
    running_ = true;
    next(drawn_ns());
  }
  ~Delays() {
    if (running_.exchange(false)) next(0);
  }
  Delays(const Delays &) = delete;
  Delays &operator=(const Delays &) = delete;

  // Makes the timer, before the first call. No other can be made afterwards: a timer keeps its place among the signals
  // that may be queued, and there is none left. Thousands of timers would slow whoever runs while this process is stopped.
  static void prepare() {
    // The C library's own timer_create fills in settings.
    possible_ = syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &timer_) == 0;
    // The student's initialisers have used up what a runner may queue: without delays a race would pass.
    if (!possible_ && errno == EAGAIN) _exit(1);
    const rlimit none = {0, 0};
    setrlimit(RLIMIT_SIGPENDING, &none);
    set_signal();
  }

 private:
  static constexpr long kEveryNs = 200000, kHeldUpNs = 27000;
  // A call begins with delays in quick succession, since it may be over before the first of the others. They are few:
  // each costs as much CPU time as a short call, and one more call finds more races than the same time of delays.
  static constexpr double kShortestNs = 1000, kLongestNs = 20000;
  static constexpr int kOften = 20;

  // The kernel adds what it takes to wake a sleeper: 50 us and more. The next delay is set first, so that it may come
  // to another thread in the meantime.
  static void hold_up(int) {
    // Another thread's last delay may have set one more after the end of the call.
    if (!running_) return;
    const int before = errno;
    next(--often_ > 0 ? drawn_ns() : kEveryNs);
    const timespec held_up = {0, kHeldUpNs};
    nanosleep(&held_up, nullptr);
    errno = before;
  }
  // From the shortest to the longest, each power of ten as likely as the others: a thread's share of a short call takes
  // microseconds. The numbers are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number
  // generators", 2014): a counter that several threads may draw from.
  static long drawn_ns() {
    uint64_t mixed = drawn_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    const double even = static_cast<double>((mixed ^ (mixed >> 31)) >> 11) * 0x1p-53;
    return static_cast<long>(kShortestNs * std::pow(kLongestNs / kShortestNs, even));
  }
  static void set_signal() {
    struct sigaction action = {};
    action.sa_handler = hold_up;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
  }
  static void next(long nanoseconds) {
    const itimerspec times = {{0, 0}, {0, nanoseconds}};
    syscall(SYS_timer_settime, timer_, 0, &times, nullptr);
  }

  static inline bool possible_ = false;
  static inline int timer_ = 0;
  static inline std::atomic<int> often_{0};
  static inline std::atomic<uint64_t> drawn_{149};
  static inline std::atomic<bool> running_{false};
};

}  // namespace
}  // namespace gpt149_inside

#else

namespace gpt149_inside {
// macOS has no such timers.
struct Delays {
  explicit Delays(bool) {}
  static void prepare() {}
};
}  // namespace gpt149_inside

#endif
#endif
