// Runs the reference library's C ABI without Python, for machines that are only emulated: `program INPUT OUTPUT`.
// INPUT holds six int32 B, H, N, d, Br, Bc and then Q, K, V as float32. OUTPUT gets five float32 arrays of Q's size:
// the four kernels' O, and Q copied element by element with the accessors.
#include <omp.h>

#include <cstdio>
#include <vector>

extern "C" {
void gpt149_ref_naive(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_blocked(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_fused(const float *, const float *, const float *, float *, int, int, int, int, float *);
void gpt149_ref_flash(const float *, const float *, const float *, float *, float *, float *, float *, float *, float *,
                      float *, float *, float *, float *, float *, int, int, int, int, int, int, float *);
float gpt149_ref_read4d(const float *, int, int, int, int, int, int, int);
void gpt149_ref_write4d(float *, int, int, int, int, int, int, int, float);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    int shape[6];
    std::FILE *input = std::fopen(argv[1], "rb");
    if (!input || std::fread(shape, sizeof(int), 6, input) != 6) return 3;
    const int B = shape[0], H = shape[1], N = shape[2], d = shape[3], Br = shape[4], Bc = shape[5];
    const std::size_t count = std::size_t(B) * H * N * d;
    std::vector<float> Q(count), K(count), V(count), O(count);
    for (std::vector<float> *array : {&Q, &K, &V}) {
        if (std::fread(array->data(), sizeof(float), count, input) != count) return 3;
    }
    std::fclose(input);

    std::FILE *output = std::fopen(argv[2], "wb");
    if (!output) return 4;
    auto put = [&] { return std::fwrite(O.data(), sizeof(float), count, output) == count; };

    std::vector<float> scores(std::size_t(N) * N), temp(std::size_t(omp_get_max_threads()) * N);
    gpt149_ref_naive(Q.data(), K.data(), V.data(), scores.data(), B, H, N, d, O.data());
    if (!put()) return 4;
    gpt149_ref_blocked(Q.data(), K.data(), V.data(), scores.data(), B, H, N, d, O.data());
    if (!put()) return 4;
    gpt149_ref_fused(Q.data(), K.data(), V.data(), temp.data(), B, H, N, d, O.data());
    if (!put()) return 4;
    std::vector<float> Qi(Br * d), Kj(Bc * d), Vj(Bc * d), S(Br * Bc), P(Br * Bc), PV(Br * d), Oi(Br * d);
    std::vector<float> L(N), Li(Br), Lij(Br), Lnew(Br);
    gpt149_ref_flash(Q.data(), K.data(), V.data(), Qi.data(), Kj.data(), Vj.data(), S.data(), P.data(), PV.data(),
                     Oi.data(), L.data(), Li.data(), Lij.data(), Lnew.data(), Bc, Br, B, H, N, d, O.data());
    if (!put()) return 4;
    for (int x = 0; x < B; x++)
        for (int y = 0; y < H; y++)
            for (int z = 0; z < N; z++)
                for (int b = 0; b < d; b++)
                    gpt149_ref_write4d(O.data(), x, y, z, b, H, N, d, gpt149_ref_read4d(Q.data(), x, y, z, b, H, N, d));
    if (!put()) return 4;
    return std::fclose(output) == 0 ? 0 : 4;
}
