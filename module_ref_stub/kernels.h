// The table of kernels that kernels.cpp defines once for each instruction set level.
//
// All arrays are contiguous float32. Q, K, V and O are (B, H, N, d). Other arrays are the assignment's workspaces, with
// the shapes of docs/handout.md. Every kernel writes all of O, and does not use earlier contents of a workspace.
#pragma once

#include <cstddef>

// Row-major offset of element (x, y, z, b). sizeX, sizeY and sizeZ are the second, third and fourth dimension.
// Static, because kernels.cpp is compiled once per instruction set: else the linker would keep one copy for all.
static inline std::size_t gpt149_offset4d(const int &x, const int &y, const int &z, const int &b, const int &sizeX,
                                          const int &sizeY, const int &sizeZ) {
    return static_cast<std::size_t>(((x * sizeX + y) * sizeY + z) * sizeZ + b);
}

// A kernel of parts 1 to 3. W is its workspace: QK_t in parts 1 and 2, `temp` in part 3.
using Gpt149Rows = void(const float *Q, const float *K, const float *V, float *W, int B, int H, int N, int d, float *O);

struct Gpt149Kernels {
    Gpt149Rows *naive, *blocked, *fused, *fusedRows;
    void (*flash)(const float *Q, const float *K, const float *V, float *Qi, float *Kj, float *Vj, float *Sij,
                  float *Pij, float *PV, float *Oi, float *L, float *Li, float *Lij, float *Lnew, int Bc, int Br,
                  int B, int H, int N, int d, float *O);
};

extern const Gpt149Kernels gpt149_kernels_baseline;
#if defined(__x86_64__)
extern const Gpt149Kernels gpt149_kernels_avx2;
extern const Gpt149Kernels gpt149_kernels_avx512;
#endif
