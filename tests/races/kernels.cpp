// Part 3 in many ways, in one file because a compile costs more than a run: what begins with `race` has a data race,
// what begins with `right` has none. All compute O = softmax(Q K^T) V if their threads let them.
#include <torch/extension.h>

#include <omp.h>

#include <cmath>
#include <vector>

static std::vector<float> values(torch::Tensor tensor) {
    const float *first = tensor.data_ptr<float>();
    return std::vector<float>(first, first + tensor.numel());
}

#define KERNEL(name)                                                                                              \
    torch::Tensor name(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor, torch::Tensor tempTensor, \
                       int B, int H, int N, int d)

#define BEGIN                                                                                          \
    torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);                                       \
    std::vector<float> Q = values(QTensor), K = values(KTensor), V = values(VTensor), O = values(OTensor); \
    std::vector<float> temp = values(tempTensor);

#define END                                                        \
    std::copy(O.begin(), O.end(), OTensor.data_ptr<float>());      \
    return OTensor;

// One row of O: `row` is where its N scores may stand.
static void attend(const float *Q, const float *K, const float *V, float *O, float *row, int i, int N, int d) {
    float sum = 0.0f;
    for (int j = 0; j < N; j++) {
        float score = 0.0f;
        for (int k = 0; k < d; k++) score += Q[i * d + k] * K[j * d + k];
        row[j] = std::exp(score);
        sum += row[j];
    }
    for (int j = 0; j < N; j++)
        for (int k = 0; k < d; k++) O[i * d + k] += row[j] / sum * V[j * d + k];
}

KERNEL(rightStatic) {
    BEGIN
#pragma omp parallel for
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
        for (int i = 0; i < N; i++) attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], i, N, d);
    }
    END
}

KERNEL(rightCollapse3Dynamic) {
    BEGIN
#pragma omp parallel for collapse(3) schedule(dynamic, 3)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i++) {
                int at = (b * H + h) * N * d;
                attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], i, N, d);
            }
    END
}

KERNEL(rightCollapse2Guided) {
    BEGIN
#pragma omp parallel for collapse(2) schedule(guided)
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
            std::vector<float> row(N);
            int at = bh * N * d;
            attend(&Q[at], &K[at], &V[at], &O[at], row.data(), i, N, d);
        }
    END
}

KERNEL(rightPrivateClauses) {
    BEGIN
    int i, j, k;
    float score, sum;
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
#pragma omp parallel for private(j, k, score, sum) firstprivate(at) schedule(runtime)
        for (i = 0; i < N; i++) {
            float *row = &temp[omp_get_thread_num() * N];
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
}

KERNEL(rightReduction) {
    BEGIN
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
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
}

KERNEL(rightAtomic) {
    BEGIN
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
            int at = bh * N * d;
            float sum = 0.0f;
#pragma omp parallel
            {
#pragma omp for
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                    temp[j] = std::exp(score);
#pragma omp atomic
                    sum += temp[j];
                }
#pragma omp for
                for (int k = 0; k < d; k++)
                    for (int j = 0; j < N; j++) O[at + i * d + k] += temp[j] / sum * V[at + j * d + k];
            }
        }
    END
}

KERNEL(rightCriticalAndLock) {
    BEGIN
    omp_lock_t lock;
    omp_init_lock(&lock);
    int rows = 0, heads = 0;
#pragma omp parallel for
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
        for (int i = 0; i < N; i++) {
            attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], i, N, d);
#pragma omp critical(counting)
            rows++;
        }
        omp_set_lock(&lock);
        heads++;
        omp_unset_lock(&lock);
    }
    omp_destroy_lock(&lock);
    if (rows != B * H * N || heads != B * H) OTensor.zero_();
    END
}

KERNEL(rightTasks) {
    BEGIN
#pragma omp parallel
#pragma omp single
    for (int bh = 0; bh < B * H; bh++) {
        for (int i = 0; i < N; i += 8) {
#pragma omp task firstprivate(bh, i)
            for (int r = i; r < std::min(N, i + 8); r++) {
                int at = bh * N * d;
                attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], r, N, d);
            }
        }
#pragma omp taskwait
        O[bh * N * d] += 0.0f;
    }
    END
}

KERNEL(rightTaskloop) {
    BEGIN
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(5)
    for (int row = 0; row < B * H * N; row++) {
        int at = row / N * N * d;
        attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], row % N, N, d);
    }
    END
}

KERNEL(rightSections) {
    BEGIN
    const int half = B * H / 2, all = B * H;
#pragma omp parallel sections
    {
#pragma omp section
        for (int bh = 0; bh < half; bh++)
            for (int i = 0; i < N; i++)
                attend(&Q[bh * N * d], &K[bh * N * d], &V[bh * N * d], &O[bh * N * d], &temp[0], i, N, d);
#pragma omp section
        for (int bh = half; bh < all; bh++)
            for (int i = 0; i < N; i++)
                attend(&Q[bh * N * d], &K[bh * N * d], &V[bh * N * d], &O[bh * N * d], &temp[N], i, N, d);
    }
    END
}

// What one thread prepares, a barrier hands to the others; the master's word counts after one, too.
KERNEL(rightBarriers) {
    BEGIN
    float factor = 0.0f;
    std::vector<float> scaled(d);
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
            attend(&Q[at], &K[at], &V[at], &O[at], &temp[omp_get_thread_num() * N], i, N, d);
        }
    }
    END
}

KERNEL(rightParallelFor) {
    BEGIN
    at::parallel_for(0, B * H, 1, [&](int64_t from, int64_t to) {
        std::vector<float> row(N);
        for (int64_t bh = from; bh < to; bh++)
            for (int i = 0; i < N; i++)
                attend(&Q[bh * N * d], &K[bh * N * d], &V[bh * N * d], &O[bh * N * d], row.data(), i, N, d);
    });
    END
}

// ---- wrong ones

KERNEL(raceAccumulator) {
    BEGIN
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
            int at = bh * N * d;
            float rowSum = 0.0f;
#pragma omp parallel for
            for (int j = 0; j < N; j++) {
                float score = 0.0f;
                for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                temp[j] = std::exp(score);
                rowSum += temp[j];  // the race
            }
            for (int j = 0; j < N; j++)
                for (int k = 0; k < d; k++) O[at + i * d + k] += temp[j] / rowSum * V[at + j * d + k];
        }
    END
}

KERNEL(raceRowBuffer) {
    BEGIN
    std::vector<float> scores(N);
#pragma omp parallel for collapse(2)
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
            int at = bh * N * d;
            float sum = 0.0f;
            for (int j = 0; j < N; j++) {
                float score = 0.0f;
                for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                scores[j] = std::exp(score);  // the race
                sum += scores[j];
            }
            for (int j = 0; j < N; j++)
                for (int k = 0; k < d; k++) O[at + i * d + k] += scores[j] / sum * V[at + j * d + k];
        }
    END
}

KERNEL(raceMissingPrivate) {
    BEGIN
    float weight;
#pragma omp parallel for schedule(dynamic)
    for (int bh = 0; bh < B * H; bh++) {
        int at = bh * N * d;
        float *row = &temp[omp_get_thread_num() * N];
        for (int i = 0; i < N; i++) {
            float sum = 0.0f;
            for (int j = 0; j < N; j++) {
                float score = 0.0f;
                for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                row[j] = std::exp(score);
                sum += row[j];
            }
            for (int j = 0; j < N; j++) {
                weight = row[j] / sum;  // the race
                for (int k = 0; k < d; k++) O[at + i * d + k] += weight * V[at + j * d + k];
            }
        }
    }
    END
}

// Right where tasks follow one another; nothing says that they do.
KERNEL(raceTasks) {
    BEGIN
#pragma omp parallel
#pragma omp single
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
#pragma omp task firstprivate(bh, i)
            attend(&Q[bh * N * d], &K[bh * N * d], &V[bh * N * d], &O[bh * N * d], &temp[0], i, N, d);  // the race
        }
    END
}

// Dynamic threads may well come one after the other; the missing barrier is a race all the same.
KERNEL(raceNowait) {
    BEGIN
    for (int bh = 0; bh < B * H; bh++)
        for (int i = 0; i < N; i++) {
            int at = bh * N * d;
            float sum = 0.0f;
#pragma omp parallel
            {
#pragma omp for nowait
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int k = 0; k < d; k++) score += Q[at + i * d + k] * K[at + j * d + k];
                    temp[j] = std::exp(score);
#pragma omp atomic
                    sum += temp[j];
                }
#pragma omp for
                for (int k = 0; k < d; k++)
                    for (int j = 0; j < N; j++) O[at + i * d + k] += temp[j] / sum * V[at + j * d + k];  // the race
            }
        }
    END
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("rightStatic", &rightStatic);
    m.def("rightCollapse3Dynamic", &rightCollapse3Dynamic);
    m.def("rightCollapse2Guided", &rightCollapse2Guided);
    m.def("rightPrivateClauses", &rightPrivateClauses);
    m.def("rightReduction", &rightReduction);
    m.def("rightAtomic", &rightAtomic);
    m.def("rightCriticalAndLock", &rightCriticalAndLock);
    m.def("rightTasks", &rightTasks);
    m.def("rightTaskloop", &rightTaskloop);
    m.def("rightSections", &rightSections);
    m.def("rightBarriers", &rightBarriers);
    m.def("rightParallelFor", &rightParallelFor);
    m.def("raceAccumulator", &raceAccumulator);
    m.def("raceRowBuffer", &raceRowBuffer);
    m.def("raceMissingPrivate", &raceMissingPrivate);
    m.def("raceTasks", &raceTasks);
    m.def("raceNowait", &raceNowait);
}
