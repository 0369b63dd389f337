// The softmax of each row of a matrix, in four steps. handout.md says what to write, and how it is judged.
#include <torch/extension.h>

#include <algorithm>
#include <cmath>

// Part 1. X is (R, C), float32, row-major. Return a new tensor (R, C): exp(x) divided by the sum of exp(x) of the row.
torch::Tensor naiveSoftmax(torch::Tensor XTensor, int R, int C) {
    torch::Tensor OTensor = at::zeros({R, C}, at::kFloat);
    const float *X = XTensor.data_ptr<float>();
    float *O = OTensor.data_ptr<float>();
    // BEGIN STARTER
    // // YOUR CODE HERE: two passes over each row
    // (void)X, (void)O;
    // END STARTER
    // BEGIN SOLUTION
    for (int i = 0; i < R; i++) {
        const float *x = X + (size_t)i * C;
        float *o = O + (size_t)i * C;
        float sum = 0.0f;
        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j]);
        }
        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j]) / sum;
        }
    }
    // END SOLUTION
    return OTensor;
}

// Part 2. As part 1, but also for very large logits. Three passes: the first finds the largest element of the row.
torch::Tensor safeSoftmax(torch::Tensor XTensor, int R, int C) {
    torch::Tensor OTensor = at::zeros({R, C}, at::kFloat);
    const float *X = XTensor.data_ptr<float>();
    float *O = OTensor.data_ptr<float>();
    // BEGIN STARTER
    // // YOUR CODE HERE: three passes over each row
    // (void)X, (void)O;
    // END STARTER
    // BEGIN SOLUTION
    for (int i = 0; i < R; i++) {
        const float *x = X + (size_t)i * C;
        float *o = O + (size_t)i * C;
        float most = -INFINITY;
        for (int j = 0; j < C; j++) {
            most = std::max(most, x[j]);
        }
        double sum = 0.0;
        for (int j = 0; j < C; j++) {
            sum += std::exp(x[j] - most);
        }
        const float total = (float)sum;
        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j] - most) / total;
        }
    }
    // END SOLUTION
    return OTensor;
}

// Part 3. As part 2, but in two passes: the first keeps a running maximum and a running sum, the second writes O.
torch::Tensor onlineSoftmax(torch::Tensor XTensor, int R, int C) {
    torch::Tensor OTensor = at::zeros({R, C}, at::kFloat);
    const float *X = XTensor.data_ptr<float>();
    float *O = OTensor.data_ptr<float>();
    // BEGIN STARTER
    // // YOUR CODE HERE: one pass that reads each row, one that writes
    // (void)X, (void)O;
    // END STARTER
    // BEGIN SOLUTION
    for (int i = 0; i < R; i++) {
        const float *x = X + (size_t)i * C;
        float *o = O + (size_t)i * C;
        float most = -INFINITY;
        double sum = 0.0;
        for (int j = 0; j < C; j++) {
            if (x[j] == -INFINITY) continue;  // it adds 0 to the sum, and (-inf) - (-inf) is NaN
            const float now = std::max(most, x[j]);
            sum = sum * std::exp(most - now) + std::exp(x[j] - now);
            most = now;
        }
        const float total = (float)sum;
        for (int j = 0; j < C; j++) {
            o[j] = std::exp(x[j] - most) / total;
        }
    }
    // END SOLUTION
    return OTensor;
}

// Part 4. You get two partial results of the same R rows, for different columns: m1, l1, m2, l2 (R), and o1, o2 (R, d).
// Write the partial result for all these columns to m, l (R) and o (R, d).
void mergeSoftmax(torch::Tensor m1Tensor, torch::Tensor l1Tensor, torch::Tensor o1Tensor, torch::Tensor m2Tensor,
                  torch::Tensor l2Tensor, torch::Tensor o2Tensor, torch::Tensor mTensor, torch::Tensor lTensor,
                  torch::Tensor oTensor, int R, int d) {
    const float *m1 = m1Tensor.data_ptr<float>(), *l1 = l1Tensor.data_ptr<float>(), *o1 = o1Tensor.data_ptr<float>();
    const float *m2 = m2Tensor.data_ptr<float>(), *l2 = l2Tensor.data_ptr<float>(), *o2 = o2Tensor.data_ptr<float>();
    float *m = mTensor.data_ptr<float>(), *l = lTensor.data_ptr<float>(), *o = oTensor.data_ptr<float>();
    // BEGIN STARTER
    // // YOUR CODE HERE
    // (void)m1, (void)l1, (void)o1, (void)m2, (void)l2, (void)o2, (void)m, (void)l, (void)o;
    // END STARTER
    // BEGIN SOLUTION
    for (int i = 0; i < R; i++) {
        const float most = std::max(m1[i], m2[i]);
        // If both sides are empty, (-inf) - (-inf) is NaN, so set both weights to 0.
        const float left = most == -INFINITY ? 0.0f : l1[i] * std::exp(m1[i] - most);
        const float right = most == -INFINITY ? 0.0f : l2[i] * std::exp(m2[i] - most);
        const float sum = left + right;
        m[i] = most;
        l[i] = sum;
        for (int k = 0; k < d; k++) {
            const size_t at = (size_t)i * d + k;
            o[at] = sum > 0.0f ? (left * o1[at] + right * o2[at]) / sum : 0.0f;
        }
    }
    // END SOLUTION
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("naiveSoftmax", &naiveSoftmax);
    m.def("safeSoftmax", &safeSoftmax);
    m.def("onlineSoftmax", &onlineSoftmax);
    m.def("mergeSoftmax", &mergeSoftmax);
}
