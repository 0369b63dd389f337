// Attacks that a kernel could make on its machine, as a library that a runner with torch can load. It needs no torch.
// Each attack ("deed") is a function that takes a number and returns a result. Many attacks should end their runner.

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

// The test defines the macros SECRET and FORGED: file names.
static double opens(const std::string &path, int flags) {
    int fd = open(path.c_str(), flags, 0600);
    return fd < 0 ? -errno : 1;
}

static const struct {
    const char *name;
    double (*act)(double);
} deeds[] = {
    {"nothing", [](double value) -> double { return value + 1; }},
    {"forks", [](double) -> double {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            signal(SIGTERM, SIG_IGN);
            for (;;) pause();
        }
        return child;
    }},
    {"bomb", [](double most) -> double {
        int started = 0;
        for (int i = 0; i < most; i++) {
            pid_t child = fork();
            if (child == 0) {
                setsid();
                if (fork() >= 0) for (;;) pause();
            }
            started += child > 0;
        }
        return started;
    }},
    {"runs_a_program", [](double) -> double { return std::system("true"); }},
    {"opens_a_socket", [](double) -> double { return socket(AF_INET, SOCK_STREAM, 0); }},
    {"kills_its_parent", [](double) -> double { return kill(getppid(), SIGKILL) == 0 ? (pause(), 0) : -errno; }},
    {"stops_its_parent", [](double) -> double { return kill(getppid(), SIGSTOP) == 0 ? 1 : -errno; }},
    {"kills", [](double pid) -> double { return kill(static_cast<pid_t>(pid), SIGKILL) == 0 ? 1 : -errno; }},
    {"traces_its_parent", [](double) -> double { return ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr) == 0 ? 1 : -errno; }},
    // Ask the system to send a file's signals (such as SIGIO) to another process.
    {"owns_a_file_for", [](double pid) -> double {
        int fd = open("/dev/null", O_RDWR);
        return fcntl(fd, F_SETOWN, static_cast<pid_t>(pid)) == 0 ? 1 : -errno;
    }},
    {"kills_itself", [](double) -> double { return std::abort(), 0; }},
    {"reads_the_secret", [](double) -> double { return opens(SECRET, O_RDONLY); }},
    {"reads_the_closed_secret", [](double) -> double { return opens(SECRET ".closed", O_RDONLY); }},
    {"reads_its_parent", [](double) -> double { return opens("/proc/" + std::to_string(getppid()) + "/mem", O_RDONLY); }},
    {"reads_the_environment_of", [](double pid) -> double {
        return opens("/proc/" + std::to_string(static_cast<int>(pid)) + "/environ", O_RDONLY);
    }},
    {"writes_beside_the_secret", [](double) -> double { return opens(std::string(SECRET) + ".forged", O_WRONLY | O_CREAT); }},
    {"writes_to_the_system", [](double) -> double { return opens("/usr/forged", O_WRONLY | O_CREAT); }},
    {"writes_to_open_folders", [](double) -> double {
        int written = 0;
        for (const char *path : {"/tmp/" FORGED, "/var/tmp/" FORGED, "/dev/shm/" FORGED})
            written += opens(path, O_WRONLY | O_CREAT | O_EXCL) == 1;
        return written;
    }},
    {"writes_a_note", [](double) -> double {
        if (opens("notes.txt", O_RDONLY) == 1) return -1;  // an earlier runner has left the file
        FILE *note = std::fopen("notes.txt", "w");
        if (!note) return -errno;
        std::fputs("here", note);
        return std::fclose(note) == 0;
    }},
    {"fills_the_disk", [](double mebibytes) -> double {
        std::vector<char> block(1 << 20, 'x');
        for (int i = 0; i < mebibytes; i++) {
            std::string name = "block" + std::to_string(i);
            int fd = open(name.c_str(), O_WRONLY | O_CREAT, 0600);
            if (fd < 0 || write(fd, block.data(), block.size()) != static_cast<ssize_t>(block.size())) return i;
            close(fd);
        }
        return mebibytes;
    }},
    {"makes_files", [](double count) -> double {
        for (int i = 0; i < count; i++)
            if (mkdir(("folder" + std::to_string(i)).c_str(), 0) != 0) return i;
        return count;
    }},
    {"fills_the_memory", [](double gibibytes) -> double {
        double taken = 0;
        // Reserve memory without touching it: the limit is on address space, and other programs need the memory.
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, access = PROT_READ | PROT_WRITE;
        while (taken < gibibytes && mmap(nullptr, 1 << 28, access, flags, -1, 0) != MAP_FAILED) taken += 0.25;
        return taken;
    }},
    {"starts_threads", [](double most) -> double {
        std::atomic<bool> end{false};
        std::vector<std::thread> threads;
        try {
            while (threads.size() < most) threads.emplace_back([&] { while (!end) usleep(1000); });
        } catch (const std::exception &) {}
        end = true;
        for (std::thread &thread : threads) thread.join();
        return threads.size();
    }},
    {"uses_openmp", [](double threads) -> double {
        double sum = 0;
#pragma omp parallel for num_threads(static_cast<int>(threads)) reduction(+ : sum)
        for (int i = 0; i < 1000; i++) sum += omp_get_num_threads() == static_cast<int>(threads);
        return sum;
    }},
    {"takes_more_cores", [](double) -> double {
        cpu_set_t cores;
        std::memset(&cores, 0xff, sizeof cores);
        return sched_setaffinity(0, sizeof cores, &cores) == 0 ? 1 : -errno;
    }},
    {"lifts_a_limit", [](double) -> double {
        rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
        return setrlimit(RLIMIT_AS, &unlimited) == 0 ? 1 : -errno;
    }},
    {"has_capabilities", [](double) -> double {
        FILE *status = std::fopen("/proc/self/status", "r");
        char line[256];
        double found = -1;
        while (status && std::fgets(line, sizeof line, status))
            if (std::strncmp(line, "CapEff:", 7) == 0) found = std::strtoull(line + 7, nullptr, 16) != 0;
        return found;
    }},
    {"sees", [](double) -> double {
        int found = 0;
        for (const char *path : {SECRET, "/home", "/etc/passwd", "/etc/hostname", "/var", "/proc/1/environ"})
            found += opens(path, O_RDONLY) == 1;
        return found;
    }},
    {"loops", [](double) -> double {
        signal(SIGTERM, SIG_IGN);
        for (volatile bool on = true; on;) {}
        return 0;
    }},
};

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
