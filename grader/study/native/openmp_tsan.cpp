// A small OpenMP runtime with the functions that code compiled by gcc -fopenmp calls. It is linked in place of libgomp
// to find data races with ThreadSanitizer.
//
// ThreadSanitizer reports two accesses as a race if no synchronisation orders them. libgomp synchronises threads with
// futexes that the sanitizer does not see, so it would report races in correct programs. This runtime announces exactly
// the synchronisation that OpenMP promises: start and end of a parallel region, barriers, critical, locks, tasks and
// waits for them. The runtime is compiled without the sanitizer, so the sanitizer does not see the runtime's own
// synchronisation of threads. Otherwise the sanitizer would take an accidental order of accesses for a promised one.
//
// Work is distributed round-robin, whatever `schedule` says. This is legal, needs no shared counter, and gives work to
// all threads even on one core or in a short loop. Nested regions have one thread, as by default in OpenMP. Programs
// that use ordered, doacross, cancel, target, or reductions over tasks do not link, because these are missing here.
#include "openmp_team.h"

extern "C" int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

namespace {

// ---- teams

void barrier() {
  Context &context = me();
  Team *team = context.team;
  if (team->size == 1) return;
  const unsigned generation = team->generation.load();
  // Successive barriers use two addresses in turn. With one address, a late thread could acquire the release of a
  // thread that has already reached the next barrier.
  char *const order = team->order(generation);
  __tsan_release(order);
  if (team->arrived.fetch_add(1) + 1 == team->size) {
    work_until([&] { return team->tasks.load() == 0; });
    team->arrived = 0;
    team->generation++;
  } else {
    work_until([&] { return team->generation.load() != generation; });
  }
  __tsan_acquire(order);
}

struct Start {
  Team *team;
  int id;
  void (*body)(void *);
  void *data;
};

void *thread_main(void *given) {
  auto *start = static_cast<Start *>(given);
  Context &context = context_of_thread;
  context.team = start->team;
  context.id = start->id;
  Waited own;
  context.children = &own;
  start->body(start->data);
  barrier();
  return nullptr;
}

void parallel(void (*body)(void *), void *data, unsigned threads) {
  Context &outer = me();
  Team team;
  team.level = outer.team->level + 1;
  int wanted = threads != 0 && threads < kMostThreads ? static_cast<int>(threads) : default_threads();
  team.size = team.level > 1 ? 1 : wanted;
  Start starts[kMostThreads];
  pthread_t others[kMostThreads];
  // Each region gets new threads, because the sanitizer knows pthread_create and pthread_join: they announce the order
  // that OpenMP promises at the start and end of a region.
  if (team.size > 1) regions++;
  else if (team.level == 1) regions_alone++;
  for (int k = 1; k < team.size; k++) {
    starts[k] = {&team, k, body, data};
    if (__real_pthread_create(&others[k], nullptr, thread_main, &starts[k]) != 0) std::abort();
  }
  const Context saved = outer;
  Waited own;
  outer = Context{};
  outer.team = &team;
  outer.children = &own;
  body(data);
  barrier();
  for (int k = 1; k < team.size; k++) pthread_join(others[k], nullptr);
  outer = saved;
}

// ---- loops: piece k goes to thread k mod size

using Ull = unsigned long long;

template <class Number>
bool loop_next(Number *from, Number *to) {
  Context &context = me();
  if (context.next >= context.trips) return false;
  const uint64_t left = context.trips - context.next;
  const uint64_t next = context.start + context.next * context.increment;
  *from = static_cast<Number>(next);
  *to = static_cast<Number>(left <= context.piece ? context.end : next + context.piece * context.increment);
  context.next += left < context.step ? left : context.step;
  return true;
}

template <class Number>
bool loop_start(bool up, Number start, Number end, Number increment, Number chunk, Number *from, Number *to) {
  Context &context = me();
  context.start = static_cast<uint64_t>(start);
  context.end = static_cast<uint64_t>(end);
  context.increment = static_cast<uint64_t>(increment);
  const uint64_t extent = up ? context.end - context.start : context.start - context.end;
  const bool runs = up ? start < end : start > end;
  context.trips = runs ? (extent - 1) / (up ? context.increment : -context.increment) + 1 : 0;
  context.piece = chunk < 1 ? 1 : static_cast<uint64_t>(chunk);
  if (context.piece > context.trips) context.piece = context.trips;
  context.next = static_cast<uint64_t>(context.id) * context.piece;
  context.step = static_cast<uint64_t>(context.team->size) * context.piece;
  return from == nullptr || loop_next(from, to);
}

struct LoopRegion {
  void (*body)(void *);
  void *data;
  long start, end, increment, chunk;
};

void run_loop_region(void *given) {
  auto *region = static_cast<LoopRegion *>(given);
  loop_start<long>(region->increment > 0, region->start, region->end, region->increment, region->chunk, nullptr, nullptr);
  region->body(region->data);
}

Word critical_word, atomic_word;

}  // namespace

// A program can define these functions to configure ThreadSanitizer. They are defined here, so a student's file that
// defines them, to hide its races, does not link.
extern "C" const char *__tsan_default_options() { return ""; }
extern "C" const char *__tsan_default_suppressions() { return ""; }
extern "C" void __tsan_on_report(void *) {}

// Each thread that the student's file starts without OpenMP counts as one parallel region.
extern "C" void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(void *self, void *state, void (*depend)());
extern "C" void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(void *self, void *state, void (*depend)()) {
  __atomic_fetch_add(&regions, 1, __ATOMIC_RELAXED);
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(self, state, depend);
}
extern "C" int __wrap_pthread_create(pthread_t *made, const pthread_attr_t *how, void *(*body)(void *), void *given) {
  __atomic_fetch_add(&regions, 1, __ATOMIC_RELAXED);
  return __real_pthread_create(made, how, body, given);
}

// For a function with several versions (target_clones), the loader calls the program's code that chooses the version.
// ThreadSanitizer cannot record calls so early, so they are recorded only after the program is loaded.
namespace {
bool is_loaded = false;
__attribute__((constructor(101))) void loaded() { is_loaded = true; }
}  // namespace
extern "C" void __real___tsan_func_entry(void *caller);
extern "C" void __real___tsan_func_exit();
extern "C" void __wrap___tsan_func_entry(void *caller) {
  if (is_loaded) __real___tsan_func_entry(caller);
}
extern "C" void __wrap___tsan_func_exit() {
  if (is_loaded) __real___tsan_func_exit();
}

// Prints the numbers of regions with one thread and with several threads. Only regions with several threads can show a
// race. _exit is the runner's last call; destructors of static objects do not run, so they cannot print this.
extern "C" [[noreturn]] void __real__exit(int status);
extern "C" [[noreturn]] void __wrap__exit(int status) {
  std::fprintf(stderr, "\nopenmp: alone %d\nopenmp: regions %d\n", regions_alone, regions);
  __real__exit(status);
}

// ---- functions that compiled code calls

extern "C" {

void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned) { parallel(body, data, threads); }
void GOMP_barrier(void) { barrier(); }

// Defines the functions for one kind of schedule. Those for schedule(runtime) have no argument `chunk` (NO_CHUNK).
#define CHUNK(T) T chunk,
#define NO_CHUNK(T)
#define LOOP(kind, GIVEN, chunk)                                                                                     \
  bool GOMP_loop_##kind##_start(long a, long b, long step, GIVEN(long) long *from, long *to) {                       \
    return loop_start<long>(step > 0, a, b, step, chunk, from, to);                                                  \
  }                                                                                                                  \
  bool GOMP_loop_##kind##_next(long *from, long *to) { return loop_next(from, to); }                                 \
  bool GOMP_loop_ull_##kind##_start(bool up, Ull a, Ull b, Ull step, GIVEN(Ull) Ull *from, Ull *to) {                \
    return loop_start<Ull>(up, a, b, step, chunk, from, to);                                                         \
  }                                                                                                                  \
  bool GOMP_loop_ull_##kind##_next(Ull *from, Ull *to) { return loop_next(from, to); }                               \
  void GOMP_parallel_loop_##kind(void (*body)(void *), void *data, unsigned threads, long a, long b, long step,      \
                                 GIVEN(long) unsigned) {                                                             \
    LoopRegion region{body, data, a, b, step, chunk};                                                                \
    parallel(run_loop_region, &region, threads);                                                                     \
  }
LOOP(static, CHUNK, chunk)
LOOP(dynamic, CHUNK, chunk)
LOOP(guided, CHUNK, chunk)
LOOP(nonmonotonic_dynamic, CHUNK, chunk)
LOOP(nonmonotonic_guided, CHUNK, chunk)
LOOP(runtime, NO_CHUNK, 1)
LOOP(nonmonotonic_runtime, NO_CHUNK, 1)
LOOP(maybe_nonmonotonic_runtime, NO_CHUNK, 1)
#undef LOOP

void GOMP_loop_end(void) { barrier(); }
void GOMP_loop_end_nowait(void) {}

// The sections of a `sections` construct are the iterations of a loop from 1. 0 means that no section is left.
unsigned GOMP_sections_next(void) {
  Ull from, to;
  return loop_next(&from, &to) ? static_cast<unsigned>(from) : 0;
}
unsigned GOMP_sections_start(unsigned count) {
  loop_start<Ull>(true, 1, count + Ull{1}, 1, 1, nullptr, nullptr);
  return GOMP_sections_next();
}
void GOMP_sections_end(void) { barrier(); }
void GOMP_sections_end_nowait(void) {}
void GOMP_parallel_sections(void (*body)(void *), void *data, unsigned threads, unsigned count, unsigned) {
  LoopRegion region{body, data, 1, count + 1L, 1, 1};
  parallel(run_loop_region, &region, threads);
}

// Returns true for the thread that runs a `single` region. Successive regions run on different threads, to find errors
// that stay hidden if thread 0 runs them all.
bool GOMP_single_start(void) {
  Context &context = me();
  return context.singles++ % context.team->size == context.id;
}
void *GOMP_single_copy_start(void) {
  Context &context = me();
  if (context.copies++ % context.team->size == context.id) return nullptr;
  barrier();
  return context.team->copied;
}
void GOMP_single_copy_end(void *data) {
  me().team->copied = data;
  barrier();
}

void GOMP_critical_start(void) { program_lock(&critical_word); }
void GOMP_critical_end(void) { program_unlock(&critical_word); }
void GOMP_critical_name_start(void **name) { program_lock(reinterpret_cast<Word *>(name)); }
void GOMP_critical_name_end(void **name) { program_unlock(reinterpret_cast<Word *>(name)); }
void GOMP_atomic_start(void) { program_lock(&atomic_word); }
void GOMP_atomic_end(void) { program_unlock(&atomic_word); }

enum { kTaskDepend = 8, kTaskLoopUp = 1 << 8, kTaskLoopGrain = 1 << 9, kTaskLoopNoGroup = 1 << 11 };

void GOMP_task(void (*body)(void *), void *data, void (*copy)(void *, void *), long size, long alignment,
               bool deferred, unsigned flags, void **, int, void *) {
  // Tasks with `depend` clauses run immediately, one after the other. This order is legal, but cannot show their races.
  add_task(body, data, copy, size, alignment, !deferred || (flags & kTaskDepend) != 0);
}
void GOMP_taskwait(void) {
  Context &context = me();
  wait_for(context.children != nullptr ? context.children : &context.team->children_of_none);
}
void GOMP_taskyield(void) { run_some_task(false); }
void GOMP_taskgroup_start(void) { me().group = new Waited; }
void GOMP_taskgroup_end(void) {
  Context &context = me();
  wait_for(context.group);
  context.group = nullptr;
}
void GOMP_taskloop(void (*body)(void *), void *data, void (*copy)(void *, void *), long size, long alignment,
                   unsigned flags, unsigned long tasks, int, long start, long end, long step) {
  Context &context = me();
  long trips = step > 0 ? (end - start + step - 1) / step : (start - end - step - 1) / -step;
  if (trips <= 0) return;
  long wanted = tasks == 0 ? context.team->size : static_cast<long>(tasks);
  long each = (flags & kTaskLoopGrain) != 0 && tasks != 0 ? wanted : (trips + wanted - 1) / wanted;
  if (each < 1) each = 1;
  Waited *outer = context.group;
  if ((flags & kTaskLoopNoGroup) == 0) context.group = new Waited;
  for (long from = 0; from < trips; from += each) {
    // In gcc's interface for taskloop, a task's data begin with the bounds of its part of the loop.
    long bounds[2] = {start + from * step, start + (from + each < trips ? from + each : trips) * step};
    std::memcpy(data, bounds, sizeof bounds);
    add_task(body, data, copy, size, alignment, false);
  }
  if ((flags & kTaskLoopNoGroup) == 0) {
    wait_for(context.group);
    context.group = outer;
  }
}

// ---- functions that programs call

int omp_get_thread_num(void) { return me().id; }
int omp_get_num_threads(void) { return me().team->size; }
int omp_get_max_threads(void) { return default_threads(); }
void omp_set_num_threads(int threads) { wanted_threads = threads < 1 ? 1 : threads; }
int omp_get_num_procs(void) { return default_threads(); }
int omp_in_parallel(void) { return me().team->size > 1; }
int omp_get_level(void) { return me().team->level; }
int omp_get_active_level(void) { return me().team->size > 1 ? 1 : 0; }
int omp_get_thread_limit(void) { return 256; }
int omp_get_ancestor_thread_num(int level) { return level == 0 ? 0 : me().id; }
int omp_get_team_size(int level) { return level == 0 ? 1 : me().team->size; }
int omp_get_num_teams(void) { return 1; }
int omp_get_team_num(void) { return 0; }
void omp_set_dynamic(int) {}
int omp_get_dynamic(void) { return 0; }
void omp_set_nested(int) {}
int omp_get_nested(void) { return 0; }
void omp_set_max_active_levels(int) {}
int omp_get_max_active_levels(void) { return 1; }
int omp_in_final(void) { return 0; }
void omp_set_schedule(int, int) {}
void omp_get_schedule(int *kind, int *chunk) {
  *kind = 1;
  *chunk = 1;
}
double omp_get_wtime(void) {
  timeval now;
  gettimeofday(&now, nullptr);
  return static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_usec);
}
double omp_get_wtick(void) { return 1e-6; }

void omp_init_lock(Word *word) { *word = 0; }
void omp_init_lock_with_hint(Word *word, int) { *word = 0; }
void omp_destroy_lock(Word *) {}
void omp_set_lock(Word *word) { program_lock(word); }
void omp_unset_lock(Word *word) { program_unlock(word); }
int omp_test_lock(Word *word) {
  if (!try_lock(word)) return 0;
  __tsan_acquire(word);
  return 1;
}

struct NestLock {
  Word word;
  int count;
  void *owner;
};
void omp_init_nest_lock(NestLock *nest) { *nest = {0, 0, nullptr}; }
void omp_init_nest_lock_with_hint(NestLock *nest, int) { *nest = {0, 0, nullptr}; }
void omp_destroy_nest_lock(NestLock *) {}
void omp_set_nest_lock(NestLock *nest) {
  void *self = &context_of_thread;
  if (__atomic_load_n(&nest->owner, __ATOMIC_RELAXED) != self) {
    program_lock(&nest->word);
    __atomic_store_n(&nest->owner, self, __ATOMIC_RELAXED);
  }
  nest->count++;
}
void omp_unset_nest_lock(NestLock *nest) {
  if (--nest->count > 0) return;
  __atomic_store_n(&nest->owner, nullptr, __ATOMIC_RELAXED);
  program_unlock(&nest->word);
}
}
