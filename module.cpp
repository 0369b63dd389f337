// The attention kernels of the assignment. docs/handout.md says what each part asks for, and how it is
// judged.
//
// You write the bodies of the six functions whose comment begins with PART. The names, the arguments and
// their order stay as they are: the tests call these functions through the table at the end of this file.
// Add helper functions and standard headers as you like.
//
// Every tensor is float32 and contiguous:
//   Q, K, V    (B, H, N, d)    batch, head, token, channel of the head
//   O          (B, H, N, d)    the result, softmax(Q * transpose(K)) * V for each (b, h) on its own
// with no division by sqrt(d) and no mask. B, H, N, d and the tile sizes can be any number from 1 up: a tile
// may be larger than the matrix, or leave a remainder.

#include <ATen/ATen.h>
#include <torch/extension.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <vector>

// ----------------------------------------------------------------------------------------------------------
// Given: copies between tensors and vectors
// ----------------------------------------------------------------------------------------------------------

// Returns a copy of a tensor's values in row-major order. Writing to this vector does not change the
// tensor.
std::vector<float> formatTensor(torch::Tensor tensor) {
    tensor = tensor.contiguous();
    const float *first = tensor.data_ptr<float>();
    return std::vector<float>(first, first + tensor.numel());
}

// Copies the values of a vector into a tensor with as many elements, and returns this tensor.
torch::Tensor fillTensor(torch::Tensor tensor, const std::vector<float> &values) {
    std::copy(values.begin(), values.end(), tensor.data_ptr<float>());
    return tensor;
}

// ----------------------------------------------------------------------------------------------------------
// Given: two accessors of a 2-D tensor, as examples
// ----------------------------------------------------------------------------------------------------------

// A matrix is stored row after row. With sizeX columns, row x begins at element x * sizeX. Indices are passed
// by reference, so store them in variables: `int row = i0 + i;`, then `twoDimRead(A, row, j, N)`.
inline float twoDimRead(std::vector<float> &tensor, int &x, int &y, const int &sizeX) {
    return tensor[x * sizeX + y];
}

inline void twoDimWrite(std::vector<float> &tensor, int &x, int &y, const int &sizeX, float val) {
    tensor[x * sizeX + y] = val;
}

// ----------------------------------------------------------------------------------------------------------
// PART 0 (warm-up): the same for 4-D tensors
// ----------------------------------------------------------------------------------------------------------

// Returns element (x, y, z, b). sizeX, sizeY, sizeZ are the lengths of the second, third and fourth
// dimension. For example, an element of Q is fourDimRead(Q, b, h, i, k, H, N, d).
inline float fourDimRead(std::vector<float> &tensor, int &x, int &y, int &z, int &b, const int &sizeX,
                         const int &sizeY, const int &sizeZ) {
    // BEGIN SOLUTION
    return tensor[((x * sizeX + y) * sizeY + z) * sizeZ + b];
    // END SOLUTION
    // BEGIN STARTER
    // return 0.0f;
    // END STARTER
}

// Sets element (x, y, z, b) to val.
inline void fourDimWrite(std::vector<float> &tensor, int &x, int &y, int &z, int &b, const int &sizeX,
                         const int &sizeY, const int &sizeZ, float val) {
    // BEGIN SOLUTION
    tensor[((x * sizeX + y) * sizeY + z) * sizeZ + b] = val;
    // END SOLUTION
    // BEGIN STARTER
    // return;
    // END STARTER
}

// ----------------------------------------------------------------------------------------------------------
// PART 1: naive attention
// ----------------------------------------------------------------------------------------------------------

// For each (b, h): store Q * transpose(K) in QK_t, replace each row of QK_t by its softmax, and store
// QK_t * V in O.
// Workspace: QK_t (N, N), zeros on entry. All (b, h) use it, one after the other.
torch::Tensor myNaiveAttention(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor,
                               torch::Tensor QK_tTensor, int B, int H, int N, int d) {
    torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);
    std::vector<float> O = formatTensor(OTensor);
    std::vector<float> Q = formatTensor(QTensor);
    std::vector<float> K = formatTensor(KTensor);
    std::vector<float> V = formatTensor(VTensor);
    std::vector<float> QK_t = formatTensor(QK_tTensor);

    // BEGIN SOLUTION
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < N; i++) {
                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int k = 0; k < d; k++) {
                        score += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
                    }
                    twoDimWrite(QK_t, i, j, N, score);
                }
            }

            for (int i = 0; i < N; i++) {
                float rowSum = 0.0f;
                for (int j = 0; j < N; j++) {
                    float weight = std::exp(twoDimRead(QK_t, i, j, N));
                    twoDimWrite(QK_t, i, j, N, weight);
                    rowSum += weight;
                }
                for (int j = 0; j < N; j++) {
                    twoDimWrite(QK_t, i, j, N, twoDimRead(QK_t, i, j, N) / rowSum);
                }
            }

            for (int i = 0; i < N; i++) {
                for (int k = 0; k < d; k++) {
                    float value = 0.0f;
                    for (int j = 0; j < N; j++) {
                        value += twoDimRead(QK_t, i, j, N) * fourDimRead(V, b, h, j, k, H, N, d);
                    }
                    fourDimWrite(O, b, h, i, k, H, N, d, value);
                }
            }
        }
    }
    // END SOLUTION
    // BEGIN STARTER
    // // Your code here. To see the accessors at work, begin with a copy: for every b, h, i, k,
    // //     float copy = fourDimRead(Q, b, h, i, k, H, N, d);
    // //     fourDimWrite(O, b, h, i, k, H, N, d, copy);
    // END STARTER

    return fillTensor(OTensor, O);
}

// ----------------------------------------------------------------------------------------------------------
// PART 2: blocked matrix products, softmax not fused
// ----------------------------------------------------------------------------------------------------------

// The side of a square tile, in elements. To try another one: `python gpt149.py part2 -D TILE_SIZE=8`.
#ifndef TILE_SIZE
#define TILE_SIZE 16
#endif

// Like part 1, but both matrix products are computed in tiles of TILE_SIZE x TILE_SIZE. N and d need not be
// multiples of TILE_SIZE.
// Workspace: QK_t (N, N), zeros on entry. All (b, h) use it, one after the other.
torch::Tensor myUnfusedAttentionBlocked(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor,
                                        torch::Tensor QK_tTensor, int B, int H, int N, int d) {
    torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);
    std::vector<float> O = formatTensor(OTensor);
    std::vector<float> Q = formatTensor(QTensor);
    std::vector<float> K = formatTensor(KTensor);
    std::vector<float> V = formatTensor(VTensor);
    std::vector<float> QK_t = formatTensor(QK_tTensor);

    // BEGIN SOLUTION
    const int T = TILE_SIZE;
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i0 = 0; i0 < N; i0 += T) {
                int iEnd = std::min(i0 + T, N);
                for (int j0 = 0; j0 < N; j0 += T) {
                    int jEnd = std::min(j0 + T, N);
                    for (int k0 = 0; k0 < d; k0 += T) {
                        int kEnd = std::min(k0 + T, d);
                        for (int i = i0; i < iEnd; i++) {
                            for (int j = j0; j < jEnd; j++) {
                                // Start from zero: QK_t still has the previous head's weights.
                                float score = k0 == 0 ? 0.0f : twoDimRead(QK_t, i, j, N);
                                for (int k = k0; k < kEnd; k++) {
                                    score += fourDimRead(Q, b, h, i, k, H, N, d) *
                                             fourDimRead(K, b, h, j, k, H, N, d);
                                }
                                twoDimWrite(QK_t, i, j, N, score);
                            }
                        }
                    }
                }
            }

            for (int i = 0; i < N; i++) {
                float rowSum = 0.0f;
                for (int j = 0; j < N; j++) {
                    float weight = std::exp(twoDimRead(QK_t, i, j, N));
                    twoDimWrite(QK_t, i, j, N, weight);
                    rowSum += weight;
                }
                for (int j = 0; j < N; j++) {
                    twoDimWrite(QK_t, i, j, N, twoDimRead(QK_t, i, j, N) / rowSum);
                }
            }

            for (int i0 = 0; i0 < N; i0 += T) {
                int iEnd = std::min(i0 + T, N);
                for (int k0 = 0; k0 < d; k0 += T) {
                    int kEnd = std::min(k0 + T, d);
                    for (int j0 = 0; j0 < N; j0 += T) {
                        int jEnd = std::min(j0 + T, N);
                        for (int i = i0; i < iEnd; i++) {
                            for (int k = k0; k < kEnd; k++) {
                                float value = j0 == 0 ? 0.0f : fourDimRead(O, b, h, i, k, H, N, d);
                                for (int j = j0; j < jEnd; j++) {
                                    value += twoDimRead(QK_t, i, j, N) * fourDimRead(V, b, h, j, k, H, N, d);
                                }
                                fourDimWrite(O, b, h, i, k, H, N, d, value);
                            }
                        }
                    }
                }
            }
        }
    }
    // END SOLUTION
    // BEGIN STARTER
    // // Your code here.
    // END STARTER

    return fillTensor(OTensor, O);
}

// ----------------------------------------------------------------------------------------------------------
// PART 3: fused attention with OpenMP
// ----------------------------------------------------------------------------------------------------------

// A row of O needs only one row of scores, so N x N memory is not needed: complete one row after the other.
// Rows do not depend on one another, so OpenMP's threads can share them.
// Workspace: temp (threads, N), zeros on entry. A thread may use only the row omp_get_thread_num().
torch::Tensor myFusedAttention(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor,
                               torch::Tensor tempTensor, int B, int H, int N, int d) {
    torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);
    std::vector<float> O = formatTensor(OTensor);
    std::vector<float> Q = formatTensor(QTensor);
    std::vector<float> K = formatTensor(KTensor);
    std::vector<float> V = formatTensor(VTensor);
    std::vector<float> temp = formatTensor(tempTensor);

    // BEGIN SOLUTION
#pragma omp parallel for collapse(3)
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            for (int i = 0; i < N; i++) {
                int row = omp_get_thread_num();

                for (int j = 0; j < N; j++) {
                    float score = 0.0f;
                    for (int k = 0; k < d; k++) {
                        score += fourDimRead(Q, b, h, i, k, H, N, d) * fourDimRead(K, b, h, j, k, H, N, d);
                    }
                    twoDimWrite(temp, row, j, N, score);
                }

                float rowSum = 0.0f;
                for (int j = 0; j < N; j++) {
                    float score = twoDimRead(temp, row, j, N);
                    float weight = std::exp(score);
                    twoDimWrite(temp, row, j, N, weight);
                    rowSum += weight;
                }

                // Read V row by row, not column by column: neighbours in memory are read one after the other.
                for (int j = 0; j < N; j++) {
                    float weight = twoDimRead(temp, row, j, N) / rowSum;
                    for (int k = 0; k < d; k++) {
                        float value = fourDimRead(O, b, h, i, k, H, N, d);
                        value += weight * fourDimRead(V, b, h, j, k, H, N, d);
                        fourDimWrite(O, b, h, i, k, H, N, d, value);
                    }
                }
            }
        }
    }
    // END SOLUTION
    // BEGIN STARTER
    // // Your code here. Get it right without the pragma first:
    // //     #pragma omp parallel for collapse(3)
    // END STARTER

    return fillTensor(OTensor, O);
}

// ----------------------------------------------------------------------------------------------------------
// PART 4: flash attention
// ----------------------------------------------------------------------------------------------------------

// Follows the pseudo-code of the handout: for each block j of K and V, for each block i of Q.
// Workspace, zeros on entry: tiles Qi, Oi, PV (Br, d), Kj, Vj (Bc, d), Sij, Pij (Br, Bc); row sums Li, Lij,
// Lnew (Br) of one block, and L (N) of all rows. L belongs to one (b, h): set it to zero for the next
// one.
torch::Tensor myFlashAttention(torch::Tensor QTensor, torch::Tensor KTensor, torch::Tensor VTensor,
                               torch::Tensor QiTensor, torch::Tensor KjTensor, torch::Tensor VjTensor,
                               torch::Tensor SijTensor, torch::Tensor PijTensor, torch::Tensor PVTensor,
                               torch::Tensor OiTensor, torch::Tensor LTensor, torch::Tensor LiTensor,
                               torch::Tensor LijTensor, torch::Tensor LnewTensor, int Bc, int Br, int B,
                               int H, int N, int d) {
    torch::Tensor OTensor = at::zeros({B, H, N, d}, at::kFloat);
    std::vector<float> O = formatTensor(OTensor);
    std::vector<float> Q = formatTensor(QTensor);
    std::vector<float> K = formatTensor(KTensor);
    std::vector<float> V = formatTensor(VTensor);
    std::vector<float> Qi = formatTensor(QiTensor);
    std::vector<float> Kj = formatTensor(KjTensor);
    std::vector<float> Vj = formatTensor(VjTensor);
    std::vector<float> Sij = formatTensor(SijTensor);
    std::vector<float> Pij = formatTensor(PijTensor);
    std::vector<float> PV = formatTensor(PVTensor);
    std::vector<float> Oi = formatTensor(OiTensor);
    std::vector<float> L = formatTensor(LTensor);
    std::vector<float> Li = formatTensor(LiTensor);
    std::vector<float> Lij = formatTensor(LijTensor);
    std::vector<float> Lnew = formatTensor(LnewTensor);

    // BEGIN SOLUTION
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < H; h++) {
            std::fill(L.begin(), L.end(), 0.0f);

            for (int j0 = 0; j0 < N; j0 += Bc) {
                int columns = std::min(Bc, N - j0);
                for (int j = 0; j < columns; j++) {
                    int column = j0 + j;
                    for (int k = 0; k < d; k++) {
                        twoDimWrite(Kj, j, k, d, fourDimRead(K, b, h, column, k, H, N, d));
                        twoDimWrite(Vj, j, k, d, fourDimRead(V, b, h, column, k, H, N, d));
                    }
                }

                for (int i0 = 0; i0 < N; i0 += Br) {
                    int rows = std::min(Br, N - i0);
                    for (int i = 0; i < rows; i++) {
                        int row = i0 + i;
                        for (int k = 0; k < d; k++) {
                            twoDimWrite(Qi, i, k, d, fourDimRead(Q, b, h, row, k, H, N, d));
                            twoDimWrite(Oi, i, k, d, fourDimRead(O, b, h, row, k, H, N, d));
                        }
                        Li[i] = L[row];
                    }

                    for (int i = 0; i < rows; i++) {
                        for (int j = 0; j < columns; j++) {
                            float score = 0.0f;
                            for (int k = 0; k < d; k++) {
                                score += twoDimRead(Qi, i, k, d) * twoDimRead(Kj, j, k, d);
                            }
                            twoDimWrite(Sij, i, j, Bc, score);
                        }
                    }

                    for (int i = 0; i < rows; i++) {
                        float rowSum = 0.0f;
                        for (int j = 0; j < columns; j++) {
                            float weight = std::exp(twoDimRead(Sij, i, j, Bc));
                            twoDimWrite(Pij, i, j, Bc, weight);
                            rowSum += weight;
                        }
                        Lij[i] = rowSum;
                        Lnew[i] = Li[i] + Lij[i];
                    }

                    for (int i = 0; i < rows; i++) {
                        for (int k = 0; k < d; k++) {
                            float value = 0.0f;
                            for (int j = 0; j < columns; j++) {
                                value += twoDimRead(Pij, i, j, Bc) * twoDimRead(Vj, j, k, d);
                            }
                            twoDimWrite(PV, i, k, d, value);
                        }
                    }

                    for (int i = 0; i < rows; i++) {
                        int row = i0 + i;
                        for (int k = 0; k < d; k++) {
                            float value = Li[i] * twoDimRead(Oi, i, k, d) + twoDimRead(PV, i, k, d);
                            fourDimWrite(O, b, h, row, k, H, N, d, value / Lnew[i]);
                        }
                        L[row] = Lnew[i];
                    }
                }
            }
        }
    }
    // END SOLUTION
    // BEGIN STARTER
    // // Your code here.
    // END STARTER

    return fillTensor(OTensor, O);
}

// ----------------------------------------------------------------------------------------------------------
// The functions that the tests can call. Leave the names as they are.
// ----------------------------------------------------------------------------------------------------------

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("fourDimRead", &fourDimRead, "element (x, y, z, b) of a 4-D tensor");
    m.def("fourDimWrite", &fourDimWrite, "sets element (x, y, z, b) of a 4-D tensor");
    m.def("myNaiveAttention", &myNaiveAttention, "part 1: naive attention");
    m.def("myUnfusedAttentionBlocked", &myUnfusedAttentionBlocked, "part 2: blocked products");
    m.def("myFusedAttention", &myFusedAttention, "part 3: fused attention with OpenMP");
    m.def("myFlashAttention", &myFlashAttention, "part 4: flash attention");
}
