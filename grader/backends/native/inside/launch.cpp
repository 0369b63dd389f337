// Locks its own process and then replaces itself by a runner (a program that contains a student's code).
// grader/sandbox/lock.py does the same in a forked runner with torch.
//
//   launch NAME=VALUE...
//
// The launcher itself contains no student code. It sets up its descriptors, makes namespaces and an empty root if
// requested, limits and locks itself, and starts the program by its open file. So from its first instruction on, the
// program can use only its pipes. All settings come from the judge (grader/backends/native/nativehost.py). If a step
// fails, the program is not started. Nothing here allocates memory or prints.
//
//   program=PATH  request=FD reply=FD output=FD input=FD  environment=NAME=VALUE (any number)
//   payloads=FD   memory that is shared with the judge, if any
//   status=FD     a pipe that closes when the program starts. Before that, the launcher writes "P INIT RUNNER" (two
//                 process ids) if it has made these processes, and "E reason" if the program will not start
//   memory= file= files= cpu_s= processes=            limits, 0 for none
//   cpus=0,1,...  the cores on which the program may run
//   root=PATH     an empty folder that becomes the root; with namespaces= an empty file system is mounted there
//   namespaces=1  makes namespaces of mounts, processes, network, IPC, host name and control groups; 2 for a user
//                 namespace as well
//   uid=N         the user id of the program
//   landlock=1    forbids opening files
//   read=PATH     (any number) files and folders that landlock=1 still lets the program read and execute: libraries
//   filter=HEX pids=OFFSET,... token=LOW,HIGH         the filter of system calls (values of seccomp.Filter)
//
// Sources: namespaces(7), pivot_root(2), landlock(7), seccomp(2), prctl(2), capset(2), clone(2).
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__linux__)
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#endif

namespace {

constexpr int kMostWords = 64, kLastFd = 5, kOwnFds = 40, kMostFds = 1024, kMostInstructions = 4096;
char **words;
int status_fd = -1;

const char *text_of(const char *name, const char *otherwise = "") {
  const size_t length = std::strlen(name);
  for (char **word = words; *word != nullptr; word++)
    if (std::strncmp(*word, name, length) == 0 && (*word)[length] == '=') return *word + length + 1;
  return otherwise;
}

unsigned long number_of(const char *name) { return std::strtoul(text_of(name, "0"), nullptr, 10); }

[[noreturn]] void fail(const char *what) {
  char line[256];
  const int length = std::snprintf(line, sizeof line, "E %s: %s\n", what, std::strerror(errno));
  if (write(status_fd, line, static_cast<size_t>(length)) != length) _exit(126);
  _exit(125);
}

long check(long result, const char *what) {
  if (result < 0) fail(what);
  return result;
}

// Calls action(n) for each number n in a text such as "0,1,5".
template <class Action>
void each_number(const char *text, Action action) {
  while (*text != '\0') {
    char *end = nullptr;
    const unsigned long number = std::strtoul(text, &end, 10);
    if (end == text) return;
    action(number);
    text = *end == ',' ? end + 1 : end;
  }
}

template <class Resource>
void limit(Resource resource, unsigned long most) {
  if (most == 0) return;
  const rlimit wanted = {most, most};
  // A lower limit may already be in force (EPERM), and macOS has no limit of memory (EINVAL).
  if (setrlimit(resource, &wanted) != 0 && errno != EPERM && errno != EINVAL)
    fail("limits");
}

void limit_all() {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  limit(RLIMIT_FSIZE, number_of("file"));
  limit(RLIMIT_NOFILE, number_of("files"));
  limit(RLIMIT_CPU, number_of("cpu_s"));
  limit(RLIMIT_NPROC, number_of("processes"));
  limit(RLIMIT_AS, number_of("memory"));
}

// Sets up the descriptors: 0 input, 1 and 2 printed output, 3 requests, 4 replies, 5 payloads. All others close when
// the program starts.
void take_descriptors() {
  const char *const names[] = {"input", "output", "output", "request", "reply", "payloads"};
  const int last = *text_of("payloads") != '\0' ? kLastFd : kLastFd - 1;
  int held[kLastFd + 1];
  // First move all to high numbers: a low number that is needed here may still belong to another descriptor.
  for (int k = 0; k <= last; k++)
    held[k] = static_cast<int>(check(fcntl(static_cast<int>(number_of(names[k])), F_DUPFD, kOwnFds), "descriptors"));
  for (int k = 0; k <= last; k++) check(dup2(held[k], k), "descriptors");
#if defined(SYS_close_range)
  constexpr unsigned kAtStart = 4;
  if (syscall(SYS_close_range, last + 1, ~0u, kAtStart) == 0) return;
#endif
  for (int fd = last + 1; fd < kMostFds; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void plain_signals() {
  for (int number = 1; number < 32; number++) std::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

#if defined(__linux__)

// ---- namespaces

void write_file(const char *path, const char *text) {
  const int fd = static_cast<int>(check(open(path, O_WRONLY | O_CLOEXEC), path));
  check(write(fd, text, std::strlen(text)), path);
  close(fd);
}

void own_user_namespace() {
  char map[2][64];
  std::snprintf(map[0], sizeof map[0], "%u %u 1", geteuid(), geteuid());
  std::snprintf(map[1], sizeof map[1], "%u %u 1", getegid(), getegid());
  check(unshare(CLONE_NEWUSER), "user namespace");
  write_file("/proc/self/setgroups", "deny");
  write_file("/proc/self/uid_map", map[0]);
  write_file("/proc/self/gid_map", map[1]);
}

// Makes an empty file system the root. No file can be created in it.
void empty_root(const char *folder) {
  check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), "mounts");
  const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
  check(mount("none", folder, "tmpfs", flags, "size=4k,nr_inodes=1,mode=555"), "empty root");
  check(chdir(folder), "empty root");
  check(syscall(SYS_pivot_root, ".", "."), "root");
  check(umount2(".", MNT_DETACH), "old root");
  check(chdir("/"), "root");
}

// Makes a process in the new process namespace, as a child of the judge. Returns 0 in the new process. In the launcher,
// returns the new process's id as the judge sees it.
int brother() { return static_cast<int>(check(syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0), "process")); }

// Serves as the first process of a namespace: when this process ends, Linux kills all others in the namespace.
[[noreturn]] void be_init() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = 0; fd < kMostFds; fd++) close(fd);
  for (;;) pause();
}

void enter_namespaces(unsigned long kind) {
  if (kind == 2) own_user_namespace();
  const int all = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
  // Some versions of Linux have no namespaces of control groups.
  if (unshare(all | CLONE_NEWCGROUP) != 0) check(unshare(all), "namespaces");
  if (*text_of("root") != '\0') empty_root(text_of("root"));
  const int init = brother();
  if (init == 0) be_init();
  // The runner waits until the judge has its process id, because without the id the judge could not end it.
  int go[2];
  check(pipe2(go, O_CLOEXEC), "pipe");
  const int runner = brother();
  if (runner == 0) {
    char ready = 0;
    close(go[1]);
    if (read(go[0], &ready, 1) != 1) _exit(125);
    close(go[0]);
    return;
  }
  char line[64];
  const int length = std::snprintf(line, sizeof line, "P %d %d\n", init, runner);
  if (write(status_fd, line, static_cast<size_t>(length)) != length || write(go[1], "", 1) != 1) _exit(126);
  _exit(0);
}

// ---- the lock

void drop_capabilities() {
  const uint32_t header[2] = {0x20080522, 0}, none[6] = {};
  check(syscall(SYS_capset, header, none), "capabilities");
}

void become(unsigned uid) {
  check(setgroups(0, nullptr), "groups");
  check(setresgid(uid, uid, uid), "group");
  check(setresuid(uid, uid, uid), "user");
}

// Numbers of Landlock's system calls, the same on x86-64 and aarch64.
constexpr int kCreate = 444, kAdd = 445, kRestrict = 446;
constexpr uint64_t kExecute = 1 << 0, kReadFile = 1 << 2, kReadFolder = 1 << 3;

void allow(long ruleset, int fd, uint64_t rights) {
  struct __attribute__((packed)) {
    uint64_t allowed;
    int32_t fd;
  } const rule = {rights, fd};
  check(syscall(kAdd, ruleset, 1, &rule, 0), "landlock rule");
}

// Forbids opening any file except those named by `read=`. The program itself can still be started.
void close_files(int program) {
  const long version = syscall(kCreate, nullptr, 0, 1);
  check(version, "landlock");
  // `rights`: all file rights of each Landlock version. `attributes`: what is forbidden: file accesses,
  // the network (from version 4 on), and signals and sockets of other processes (from version 6 on).
  const uint64_t rights[] = {0, (1u << 13) - 1, (1u << 14) - 1, (1u << 15) - 1, (1u << 15) - 1, (1u << 16) - 1};
  const uint64_t attributes[] = {rights[version < 5 ? version : 5], version >= 4 ? 3u : 0u, version >= 6 ? 3u : 0u};
  const long ruleset = syscall(kCreate, attributes, version < 4 ? 8 : version < 6 ? 16 : 24, 0);
  check(ruleset, "landlock");
  allow(ruleset, program, kExecute | kReadFile);
  for (char **word = words; *word != nullptr; word++) {
    if (std::strncmp(*word, "read=", 5) != 0) continue;
    const int fd = open(*word + 5, O_PATH | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0) continue;  // A path that does not exist needs no rule.
    allow(ruleset, fd, kExecute | kReadFile | (S_ISDIR(found.st_mode) ? kReadFolder : 0));
    close(fd);
  }
  check(syscall(kRestrict, ruleset, 0), "landlock");
  close(static_cast<int>(ruleset));
}

uint64_t filter_calls() {
  static sock_filter program[kMostInstructions];
  const char *hex = text_of("filter");
  const size_t bytes = std::strlen(hex) / 2;
  if (bytes > sizeof program) fail("filter");
  auto *at = reinterpret_cast<unsigned char *>(program);
  for (size_t k = 0; k < bytes; k++) {
    const char digits[3] = {hex[2 * k], hex[2 * k + 1], '\0'};
    at[k] = static_cast<unsigned char>(std::strtoul(digits, nullptr, 16));
  }
  uint64_t token = 0;
  check(getrandom(&token, sizeof token, 0), "random number");
  const uint32_t own = static_cast<uint32_t>(getpid());
  each_number(text_of("pids"), [&](unsigned long place) { std::memcpy(at + place, &own, 4); });
  int shift = 0;
  each_number(text_of("token"), [&](unsigned long place) {
    const auto half = static_cast<uint32_t>(token >> shift);
    std::memcpy(at + place, &half, 4);
    shift = 32;
  });
  const sock_fprog described = {static_cast<unsigned short>(bytes / sizeof(sock_filter)), program};
  // SPEC_ALLOW (4): without it, Linux before 5.16 slows down a filtered process, as a protection against Spectre.
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 4, &described) != 0)
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &described), "seccomp");
  return token;
}

void pin() {
  cpu_set_t chosen;
  CPU_ZERO(&chosen);
  each_number(text_of("cpus"), [&](unsigned long cpu) { CPU_SET(cpu, &chosen); });
  if (CPU_COUNT(&chosen) > 0) check(sched_setaffinity(0, sizeof chosen, &chosen), "cores");
}

// Makes Linux kill this process before the judge if the machine runs out of memory.
void go_first() {
  const int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (fd >= 0 && write(fd, "1000", 4) != 4) errno = 0;
  close(fd);
}

[[noreturn]] void lock_and_start(int program, char **arguments, char **environment) {
  if (const unsigned long kind = number_of("namespaces")) {
    enter_namespaces(kind);
  } else if (*text_of("root") != '\0') {
    check(chroot(text_of("root")), "root");
    check(chdir("/"), "root");
  }
  setsid();
  plain_signals();
  pin();
  check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  limit_all();
  if (*text_of("uid") != '\0') become(static_cast<unsigned>(number_of("uid")));
  // Set this signal after the user id, because Linux resets it when the user id changes.
  check(prctl(PR_SET_PDEATHSIG, SIGKILL), "death signal");
  drop_capabilities();
  if (number_of("landlock") != 0) close_files(program);
  const uint64_t token = *text_of("filter") != '\0' ? filter_calls() : 0;
  syscall(SYS_execveat, program, "", arguments, environment, AT_EMPTY_PATH, token);
  fail("program");
}

#else

void go_first() {}

[[noreturn]] void lock_and_start(int, char **arguments, char **environment) {
  setsid();
  plain_signals();
  limit_all();
  execve(text_of("program"), arguments, environment);
  fail("program");
}

#endif

}  // namespace

int main(int count, char **given) {
  words = given + 1;
  // Move the status descriptor and the program's own to high numbers: the low numbers are for the program's pipes.
  status_fd = fcntl(static_cast<int>(number_of("status")), F_DUPFD_CLOEXEC, kOwnFds);
  if (status_fd < 0) _exit(126);
  static char *environment[kMostWords + 1];
  int found = 0;
  for (int k = 1; k < count; k++)
    if (std::strncmp(given[k], "environment=", 12) == 0 && found < kMostWords) environment[found++] = given[k] + 12;
  int flags = O_RDONLY;
#if defined(__linux__)
  flags = O_PATH;
#endif
  const int opened = static_cast<int>(check(open(text_of("program"), flags | O_CLOEXEC), "program"));
  const int program = static_cast<int>(check(fcntl(opened, F_DUPFD_CLOEXEC, kOwnFds), "program"));
  go_first();
  take_descriptors();
  static char name[] = "runner";
  char *arguments[] = {name, nullptr};
  lock_and_start(program, arguments, environment);
}
