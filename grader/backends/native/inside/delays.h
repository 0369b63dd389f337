// Interrupts the running thread for about 0.1 ms, again and again during a call, to reveal data races (`Delays` of
// grader/runner/runner.py). The timer is made without settings (a null pointer), so it can only send SIGALRM. The
// filter of system calls forbids making any other timer.
//
// A kernel that could find out if a call has delays would avoid data races only in such calls. So signal handler,
// signal mask and timer are the same in every call: for a call without delays, the timer is set to a time that never
// comes. The filter forbids reading a timer's state.
#ifndef GPT149_INSIDE_DELAYS_H
#define GPT149_INSIDE_DELAYS_H

#if defined(__linux__)
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <sys/resource.h>
#include <unistd.h>

#include "raw.h"

namespace gpt149_inside {
// Anonymous, so that a student's file cannot use these names.
namespace {

class Delays {
 public:
  // Draws the time from the start of the next call to its first delay: more than an hour if no delays are `wanted`.
  static void plan(bool wanted) { first_ns_ = drawn_ns() + kNeverNs * !wanted; }

  Delays() {
    // Set the handler in every call, because a student's code may have changed it.
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

  // Makes the timer, before any code of the student runs. Each timer counts as a queued signal. The limit on queued
  // signals is then set to 0, so that a student's code cannot make timers. Thousands of them would slow other processes
  // while the runner is stopped, and Linux counts the timers of all processes of a user together.
  static void prepare() {
    // Use the system call: the C library's timer_create passes settings.
    possible_ = raw(SYS_timer_create, CLOCK_MONOTONIC, 0, address(&timer_)) == 0;
    const rlimit none = {0, 0};
    raw(SYS_prlimit64, 0, RLIMIT_SIGPENDING, address(&none));
    handle(SIGALRM, hold_up);
  }

 private:
  static constexpr long kEveryNs = 200000, kHeldUpNs = 27000;
  // A call begins with kOften delays in quick succession, because a short call ends before kEveryNs. More delays would
  // be of little use: a delay costs as much CPU time as a short call, and repeating the call finds more races.
  static constexpr long kShortestNs = 1000, kLongestNs = 20000, kNeverNs = 3600 * 1000000000l;
  static constexpr int kOften = 20;

  // Handles the signal: sleeps for kHeldUpNs, to which Linux adds 50 us or more for waking up. The timer is set before
  // the sleep, so that the next delay may interrupt another thread while this thread sleeps.
  static void hold_up(int) {
    // A delay of another thread may have set the timer again after the call had ended.
    if (!running_) return;
    next(--often_ > 0 ? drawn_ns() : kEveryNs);
    const timespec held_up = {0, kHeldUpNs};
    raw(SYS_nanosleep, address(&held_up));
  }
  // Returns a random time from kShortestNs to kLongestNs. Short times are drawn often, because a thread's share of a
  // short call takes only microseconds. The generator is SplitMix64 (Steele, Lea and Flood, "Fast splittable
  // pseudorandom number generators", 2014): its state is a counter, which several threads may use at once.
  static long drawn_ns() {
    uint64_t mixed = drawn_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    // Draw kShortestNs times a power of two, then a time up to its double. This avoids `pow`: a student may define it.
    // If the time exceeds kLongestNs, use kShortestNs plus the part above kLongestNs.
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

// Functions in this section run before all initialisers, in the order of the linked objects. The runner's object is the
// first.
[[gnu::used, gnu::section(".preinit_array")]] void (*const prepare_first)() = Delays::prepare;

}  // namespace
}  // namespace gpt149_inside

#else

namespace gpt149_inside {
// macOS has no such timers.
struct Delays {
  static void plan(bool) {}
};
}  // namespace gpt149_inside

#endif
#endif
