// Attempts to read SECRET, which all users may read, each as early as possible, for tests/test_sanitize.py.
static int readable(const char *path) {
  char byte;
  int fd = open(path, O_RDONLY);
  return fd >= 0 && read(fd, &byte, 1) >= 0;
}
static int saw = 0;
__attribute__((constructor)) static void at_start() { saw |= readable(SECRET); }
static void before_all() { saw |= readable(SECRET) << 1; }
__attribute__((section(".preinit_array"), used)) static void (*first)() = before_all;
extern "C" {
static int closed() { return 0; }
static int opened() { return 1; }
__attribute__((no_sanitize("address", "undefined"))) static int (*chosen())() {
  long fd = -1;
#if defined(__x86_64__)
  asm volatile("syscall" : "=a"(fd) : "a"(2L), "D"(SECRET), "S"(0L) : "rcx", "r11", "memory");
#endif
  return fd >= 0 ? opened : closed;
}
int when_linked() __attribute__((ifunc("chosen")));
}
static void saw_by(const char *way, bool found) { std::printf("%s %s\n", found ? "SAW" : "no", way); }
torch::Tensor look(torch::Tensor t) {
  saw_by("a constructor", saw & 1);
  saw_by("code before all constructors", saw & 2);
  saw_by("a resolver of the loader's", when_linked());
  saw_by("a call", readable(SECRET));
  saw_by("its root", readable("/proc/self/root" SECRET));
  for (const char *path : {"/proc/1/environ", "/proc/self/environ", "/proc/self/mem", "/etc/passwd"})
    saw_by(path, readable(path));
  for (const char *path : {"/", "/tmp", "/proc", "/proc/self/fd"}) saw_by(path, opendir(path) != nullptr);
  long how[3] = {};
  saw_by("openat2", syscall(437, AT_FDCWD, SECRET, how, sizeof how) >= 0);
  saw_by("its own map", readable("/proc/self/maps"));
  const auto made = torch::empty({1000});
  saw_by("zeros in new memory", made.data_ptr<float>()[999] == 0);
  std::fflush(stdout);
  return t;
}
