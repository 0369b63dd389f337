// System calls of the runner without the C library. A student's file may define `readv` or `nanosleep`, and the linker
// would use this definition in the whole program. Then the student's code would see a call's options before the call.
#ifndef GPT149_INSIDE_RAW_H
#define GPT149_INSIDE_RAW_H

#include <cerrno>
#include <cstddef>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__linux__)
#include <csignal>
#include <sys/syscall.h>
#endif

namespace gpt149_inside {
// Anonymous, so that a student's file cannot use these names.
namespace {

#if defined(__linux__)

// Makes a system call. Returns its result, or the negated error number.
inline long raw(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
#if defined(__x86_64__)
  long result;
  register long fourth asm("r10") = d;
  asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c, x3 asm("x3") = d;
  asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
  return x0;
#else
  const long result = syscall(number, a, b, c, d);
  return result < 0 ? -errno : result;
#endif
}

template <class T>
long address(const T *at) { return reinterpret_cast<long>(at); }

inline ssize_t read_some(int fd, const iovec *parts, int count) { return raw(SYS_readv, fd, address(parts), count); }
inline ssize_t write_some(int fd, const iovec *parts, int count) { return raw(SYS_writev, fd, address(parts), count); }
inline ssize_t read_at(int fd, void *data, size_t bytes, off_t at) {
  return raw(SYS_pread64, fd, address(data), static_cast<long>(bytes), at);
}
inline ssize_t write_at(int fd, void *data, size_t bytes, off_t at) {
  return raw(SYS_pwrite64, fd, address(data), static_cast<long>(bytes), at);
}

#if defined(__x86_64__)
// The code that a signal handler returns to: it calls rt_sigreturn.
extern "C" __attribute__((visibility("hidden"))) void gpt149_inside_return();
asm(".pushsection .text\n"
    ".type gpt149_inside_return, @function\n"
    "gpt149_inside_return:\n"
    "  mov $15, %eax\n"
    "  syscall\n"
    ".popsection\n");
#endif

// Installs a handler for a signal and unblocks it. System calls that the signal interrupts are continued.
inline void handle(int signal, void (*handler)(int)) {
#if defined(__x86_64__) || defined(__aarch64__)
  // The layout that Linux expects.
  struct Action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action = {handler, SA_RESTART, nullptr, 0};
#if defined(__x86_64__)
  action.flags |= 0x04000000;  // SA_RESTORER
  action.restorer = gpt149_inside_return;
#endif
  raw(SYS_rt_sigaction, signal, address(&action), 0, sizeof action.mask);
  const unsigned long ours = 1ul << (signal - 1);
  raw(SYS_rt_sigprocmask, SIG_UNBLOCK, address(&ours), 0, sizeof ours);
#else
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
  sigset_t ours;
  sigemptyset(&ours);
  sigaddset(&ours, signal);
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
#endif
}

#else

inline ssize_t result_of(ssize_t count) { return count < 0 ? -errno : count; }
inline ssize_t read_some(int fd, const iovec *parts, int count) { return result_of(readv(fd, parts, count)); }
inline ssize_t write_some(int fd, const iovec *parts, int count) { return result_of(writev(fd, parts, count)); }
inline ssize_t read_at(int fd, void *data, size_t bytes, off_t at) { return result_of(pread(fd, data, bytes, at)); }
inline ssize_t write_at(int fd, void *data, size_t bytes, off_t at) { return result_of(pwrite(fd, data, bytes, at)); }

#endif

// Overwrites memory with zeros. The writes are volatile: otherwise the compiler would remove them as useless.
inline void wipe(void *data, size_t bytes) {
  for (size_t k = 0; k < bytes; k++) static_cast<volatile char *>(data)[k] = 0;
}

}  // namespace
}  // namespace gpt149_inside

#endif
