// Right and wrong attention functions with the reference's C ABI, for the tests of the text demo. Without torch they
// compile in a second. Workspace arguments are ignored.
#include <csignal>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

enum Bug { NONE, ZEROS, NO_NORMALISATION, DROPPED_TAIL, HEAD_0_COPIED, BATCH_0_COPIED, MEAN_OF_V, LAST_ROW_ONLY, CRASH };

static void attention(Bug bug, const float *Q, const float *K, const float *V, int B, int H, int N, int d, float *O) {
    if (bug == CRASH && N >= 2) raise(SIGSEGV);
    std::vector<double> weight(N);
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            int from = bug == HEAD_0_COPIED ? b * H : bug == BATCH_0_COPIED ? h : b * H + h;
            const float *q = Q + (size_t)from * N * d, *k = K + (size_t)from * N * d, *v = V + (size_t)from * N * d;
            float *out = O + (size_t)(b * H + h) * N * d;
            int rows = bug == DROPPED_TAIL ? N / 16 * 16 : N;
            for (int i = 0; i < N; i++) {
                double sum = 0.0;
                for (int j = 0; j < N; j++) {
                    double score = 0.0;
                    for (int c = 0; c < d; c++) score += (double)q[i * d + c] * k[j * d + c];
                    weight[j] = bug == MEAN_OF_V ? 1.0 : std::exp(score);
                    sum += weight[j];
                }
                if (bug == NO_NORMALISATION) sum = 1.0;
                for (int c = 0; c < d; c++) {
                    double value = 0.0;
                    for (int j = 0; j < N; j++) value += weight[j] / sum * v[j * d + c];
                    bool kept = i < rows && bug != ZEROS;
                    out[i * d + c] = kept ? (float)value : 0.0f;
                    if (bug == LAST_ROW_ONLY && i < N - 1) out[i * d + c] = std::numeric_limits<float>::quiet_NaN();
                }
            }
        }
    }
}

#define KERNEL(name, bug)                                                                                     \
    extern "C" void name(const float *Q, const float *K, const float *V, const float *, int B, int H, int N,  \
                         int d, float *O) {                                                                   \
        attention(bug, Q, K, V, B, H, N, d, O);                                                               \
    }

KERNEL(right, NONE)
KERNEL(zeros, ZEROS)
KERNEL(no_normalisation, NO_NORMALISATION)
KERNEL(dropped_tail, DROPPED_TAIL)
KERNEL(head_0_copied, HEAD_0_COPIED)
KERNEL(batch_0_copied, BATCH_0_COPIED)
KERNEL(mean_of_v, MEAN_OF_V)
KERNEL(last_row_only, LAST_ROW_ONLY)
KERNEL(crash, CRASH)
