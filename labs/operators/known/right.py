"""Right kernels that are written in other ways than the course's solution."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

_MATMUL = "    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();\n    float *o = O.data_ptr<float>();\n"
_MATMUL_BACK = """    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *ga = dA.data_ptr<float>(), *gb = dB.data_ptr<float>();
"""
_LINEAR = """    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
"""
_LINEAR_BACK = """    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
"""
_CONV = """    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
"""
_CONV_BACK = """    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
"""
#: Loops over the elements of one image's output. _TAPS adds the loops over the products of image and filter elements.
_ALL = """        for (int f = 0; f < F; f++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    const float out = gy[((n * F + f) * OH + oh) * OW + ow];
"""
_TAPS = """                    for (int c = 0; c < C; c++)
                        for (int kh = 0; kh < K; kh++)
                            for (int kw = 0; kw < K; kw++) {
                                const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                                if (ih < 0 || ih >= H || iw < 0 || iw >= Wd) continue;
"""

RIGHT: tuple[Mutation, ...] = (
    Mutation(
        "accessors",
        "add",
        body="""    auto a = A.accessor<float, 2>(), b = B.accessor<float, 2>(), o = O.accessor<float, 2>();
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) o[i][j] = a[i][j] + b[RB == 1 ? 0 : i][CB == 1 ? 0 : j];""",
    ),
    Mutation(
        "remainders",
        "add",
        body="""    const float *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    for (int e = 0; e < R * C; e++) O.data_ptr<float>()[e] = a[e] + b[e / C % RB * CB + e % C % CB];""",
    ),
    Mutation(
        "a buffer for dB",
        "add_backward",
        body="""    std::vector<double> sums(RB * CB, 0.0);
    auto go = dO.accessor<float, 2>(), ga = dA.accessor<float, 2>();
    for (int j = 0; j < C; j++)
        for (int i = 0; i < R; i++) {
            ga[i][j] = ga[i][j] + go[i][j];
            sums[i % RB * CB + j % CB] += go[i][j];
        }
    for (int e = 0; e < RB * CB; e++) dB.data_ptr<float>()[e] += sums[e];""",
    ),
    Mutation(
        "atomic sums",
        "mul_backward",
        body="""    const float *go = dO.data_ptr<float>(), *a = A.data_ptr<float>(), *b = B.data_ptr<float>();
    float *ga = dA.data_ptr<float>(), *gb = dB.data_ptr<float>();
#pragma omp parallel for
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) {
            ga[i * C + j] += go[i * C + j] * b[i % RB * CB + j % CB];
#pragma omp atomic
            gb[i % RB * CB + j % CB] += go[i * C + j] * a[i * C + j];
        }""",
    ),
    Mutation("std::max", "relu", (("x[i] > 0 ? x[i] : 0", "std::max(x[i], 0.0f)"),)),
    Mutation("a product with the slope", "relu_backward",
             (("        if (x[i] > 0) gx[i] += go[i];", "        gx[i] += go[i] * (x[i] > 0);"),)),
    Mutation(
        "sums of doubles",
        "matmul",
        body=_MATMUL
        + """#pragma omp parallel for
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += (double)a[i * K + k] * b[k * N + j];
            o[i * N + j] = sum;
        }""",
    ),
    Mutation(
        "accessors",
        "matmul",
        body="""    auto a = A.accessor<float, 2>(), b = B.accessor<float, 2>(), o = O.accessor<float, 2>();
#pragma omp parallel for collapse(2)
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) o[i][j] += a[i][k] * b[k][j];""",
    ),
    Mutation(
        "a transposed copy",
        "matmul",
        body=_MATMUL
        + """    std::vector<float> columns(K * N);
    for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++) columns[j * K + k] = b[k * N + j];
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            for (int k = 0; k < K; k++) o[i * N + j] += a[i * K + k] * columns[j * K + k];""",
    ),
    Mutation(
        "tiles of 32",
        "matmul",
        body=_MATMUL
        + """    const int T = 32;
#pragma omp parallel for
    for (int i0 = 0; i0 < M; i0 += T)
        for (int k0 = 0; k0 < K; k0 += T)
            for (int j0 = 0; j0 < N; j0 += T)
                for (int i = i0; i < std::min(i0 + T, M); i++)
                    for (int k = k0; k < std::min(k0 + T, K); k++)
                        for (int j = j0; j < std::min(j0 + T, N); j++) o[i * N + j] += a[i * K + k] * b[k * N + j];""",
    ),
    Mutation(
        "k outermost",
        "matmul",
        body=_MATMUL
        + """    for (int k = 0; k < K; k++)
#pragma omp parallel for
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) o[i * N + j] += a[i * K + k] * b[k * N + j];""",
    ),
    Mutation(
        "one nest",
        "matmul_backward",
        body=_MATMUL_BACK
        + """    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < N; j++) {
                ga[i * K + k] += go[i * N + j] * b[k * N + j];
                gb[k * N + j] += go[i * N + j] * a[i * K + k];
            }""",
    ),
    Mutation(
        "a buffer for each thread",
        "matmul_backward",
        body=_MATMUL_BACK
        + """#pragma omp parallel
    {
        std::vector<float> own(K * N, 0.0f);
#pragma omp for
        for (int i = 0; i < M; i++)
            for (int k = 0; k < K; k++) {
                float sum = 0;
                for (int j = 0; j < N; j++) {
                    sum += go[i * N + j] * b[k * N + j];
                    own[k * N + j] += go[i * N + j] * a[i * K + k];
                }
                ga[i * K + k] += sum;
            }
#pragma omp critical
        for (int e = 0; e < K * N; e++) gb[e] += own[e];
    }""",
    ),
    Mutation(
        "bias at the end",
        "linear",
        body=_LINEAR
        + """#pragma omp parallel for collapse(2)
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            double sum = 0;
            for (int i = 0; i < I; i++) sum += x[n * I + i] * w[i * O + o];
            y[n * O + o] = sum + bias[o];
        }""",
    ),
    Mutation(
        "pointers that walk",
        "linear",
        body=_LINEAR
        + """#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        std::copy(bias, bias + O, y + n * O);
        const float *row = w;
        for (int i = 0; i < I; i++, row += O)
            for (int o = 0; o < O; o++) (y + n * O)[o] += row[o] * x[n * I + i];
    }""",
    ),
    Mutation(
        "a buffer for each thread",
        "linear_backward",
        body=_LINEAR_BACK
        + """#pragma omp parallel
    {
        std::vector<float> sums(I * O, 0.0f), biases(O, 0.0f);
#pragma omp for
        for (int n = 0; n < N; n++) {
            for (int i = 0; i < I; i++)
                for (int o = 0; o < O; o++) {
                    gx[n * I + i] += gy[n * O + o] * w[i * O + o];
                    sums[i * O + o] += x[n * I + i] * gy[n * O + o];
                }
            for (int o = 0; o < O; o++) biases[o] += gy[n * O + o];
        }
#pragma omp critical
        {
            for (int e = 0; e < I * O; e++) gw[e] += sums[e];
            for (int o = 0; o < O; o++) gb[o] += biases[o];
        }
    }""",
    ),
    Mutation(
        "a reduction",
        "linear_backward",
        body=_LINEAR_BACK
        + """#pragma omp parallel for reduction(+ : gb[:O])
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) gb[o] += gy[n * O + o];
#pragma omp parallel for
    for (int i = 0; i < I; i++)
        for (int o = 0; o < O; o++) {
            double sum = 0;
            for (int n = 0; n < N; n++) sum += x[n * I + i] * gy[n * O + o];
            gw[i * O + o] += sum;
        }
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) gx[n * I + i] += gy[n * O + o] * w[i * O + o];""",
    ),
    Mutation(
        "atomic sums of sums",
        "linear_backward",
        body=_LINEAR_BACK
        + """    const int half = N / 2;
#pragma omp parallel for collapse(2)
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) {
                float sum = 0;
                for (int n = part * half; n < (part ? N : half); n++) sum += x[n * I + i] * gy[n * O + o];
#pragma omp atomic
                gw[i * O + o] += sum;
            }
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < O; o++) {
#pragma omp atomic
            gb[o] += gy[n * O + o];
        }
        for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) gx[n * I + i] += gy[n * O + o] * w[i * O + o];
    }""",
    ),
    Mutation(
        "accessors",
        "linear_backward",
        body="""    auto gy = dY.accessor<float, 2>(), x = X.accessor<float, 2>(), w = W.accessor<float, 2>();
    auto gx = dX.accessor<float, 2>(), gw = dW.accessor<float, 2>();
    auto gb = db.accessor<float, 1>();
    for (int n = 0; n < N; n++)
        for (int o = 0; o < O; o++) {
            gb[o] += gy[n][o];
            for (int i = 0; i < I; i++) gx[n][i] += gy[n][o] * w[i][o];
        }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < I; i++)
            for (int o = 0; o < O; o++) gw[i][o] += x[n][i] * gy[n][o];""",
    ),
    Mutation(
        "a sum of floats",
        "mse",
        (
            ("double sum", "float sum"),
            ("    for (int i = 0", "#pragma omp parallel for reduction(+ : sum)\n    for (int i = 0"),
        ),
    ),
    Mutation("a factor", "mse_backward",
             (("gx[i] += 2 * (x[i] - t[i]) / n;", "gx[i] += (2.0f / n) * (x[i] - t[i]);"),)),
    Mutation(
        "logarithms of all",
        "cross_entropy",
        body="""    auto x = X.accessor<float, 2>();
    double total = 0;
    for (int n = 0; n < N; n++) {
        double most = x[n][0], sum = 0;
        for (int c = 1; c < C; c++) most = std::max<double>(most, x[n][c]);
        for (int c = 0; c < C; c++) sum += std::exp(x[n][c] - most);
        total -= (x[n][labels.data_ptr<int64_t>()[n]] - most - std::log(sum)) / N;
    }
    loss.data_ptr<float>()[0] = total;""",
    ),
    Mutation(
        "one less at the label",
        "cross_entropy_backward",
        body="""    auto x = X.accessor<float, 2>(), gx = dX.accessor<float, 2>();
    for (int n = 0; n < N; n++) {
        float most = x[n][0], sum = 0;
        for (int c = 1; c < C; c++) most = std::max(most, x[n][c]);
        for (int c = 0; c < C; c++) sum += std::exp(x[n][c] - most);
        const float all = most + std::log(sum);
        for (int c = 0; c < C; c++) gx[n][c] += std::exp(x[n][c] - all) / N;
        gx[n][labels.data_ptr<int64_t>()[n]] -= 1.0f / N;
    }""",
    ),
    Mutation("from the last on", "sgd", (("int i = 0; i < n; i++", "int i = n - 1; i >= 0; i--"),)),
    Mutation(
        "directly",
        "conv2d",
        body=_CONV
        + """#pragma omp parallel for collapse(2)
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    float sum = bias[f];
"""
        + _TAPS
        + """                                sum += w[((f * C + c) * K + kh) * K + kw] *
                                       x[((n * C + c) * H + ih) * Wd + iw];
                            }
                    y[((n * F + f) * OH + oh) * OW + ow] = sum;
                }""",
    ),
    Mutation(
        "accessors",
        "conv2d",
        body="""    auto x = X.accessor<float, 4>(), w = W.accessor<float, 4>(), y = Y.accessor<float, 4>();
    auto bias = b.accessor<float, 1>();
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    float sum = 0;
                    for (int c = 0; c < C; c++) {
                        auto filter = w[f][c], plane = x[n][c];
                        for (int kh = 0; kh < K; kh++)
                            for (int kw = 0; kw < K; kw++) {
                                const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                                if (ih >= 0 && ih < H && iw >= 0 && iw < Wd) sum += filter[kh][kw] * plane[ih][iw];
                            }
                    }
                    y[n][f][oh][ow] = sum + bias[f];
                }""",
    ),
    Mutation(
        "columns as (kh, kw, c) on both sides",
        "conv2d",
        body=_CONV
        + """    const int places = OH * OW, taps = C * K * K;
    std::vector<float> weights(F * taps);
    for (int f = 0; f < F; f++)
        for (int c = 0; c < C; c++)
            for (int k = 0; k < K * K; k++) weights[f * taps + k * C + c] = w[(f * C + c) * K * K + k];
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int p = 0; p < places; p++) {
            std::vector<float> seen(taps, 0.0f);
            for (int t = 0; t < taps; t++) {
                const int c = t % C, ih = p / OW * stride + t / C / K - pad, iw = p % OW * stride + t / C % K - pad;
                if (ih >= 0 && ih < H && iw >= 0 && iw < Wd) seen[t] = x[((n * C + c) * H + ih) * Wd + iw];
            }
            for (int f = 0; f < F; f++) {
                double sum = bias[f];
                for (int t = 0; t < taps; t++) sum += weights[f * taps + t] * seen[t];
                y[(n * F + f) * places + p] = sum;
            }
        }""",
    ),
    Mutation(
        "a copy with its border",
        "conv2d",
        body=_CONV
        + """    const int PH = H + 2 * pad, PW = Wd + 2 * pad;
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        std::vector<float> framed(C * PH * PW, 0.0f);
        for (int c = 0; c < C; c++)
            for (int h = 0; h < H; h++)
                for (int v = 0; v < Wd; v++)
                    framed[(c * PH + h + pad) * PW + v + pad] = x[((n * C + c) * H + h) * Wd + v];
        for (int f = 0; f < F; f++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    float sum = bias[f];
                    for (int c = 0; c < C; c++)
                        for (int kh = 0; kh < K; kh++)
                            for (int kw = 0; kw < K; kw++)
                                sum += w[((f * C + c) * K + kh) * K + kw] *
                                       framed[(c * PH + oh * stride + kh) * PW + ow * stride + kw];
                    y[((n * F + f) * OH + oh) * OW + ow] = sum;
                }
    }""",
    ),
    Mutation(
        "taps outside",
        "conv2d",
        body=_CONV
        + """#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++) {
            float *out = y + (n * F + f) * OH * OW;
            std::fill(out, out + OH * OW, bias[f]);
            for (int c = 0; c < C; c++)
                for (int kh = 0; kh < K; kh++)
                    for (int kw = 0; kw < K; kw++)
                        for (int oh = 0; oh < OH; oh++)
                            for (int ow = 0; ow < OW; ow++) {
                                const int ih = oh * stride + kh - pad, iw = ow * stride + kw - pad;
                                if (ih >= 0 && ih < H && iw >= 0 && iw < Wd)
                                    out[oh * OW + ow] += w[((f * C + c) * K + kh) * K + kw] *
                                                         x[((n * C + c) * H + ih) * Wd + iw];
                            }
        }""",
    ),
    Mutation(
        "directly, on one thread",
        "conv2d_backward",
        body=_CONV_BACK
        + "    for (int n = 0; n < N; n++)\n"
        + _ALL
        + "                    gb[f] += out;\n"
        + _TAPS
        + """                                const int at = ((f * C + c) * K + kh) * K + kw;
                                const int from = ((n * C + c) * H + ih) * Wd + iw;
                                gw[at] += out * x[from];
                                gx[from] += out * w[at];
                            }
                }""",
    ),
    Mutation(
        "a buffer for each thread",
        "conv2d_backward",
        body=_CONV_BACK
        + """#pragma omp parallel
    {
        std::vector<float> own(F * C * K * K, 0.0f), biases(F, 0.0f);
#pragma omp for
        for (int n = 0; n < N; n++) {
"""
        + _ALL
        + "                    biases[f] += out;\n"
        + _TAPS
        + """                                const int at = ((f * C + c) * K + kh) * K + kw;
                                const int from = ((n * C + c) * H + ih) * Wd + iw;
                                own[at] += out * x[from];
                                gx[from] += out * w[at];
                            }
                }
        }
#pragma omp critical
        {
            for (int e = 0; e < F * C * K * K; e++) gw[e] += own[e];
            for (int f = 0; f < F; f++) gb[f] += biases[f];
        }
    }""",
    ),
    Mutation(
        "a thread for each filter, then for each image",
        "conv2d_backward",
        body=_CONV_BACK
        + """#pragma omp parallel for
    for (int f = 0; f < F; f++)
        for (int n = 0; n < N; n++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    const float out = gy[((n * F + f) * OH + oh) * OW + ow];
                    gb[f] += out;
"""
        + _TAPS
        + """                                gw[((f * C + c) * K + kh) * K + kw] +=
                                    out * x[((n * C + c) * H + ih) * Wd + iw];
                            }
                }
#pragma omp parallel for
    for (int n = 0; n < N; n++)
"""
        + _ALL
        + _TAPS
        + """                                gx[((n * C + c) * H + ih) * Wd + iw] +=
                                    out * w[((f * C + c) * K + kh) * K + kw];
                            }
                }""",
    ),
    Mutation(
        "from minus infinity",
        "maxpool2d",
        body="""    const float *x = X.data_ptr<float>();
#pragma omp parallel for collapse(2)
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    float most = -INFINITY;
                    int64_t where = -1;
                    for (int h = oh * stride; h < oh * stride + K; h++)
                        for (int v = ow * stride; v < ow * stride + K; v++)
                            if (x[((n * C + c) * H + h) * Wd + v] > most) {
                                most = x[((n * C + c) * H + h) * Wd + v];
                                where = h * Wd + v;
                            }
                    Y.data_ptr<float>()[((n * C + c) * OH + oh) * OW + ow] = most;
                    index.data_ptr<int64_t>()[((n * C + c) * OH + oh) * OW + ow] = where;
                }""",
    ),
    Mutation(
        "accessors, from the last on",
        "maxpool2d",
        body="""    auto x = X.accessor<float, 4>(), y = Y.accessor<float, 4>();
    auto at = index.accessor<int64_t, 4>();
#pragma omp parallel for
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++) {
                    int bh = oh * stride + K - 1, bw = ow * stride + K - 1;
                    for (int h = oh * stride + K - 1; h >= oh * stride; h--)
                        for (int v = ow * stride + K - 1; v >= ow * stride; v--)
                            if (x[n][c][h][v] >= x[n][c][bh][bw]) bh = h, bw = v;
                    y[n][c][oh][ow] = x[n][c][bh][bw];
                    at[n][c][oh][ow] = bh * Wd + bw;
                }""",
    ),
    Mutation(
        "accessors",
        "maxpool2d_backward",
        body="""    auto gy = dY.accessor<float, 4>(), gx = dX.accessor<float, 4>();
    auto at = index.accessor<int64_t, 4>();
#pragma omp parallel for collapse(2)
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int oh = 0; oh < OH; oh++)
                for (int ow = 0; ow < OW; ow++)
                    gx[n][c][at[n][c][oh][ow] / Wd][at[n][c][oh][ow] % Wd] += gy[n][c][oh][ow];""",
    ),
)  # fmt: skip
