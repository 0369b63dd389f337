"""Right convolutions and maxima of windows in other styles than the master's."""

from __future__ import annotations

from grader.assignment.mutations import Mutation

_CONV = """    const float *x = X.data_ptr<float>(), *w = W.data_ptr<float>(), *bias = b.data_ptr<float>();
    float *y = Y.data_ptr<float>();
"""
_CONV_BACK = """    const float *gy = dY.data_ptr<float>(), *x = X.data_ptr<float>(), *w = W.data_ptr<float>();
    float *gx = dX.data_ptr<float>(), *gw = dW.data_ptr<float>(), *gb = db.data_ptr<float>();
"""
#: Loops over all products of an image element and a filter element.
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

RIGHT = (
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
)
