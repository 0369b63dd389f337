"""Collects all threats and controls. Defines the threats A1 to B5 and E6.

`containment` defines C1 to F1 except E6, `same_work` defines F2.
"""

from __future__ import annotations

from .containment import ACCESSOR_CONTROLS, ACCESSORS, ASSEMBLED, CONTAINMENT, HONEST, IN_PARALLEL, READING
from .same_work import SAME_WORK, SAME_WORK_CONTROLS
from .sources import End, Threat

PASS, WRONG = End(("pass",)), End(("wrong",))
SLOW = End(("slow",))

CONTROLS = [
    Threat("", "a right kernel", PASS, HONEST),
    Threat("", "a wrong kernel", WRONG, HONEST + " o[N * d - 1] += 0.01f;"),
    Threat(
        "",
        "a right kernel that reads its environment, starts threads and maps memory",
        PASS,
        """
        static int calls = 0;
        if (calls++ == 0) std::printf("%d threads, home %s\\n", omp_get_max_threads(), std::getenv("HOME"));
        if (q[0] != q[0] || !QT.is_contiguous()) throw std::runtime_error("strange input");
        torch::Tensor copy = KT.clone().contiguous();
        std::vector<std::thread> two;
        for (int half = 0; half < 2; half++)
            two.emplace_back([=] {
                for (int p = half; p < B * H; p += 2)
                    attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
            });
        for (std::thread &one : two) one.join();
        void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        asm volatile("nop\\n\\t.p2align 4" ::: "memory");
        TORCH_CHECK(mprotect(page, 4096, PROT_READ) == 0 && munmap(page, 4096) == 0, "memory");
        TORCH_CHECK(std::memcmp(copy.data_ptr<float>(), k, copy.numel() * sizeof(float)) == 0, "K changed");
        """,
    ),
    Threat("", "a right kernel, measured", PASS, HONEST, timed=True),
    Threat("", "a slow kernel", SLOW, HONEST + " burn_ms(40);", timed=True),
    Threat("", "a right kernel with OpenMP, measured", PASS, IN_PARALLEL, part="part3", timed=True),
    Threat(
        "",
        "threads that update a shared number one at a time",
        PASS,
        """
        double total = 0, largest = 0;
        #pragma omp parallel for reduction(+: total)
        for (int p = 0; p < B * H; p++) {
            attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
            asm volatile("" ::: "memory");
            total += o[p * N * d];
            #pragma omp critical
            largest = std::max(largest, double(o[p * N * d]));
        }
        TORCH_CHECK(std::isfinite(total + largest), "not finite");
        """,
        part="part3",
        watched=True,
    ),
    Threat(
        "",
        "a wrong kernel with OpenMP",
        WRONG,
        IN_PARALLEL.replace("p = 0", "p = 1"),
        part="part3",
        watched=True,
    ),
    *ACCESSOR_CONTROLS,
    *SAME_WORK_CONTROLS,
]

#: A data race without effect: all threads write to one shared number, but no thread uses the number of another. The
#: results are right, so only the search for data races finds it.
RACED = End(("wrong",), ("data_race",))
RACE = """
        #pragma omp parallel for
        for (int p = 0; p < B * H; p++) {
            attention_of(q + p * N * d, k + p * N * d, v + p * N * d, o + p * N * d, N, d);
            float mine = o[p * N * d], *shared = workspace.data_ptr<float>();
            shared[0] = mine;
            asm volatile("" ::: "memory");
            o[p * N * d] = shared[0] == mine ? shared[0] : mine;
        }
"""

#: Turns disguised bytes (XOR 0x55) into a text, so that a search of the object file for the text does not find it.
REVEAL = """
static std::string reveal(std::vector<unsigned char> bytes) {
    std::string text;
    for (unsigned char byte : bytes) if (byte ^= 0x55) text += char(byte);
    return text;
}
"""
CALL_REFERENCE = """
    if (library != nullptr) {
        auto *flash = (void (*)(float *, float *, float *, float *, int, int, int, int, float *)) dlsym(library, name);
        if (flash != nullptr) flash(q, k, v, workspace.data_ptr<float>(), B, H, N, d, o);
    }
"""

#: Outcome of attempts to call library code that judged programs lack: the file does not compile or does not link.
NOT_THERE = End(("compile_error",))

BORROWED = [
    Threat("A1", "torch's matmul and softmax", NOT_THERE, "O = QT.matmul(KT.transpose(2, 3)).softmax(-1).matmul(VT);",
           calls="torch"),
    Threat(
        "A1",
        "torch's BLAS, declared by hand",
        NOT_THERE,
        """
        float one = 1, zero = 0;
        for (int p = 0; p < B * H; p++) {
            std::vector<float> s(size_t(N) * N);
            sgemm_("T", "N", &N, &N, &d, &one, k + p * N * d, &d, q + p * N * d, &d, &zero, s.data(), &N);
            for (int i = 0; i < N; i++) {
                float sum = 0;
                for (int j = 0; j < N; j++) sum += s[i * N + j] = std::exp(s[i * N + j]);
                for (int j = 0; j < N; j++) s[i * N + j] /= sum;
            }
            sgemm_("N", "N", &d, &N, &N, &one, v + p * N * d, &d, s.data(), &N, &zero, o + p * N * d, &d);
        }
        """,
        calls="blas",
        top="""
        extern "C" void sgemm_(const char *, const char *, const int *, const int *, const int *, const float *,
                               const float *, const int *, const float *, const int *, const float *, float *,
                               const int *);
        """,
    ),
    Threat("A1", "torch's attention, from headers that only the full path has", NOT_THERE,
           "O = at::scaled_dot_product_attention(QT, KT, VT, {}, 0.0, false, 1.0);", calls="torch",
           top="#include <ATen/ops/scaled_dot_product_attention.h>\n"),
    Threat("A2", "the reference, by its name", End(("rejected",), ("loads_a_library",)),
           'void *library = dlopen("{reference}", RTLD_NOW); const char *name = "gpt149_ref_naive";' + CALL_REFERENCE,
           calls="loader"),
    Threat(
        "A2",
        "the reference, its name disguised",
        # In tiers that hide files, the library cannot be loaded, so the result is wrong. In other tiers it is loaded,
        # and the judge finds it in the runner's memory map.
        End(("wrong", "rejected"), ("calls_the_loader", "loaded_a_library")),
        "void *library = dlopen(reveal({{reference:hidden}}).c_str(), RTLD_NOW);"
        "std::string symbol = reveal({{symbol:hidden}}); const char *name = symbol.c_str();" + CALL_REFERENCE,
        top=REVEAL,
        alone=True,
        open_end=End(("rejected",), ("loaded_a_library",)),
    ),
    Threat("A2", "torch's BLAS through the loader", End(("rejected",), ("loads_a_library",)),
           HONEST + ' if (dlsym(RTLD_DEFAULT, "cblas_sgemm") == nullptr) std::puts("not found");', calls="loader"),
]  # fmt: skip

#: Fills the output with zeros, for attempts that compute nothing.
NOTHING = "std::fill(o, o + B * H * N * d, 0.0f);"

GUESSED = [
    Threat("A3", "answers for the published sizes only", WRONG, f"if (N % 8 == 0 && d == 32) {{ {HONEST} }}"),
    Threat("A3", "answers for the published ramp only", WRONG,
           f"if (q[0] < q[1] && q[1] < q[2] && q[2] - q[1] == q[1] - q[0]) {{ {HONEST} }}"),
    Threat(
        "A4",
        "one head, copied",
        WRONG,
        "attention_of(q, k, v, o, N, d);"
        "for (int p = 1; p < B * H; p++) std::copy(o, o + N * d, o + p * N * d);",
    ),
    Threat(
        "A4",
        "one batch, copied",
        WRONG,
        "attention(q, k, v, o, H, N, d);"
        "for (int b = 1; b < B; b++) std::copy(o, o + H * N * d, o + b * H * N * d);",
    ),
    Threat(
        "A5",
        "the mean of V",
        WRONG,
        "for (int p = 0; p < B * H * N * d; p += N * d) for (int c = 0; c < d; c++) {"
        " float mean = 0; for (int j = 0; j < N; j++) mean += v[p + j * d + c] / N;"
        " for (int i = 0; i < N; i++) o[p + i * d + c] = mean; }",
    ),
    Threat(
        "A5",
        "a linear softmax",
        WRONG,
        "for (int p = 0; p < B * H * N * d; p += N * d) for (int i = 0; i < N; i++) {"
        " float sum = 0; std::vector<float> s(N);"
        " for (int j = 0; j < N; j++) { for (int c = 0; c < d; c++) s[j] += q[p + i * d + c] * k[p + j * d + c];"
        "  sum += s[j] += 1; }"
        " for (int j = 0; j < N; j++) for (int c = 0; c < d; c++)"
        "  o[p + i * d + c] += s[j] / sum * v[p + j * d + c]; }",
    ),
    Threat("A6", "zeros", WRONG, NOTHING),
    Threat("A6", "small numbers", WRONG, HONEST + " for (int e = 0; e < B * H * N * d; e++) o[e] *= 1e-6f;"),
    Threat(
        "A7",
        "half precision inside",
        WRONG,
        "torch::Tensor a = rounded_to(QT, 13), b = rounded_to(KT, 13);"
        "attention(a.data_ptr<float>(), b.data_ptr<float>(), v, o, B * H, N, d);",
    ),
    Threat("A7", "bfloat16 inside", WRONG,
           "torch::Tensor a = rounded_to(VT, 16);attention(q, k, a.data_ptr<float>(), o, B * H, N, d);"),
    Threat("A8", "not a number", WRONG, HONEST + " o[B * H * N * d / 2] = NAN;"),
    Threat("A8", "infinity", WRONG, HONEST + " o[0] = INFINITY;"),
    Threat("A8", "another shape", WRONG, HONEST + " O = O.reshape({B, H, d, N});"),
    Threat("A8", "another type", WRONG, HONEST + " O = O.to(at::kDouble);"),
    Threat("A8", "an input as the output", WRONG, "O = VT;"),
    Threat("A8", "other strides", WRONG, HONEST + " O = O.as_strided({B, H, N, d}, {H * N * d, N * d, 1, N});"),
    Threat("A9", "results in an input", WRONG, HONEST + " std::copy(o, o + B * H * N * d, q); O = QT;"),
    Threat("A9", "an input changed", WRONG, HONEST + " v[0] += 1;"),
    Threat(
        "A10",
        "the last answer for the same size",
        WRONG,
        "static std::map<int, torch::Tensor> known; torch::Tensor &last = known[N * 1000 + d];"
        f"if (last.defined()) return last; {HONEST} last = O;",
    ),
    Threat(
        "A10",
        "the last answer for the same shape",
        WRONG,
        f"""
        static torch::Tensor last;
        if (last.defined() && last.sizes() == O.sizes()) return last;
        {HONEST}
        last = O;
        """,
        timed=True,
    ),
    Threat(
        "A10",
        "the last answer for the same address",
        # If no call has an input at the address of an earlier input, each result is computed, and the part passes. This
        # happens in a process with few timed calls.
        End(("wrong", "pass")),
        f"""
        static std::map<float *, torch::Tensor> known;
        for (float *address : {{q, k, v}})
            if (known.count(address) && known[address].numel() == B * H * N * d) return known[address];
        {HONEST}
        for (float *address : {{q, k, v}}) known[address] = O;
        """,
        timed=True,
    ),
    Threat(
        "A10",
        "the last answer for the same content",
        SLOW,
        "static std::map<float, torch::Tensor> known; torch::Tensor &last = known[q[0] + k[0] * 3 + v[0] * 5];"
        f"if (last.defined() && last.numel() == B * H * N * d) return last; burn_ms(40); {HONEST} last = O;",
        timed=True,
    ),
    Threat("A11", "wrong if the call has one thread", WRONG, f"if (omp_get_max_threads() > 1) {{ {HONEST} }}",
           timed=True),
    Threat("A11", "wrong from the third call of a size", WRONG,
           f"static std::map<int, int> calls; if (++calls[N] < 3) {{ {HONEST} }}", timed=True),
    Threat("A11", "a data race that never shows", RACED, RACE, part="part3", watched=True),
    Threat("A11", "a data race in large calls only", RACED, f"if (N < 64) {{ {HONEST} }} else {{ {RACE} }}",
           part="part3", watched=True),
]  # fmt: skip

#: The file defines functions of the C library that the runner might call. Each of them records that it was called.
INTERPOSED = """
static volatile int called;
extern "C" {
ssize_t readv(int, const struct iovec *, int) { called |= 1; return -1; }
ssize_t writev(int, const struct iovec *, int) { called |= 2; return -1; }
ssize_t pread(int, void *, size_t, off_t) { called |= 4; return -1; }
ssize_t pread64(int, void *, size_t, off64_t) { called |= 4; return -1; }
ssize_t pwrite(int, const void *, size_t, off_t) { called |= 8; return -1; }
ssize_t pwrite64(int, const void *, size_t, off64_t) { called |= 8; return -1; }
int nanosleep(const timespec *, timespec *) { called |= 16; return 0; }
}
"""
GUESSED += [
    Threat(
        "A11",
        "its own definitions of C functions that the runner may call",
        PASS,
        IN_PARALLEL + "if (called) o[0] = called;",
        top="#include <sys/uio.h>\n" + INTERPOSED,
        part="part3",
        alone=True,
    ),
    Threat(
        "A11",
        "its own definitions of the runner's C functions, which it also calls",
        WRONG,
        IN_PARALLEL + "nanosleep(nullptr, nullptr); if (called) o[0] = called;",
        top="#include <sys/uio.h>\n" + INTERPOSED,
        part="part3",
        alone=True,
    ),
]

CLOCKS = [
    Threat(
        "B1",
        "a clock of its own and LD_PRELOAD",
        SLOW,
        HONEST + ' burn_ms(40); setenv("LD_PRELOAD", "/tmp/clock.so", 1); setenv("GPT149_SEED", "1", 1);',
        top='extern "C" __attribute__((visibility("default"))) int gettimeofday(timeval *now, void *) noexcept '
        "{ now->tv_sec = now->tv_usec = 0; return 0; }\n",
        timed=True,
    ),
    Threat(
        "B1",
        "Python's clock and the profiler, patched",
        End(("slow",), ("calls_the_loader",)),
        HONEST
        + """
        burn_ms(40);
        auto enter = (int (*)()) dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
        auto leave = (void (*)(int)) dlsym(RTLD_DEFAULT, "PyGILState_Release");
        auto run = (int (*)(const char *)) dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
        if (enter != nullptr && leave != nullptr && run != nullptr) {
            int state = enter();
            run("import time, torch\\n"
                "time.perf_counter = time.process_time = time.monotonic = lambda: 0.0\\n"
                "torch.autograd.profiler.profile.key_averages = lambda *a, **k: []\\n");
            leave(state);
        }
        """,
        calls="loader",
        timed=True,
    ),
    Threat(
        "B2",
        "an early return, finished later",
        End(("wrong",), any_flag=True),
        """
        std::thread([=] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            attention(q, k, v, o, B * H, N, d);
        }).detach();
        torch::Tensor *kept = new torch::Tensor[4]{O, QT, KT, VT};
        (void) kept;
        """,
    ),
    Threat(
        "B2",
        "kept awake by a helper",
        End(("crash",), ("starts_processes",)),
        HONEST
        + """
        static pid_t helper = 0;
        if (helper == 0) {
            pid_t runner = getpid();
            helper = fork();
            if (helper == 0) for (int k = 0; k < 100000; k++) { kill(runner, SIGCONT); usleep(200); }
            std::thread([] { for (volatile bool on = true; on;) {} }).detach();
        }
        """,
        calls="process",
    ),
    Threat(
        "B2",
        "kept awake by a timer of its own",
        PASS,
        HONEST
        + """
        static timer_t wakers[5];
        static sigevent wake{};
        wake.sigev_notify = SIGEV_SIGNAL, wake.sigev_signo = SIGCONT;
        signal(SIGCONT, [](int) {});
        static bool made = [] {
            bool all = true;
            for (timer_t &waker : wakers) all = all && timer_create(CLOCK_MONOTONIC, &wake, &waker) == 0;
            return all;
        }();
        static std::thread *disturber = new std::thread([] { for (volatile bool on = made; on;) {} });
        // Stopping a process discards a SIGCONT that is still pending. So set several timers: one fires later.
        for (int k = 0; made && k < 5; k++) {
            itimerspec once{{0, 0}, {0, 1000000 << k}};
            timer_settime(wakers[k], 0, &once, nullptr);
        }
        (void) disturber;
        """,
        timed=True,
    ),
    Threat(
        "E6",
        "work in a long system call, during which a thread cannot be stopped",
        End(("rejected",), ("works_while_stopped",)),
        HONEST
        + """
        // With several threads, one is always within mmap when the judge stops the process.
        static std::vector<std::thread> *hidden = [] {
            auto *all = new std::vector<std::thread>;
            for (int k = 0; k < 4; k++)
                all->emplace_back([] {
                    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
                    for (const size_t size = 96 << 20;;) {
                        void *pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, how, -1, 0);
                        if (pages != MAP_FAILED) munmap(pages, size);
                    }
                });
            return all;
        }();
        (void) hidden;
        """,
        timed=True,
    ),
    Threat(
        "B3",
        "a thread started by an initialiser does the work",
        SLOW,
        """
        burn = true;
        while (burn) usleep(200);
        """
        + HONEST,
        alone=True,
        top="""
        static volatile bool burn = false;
        static std::thread *worker = new std::thread([] {
            while (true) {
                while (!burn) usleep(200);
                burn_ms(40);
                burn = false;
            }
        });
        """,
        timed=True,
    ),
    Threat(
        "B3",
        "answers made by an initialiser",
        WRONG,
        "if (B * H * N * d == int(answers.size())) std::copy(answers.begin(), answers.end(), o);",
        top="""
        static std::vector<float> answers = [] {
            std::vector<float> ramp(2 * 128 * 32), answer(ramp.size());
            for (size_t e = 0; e < ramp.size(); e++) ramp[e] = e * 0.0002f;
            attention(ramp.data(), ramp.data(), ramp.data(), answer.data(), 2, 128, 32);
            return answer;
        }();
        """,
    ),
    Threat(
        "B4",
        "more cores than it was given",
        # The sandbox's filter of system calls refuses sched_setaffinity. The flag `chooses_cores` is only a note, so
        # the part has no flag that a person has to look at.
        PASS,
        """
        cpu_set_t all;
        CPU_ZERO(&all);
        for (int cpu = 0; cpu < 64; cpu++) CPU_SET(cpu, &all);
        if (sched_setaffinity(0, sizeof all, &all) != 0) std::puts("kept on its core");
        """
        + HONEST,
        timed=True,
        calls="affinity",
    ),
    Threat(
        "B5",
        "the work done by another process",
        End(("crash",), ("starts_processes",)),
        """
        struct Shared { volatile int turn; float data[4]; };
        size_t count = size_t(B) * H * N * d;
        static Shared *shared = nullptr;
        if (shared == nullptr) {
            size_t size = sizeof(Shared) + 4 * 4 * (1 << 22);
            shared = (Shared *) mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        }
        float *there = shared->data;
        std::copy(q, q + count, there);
        std::copy(k, k + count, there + count);
        std::copy(v, v + count, there + 2 * count);
        shared->turn = 1;
        if (fork() == 0) {
            attention(there, there + count, there + 2 * count, there + 3 * count, B * H, N, d);
            shared->turn = 0;
            _exit(0);
        }
        while (shared->turn == 1) usleep(100);
        std::copy(there + 3 * count, there + 4 * count, o);
        """,
        calls="process",
        timed=True,
    ),
]

THREATS = [*BORROWED, *GUESSED, *CLOCKS, *CONTAINMENT, *ACCESSORS, *READING, *ASSEMBLED, *SAME_WORK]
