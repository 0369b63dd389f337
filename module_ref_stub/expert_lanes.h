// One level's vectors: their width, operations on them that plain C++ lacks, and 2^x.
// Included by a source that is compiled once for each level; everything is local to this source.
#pragma once

#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define GPT149_INLINE static inline __attribute__((always_inline))
// Repeats a constant 16 times, as often as the widest vector has lanes.
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
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes), may_alias));
typedef std::uint32_t Bits __attribute__((vector_size(4 * kLanes), may_alias));

// Returns a vector of x in all lanes. x - 0 is x for all x, so compilers emit one broadcast; x + 0 would change -0.
GPT149_INLINE Vec splat(float x) { return x - Vec{}; }

// Returns the lanes of `yes` where `mask` is all ones, and the lanes of `no` where `mask` is zero.
GPT149_INLINE Vec select(Ints mask, Vec yes, Vec no) {
    return (Vec)(((Ints)yes & mask) | ((Ints)no & ~mask));
}

// load: reads `count` floats (at least 1, at most a full vector) and sets the other lanes to zero. store: writes them.
#if defined(__AVX512F__)
GPT149_INLINE __mmask16 firstLanes(int count) { return static_cast<__mmask16>(count < 16 ? (1 << count) - 1 : 0xFFFF); }
GPT149_INLINE Vec load(const float *from, int count) { return _mm512_maskz_loadu_ps(firstLanes(count), from); }
GPT149_INLINE void store(float *to, Vec x, int count) { _mm512_mask_storeu_ps(to, firstLanes(count), x); }
#elif defined(__AVX2__)
GPT149_INLINE __m256i firstLanes(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
GPT149_INLINE Vec load(const float *from, int count) { return _mm256_maskload_ps(from, firstLanes(count)); }
GPT149_INLINE void store(float *to, Vec x, int count) {
    if (count >= kLanes) {  // A masked store is slow: 12 cycles on AMD's processors.
        _mm256_storeu_ps(to, x);
    } else {
        _mm256_maskstore_ps(to, firstLanes(count), x);
    }
}
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

#if defined(__clang__)
#define GPT149_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define GPT149_PICK(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// larger: the maximum in each lane. zipLow, zipHigh: a0 b0 a1 b1 ... of the lower and of the upper halves.
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

// Returns the larger number if one is positive, else some number that is not positive. Positive floats compare like
// integers, and AVX2 compares integers on ports that are not used for multiplication.
GPT149_INLINE Vec largerPositive(Vec a, Vec b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Vec)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return larger(a, b);
#endif
}

// Rounds towards zero to integers. Numbers below the least 32-bit integer give this integer.
GPT149_INLINE Ints truncated(Vec x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Ints)_mm256_cvttps_epi32(x);
#else
    return __builtin_convertvector(x, Ints);
#endif
}

// Returns the float with these bits. `least` has the bits of the smallest normal float. If `bits` is smaller, returns
// this smallest normal float on AVX2, and zero elsewhere.
GPT149_INLINE Vec normal(Ints bits, Ints least) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (Vec)_mm256_max_epi32((__m256i)bits, (__m256i)least);
#else
    return (Vec)(bits & (bits >= least));
#endif
}

// Returns a / b, given 1 / b. The product a * (1 / b) has an error of up to three roundings. Correcting it by the
// remainder, which a fused multiply-add computes exactly, leaves one rounding.
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
// Arguments are in units of 1 / kUnit. A polynomial of degree 5 approximates 2^r on an interval of length 1 with a
// relative error of 7.5e-8 (minimax by Remez exchange). Degree 4 would have 2.6e-6, which is more than float32's own
// rounding. Degree 6, used where time matters less, has 1.9e-9. The coefficients are read from a table each time: in
// registers they would displace accumulators of the surrounding loops. `hidden` keeps compilers from loading them into
// registers.
//
// AVX-512 has instructions for the first and the last step: reduce computes the fraction r, and scalef multiplies by
// 2^floor(x) and saturates. This takes 7 operations for 16 weights.
//
// Elsewhere kUnit is 2^23. Then x = n + f, as an integer, has n in the place of a float's exponent and f in the place
// of its fraction, and two masks give the float r = 1 + f, 1 <= r < 2. The polynomial gives q = 2^f + 1 - f, which is
// between 1.9 and 2. So the bits of q are those of the number 1 with the fraction 2^f - f. Adding the integer x to
// these bits gives the bits of the float 2^(x + 1). (After Schraudolph, "A fast, compact approximation of the
// exponential function", 1999, where q is a constant.) Of all steps, only the 5 multiply-adds use a multiplier.
//
// The coefficients were rounded one after the other, and each time the later ones were fitted again, so that errors
// cancel. So 2^x is as accurate as with a costlier reduction. A result too small for a normal float32 becomes the
// smallest normal one or zero, because denormal weights would take three times as long. A result that is too large
// (x >= 127) is infinity only with AVX-512; elsewhere the caller must exclude it.

template <int kDegree>
struct alignas(64) Exp2Table {
    float factors[kDegree + 1][16];
    std::int32_t fraction[16], one[16], least[16];
};

template <int kDegree>
constexpr Exp2Table<kDegree> kExp2{};

#if defined(__AVX512F__)
constexpr float kUnit = 1.0f;
constexpr bool kSaturates = true;
constexpr float kWeightOfTop = 1.0f;
template <>
constexpr Exp2Table<5> kExp2<5>{{GPT149_LANES(0.999999925064f), GPT149_LANES(0.693153073203f),
                                 GPT149_LANES(0.240153617021f), GPT149_LANES(0.0558263181162f),
                                 GPT149_LANES(0.00898934002358f), GPT149_LANES(0.00187757670002f)},
                                {}, {}, {}};
template <>
constexpr Exp2Table<6> kExp2<6>{{GPT149_LANES(1.00000000186f), GPT149_LANES(0.69314698384f),
                                 GPT149_LANES(0.240229836276f), GPT149_LANES(0.0554833419777f),
                                 GPT149_LANES(0.00967884100704f), GPT149_LANES(0.00124396877471f),
                                 GPT149_LANES(0.000217022556805f)},
                                {}, {}, {}};
#define GPT149_PIN(x) "+v"(x)
#else
constexpr float kUnit = 8388608.0f;
constexpr bool kSaturates = false;
constexpr float kWeightOfTop = 2.0f;
template <>
constexpr Exp2Table<5> kExp2<5>{{GPT149_LANES(2.49828600883f), GPT149_LANES(-0.646245002747f),
                                 GPT149_LANES(0.107835359871f), GPT149_LANES(0.0386444479227f),
                                 GPT149_LANES(-0.00039845413994f), GPT149_LANES(0.00187756528612f)},
                                GPT149_LANES(0x7FFFFF), GPT149_LANES(0x3F800000), GPT149_LANES(0x800000)};
template <>
constexpr Exp2Table<6> kExp2<6>{{GPT149_LANES(2.50025129318f), GPT149_LANES(-0.654659867287f),
                                 GPT149_LANES(0.122667774558f), GPT149_LANES(0.0248678438365f),
                                 GPT149_LANES(0.00671402970329f), GPT149_LANES(-5.80859450565e-5f),
                                 GPT149_LANES(0.000217013497604f)},
                                GPT149_LANES(0x7FFFFF), GPT149_LANES(0x3F800000), GPT149_LANES(0x800000)};
#if defined(__x86_64__)
#define GPT149_PIN(x) "+x"(x)
#else
#define GPT149_PIN(x) "+w"(x)
#endif
#endif

// Returns kWeightOfTop * 2^x.
template <int kDegree = 5>
GPT149_INLINE Vec weightOf(Vec x) {
    const Exp2Table<kDegree> *hidden = &kExp2<kDegree>;
    asm volatile("" : "+r"(hidden), GPT149_PIN(x));
    const auto *factor = reinterpret_cast<const Vec(*)[16 / kLanes]>(hidden->factors);
#if defined(__AVX512F__)
    const Vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
#else
    const auto constant = [](const std::int32_t *row) { return *reinterpret_cast<const Ints *>(row); };
    const Ints bits = truncated(x);
    const Vec r = (Vec)((bits & constant(hidden->fraction)) | constant(hidden->one));
#endif
    Vec power = factor[kDegree][0];
    for (int i = kDegree - 1; i >= 0; i--) {
        power = power * r + factor[i][0];
    }
#if defined(__AVX512F__)
    return _mm512_scalef_ps(power, x);
#else
    return normal((Ints)((Bits)power + (Bits)bits), constant(hidden->least));
#endif
}

// While an object of this class exists, results too small for a normal float32 are zero. Otherwise AVX-512's scalef
// would give denormal weights, and products of AVX2's smallest weights would be denormal.
class NoDenormals {
  public:
#if defined(__AVX2__)
    NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8000); }
    ~NoDenormals() { _mm_setcsr(before_); }

  private:
    unsigned before_;
#else
    NoDenormals() {}
#endif
};

// Transposes a matrix of kLanes x kLanes, in log2(kLanes) rounds of perfect shuffles.
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

}  // namespace
