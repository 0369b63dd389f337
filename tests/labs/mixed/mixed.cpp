// A lab for tests: matrices of several types, and functions with several outputs.
#include <torch/extension.h>

#include <cmath>
#include <omp.h>

torch::Tensor softmax(torch::Tensor X, int R, int C) {
    torch::Tensor O = at::zeros({R, C}, at::kFloat);
    const float *x = X.data_ptr<float>();
    float *o = O.data_ptr<float>();
    // BEGIN SOLUTION
#pragma omp parallel for
    for (int r = 0; r < R; r++) {
        float sum = 0;
        for (int c = 0; c < C; c++) sum += std::exp(x[r * C + c]);
        for (int c = 0; c < C; c++) o[r * C + c] = std::exp(x[r * C + c]) / sum;
    }
    // END SOLUTION
    return O;
}

torch::Tensor moments(torch::Tensor X, torch::Tensor labels, torch::Tensor mean, torch::Tensor count, int R, int C) {
    torch::Tensor sums = at::zeros({R}, at::kFloat);
    // BEGIN SOLUTION
    const float *x = X.data_ptr<float>();
    const int64_t *label = labels.data_ptr<int64_t>();
    int64_t *counted = count.data_ptr<int64_t>();
    for (int k = 0; k < 5; k++) counted[k] = 0;
    for (int r = 0; r < R; r++) {
        float sum = 0;
        for (int c = 0; c < C; c++) sum += x[r * C + c];
        sums.data_ptr<float>()[r] = sum;
        mean.data_ptr<float>()[r] = sum / C;
        counted[label[r]]++;
    }
    // END SOLUTION
    return sums;
}

void scale(torch::Tensor X, torch::Tensor y, float factor, int R, int C) {
    // BEGIN SOLUTION
    float *x = X.data_ptr<float>();
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) x[r * C + c] *= factor * y.data_ptr<float>()[c];
    // END SOLUTION
}

torch::Tensor outer(torch::Tensor X, torch::Tensor y, int pad, int R, int C) {
    torch::Tensor O = at::zeros({R, C + pad, C}, at::kFloat);
    // BEGIN SOLUTION
    float *o = O.data_ptr<float>();
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++)
            for (int e = 0; e < C; e++)
                o[(r * (C + pad) + c) * C + e] = X.data_ptr<float>()[r * C + c] * y.data_ptr<float>()[e];
    // END SOLUTION
    return O;
}

torch::Tensor counts(torch::Tensor labels, torch::Tensor places, int R) {
    torch::Tensor O = at::zeros({R}, at::kLong);
    // BEGIN SOLUTION
    for (int r = 0; r < R; r++)
        O.data_ptr<int64_t>()[r] = labels.data_ptr<int64_t>()[r] * 1000 + places.data_ptr<int>()[r];
    // END SOLUTION
    return O;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("softmax", &softmax);
    m.def("moments", &moments);
    m.def("scale", &scale);
    m.def("outer", &outer);
    m.def("counts", &counts);
}
