// The operators of a small network, forward and backward, as short as they can be, and wrong ones besides, under names
// of their own: what tests of the training study call. All tensors are float32 and contiguous, labels and indices int64;
// backward functions add to the gradients that they are given.
#include <torch/extension.h>

#include <algorithm>
#include <cmath>
#include <vector>

using Tensor = torch::Tensor;

static float *of(Tensor &t) { return t.data_ptr<float>(); }

Tensor reluForward(Tensor X, int n) {
    Tensor O = at::zeros({n}, at::kFloat);
    for (int i = 0; i < n; i++) of(O)[i] = std::max(of(X)[i], 0.0f);
    return O;
}

void reluBackward(Tensor dO, Tensor X, Tensor dX, int n) {
    for (int i = 0; i < n; i++) of(dX)[i] += of(X)[i] > 0 ? of(dO)[i] : 0;
}

Tensor linearForward(Tensor X, Tensor W, Tensor b, int N, int I, int O) {
    Tensor Y = at::zeros({N, O}, at::kFloat);
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        float *y = of(Y) + n * O;
        std::copy(of(b), of(b) + O, y);
        for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) y[o] += of(X)[n * I + i] * of(W)[i * O + o];
    }
    return Y;
}

void linearBackward(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int N, int I, int O) {
    float *dy = of(dY), *x = of(X), *w = of(W), *dx = of(dX), *dw = of(dW), *bias = of(db);
#pragma omp parallel for
    for (int i = 0; i < I; i++)
        for (int n = 0; n < N; n++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int o = 0; o < O; o++) {
                sum += dy[n * O + o] * w[i * O + o];
                dw[i * O + o] += x[n * I + i] * dy[n * O + o];
            }
            dx[n * I + i] += sum;
        }
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) bias[o] += dy[n * O + o];
}

// Where row or column `k` of the kernel meets the image, `from` to before `to` of the output.
static void meets(int k, int stride, int pad, int size, int outputs, int &from, int &to) {
    from = std::max(0, (pad - k + stride - 1) / stride);
    to = std::min(outputs, (size - 1 + pad - k) / stride + 1);
}

Tensor conv2dForward(Tensor X, Tensor W, Tensor b, int N, int C, int H, int Wd, int F, int K, int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    Tensor Y = at::zeros({N, F, OH, OW}, at::kFloat);
    float *x = of(X), *w = of(W), *all = of(Y);
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++) {
            float *y = all + (n * F + f) * OH * OW;
            std::fill(y, y + OH * OW, of(b)[f]);
            for (int c = 0; c < C; c++)
                for (int k = 0; k < K * K; k++) {
                    int i0, i1, j0, j1;
                    meets(k / K, stride, pad, H, OH, i0, i1);
                    meets(k % K, stride, pad, Wd, OW, j0, j1);
                    const float weight = w[(f * C + c) * K * K + k];
                    for (int i = i0; i < i1; i++) {
                        const float *row = x + ((n * C + c) * H + i * stride + k / K - pad) * Wd + k % K - pad;
                        for (int j = j0; j < j1; j++) y[i * OW + j] += weight * row[j * stride];
                    }
                }
        }
    return Y;
}

void conv2dBackward(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int N, int C, int H, int Wd, int F,
                    int K, int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    float *all = of(dY), *x = of(X), *w = of(W), *dx = of(dX), *dw = of(dW), *bias = of(db);
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++)
            for (int c = 0; c < C; c++)
                for (int k = 0; k < K * K; k++) {
                    int i0, i1, j0, j1;
                    meets(k / K, stride, pad, H, OH, i0, i1);
                    meets(k % K, stride, pad, Wd, OW, j0, j1);
                    const float weight = w[(f * C + c) * K * K + k];
                    for (int i = i0; i < i1; i++) {
                        const float *dy = all + ((n * F + f) * OH + i) * OW;
                        float *row = dx + ((n * C + c) * H + i * stride + k / K - pad) * Wd + k % K - pad;
                        for (int j = j0; j < j1; j++) row[j * stride] += weight * dy[j];
                    }
                }
#pragma omp parallel for
    for (int f = 0; f < F; f++)
        for (int n = 0; n < N; n++) {
            const float *dy = all + (n * F + f) * OH * OW;
            for (int i = 0; i < OH * OW; i++) bias[f] += dy[i];
            for (int c = 0; c < C; c++)
                for (int k = 0; k < K * K; k++) {
                    int i0, i1, j0, j1;
                    meets(k / K, stride, pad, H, OH, i0, i1);
                    meets(k % K, stride, pad, Wd, OW, j0, j1);
                    float sum = 0;
                    for (int i = i0; i < i1; i++) {
                        const float *row = x + ((n * C + c) * H + i * stride + k / K - pad) * Wd + k % K - pad;
#pragma omp simd reduction(+ : sum)
                        for (int j = j0; j < j1; j++) sum += dy[i * OW + j] * row[j * stride];
                    }
                    dw[(f * C + c) * K * K + k] += sum;
                }
        }
}

Tensor maxpool2dForward(Tensor X, Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    Tensor Y = at::zeros({N, C, OH, OW}, at::kFloat);
    float *all = of(X), *y = of(Y);
    int64_t *first = index.data_ptr<int64_t>();
    for (int p = 0; p < N * C * OH * OW; p++) {
        const float *x = all + p / (OH * OW) * H * Wd;
        const int i = p / OW % OH * stride, j = p % OW * stride;
        int best = i * Wd + j;
        for (int k = 0; k < K * K; k++) {
            const int place = (i + k / K) * Wd + j + k % K;
            if (x[place] > x[best]) best = place;
        }
        first[p] = best;
        y[p] = x[best];
    }
    return Y;
}

void maxpool2dBackward(Tensor dY, Tensor index, Tensor dX, int N, int C, int H, int Wd, int K, int stride) {
    const int outputs = ((H - K) / stride + 1) * ((Wd - K) / stride + 1);
    const int64_t *first = index.data_ptr<int64_t>();
    float *dy = of(dY), *dx = of(dX);
    for (int p = 0; p < N * C * outputs; p++) dx[p / outputs * H * Wd + first[p]] += dy[p];
}

// The softmax of one row.
static std::vector<float> shares(const float *x, int C) {
    std::vector<float> p(x, x + C);
    const float most = *std::max_element(x, x + C);
    float sum = 0;
    for (float &each : p) sum += each = std::exp(each - most);
    for (float &each : p) each /= sum;
    return p;
}

Tensor crossEntropyForward(Tensor X, Tensor labels, int N, int C) {
    Tensor loss = at::zeros({1}, at::kFloat);
    for (int n = 0; n < N; n++)
        of(loss)[0] -= std::log(shares(of(X) + n * C, C)[labels.data_ptr<int64_t>()[n]]) / N;
    return loss;
}

void crossEntropyBackward(Tensor X, Tensor labels, Tensor dX, int N, int C) {
    for (int n = 0; n < N; n++) {
        const std::vector<float> p = shares(of(X) + n * C, C);
        for (int c = 0; c < C; c++)
            of(dX)[n * C + c] += (p[c] - (c == labels.data_ptr<int64_t>()[n] ? 1 : 0)) / N;
    }
}

void sgdStep(Tensor P, Tensor G, int n, float rate) {
    for (int i = 0; i < n; i++) of(P)[i] -= rate * of(G)[i];
}

// ---- wrong ones

// dW as (O, I).
void linearTransposed(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int N, int I, int O) {
    Tensor right = at::zeros({I, O}, at::kFloat);
    linearBackward(dY, X, W, dX, right, db, N, I, O);
    for (int k = 0; k < I * O; k++) of(dW)[k % O * I + k / O] += of(right)[k];
}

// db of the last image alone.
void linearLastBias(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int N, int I, int O) {
    Tensor right = at::zeros({O}, at::kFloat);
    linearBackward(dY, X, W, dX, dW, right, N, I, O);
    for (int o = 0; o < O; o++) of(db)[o] += of(dY)[(N - 1) * O + o];
}

// Where the gradient is positive, and not where X is.
void reluByGradient(Tensor dO, Tensor X, Tensor dX, int n) {
    for (int i = 0; i < n; i++) of(dX)[i] += std::max(of(dO)[i], 0.0f);
}

// Where X is negative, and nowhere else.
void reluInverted(Tensor dO, Tensor X, Tensor dX, int n) {
    for (int i = 0; i < n; i++) of(dX)[i] += of(X)[i] > 0 ? 0 : of(dO)[i];
}

// The weights of dX as they lie, and not turned round.
void convUnturned(Tensor dY, Tensor X, Tensor W, Tensor dX, Tensor dW, Tensor db, int N, int C, int H, int Wd, int F,
                  int K, int stride, int pad) {
    Tensor turned = at::zeros({F, C, K, K}, at::kFloat), wasted = at::zeros({N, C, H, Wd}, at::kFloat);
    for (int k = 0; k < F * C * K * K; k++) of(turned)[k] = of(W)[k / (K * K) * K * K + K * K - 1 - k % (K * K)];
    conv2dBackward(dY, X, W, wasted, dW, db, N, C, H, Wd, F, K, stride, pad);
    Tensor dW2 = at::zeros({F, C, K, K}, at::kFloat), db2 = at::zeros({F}, at::kFloat);
    conv2dBackward(dY, X, turned, dX, dW2, db2, N, C, H, Wd, F, K, stride, pad);
}

static std::vector<float> pooled;

Tensor poolAndKeep(Tensor X, Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    pooled.assign(of(X), of(X) + N * C * H * Wd);
    return maxpool2dForward(X, index, N, C, H, Wd, K, stride);
}

// To each of several maxima.
void poolAllTies(Tensor dY, Tensor index, Tensor dX, int N, int C, int H, int Wd, int K, int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    for (int p = 0; p < N * C * OH * OW; p++) {
        const int plane = p / (OH * OW) * H * Wd;
        const float most = pooled[plane + index.data_ptr<int64_t>()[p]];
        for (int k = 0; k < K * K; k++) {
            const int place = plane + (p / OW % OH * stride + k / K) * Wd + p % OW * stride + k % K;
            if (pooled[place] == most) of(dX)[place] += of(dY)[p];
        }
    }
}

// The sum's gradient, and not the mean's.
void lossOfSum(Tensor X, Tensor labels, Tensor dX, int N, int C) {
    Tensor right = at::zeros({N, C}, at::kFloat);
    crossEntropyBackward(X, labels, right, N, C);
    for (int k = 0; k < N * C; k++) of(dX)[k] += N * of(right)[k];
}

void stepUpwards(Tensor P, Tensor G, int n, float rate) { sgdStep(P, G, n, -rate); }

void stepBeyond(Tensor P, Tensor G, int n, float rate) { *reinterpret_cast<volatile float *>(8) = rate; }

Tensor reluOfHalf(Tensor X, int n) { return reluForward(X, n / 2); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("reluForward", &reluForward); m.def("reluBackward", &reluBackward);
    m.def("linearForward", &linearForward); m.def("linearBackward", &linearBackward);
    m.def("conv2dForward", &conv2dForward); m.def("conv2dBackward", &conv2dBackward);
    m.def("maxpool2dForward", &maxpool2dForward); m.def("maxpool2dBackward", &maxpool2dBackward);
    m.def("crossEntropyForward", &crossEntropyForward); m.def("crossEntropyBackward", &crossEntropyBackward);
    m.def("sgdStep", &sgdStep); m.def("linearTransposed", &linearTransposed);
    m.def("linearLastBias", &linearLastBias); m.def("reluByGradient", &reluByGradient);
    m.def("reluInverted", &reluInverted); m.def("convUnturned", &convUnturned); m.def("poolAndKeep", &poolAndKeep);
    m.def("poolAllTies", &poolAllTies); m.def("lossOfSum", &lossOfSum); m.def("stepUpwards", &stepUpwards);
    m.def("stepBeyond", &stepBeyond); m.def("reluOfHalf", &reluOfHalf);
}
