// State of the threads of the OpenMP runtime openmp_tsan.cpp: a thread's team, its position in a loop, and its tasks.
//
// This file uses no containers of the standard library. The runtime is compiled without the sanitizer and the student's
// file with it. The linker would keep only one copy of a container's functions for both.
#ifndef GPT149_OPENMP_TEAM_H
#define GPT149_OPENMP_TEAM_H

#include <pthread.h>
#include <sched.h>
#include <sys/time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" void __tsan_acquire(void *);
extern "C" void __tsan_release(void *);

namespace {

// A spin lock in one int, because omp_lock_t, in which the program's locks are stored, may be as small as an int. A
// pthread mutex is not used, because the sanitizer would count it as synchronisation by the program.
using Word = int;

bool try_lock(Word *word) { return __atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE) == 0; }
void lock(Word *word) {
  while (!try_lock(word)) sched_yield();
}
void unlock(Word *word) { __atomic_store_n(word, 0, __ATOMIC_RELEASE); }

// Lock and unlock on behalf of the program. The calls of __tsan_... announce that each holder runs after the previous
// one.
void program_lock(Word *word) {
  lock(word);
  __tsan_acquire(word);
}
void program_unlock(Word *word) {
  __tsan_release(word);
  unlock(word);
}

// A set of tasks for which a thread can wait: the children of one task, or the tasks of one taskgroup.
struct Waited {
  std::atomic<int> unfinished{0};
};

struct Task {
  void (*body)(void *);
  void *argument;
  Waited *parent, *group;
  Task *next;
  char *storage;
};

struct Queue {
  Task *first = nullptr;
  Task **end = &first;
  void add(Task *task) {
    *end = task;
    end = &task->next;
  }
  Task *take() {
    Task *task = first;
    if (task != nullptr && (first = task->next) == nullptr) end = &first;
    return task;
  }
};

constexpr int kMostThreads = 256;

struct Team {
  int size = 1;
  int level = 0;
  std::atomic<int> arrived{0};
  std::atomic<unsigned> generation{0};
  // Memory whose addresses identify barriers in calls of __tsan_acquire and __tsan_release.
  char orders[16] = {};
  char *order(unsigned barrier) { return &orders[barrier % 2 * 8]; }
  std::atomic<int> tasks{0};
  void *copied = nullptr;
  Word queues_word = 0;
  Queue queues[kMostThreads];
  unsigned next_queue = 0;
  Waited children_of_none;
};

struct Context {
  Team *team = nullptr;
  int id = 0;
  int singles = 0, copies = 0;
  Waited *children = nullptr, *group = nullptr;
  // Bounds and increment of the loop that this thread executes, modulo 2^64.
  uint64_t start = 0, end = 0, increment = 0;
  // Counts of iterations: in the whole loop, before this thread's next piece (chunk), from the start of one of the
  // thread's pieces to the start of the next, and in one piece.
  uint64_t trips = 0, next = 0, step = 0, piece = 0;
};

Team lonely_team;
thread_local Context context_of_thread;
int wanted_threads = 0;
int regions = 0, regions_alone = 0;

Context &me() {
  Context &context = context_of_thread;
  if (context.team == nullptr) context.team = &lonely_team;
  return context;
}

int default_threads() {
  if (wanted_threads == 0) {
    const char *text = std::getenv("OMP_NUM_THREADS");
    wanted_threads = text != nullptr && std::atoi(text) > 0 ? std::atoi(text) : 4;
  }
  return wanted_threads < kMostThreads ? wanted_threads : kMostThreads;
}

// ---- tasks

void run_task(Task *task) {
  Context &context = me();
  Waited *const outer_children = context.children, *const outer_group = context.group;
  Waited own;
  context.children = &own;
  context.group = task->group;
  __tsan_acquire(task);
  task->body(task->argument);
  // OpenMP lets child tasks outlive their parent. Here the parent waits, because the counter `own` is on its stack.
  while (own.unfinished.load() > 0) sched_yield();
  context.children = outer_children;
  context.group = outer_group;
  __tsan_release(task->parent);
  if (task->group != nullptr) __tsan_release(task->group);
  __tsan_release(context.team->order(context.team->generation.load()));
  context.team->tasks--;
  task->parent->unfinished--;
  if (task->group != nullptr) task->group->unfinished--;
  std::free(task->storage);
  std::free(task);
}

// Runs one task of this thread's queue or, if `any`, of any thread's queue. Returns false if no task is queued there.
bool run_some_task(bool any) {
  Context &context = me();
  Team *team = context.team;
  Task *task = nullptr;
  lock(&team->queues_word);
  for (int k = 0; k < (any ? team->size : 1) && task == nullptr; k++)
    task = team->queues[(context.id + k) % team->size].take();
  unlock(&team->queues_word);
  if (task == nullptr) return false;
  run_task(task);
  return true;
}

template <class Condition>
void work_until(const Condition &holds) {
  for (int idle = 0; !holds();) {
    // After a long wait, take tasks from other queues, too: their threads may be busy and not run them.
    if (run_some_task(idle > 2000)) idle = 0;
    else {
      idle++;
      sched_yield();
    }
  }
}

void wait_for(Waited *waited) {
  if (waited == nullptr) return;
  work_until([&] { return waited->unfinished.load() == 0; });
  __tsan_acquire(waited);
}

void add_task(void (*body)(void *), void *data, void (*copy)(void *, void *), long size, long alignment, bool now) {
  Context &context = me();
  Team *team = context.team;
  auto *task = static_cast<Task *>(std::calloc(1, sizeof(Task)));
  task->body = body;
  task->storage = static_cast<char *>(std::malloc(static_cast<size_t>(size + alignment)));
  auto align = static_cast<uintptr_t>(alignment < 1 ? 1 : alignment);
  task->argument = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(task->storage) + align - 1) / align * align);
  if (copy != nullptr) copy(task->argument, data);
  else std::memcpy(task->argument, data, static_cast<size_t>(size));
  task->parent = context.children != nullptr ? context.children : &team->children_of_none;
  task->group = context.group;
  task->parent->unfinished++;
  if (task->group != nullptr) task->group->unfinished++;
  team->tasks++;
  __tsan_release(task);
  if (now || team->size == 1) return run_task(task);
  lock(&team->queues_word);
  team->queues[team->next_queue++ % static_cast<unsigned>(team->size)].add(task);
  unlock(&team->queues_word);
}

}  // namespace

#endif
