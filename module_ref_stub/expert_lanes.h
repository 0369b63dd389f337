// One level's vectors: their width, the operations on them that C++ cannot spell, and 2^x.
// Included by a source that is compiled once for each level; everything is local to it.
#pragma once

#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define GPT149_INLINE static inline __attribute__((always_inline))
// Rows of a constant, as many as the widest vector has lanes.
#define GPT149_LANES(x) {x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes), may_alias));
typedef float LooseVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes), may_alias));

// x - 0 is x whatever x is, so compilers make this one broadcast; x + 0 would lose the sign of -0.
GPT149_INLINE Vec splat(float x) { return x - Vec{}; }

// The lanes of `yes` where `mask` is all ones, those of `no` where it is zero.
GPT149_INLINE Vec select(Ints mask, Vec yes, Vec no) {
    return (Vec)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

// The first `count` floats at `from` (at least 1; all lanes if there are more), the other lanes zero; and back.
#if defined(__AVX512F__)
GPT149_INLINE __mmask16 firstLanes(int count) { return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1); }
GPT149_INLINE Vec load(const float *from, int count) { return _mm512_maskz_loadu_ps(firstLanes(count), from); }
GPT149_INLINE void store(float *to, Vec x, int count) { _mm512_mask_storeu_ps(to, firstLanes(count), x); }
#elif defined(__AVX2__)
GPT149_INLINE __m256i firstLanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
GPT149_INLINE Vec load(const float *from, int count) { return _mm256_maskload_ps(from, firstLanes(count)); }
GPT149_INLINE void store(float *to, Vec x, int count) { _mm256_maskstore_ps(to, firstLanes(count), x); }
#else
GPT149_INLINE Vec load(const float *from, int count) {
    Vec x{};
    for (int i = 0; i < kLanes && i < count; i++) {
        x[i] = from[i];
    }
    return x;
}
GPT149_INLINE void store(float *to, Vec x, int count) {
    for (int i = 0; i < kLanes && i < count; i++) {
        to[i] = x[i];
    }
}
#endif
GPT149_INLINE Vec loadAll(const float *from) { return *reinterpret_cast<const LooseVec *>(from); }

// Where a lane's sign bit is set: zero. (A blend, since AVX2's shifts and comparisons take a multiplier's port.)
GPT149_INLINE Vec zeroIfNegative(Vec x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return _mm256_blendv_ps(x, Vec{}, x);
#else
    return (Vec)((Ints)x & ~((Ints)x >> 31));
#endif
}

#if defined(__clang__)
#define GPT149_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GPT149_PICK(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// larger: lane by lane. zipLow, zipHigh: a0 b0 a1 b1 ... of the lower and of the upper halves.
#if defined(__AVX512F__)
GPT149_INLINE Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
GPT149_INLINE Vec zipLow(Vec a, Vec b) {
    return GPT149_PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
GPT149_INLINE Vec zipHigh(Vec a, Vec b) {
    return GPT149_PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
GPT149_INLINE Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
GPT149_INLINE Vec zipLow(Vec a, Vec b) { return GPT149_PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
GPT149_INLINE Vec zipHigh(Vec a, Vec b) { return GPT149_PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
GPT149_INLINE Vec larger(Vec a, Vec b) { return a > b ? a : b; }
GPT149_INLINE Vec zipLow(Vec a, Vec b) { return GPT149_PICK(a, b, 0, 4, 1, 5); }
GPT149_INLINE Vec zipHigh(Vec a, Vec b) { return GPT149_PICK(a, b, 2, 6, 3, 7); }
#endif

// a / b, given 1 / b: the product with it is off by up to three roundings' worth, and its remainder, exact where it is
// fused, brings that down to one.
GPT149_INLINE Vec quotient(Vec a, Vec b, Vec oneOverB) {
#if defined(__FMA__)
    const Vec near = a * oneOverB;
    return near + (a - near * b) * oneOverB;
#else
    (void)oneOverB;
    return a / b;
#endif
}

// ---- 2^x
//
// Scores are kept in units of 1 / kUnit powers of two. A polynomial of degree 5 gives 2^r on an interval of length 1
// with a relative error of 7.5e-8 (minimax by Remez exchange); degree 4 would leave 2.6e-6, which shows beside
// float32's own rounding; degree 6, for where time matters less, leaves 1.9e-9. The constants are read from a table where
// they are used: in registers they would push accumulators of the loops around out. `hidden` keeps compilers from moving
// them there all the same.
//
// AVX-512 has instructions for both ends: reduce leaves the fraction r, scalef multiplies by 2^floor(x), saturating: 7
// operations for 16 weights. Elsewhere kUnit is 2^23: a score, as an integer, then is the float's exponent and fraction
// already, 2^n (1 + r), of which n is kept and 2^r found anew. On AVX2 the masks run on a port that cannot multiply, so
// this costs 7 operations that count. What is too small for a normal float32 becomes zero (denormal weights would cost
// three times as much); for what is too large, x >= 128, only AVX-512 gives infinity, and elsewhere it has to be ruled
// out before.

template <int kDegree>
struct alignas(64) Exp2Table {
    float factors[kDegree + 1][16];
    std::int32_t one[16], exponent[16];
};

template <int kDegree>
constexpr Exp2Table<kDegree> kExp2{};

#if defined(__AVX512F__)
constexpr float kUnit = 1.0f;
constexpr bool kSaturates = true;
template <>
constexpr Exp2Table<5> kExp2<5>{{GPT149_LANES(0.999999925064f), GPT149_LANES(0.693153073203f),
                                 GPT149_LANES(0.240153617021f), GPT149_LANES(0.0558263181162f),
                                 GPT149_LANES(0.00898934002358f), GPT149_LANES(0.00187757670002f)},
                                {}, {}};
template <>
constexpr Exp2Table<6> kExp2<6>{{GPT149_LANES(1.00000000186f), GPT149_LANES(0.69314698384f),
                                 GPT149_LANES(0.240229836276f), GPT149_LANES(0.0554833419777f),
                                 GPT149_LANES(0.00967884100704f), GPT149_LANES(0.00124396877471f),
                                 GPT149_LANES(0.000217022556805f)},
                                {}, {}};
#define GPT149_PIN(x) "+v"(x)
#else
constexpr float kUnit = 8388608.0f;
constexpr bool kSaturates = false;
template <>
constexpr Exp2Table<5> kExp2<5>{{GPT149_LANES(0.498285914089f), GPT149_LANES(0.353755316915f),
                                 GPT149_LANES(0.107834935814f), GPT149_LANES(0.0386447250221f),
                                 GPT149_LANES(-0.000398543476518f), GPT149_LANES(0.00187757670002f)},
                                GPT149_LANES(0x3F800000), GPT149_LANES(-0x800000)};
template <>
constexpr Exp2Table<6> kExp2<6>{{GPT149_LANES(0.500251407103f), GPT149_LANES(0.345339681726f),
                                 GPT149_LANES(0.12266850699f), GPT149_LANES(0.0248672145606f),
                                 GPT149_LANES(0.00671433548555f), GPT149_LANES(-5.81665661163e-5f),
                                 GPT149_LANES(0.000217022556805f)},
                                GPT149_LANES(0x3F800000), GPT149_LANES(-0x800000)};
#if defined(__x86_64__)
#define GPT149_PIN(x) "+x"(x)
#else
#define GPT149_PIN(x) "+w"(x)
#endif
#endif

template <int kDegree = 5>
GPT149_INLINE Vec exp2Of(Vec x) {
    const Exp2Table<kDegree> *hidden = &kExp2<kDegree>;
    asm volatile("" : "+r"(hidden), GPT149_PIN(x));
    const auto *factor = reinterpret_cast<const Vec(*)[16 / kLanes]>(hidden->factors);
#if defined(__AVX512F__)
    const Vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
#else
    const Ints one = *reinterpret_cast<const Ints *>(hidden->one);
    const Ints bits = __builtin_convertvector(x, Ints) + one;
    const Ints whole = bits & *reinterpret_cast<const Ints *>(hidden->exponent);
    const Vec r = (Vec)((bits ^ whole) | one);  // 1 <= r < 2
#endif
    Vec power = factor[kDegree][0];
    for (int i = kDegree - 1; i >= 0; i--) {
        power = power * r + factor[i][0];
    }
#if defined(__AVX512F__)
    return _mm512_scalef_ps(power, x);
#else
    return power * zeroIfNegative((Vec)whole);
#endif
}

// While one of these lives, results too small for a normal float32 are zero: scalef would give denormal weights.
class NoDenormals {
  public:
#if defined(__AVX512F__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8000); }
    ~NoDenormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#else
    NoDenormals() {}
#endif
};

// kLanes x kLanes, in log2(kLanes) rounds of perfect shuffles.
GPT149_INLINE void transpose(Vec (&rows)[kLanes]) {
    for (int done = 1; done < kLanes; done *= 2) {
        Vec next[kLanes];
        for (int i = 0; i < kLanes / 2; i++) {
            next[2 * i] = zipLow(rows[i], rows[i + kLanes / 2]);
            next[2 * i + 1] = zipHigh(rows[i], rows[i + kLanes / 2]);
        }
        for (int i = 0; i < kLanes; i++) {
            rows[i] = next[i];
        }
    }
}

// Lane r of the result is the sum of the lanes of rows[r].
GPT149_INLINE Vec sumOfEach(Vec (&rows)[kLanes]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    // Half as many shuffles as below: AVX2 has none of two vectors across their halves.
    const Vec low = _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]), _mm256_hadd_ps(rows[2], rows[3]));
    const Vec high = _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]), _mm256_hadd_ps(rows[6], rows[7]));
    return (Vec)_mm256_permute2f128_ps(low, high, 0x20) + (Vec)_mm256_permute2f128_ps(low, high, 0x31);
#else
    for (int left = kLanes / 2; left > 0; left /= 2) {
        for (int i = 0; i < left; i++) {
            rows[i] = zipLow(rows[i], rows[i + left]) + zipHigh(rows[i], rows[i + left]);
        }
    }
    return rows[0];
#endif
}

}  // namespace
