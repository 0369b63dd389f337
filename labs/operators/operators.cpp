// The operators of a small neural network, each with its gradient. handout.md describes all parts and how they are
// judged.
//
// You write the bodies. Do not change names, arguments and their order: the tests and `train` call these functions
// through the table at the end of this file. Add helper functions and standard headers as you like.
//
// All tensors are contiguous, in row-major order, and float32; only labels and indices are int64. Element (i, j) of a
// matrix with N columns is number i * N + j of its data. Element (n, c, h, w) of a tensor (N, C, H, W) is number
// ((n * C + c) * H + h) * W + w.
//
// A forward function returns a new tensor. A backward function gets the gradient of the loss with respect to the
// operator's result (dO, dY). It ADDS the gradients with respect to the operands to the numbers that are already in dA,
// dB, dX ..., because a tensor may be an operand of several operators.
#include <torch/extension.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

// ----------------------------------------------------------------------------------------------------------
// Sums and products of matrices, element by element
// ----------------------------------------------------------------------------------------------------------

// O = A + B. A and O are (R, C). B is (RB, CB), where RB is 1 or R and CB is 1 or C: a single row or column of B is
// used for all rows or columns of A (it is broadcast).
torch::Tensor addForward(torch::Tensor A, torch::Tensor B, int R, int C, int RB, int CB) {
    torch::Tensor O = at::zeros({R, C}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *o = O.data_ptr<float>();
#pragma omp parallel for
    for (int i = 0; i < R; i++) {
        const float *row = b + (RB == 1 ? 0 : i) * CB;
        for (int j = 0; j < C; j++) o[i * C + j] = a[i * C + j] + row[CB == 1 ? 0 : j];
    }
    // END SOLUTION
    return O;
}

// Adds the gradients of the operands to dA (R, C) and dB (RB, CB). dO (R, C) is the gradient of the result. An element
// of B that is used several times gets the sum of the gradients of all uses.
void addBackward(torch::Tensor dO, torch::Tensor dA, torch::Tensor dB, int R, int C, int RB, int CB) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *go = dO.data_ptr<float>();
    float *ga = dA.data_ptr<float>(), *gb = dB.data_ptr<float>();
    // Several rows may add to the same element of dB, so threads cannot share the rows.
    for (int i = 0; i < R; i++) {
        float *row = gb + (RB == 1 ? 0 : i) * CB;
        for (int j = 0; j < C; j++) {
            ga[i * C + j] += go[i * C + j];
            row[CB == 1 ? 0 : j] += go[i * C + j];
        }
    }
    // END SOLUTION
}

// O = A * B, element by element, with the shapes of addForward.
torch::Tensor mulForward(torch::Tensor A, torch::Tensor B, int R, int C, int RB, int CB) {
    torch::Tensor O = at::zeros({R, C}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *o = O.data_ptr<float>();
#pragma omp parallel for
    for (int i = 0; i < R; i++) {
        const float *row = b + (RB == 1 ? 0 : i) * CB;
        for (int j = 0; j < C; j++) o[i * C + j] = a[i * C + j] * row[CB == 1 ? 0 : j];
    }
    // END SOLUTION
    return O;
}

void mulBackward(torch::Tensor dO, torch::Tensor A, torch::Tensor B, torch::Tensor dA, torch::Tensor dB, int R, int C,
                 int RB, int CB) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *ga = dA.data_ptr<float>(), *gb = dB.data_ptr<float>();
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) {
            const int at = i * C + j, other = (RB == 1 ? 0 : i) * CB + (CB == 1 ? 0 : j);
            ga[at] += go[at] * b[other];
            gb[other] += go[at] * a[at];
        }
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------------------------
// Activation
// ----------------------------------------------------------------------------------------------------------

// O = max(X, 0), for n numbers.
torch::Tensor reluForward(torch::Tensor X, int n) {
    torch::Tensor O = at::zeros({n}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>();
    float *o = O.data_ptr<float>();
    for (int i = 0; i < n; i++) o[i] = x[i] > 0 ? x[i] : 0;
    // END SOLUTION
    return O;
}

// dX += dO where x > 0. At x = 0 the gradient counts as 0.
void reluBackward(torch::Tensor dO, torch::Tensor X, torch::Tensor dX, int n) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *go = dO.data_ptr<float>(), *x = X.data_ptr<float>();
    float *gx = dX.data_ptr<float>();
    for (int i = 0; i < n; i++)
        if (x[i] > 0) gx[i] += go[i];
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------------------------
// Matrix products
// ----------------------------------------------------------------------------------------------------------

// O = A B, with A (M, K), B (K, N) and O (M, N).
torch::Tensor matmulForward(torch::Tensor A, torch::Tensor B, int M, int K, int N) {
    torch::Tensor O = at::zeros({M, N}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *o = O.data_ptr<float>();
    // With j in the innermost loop both rows are read in memory order, and the compiler vectorises the loop.
#pragma omp parallel for
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++) {
            const float factor = a[i * K + k];
            for (int j = 0; j < N; j++) o[i * N + j] += factor * b[k * N + j];
        }
    // END SOLUTION
    return O;
}

// dA += dO transpose(B) and dB += transpose(A) dO.
void matmulBackward(torch::Tensor dO, torch::Tensor A, torch::Tensor B, torch::Tensor dA, torch::Tensor dB, int M, int K,
                    int N) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *ga = dA.data_ptr<float>(), *gb = dB.data_ptr<float>();
#pragma omp parallel for
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int j = 0; j < N; j++) sum += go[i * N + j] * b[k * N + j];
            ga[i * K + k] += sum;
        }
    // Each thread has its own rows of dB. With i in the outer loop, all threads would add to all of dB.
#pragma omp parallel for
    for (int k = 0; k < K; k++)
        for (int i = 0; i < M; i++) {
            const float factor = a[i * K + k];
            for (int j = 0; j < N; j++) gb[k * N + j] += factor * go[i * N + j];
        }
    // END SOLUTION
}

// A layer of neurons: Y = X W + b, with X (N, I) for a batch of N, W (I, O), b (O) and Y (N, O).
torch::Tensor linearForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int I, int O) {
    torch::Tensor Y = at::zeros({N, O}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < O; o++) y[n * O + o] = bias[o];
        for (int i = 0; i < I; i++) {
            const float factor = x[n * I + i];
            for (int o = 0; o < O; o++) y[n * O + o] += factor * w[i * O + o];
        }
    }
    // END SOLUTION
    return Y;
}

// dX += dY transpose(W), dW += transpose(X) dY, and db += the sum of the rows of dY.
void linearBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int I, int O) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int i = 0; i < I; i++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int o = 0; o < O; o++) sum += gy[n * O + o] * w[i * O + o];
            gx[n * I + i] += sum;
        }
    // The whole batch adds to each element of dW. So each thread takes some rows of dW.
#pragma omp parallel for
    for (int i = 0; i < I; i++)
        for (int n = 0; n < N; n++) {
            const float factor = x[n * I + i];
            for (int o = 0; o < O; o++) gw[i * O + o] += factor * gy[n * O + o];
        }
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) gb[o] += gy[n * O + o];
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------------------------
// Images
// ----------------------------------------------------------------------------------------------------------

// Each of F filters W (F, C, K, K) is applied at each place of the images X (N, C, H, Wd), which have a border of `pad`
// zeros on all sides. Places are `stride` apart:
//   Y[n, f, oh, ow] = b[f] + sum over c, kh, kw of W[f, c, kh, kw] * X[n, c, oh * stride + kh - pad, ow * stride + kw - pad]
// As a matrix product (im2col): a column for each place has the C*K*K numbers of the image under the filter, and W is a
// matrix (F, C*K*K).
torch::Tensor conv2dForward(torch::Tensor X, torch::Tensor W, torch::Tensor b, int N, int C, int H, int Wd, int F, int K,
                            int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    torch::Tensor Y = at::zeros({N, F, OH, OW}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
    const int places = OH * OW, taps = C * K * K;
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        std::vector<float> columns(taps * places, 0.0f);
        for (int c = 0; c < C; c++)
            for (int kh = 0; kh < K; kh++)
                for (int kw = 0; kw < K; kw++) {
                    float *row = &columns[((c * K + kh) * K + kw) * places];
                    for (int oh = 0; oh < OH; oh++)
                        for (int ow = 0; ow < OW; ow++) {
                            const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                            if (ih >= 0 && ih < H && iw >= 0 && iw < Wd)
                                row[oh * OW + ow] = x[((n * C + c) * H + ih) * Wd + iw];
                        }
                }
        for (int f = 0; f < F; f++) {
            float *out = y + (n * F + f) * places;
            for (int p = 0; p < places; p++) out[p] = bias[f];
            for (int t = 0; t < taps; t++) {
                const float factor = w[f * taps + t];
                for (int p = 0; p < places; p++) out[p] += factor * columns[t * places + p];
            }
        }
    }
    // END SOLUTION
    return Y;
}

// Adds the gradients of the formula above. db[f] gets the sum of dY[:, f]. dW[f] gets, for each place, the image's
// numbers under the filter times dY at this place. Each number of dX gets, for each place that uses it, the filters'
// numbers times dY at this place (col2im).
void conv2dBackward(torch::Tensor dY, torch::Tensor X, torch::Tensor W, torch::Tensor dX, torch::Tensor dW,
                    torch::Tensor db, int N, int C, int H, int Wd, int F, int K, int stride, int pad) {
    const int OH = (H + 2 * pad - K) / stride + 1, OW = (Wd + 2 * pad - K) / stride + 1;
    // BEGIN STARTER
    // // YOUR CODE HERE
    // (void)OH, (void)OW;
    // END STARTER
    // BEGIN SOLUTION
    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
    const int places = OH * OW, taps = C * K * K;
    for (int f = 0; f < F; f++)
        for (int n = 0; n < N; n++)
            for (int p = 0; p < places; p++) gb[f] += gy[(n * F + f) * places + p];
    // Each thread takes some taps t (numbers of a filter), so only one thread adds to each element of dW.
#pragma omp parallel for
    for (int t = 0; t < taps; t++) {
        const int c = t / (K * K), kh = t / K % K, kw = t % K;
        std::vector<float> seen(places);
        for (int n = 0; n < N; n++) {
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                    const bool inside = ih >= 0 && ih < H && iw >= 0 && iw < Wd;
                    seen[oh * OW + ow] = inside ? x[((n * C + c) * H + ih) * Wd + iw] : 0;
                }
            for (int f = 0; f < F; f++) {
                const float *out = gy + (n * F + f) * places;
                float sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int p = 0; p < places; p++) sum += out[p] * seen[p];
                gw[f * taps + t] += sum;
            }
        }
    }
    // Several places add to the same element of an image of dX, so each thread takes whole images.
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        std::vector<float> column(places);
        for (int t = 0; t < taps; t++) {
            const int c = t / (K * K), kh = t / K % K, kw = t % K;
            std::fill(column.begin(), column.end(), 0.0f);
            for (int f = 0; f < F; f++) {
                const float factor = w[f * taps + t];
                for (int p = 0; p < places; p++) column[p] += factor * gy[(n * F + f) * places + p];
            }
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                    if (ih >= 0 && ih < H && iw >= 0 && iw < Wd)
                        gx[((n * C + c) * H + ih) * Wd + iw] += column[oh * OW + ow];
                }
        }
    }
    // END SOLUTION
}

// Returns the largest number of each window of K x K of the images X (N, C, H, Wd). Windows are `stride` apart; windows
// that do not fit are left out. `index` (N, C, OH, OW) gets the place of each maximum, h * Wd + w in its H x Wd plane.
// Of several equal maxima, the first in row-major order counts.
torch::Tensor maxpool2dForward(torch::Tensor X, torch::Tensor index, int N, int C, int H, int Wd, int K, int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    torch::Tensor Y = at::zeros({N, C, OH, OW}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
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
    // END SOLUTION
    return Y;
}

// Adds each number of dY to dX at the place of its window's maximum. Windows overlap if stride < K.
void maxpool2dBackward(torch::Tensor dY, torch::Tensor index, torch::Tensor dX, int N, int C, int H, int Wd, int K,
                       int stride) {
    const int OH = (H - K) / stride + 1, OW = (Wd - K) / stride + 1;
    // BEGIN STARTER
    // // YOUR CODE HERE
    // (void)OH, (void)OW;
    // END STARTER
    // BEGIN SOLUTION
    const float *gy = dY.data_ptr<float>();
    const int64_t *at = index.data_ptr<int64_t>();
    float *gx = dX.data_ptr<float>();
#pragma omp parallel for
    for (int plane = 0; plane < N * C; plane++)
        for (int p = 0; p < OH * OW; p++)
            gx[plane * H * Wd + at[plane * OH * OW + p]] += gy[plane * OH * OW + p];
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------------------------
// Losses. Each is a tensor of one number
// ----------------------------------------------------------------------------------------------------------

// The mean of (X - T)^2 over n numbers.
torch::Tensor mseForward(torch::Tensor X, torch::Tensor T, int n) {
    torch::Tensor loss = at::zeros({1}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>(), *t = T.data_ptr<float>();
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const float difference = x[i] - t[i];
        sum += difference * difference;
    }
    loss.data_ptr<float>()[0] = sum / n;
    // END SOLUTION
    return loss;
}

// Adds the gradient of the mean to dX.
void mseBackward(torch::Tensor X, torch::Tensor T, torch::Tensor dX, int n) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>(), *t = T.data_ptr<float>();
    float *gx = dX.data_ptr<float>();
    for (int i = 0; i < n; i++) gx[i] += 2 * (x[i] - t[i]) / n;
    // END SOLUTION
}

// The mean over the rows of X (N, C) of -log(p[label]), where p is the softmax of the row: exp(x[c]) divided by the sum
// of all exp(x). The numbers may be large, and exp(89) is infinite as a float.
torch::Tensor crossEntropyForward(torch::Tensor X, torch::Tensor labels, int N, int C) {
    torch::Tensor loss = at::zeros({1}, at::kFloat);
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>();
    const int64_t *label = labels.data_ptr<int64_t>();
    double total = 0;
#pragma omp parallel for reduction(+ : total)
    for (int n = 0; n < N; n++) {
        const float *row = x + n * C;
        const float most = *std::max_element(row, row + C);
        float sum = 0;
        for (int c = 0; c < C; c++) sum += std::exp(row[c] - most);
        // Equal to -log(exp(x - most) / sum), but without a quotient that may become 0.
        total += std::log(sum) + most - row[label[n]];
    }
    loss.data_ptr<float>()[0] = total / N;
    // END SOLUTION
    return loss;
}

// Adds p / N to dX (N, C), but (p - 1) / N at each row's label, where p is the softmax of the row.
void crossEntropyBackward(torch::Tensor X, torch::Tensor labels, torch::Tensor dX, int N, int C) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>();
    const int64_t *label = labels.data_ptr<int64_t>();
    float *gx = dX.data_ptr<float>();
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        const float *row = x + n * C;
        const float most = *std::max_element(row, row + C);
        float sum = 0;
        for (int c = 0; c < C; c++) sum += std::exp(row[c] - most);
        for (int c = 0; c < C; c++) {
            const float p = std::exp(row[c] - most) / sum;
            gx[n * C + c] += (p - (c == label[n] ? 1 : 0)) / N;
        }
    }
    // END SOLUTION
}

// ----------------------------------------------------------------------------------------------------------
// The step of stochastic gradient descent
// ----------------------------------------------------------------------------------------------------------

// P -= rate * G, in place, for n numbers.
void sgdStep(torch::Tensor P, torch::Tensor G, int n, float rate) {
    // BEGIN STARTER
    // // YOUR CODE HERE
    // END STARTER
    // BEGIN SOLUTION
    float *p = P.data_ptr<float>();
    const float *g = G.data_ptr<float>();
    for (int i = 0; i < n; i++) p[i] -= rate * g[i];
    // END SOLUTION
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("addForward", &addForward);
    m.def("addBackward", &addBackward);
    m.def("mulForward", &mulForward);
    m.def("mulBackward", &mulBackward);
    m.def("reluForward", &reluForward);
    m.def("reluBackward", &reluBackward);
    m.def("matmulForward", &matmulForward);
    m.def("matmulBackward", &matmulBackward);
    m.def("linearForward", &linearForward);
    m.def("linearBackward", &linearBackward);
    m.def("conv2dForward", &conv2dForward);
    m.def("conv2dBackward", &conv2dBackward);
    m.def("maxpool2dForward", &maxpool2dForward);
    m.def("maxpool2dBackward", &maxpool2dBackward);
    m.def("mseForward", &mseForward);
    m.def("mseBackward", &mseBackward);
    m.def("crossEntropyForward", &crossEntropyForward);
    m.def("crossEntropyBackward", &crossEntropyBackward);
    m.def("sgdStep", &sgdStep);
}
