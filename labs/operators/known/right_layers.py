"""Right matrix products, layers, losses and sums in other styles than the master's."""

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

RIGHT = (
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
)  # fmt: skip
