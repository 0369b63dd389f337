// The reference: students' times are compared with the times of these kernels. Each operator has its loops in the order
// of the formula, and threads share the outer loop. Students get only the compiled form.
#include <torch/extension.h>

#include <omp.h>

#include <vector>

// Adds the sum of `terms` numbers to each element (i, j) of a matrix: term(i, j, k) for k = 0, 1, ...
template <class Term>
static void addSums(float *to, int rows, int columns, int terms, Term term) {
#pragma omp parallel for
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int k = 0; k < terms; k++) sum += term(i, j, k);
            to[i * columns + j] += sum;
        }
}

torch::Tensor matmulForward(torch::Tensor A, torch::Tensor B, int M, int K, int N) {
    torch::Tensor O = at::zeros({M, N}, at::kFloat);
    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    addSums(O.data_ptr<float>(), M, N, K, [=](int i, int j, int k) { return a[i * K + k] * b[k * N + j]; });
    return O;
}

void matmulBackward(torch::Tensor dO, torch::Tensor A, torch::Tensor B, torch::Tensor dA, torch::Tensor dB, int M, int K,
                    int N) {
    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    addSums(dA.data_ptr<float>(), M, K, N, [=](int i, int k, int j) { return go[i * N + j] * b[k * N + j]; });
    addSums(dB.data_ptr<float>(), K, N, M, [=](int k, int j, int i) { return a[i * K + k] * go[i * N + j]; });
}

torch::Tensor linearForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int I, int O) {
    torch::Tensor Y = at::zeros({N, O}, at::kFloat);
    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) y[n * O + o] = bias[o];
    addSums(y, N, O, I, [=](int n, int o, int i) { return x[n * I + i] * w[i * O + o]; });
    return Y;
}

void linearBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int I, int O) {
    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    addSums(dX.data_ptr<float>(), N, I, O, [=](int n, int i, int o) { return gy[n * O + o] * w[i * O + o]; });
    addSums(dW.data_ptr<float>(), I, O, N, [=](int i, int o, int n) { return x[n * I + i] * gy[n * O + o]; });
    addSums(db.data_ptr<float>(), 1, O, N, [=](int, int o, int n) { return gy[n * O + o]; });
}

// Writes a matrix of the numbers of image n under the filters: a row for each filter element, a column for each place.
static void im2col(const float *x, float *columns, int n, int C, int H, int Wd, int K, int stride, int pad, int OH,
                   int OW) {
    for (int oh = 0; oh < OH; oh++)
        for (int ow = 0; ow < OW; ow++)
            for (int c = 0; c < C; c++)
                for (int kh = 0; kh < K; kh++)
                    for (int kw = 0; kw < K; kw++) {
                        const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                        const bool inside = ih >= 0 && ih < H && iw >= 0 && iw < Wd;
                        columns[((c * K + kh) * K + kw) * OH * OW + oh * OW + ow] =
                            inside ? x[((n * C + c) * H + ih) * Wd + iw] : 0;
                    }
}

torch::Tensor conv2dForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int C, int H, int Wd, int F, int K,
                            int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    torch::Tensor Y = at::zeros({N, F, OH, OW}, at::kFloat);
    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    const int places = OH * OW, taps = C * K * K;
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        std::vector<float> columns(taps * places);
        im2col(x, columns.data(), n, C, H, Wd, K, stride, pad, OH, OW);
        for (int f = 0; f < F; f++)
            for (int p = 0; p < places; p++) {
                float sum = bias[f];
                for (int t = 0; t < taps; t++) sum += w[f * taps + t] * columns[t * places + p];
                y[(n * F + f) * places + p] = sum;
            }
    }
    return Y;
}

void conv2dBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int C, int H, int Wd, int F, int K, int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
    const int places = OH * OW, taps = C * K * K;
    std::vector<float> columns(N * taps * places);
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        im2col(x, &columns[n * taps * places], n, C, H, Wd, K, stride, pad, OH, OW);
        for (int oh = 0; oh < OH; oh++)
            for (int ow = 0; ow < OW; ow++)
                for (int t = 0; t < taps; t++) {
                    float sum = 0;
                    for (int f = 0; f < F; f++) sum += w[f * taps + t] * gy[((n * F + f) * OH + oh) * OW + ow];
                    const int ih = oh * stride + t / K % K - pad, iw = ow * stride + t % K - pad;
                    if (ih >= 0 && ih < H && iw >= 0 && iw < Wd)
                        gx[((n * C + t / (K * K)) * H + ih) * Wd + iw] += sum;
                }
    }
#pragma omp parallel for
    for (int f = 0; f < F; f++) {
        for (int t = 0; t < taps; t++) {
            float sum = 0;
            for (int n = 0; n < N; n++)
                for (int p = 0; p < places; p++)
                    sum += gy[(n * F + f) * places + p] * columns[(n * taps + t) * places + p];
            gw[f * taps + t] += sum;
        }
        for (int n = 0; n < N; n++)
            for (int p = 0; p < places; p++) gb[f] += gy[(n * F + f) * places + p];
    }
}

torch::Tensor maxpool2dForward(torch::Tensor X, torch::Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    torch::Tensor Y = at::zeros({N, C, OH, OW}, at::kFloat);
    const float *x = X.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    int64_t *at = index.data_ptr<int64_t>();
#pragma omp parallel for
    for (int plane = 0; plane < N * C; plane++) {
        const float *from = x + plane * H * Wd;
        for (int oh = 0; oh < OH; oh++)
            for (int ow = 0; ow < OW; ow++) {
                int best = oh * stride * Wd + ow * stride;
                for (int kh = 0; kh < K; kh++)
                    for (int kw = 0; kw < K; kw++) {
                        const int place = (oh * stride + kh) * Wd + ow * stride + kw;
                        if (from[place] > from[best]) best = place;
                    }
                y[(plane * OH + oh) * OW + ow] = from[best];
                at[(plane * OH + oh) * OW + ow] = best;
            }
    }
    return Y;
}

void maxpool2dBackward(torch::Tensor dY, torch::Tensor index, torch::Tensor dX, int N, int C, int H, int Wd, int K,
                       int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    const float *gy = dY.data_ptr<float>();
    const int64_t *at = index.data_ptr<int64_t>();
    float *gx = dX.data_ptr<float>();
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int p = 0; p < OH * OW; p++)
                gx[(n * C + c) * H * Wd + at[(n * C + c) * OH * OW + p]] += gy[(n * C + c) * OH * OW + p];
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("matmulForward", &matmulForward);
    m.def("matmulBackward", &matmulBackward);
    m.def("linearForward", &linearForward);
    m.def("linearBackward", &linearBackward);
    m.def("conv2dForward", &conv2dForward);
    m.def("conv2dBackward", &conv2dBackward);
    m.def("maxpool2dForward", &maxpool2dForward);
    m.def("maxpool2dBackward", &maxpool2dBackward);
}
