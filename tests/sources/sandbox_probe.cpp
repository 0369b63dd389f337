// Attempts to use files, processes and rights that a sandbox hides, for tests/test_native_sandbox.py. Each attempt
// prints a line: it begins with "SAW" if the attempt succeeds, with "no" if the sandbox prevents it.
extern char **environ;
extern "C" {
#define WEAK __attribute__((weak)) void
WEAK Py_Initialize(); WEAK PyRun_SimpleString(); WEAK PyEval_GetBuiltins(); WEAK cblas_sgemm(); WEAK sgemm_();
WEAK mkl_serv_get_version(); WEAK THPVariable_Wrap(); WEAK gpt149_ref_fused(); WEAK dnnl_sgemm();
}
static void saw(const char *what, const char *where, bool found) {
  std::printf("%s %s: %s\n", found ? "SAW" : "no", what, where);
}
torch::Tensor files(torch::Tensor t) {
  for (const char *path : {"/", ".", "..", "/proc", "/proc/self", "/proc/self/maps", "/proc/self/exe",
                           "/proc/1/environ", "/dev/null", "/dev/shm", "/tmp", "/etc/passwd", "/lib", "/usr/lib",
                           "/sys/devices/system/cpu"}) {
    saw("open", path, open(path, O_RDONLY) >= 0);
    saw("openat", path, openat(AT_FDCWD, path, O_PATH) >= 0);
    saw("list", path, opendir(path) != nullptr);
    struct stat about;
    saw("stat", path, stat(path, &about) == 0);
    char target[100];
    saw("readlink", path, readlink(path, target, sizeof target) > 0);
  }
  saw("create", "/tmp/x", open("/tmp/x", O_CREAT | O_WRONLY, 0600) >= 0);
  saw("create", "x", open("x", O_CREAT | O_WRONLY, 0600) >= 0);
  saw("mkdir", "x", mkdir("x", 0700) == 0);
  saw("chdir", "/", chdir("/") == 0);
  saw("memory file", "", syscall(SYS_memfd_create, "x", 0) >= 0);
  saw("less payload memory", "", ftruncate(5, 0) == 0);
  saw("more payload memory", "", ftruncate(5, 1L << 30) == 0 || pwrite(5, "x", 1, 48L << 20) == 1);
  saw("sealed payload memory", "", fcntl(5, F_ADD_SEALS, F_SEAL_WRITE) == 0);
  saw("hole in the payload memory", "", fallocate(5, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0);
  for (int fd = 0; fd < 256; fd++) {
    struct stat about;
    if (syscall(SYS_fstat, fd, &about) == 0) std::printf("open descriptor %d\n", fd);
    for (int how : {MAP_PRIVATE, MAP_SHARED})
      if (mmap(nullptr, 4096, PROT_READ, how, fd, 0) != MAP_FAILED) std::printf("SAW mapped %d\n", fd);
    char byte;
    if (pread(fd, &byte, 1, 0) >= 0 && fd != 5) std::printf("SAW read from %d\n", fd);
  }
  return t;
}
static int names(dl_phdr_info *info, size_t, void *) {
  std::printf("library '%s'\n", info->dlpi_name);
  return 0;
}
torch::Tensor libraries(torch::Tensor t) {
  dl_iterate_phdr(names, nullptr);
  for (const char *name : {"libc.so.6", "libtorch_cpu.so", "libpython3.so", "libcblas.so.3", "libm.so.6"})
    saw("dlopen", name, dlopen(name, RTLD_NOW) != nullptr);
  void (*known[])() = {Py_Initialize, PyRun_SimpleString, PyEval_GetBuiltins, cblas_sgemm, sgemm_,
                       mkl_serv_get_version, THPVariable_Wrap, gpt149_ref_fused, dnnl_sgemm};
  for (auto function : known) saw("linked", "", function != nullptr);
  for (char **entry = environ; *entry != nullptr; entry++) std::printf("environment %s\n", *entry);
  return t;
}
torch::Tensor power(torch::Tensor t) {
  cpu_set_t all;
  std::memset(&all, 255, sizeof all);
  for (int rights : {PROT_EXEC, PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC}) {
    void *own = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    saw("memory of its own as code", "", own == MAP_FAILED || mprotect(own, 4096, rights) == 0);
    saw("memory of its own as code", "", syscall(SYS_pkey_mprotect, own, 4096, rights, -1) == 0);
    saw("its constants as code", "", mprotect((void *)((size_t)"x" & -4096), 4096, rights) == 0);
    for (int fd : {-1, 5})
      for (int how : {MAP_PRIVATE, MAP_SHARED})
        saw("new code", "", mmap(nullptr, 4096, rights, fd < 0 ? how | MAP_ANONYMOUS : how, fd, 0) != MAP_FAILED);
    saw("memory that it stops writing", "", mprotect(own, 4096, PROT_READ) != 0);
  }
  saw("cores", "", sched_setaffinity(0, sizeof all, &all) == 0);
  saw("death signal", "", prctl(PR_SET_PDEATHSIG, 0) == 0);
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGCONT;
  int timer;
  saw("a timer that continues it", "", syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer) == 0);
  saw("a timer of its own", "", syscall(SYS_timer_create, CLOCK_MONOTONIC, nullptr, &timer) == 0);
  itimerspec left = {};
  const itimerval soon = {{0, 1}, {0, 1}};
  saw("the state of the delays' timer", "", syscall(SYS_timer_gettime, 0, &left) == 0);
  saw("the state of the delays' timer", "as it is set", syscall(SYS_timer_settime, 0, 0, &left, &left) == 0);
  saw("an interval timer", "", setitimer(ITIMER_REAL, &soon, nullptr) == 0);
  rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
  saw("more memory", "", setrlimit(RLIMIT_AS, &more) == 0);
  saw("more signals", "", setrlimit(RLIMIT_SIGPENDING, &more) == 0);
  saw("priority", "", setpriority(PRIO_PROCESS, 0, -10) == 0);
  saw("other user", "", setuid(1) == 0);
  saw("perf", "", syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0) >= 0);
  saw("io_uring", "", syscall(SYS_io_uring_setup, 1, nullptr) >= 0);
  return t;
}
torch::Tensor reach(torch::Tensor t, int how) {
  char *none[] = {nullptr};
  if (how == 0) execve("/bin/true", none, none);
  if (how == 1) syscall(SYS_execveat, 0, "", none, none, 0x1000, 0);
  if (how == 2) fork();
  if (how == 3) syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (how == 4) socket(AF_INET, SOCK_STREAM, 0);
  if (how == 5) socket(AF_UNIX, SOCK_STREAM, 0);
  if (how == 6) ptrace(PTRACE_TRACEME, 0, 0, 0);
  if (how == 7) kill(getpid() == 1 ? 2 : 1, SIGKILL);
  if (how == 8) kill(-1, SIGCONT);
  if (how == 9) syscall(SYS_process_vm_readv, 1, nullptr, 0, nullptr, 0, 0);
  if (how == 10) unshare(CLONE_NEWUSER);
  if (how == 11) setsid();
  if (how == 12) syscall(SYS_pidfd_open, 1, 0);
  if (how == 13) syscall(SYS_open_tree, AT_FDCWD, "/", 0);
  return t;
}
torch::Tensor take(torch::Tensor t, int mib) {
  std::vector<char> space((size_t)mib << 20, 1);
  return torch::full({1}, (float)space[0]);
}
torch::Tensor hangs(torch::Tensor t) { for (;;) asm volatile(""); }
static bool at_start = (saw("open at the start", "/", open("/", O_RDONLY) >= 0), std::fflush(stdout), true);
