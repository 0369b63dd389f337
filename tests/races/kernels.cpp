// Many ways to write part 3, in one file because a compile takes longer than a run. Kernels whose names begin with
// `race` have a data race, those with `right` have none. All compute O = softmax(Q K^T) V unless a race spoils it.
#include <torch/extension.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

using torch::Tensor;
using Floats = std::vector<float>;
using Kernel = Tensor (*)(Tensor, Tensor, Tensor, Tensor, int, int, int, int);

static std::vector<std::pair<const char *, Kernel>> kernels;

static Floats values(Tensor tensor) {
    const float *first = tensor.data_ptr<float>();
    return Floats(first, first + tensor.numel());
}

// KERNEL registers a kernel by its name, BEGIN makes its tensors, and END returns O. They are macros, because a report
// names the outermost function that allocates shared memory. If one function called all kernels, it would be named.
#define PARAMETERS Tensor QTensor, Tensor KTensor, Tensor VTensor, Tensor tempTensor, int B, int H, int N, int d
#define KERNEL(name)                                                                \
    Tensor name(PARAMETERS);                                                        \
    static const bool is_bound_##name = (kernels.emplace_back(#name, &name), true); \
    Tensor name(PARAMETERS)
#define BEGIN                                                                                  \
    {                                                                                          \
        Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);                                  \
        Floats Q = values(QTensor), K = values(KTensor), V = values(VTensor), O = values(OTensor); \
        Floats temp = values(tempTensor);
#define END                                                       \
        std::copy(O.begin(), O.end(), OTensor.data_ptr<float>()); \
        return OTensor;                                           \
    }

static float dot(const float *q, const float *k, int d) { return std::inner_product(q, q + d, k, 0.0f); }

#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
static void add_rows(const float *weights, float sum, const float *V, float *o, int N, int d) {
    for (int j = 0; j < N; j++)
        for (int k = 0; k < d; k++) o[k] += weights[j] / sum * V[j * d + k];
}

// Compute row i of O for one head. `row` is workspace for N weights.
static void attend(const float *Q, const float *K, const float *V, float *O, float *row, int i, int N, int d) {
    float sum = 0.0f;
    for (int j = 0; j < N; j++) {
        row[j] = std::exp(dot(&Q[i * d], &K[j * d], d));
        sum += row[j];
    }
    add_rows(row, sum, V, &O[i * d], N, d);
}

// Compute row i of head bh, with `row` as workspace for its weights.
#define ATTEND(bh, i, row) \
    attend(&Q[(bh) * N * d], &K[(bh) * N * d], &V[(bh) * N * d], &O[(bh) * N * d], row, i, N, d)
#define ROW_OF_THIS_THREAD (&temp[omp_get_thread_num() * N])
// For use in loops over head bh and row i: WEIGHT is exp(score j), ADD_ROWS adds the weighted mean of V to O.
#define WEIGHT(j) std::exp(dot(&Q[(bh * N + i) * d], &K[(bh * N + j) * d], d))
#define ADD_ROWS(weights, sum) add_rows(weights, sum, &V[bh * N * d], &O[(bh * N + i) * d], N, d)
#define FOR_EACH_ROW                    \
    for (int bh = 0; bh < B * H; bh++) \
        for (int i = 0; i < N; i++)

KERNEL(rightStatic)
BEGIN
#pragma omp parallel for
    FOR_EACH_ROW ATTEND(bh, i, ROW_OF_THIS_THREAD);
END

KERNEL(rightCollapse3Dynamic)
BEGIN
#pragma omp parallel for collapse(3) schedule(dynamic, 3)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i++) ATTEND(b * H + h, i, ROW_OF_THIS_THREAD);
END

KERNEL(rightCollapse2Guided)
BEGIN
#pragma omp parallel for collapse(2) schedule(guided)
    FOR_EACH_ROW {
        Floats row(N);
        ATTEND(bh, i, row.data());
    }
END

KERNEL(rightPrivateClauses)
BEGIN
    int i, j, k;
    float score, sum;
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
#pragma omp parallel for private(j, k, score, sum) firstprivate(at) schedule(runtime)
        for (i = 0; i < N; i++) {
            float *row = ROW_OF_THIS_THREAD;
            sum = 0.0f;
            for (j = 0; j < N; j++) {
                score = 0.0f;
                for (k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                row[j] = std::exp(score);
                sum += row[j];
            }
            for (j = 0; j < N; j++)
                for (k = 0; k < d; k++) O[at + i * d + k] += row[j] / sum * V[at + j * d + k];
        }
    }
END

KERNEL(rightReduction)
BEGIN
    FOR_EACH_ROW {
        int at = bh * N * d;
        float sum = 0.0f;
#pragma omp parallel for reduction(+ : sum)
        for (int j = 0; j < N; j++) {
            float score = 0.0f;
#pragma omp simd reduction(+ : score)
            for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
            temp[j] = std::exp(score);
            sum += temp[j];
        }
        float *out = &O[at + i * d];
#pragma omp parallel for reduction(+ : out[ : d])
        for (int j = 0; j < N; j++)
            for (int k = 0; k < d; k++) out[k] += temp[j] / sum * V[at + j * d + k];
    }
END

KERNEL(rightAtomic)
BEGIN
    FOR_EACH_ROW {
        float sum = 0.0f;
#pragma omp parallel
        {
#pragma omp for
            for (int j = 0; j < N; j++) {
                temp[j] = WEIGHT(j);
#pragma omp atomic
                sum += temp[j];
            }
#pragma omp for
            for (int k = 0; k < d; k++)
                for (int j = 0; j < N; j++) O[(bh * N + i) * d + k] += temp[j] / sum * V[(bh * N + j) * d + k];
        }
    }
END

KERNEL(rightCriticalAndLock)
BEGIN
    omp_lock_t lock;
    omp_init_lock(&lock);
    int rows = 0, heads = 0;
#pragma omp parallel for
    for (int bh = 0; bh < B * H; bh++) {
        for (int i = 0; i < N; i++) {
            ATTEND(bh, i, ROW_OF_THIS_THREAD);
#pragma omp critical(counting)
            rows++;
        }
        omp_set_lock(&lock);
        heads++;
        omp_unset_lock(&lock);
    }
    omp_destroy_lock(&lock);
    if (rows != B * H * N || heads != B * H) O.assign(O.size(), 0.0f);
END

KERNEL(rightTasks)
BEGIN
#pragma omp parallel
#pragma omp single
    for (int bh = 0; bh < B * H; bh++) {
        for (int i = 0; i < N; i += 8) {
#pragma omp task firstprivate(bh, i)
            for (int r = i; r < std::min(N, i + 8); r++) ATTEND(bh, r, ROW_OF_THIS_THREAD);
        }
#pragma omp taskwait
        O[bh * N * d] += 0.0f;
    }
END

KERNEL(rightTaskloop)
BEGIN
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(5)
    for (int row = 0; row < B * H * N; row++) ATTEND(row / N, row % N, ROW_OF_THIS_THREAD);
END

KERNEL(rightSections)
BEGIN
    const int half = B * H / 2;
#pragma omp parallel sections
    {
#pragma omp section
        for (int bh = 0; bh < half; bh++)
            for (int i = 0; i < N; i++) ATTEND(bh, i, &temp[0]);
#pragma omp section
        for (int bh = half; bh < B * H; bh++)
            for (int i = 0; i < N; i++) ATTEND(bh, i, &temp[N]);
    }
END

// The master thread sets `factor`. After a barrier one thread fills `scaled`, and all use it after the next barrier.
KERNEL(rightBarriers)
BEGIN
    float factor = 0.0f;
    Floats scaled(d);
#pragma omp parallel
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
#pragma omp master
        factor = 1.0f;
#pragma omp barrier
#pragma omp single
        for (int k = 0; k < d; k++) scaled[k] = factor * Q[at + k];
#pragma omp for schedule(static, 1)
        for (int i = 0; i < N; i++) {
            if (i == 0) std::copy(scaled.begin(), scaled.end(), &Q[at]);
            ATTEND(bh, i, ROW_OF_THIS_THREAD);
        }
    }
END

KERNEL(rightParallelFor)
BEGIN
    at::parallel_for(0, B * H, 1, [&](int64_t from, int64_t to) {
        Floats row(N);
        for (int64_t bh = from; bh < to; bh++)
            for (int i = 0; i < N; i++) ATTEND(bh, i, row.data());
    });
END

// ---- wrong kernels

KERNEL(raceAccumulator)
BEGIN
    FOR_EACH_ROW {
        float rowSum = 0.0f;
#pragma omp parallel for
        for (int j = 0; j < N; j++) {
            temp[j] = WEIGHT(j);
            rowSum += temp[j];  // the race
        }
        ADD_ROWS(&temp[0], rowSum);
    }
END

KERNEL(raceRowBuffer)
BEGIN
    Floats scores(N);
#pragma omp parallel for collapse(2)
    FOR_EACH_ROW {
        float sum = 0.0f;
        for (int j = 0; j < N; j++) {
            scores[j] = WEIGHT(j);  // the race
            sum += scores[j];
        }
        ADD_ROWS(&scores[0], sum);
    }
END

KERNEL(raceMissingPrivate)
BEGIN
    float weight;
#pragma omp parallel for schedule(dynamic)
    FOR_EACH_ROW {
        float *row = ROW_OF_THIS_THREAD;
        float sum = 0.0f;
        for (int j = 0; j < N; j++) {
            row[j] = WEIGHT(j);
            sum += row[j];
        }
        for (int j = 0; j < N; j++) {
            weight = row[j] / sum;  // the race
            for (int k = 0; k < d; k++) O[(bh * N + i) * d + k] += weight * V[(bh * N + j) * d + k];
        }
    }
END

// Right if the tasks run one after the other, but OpenMP may run them at the same time.
KERNEL(raceTasks)
BEGIN
#pragma omp parallel
#pragma omp single
    FOR_EACH_ROW {
#pragma omp task firstprivate(bh, i)
        ATTEND(bh, i, &temp[0]);  // the race
    }
END

// The missing barrier is a race, even if the threads run one after the other by chance.
KERNEL(raceNowait)
BEGIN
    FOR_EACH_ROW {
        float sum = 0.0f;
#pragma omp parallel
        {
#pragma omp for nowait
            for (int j = 0; j < N; j++) {
                temp[j] = WEIGHT(j);
#pragma omp atomic
                sum += temp[j];
            }
#pragma omp for
            for (int k = 0; k < d; k++)
                for (int j = 0; j < N; j++)
                    O[(bh * N + i) * d + k] += temp[j] / sum * V[(bh * N + j) * d + k];  // the race
        }
    }
END

// The barrier at the loop's end does not order the accesses after it: all threads may write O at the same time.
KERNEL(raceAfterBarrier)
BEGIN
#pragma omp parallel
    {
        Floats own(O.size(), 0.0f);
#pragma omp for collapse(2)
        FOR_EACH_ROW own[(bh * N + i) * d] = WEIGHT(0);
        for (size_t at = 0; at < O.size(); at++) O[at] += own[at];  // the race
    }
END

// The last loop has several threads only if N > 40: with fewer rows there is no race.
KERNEL(fromFortyRows)
BEGIN
    float largest = 0.0f;
#pragma omp parallel for collapse(2)
    FOR_EACH_ROW ATTEND(bh, i, ROW_OF_THIS_THREAD);
#pragma omp parallel for if (N > 40)
    for (int i = 0; i < N; i++) largest = std::max(largest, O[i * d]);
END

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    for (const auto &[name, kernel] : kernels) m.def(name, kernel);
}
