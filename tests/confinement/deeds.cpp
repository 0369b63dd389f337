// What a kernel might do to the machine around it, each as a function of one number, behind the runner's interface.
// Compiled without torch. A deed returns what came of it; many of them are meant not to return.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

// Names that the test chooses.
#ifndef SECRET
#define SECRET "/nonexistent"
#define FORGED "forged-by-a-kernel"
#endif

namespace {

double opens(const std::string &path, int flags) {
    int fd = open(path.c_str(), flags, 0600);
    return fd < 0 ? -errno : 1;
}

double nothing(double value) { return value + 1; }

double forks(double) {
    pid_t child = fork();
    if (child == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        for (;;) pause();
    }
    return child;
}

double bomb(double most) {
    int started = 0;
    for (int i = 0; i < most; i++) {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            if (fork() >= 0) {
                for (;;) pause();
            }
        }
        started += child > 0;
    }
    return started;
}

double runs_a_program(double) { return std::system("true"); }
double opens_a_socket(double) { return socket(AF_INET, SOCK_STREAM, 0); }
double kills_its_parent(double) { return kill(getppid(), SIGKILL) == 0 ? (pause(), 0) : -errno; }
double stops_its_parent(double) { return kill(getppid(), SIGSTOP) == 0 ? 1 : -errno; }
double kills(double pid) { return kill(static_cast<pid_t>(pid), SIGKILL) == 0 ? 1 : -errno; }
double traces_its_parent(double) { return ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr) == 0 ? 1 : -errno; }

// A file can be told to send a signal to whom one likes.
double owns_a_file_for(double pid) {
    int fd = open("/dev/null", O_RDWR);
    return fcntl(fd, F_SETOWN, static_cast<pid_t>(pid)) == 0 ? 1 : -errno;
}

double kills_itself(double) {
    std::abort();
    return 0;
}

double reads_the_secret(double) { return opens(SECRET, O_RDONLY); }
double reads_the_closed_secret(double) { return opens(SECRET ".closed", O_RDONLY); }
double reads_its_parent(double) { return opens("/proc/" + std::to_string(getppid()) + "/mem", O_RDONLY); }
double reads_the_environment_of(double pid) {
    return opens("/proc/" + std::to_string(static_cast<int>(pid)) + "/environ", O_RDONLY);
}
double writes_beside_the_secret(double) { return opens(std::string(SECRET) + ".forged", O_WRONLY | O_CREAT); }
double writes_to_the_system(double) { return opens("/usr/forged", O_WRONLY | O_CREAT); }
double writes_to_open_folders(double) {
    int written = 0;
    for (const char *path : {"/tmp/" FORGED, "/var/tmp/" FORGED, "/dev/shm/" FORGED})
        written += opens(path, O_WRONLY | O_CREAT | O_EXCL) == 1;
    return written;
}

double writes_a_note(double) {
    if (opens("notes.txt", O_RDONLY) == 1) return -1;  // somebody was here before
    FILE *note = std::fopen("notes.txt", "w");
    if (!note) return -errno;
    std::fputs("here", note);
    return std::fclose(note) == 0;
}

double fills_the_disk(double mebibytes) {
    std::vector<char> block(1 << 20, 'x');
    for (int i = 0; i < mebibytes; i++) {
        std::string name = "block" + std::to_string(i);
        int fd = open(name.c_str(), O_WRONLY | O_CREAT, 0600);
        if (fd < 0 || write(fd, block.data(), block.size()) != static_cast<ssize_t>(block.size())) return i;
        close(fd);
    }
    return mebibytes;
}

double makes_files(double count) {
    for (int i = 0; i < count; i++)
        if (mkdir(("folder" + std::to_string(i)).c_str(), 0) != 0) return i;
    return count;
}

double fills_the_memory(double gibibytes) {
    double taken = 0;
    for (; taken < gibibytes; taken += 0.25) {
        // Reserved, not touched: the limit is on addresses, and this machine has other users.
        void *block = mmap(nullptr, 1 << 28, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (block == MAP_FAILED) break;
    }
    return taken;
}

double starts_threads(double most) {
    std::atomic<bool> end{false};
    std::vector<std::thread> threads;
    try {
        while (threads.size() < most) threads.emplace_back([&] { while (!end) usleep(1000); });
    } catch (const std::exception &) {
    }
    end = true;
    for (std::thread &thread : threads) thread.join();
    return threads.size();
}

double uses_openmp(double threads) {
    double sum = 0;
#pragma omp parallel for num_threads(static_cast<int>(threads)) reduction(+ : sum)
    for (int i = 0; i < 1000; i++) sum += omp_get_num_threads() == static_cast<int>(threads);
    return sum;
}

double takes_more_cores(double) {
    cpu_set_t cores;
    std::memset(&cores, 0xff, sizeof cores);
    return sched_setaffinity(0, sizeof cores, &cores) == 0 ? 1 : -errno;
}

double lifts_a_limit(double) {
    rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_AS, &unlimited) == 0 ? 1 : -errno;
}

double has_capabilities(double) {
    FILE *status = std::fopen("/proc/self/status", "r");
    char line[256];
    double found = -1;
    while (status && std::fgets(line, sizeof line, status))
        if (std::strncmp(line, "CapEff:", 7) == 0) found = std::strtoull(line + 7, nullptr, 16) != 0;
    return found;
}

double sees(double) {
    int found = 0;
    for (const char *path : {SECRET, "/home", "/etc/passwd", "/etc/hostname", "/var", "/proc/1/environ"}) found += opens(path, O_RDONLY) == 1;
    return found;
}

double loops(double) {
    signal(SIGTERM, SIG_IGN);
    for (volatile bool on = true; on;) {}
    return 0;
}

struct Deed {
    const char *name;
    double (*act)(double);
};
#define DEED(name) {#name, name}
const Deed deeds[] = {
    DEED(nothing), DEED(forks), DEED(bomb), DEED(runs_a_program), DEED(opens_a_socket), DEED(kills_its_parent),
    DEED(stops_its_parent), DEED(kills), DEED(traces_its_parent), DEED(owns_a_file_for), DEED(kills_itself),
    DEED(reads_the_secret), DEED(reads_the_closed_secret), DEED(reads_its_parent), DEED(reads_the_environment_of), DEED(writes_beside_the_secret),
    DEED(writes_to_the_system), DEED(writes_to_open_folders), DEED(writes_a_note), DEED(fills_the_disk),
    DEED(makes_files), DEED(fills_the_memory), DEED(starts_threads), DEED(uses_openmp), DEED(takes_more_cores),
    DEED(lifts_a_limit), DEED(has_capabilities), DEED(sees), DEED(loops),
};

}  // namespace

struct Result {
    int32_t kind, dtype;
    double number;
};

extern "C" {
int gpt149_count() { return static_cast<int>(std::size(deeds)); }
const char *gpt149_name(int k) { return deeds[k].name; }
const char *gpt149_signature(int) { return "d(d)"; }
int gpt149_call(int k, void **arguments, Result *result) {
    result->kind = 1;
    result->number = deeds[k].act(*static_cast<double *>(arguments[0]));
    return 0;
}
void gpt149_release(Result *) {}
}
