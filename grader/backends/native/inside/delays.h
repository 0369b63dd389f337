// Holds up whichever thread is running, again and again during a call: grader/backends/torch/delays.py says why. The timer
// has no settings of its own (the third argument's place is empty), so all that it can send is SIGALRM: the filter of
// system calls lets no other timer be made.
//
// A kernel that could see whether a call is delayed would be serial in delayed calls and race in timed ones. So the
// handler, the mask and the timer are the same in every call: without delays it is set to a moment that never comes. The
// filter lets nobody ask for a timer's state.
#ifndef GPT149_INSIDE_DELAYS_H
#define GPT149_INSIDE_DELAYS_H

#if defined(__linux__)
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <sys/resource.h>
#include <unistd.h>

#include "raw.h"

namespace gpt149_inside {
// Without a name that a student's file could use.
namespace {

class Delays {
 public:
  // Says whether the next call has delays. Nothing but the first delay is kept, until the call begins.
  static void plan(bool wanted) { first_ns_ = drawn_ns() + kNeverNs * !wanted; }

  Delays() {
    // In every call, as the call before may have changed them.
    handle(SIGALRM, hold_up);
    if (!possible_) return;
    often_ = kOften;
    running_ = true;
    next(first_ns_);
    first_ns_ = kNeverNs;
  }
  ~Delays() {
    if (running_.exchange(false)) next(0);
  }
  Delays(const Delays &) = delete;
  Delays &operator=(const Delays &) = delete;

  // Makes the timer, before the first call. Each timer needs a place among the signals that may be queued, and the limit
  // below leaves no other. So a kernel cannot make thousands of timers, which would slow others while it is stopped.
  static void prepare() {
    // The C library's own timer_create fills in settings.
    const long created = raw(SYS_timer_create, CLOCK_MONOTONIC, 0, address(&timer_));
    possible_ = created == 0;
    // The student's initialisers have used up what a runner may queue: without delays a race would pass.
    if (created == -EAGAIN) _exit(1);
    const rlimit none = {0, 0};
    raw(SYS_prlimit64, 0, RLIMIT_SIGPENDING, address(&none));
    handle(SIGALRM, hold_up);
  }

 private:
  static constexpr long kEveryNs = 200000, kHeldUpNs = 27000;
  // A call begins with delays in quick succession, since it may be over before the first of the others. They are few:
  // each costs as much CPU time as a short call, and one more call finds more races than the same time of delays.
  static constexpr long kShortestNs = 1000, kLongestNs = 20000, kNeverNs = 3600 * 1000000000l;
  static constexpr int kOften = 20;

  // The kernel adds what it takes to wake a sleeper: 50 us and more. The next delay is set first, so that it may come
  // to another thread in the meantime.
  static void hold_up(int) {
    // Another thread's last delay may have set one more after the end of the call.
    if (!running_) return;
    next(--often_ > 0 ? drawn_ns() : kEveryNs);
    const timespec held_up = {0, kHeldUpNs};
    raw(SYS_nanosleep, address(&held_up));
  }
  // From the shortest to the longest, each power of two as likely as the others: a thread's share of a short call takes
  // microseconds. The numbers are SplitMix64's (Steele, Lea and Flood, "Fast splittable pseudorandom number
  // generators", 2014): a counter that several threads may draw from.
  static long drawn_ns() {
    uint64_t mixed = drawn_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    // Between two powers of two evenly: `pow` could be a student's own. What would be longer begins anew.
    const long shortest = kShortestNs << (mixed >> 32) % 5;
    const long drawn = shortest + static_cast<long>((mixed & 0xffffffff) * static_cast<uint64_t>(shortest) >> 32);
    return drawn > kLongestNs ? drawn - kLongestNs + kShortestNs : drawn;
  }
  static void next(long nanoseconds) {
    constexpr long kSecond = 1000000000;
    itimerspec times = {{0, 0}, {nanoseconds / kSecond, nanoseconds % kSecond}};
    raw(SYS_timer_settime, timer_, 0, address(&times));
    wipe(&times, sizeof times);
  }

  static inline bool possible_ = false;
  static inline int timer_ = 0;
  static inline long first_ns_ = 0;
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
  static void plan(bool) {}
  static void prepare() {}
};
}  // namespace gpt149_inside

#endif
#endif
