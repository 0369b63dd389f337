// One query row against many keys: what a model does for each token that it writes. Part of expert_kernel.cpp.
//
// With one query there is nothing to put in a vector's lanes but columns: kLanes keys at a time are multiplied with the
// query along d, and their products added up together; then the rows of V are added to O weighted. Every float of K
// and V is used once, so this runs as fast as they arrive. Keys are taken in chunks of a fixed length, whose results
// are put together in order (expert.cpp): the threads share them out, and yet any number of threads gives the same
// bits.

#if defined(__AVX512F__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif
// Floats that are asked for before they are read: what a core's own prefetching misses, which ends with each page.
constexpr int kAhead = 512;

// Scores of `count` keys into `scores`, whose length is a multiple of kLanes; the largest is the result. A key's
// products go into two sums: with one, four-lane vectors would add up 50 in a row at d = 200.
float decodeScores(const float *query, float scale, const float *K, int count, int d, float *scores) {
    const int whole = d / kLanes * kLanes, pairs = whole / (2 * kLanes) * (2 * kLanes);
    const Vec rest = whole < d ? load(query + whole, d - whole) : Vec{};
    Vec top = splat(kLowest);
    for (int j = 0; j < count; j += kLanes) {
        Vec products[kLanes];
        for (int r = 0; r < kLanes; r++) {
            const float *key = K + static_cast<std::size_t>(j + r < count ? j + r : count - 1) * d;
            __builtin_prefetch(key + kAhead);
            __builtin_prefetch(key + kAhead + 16);
            Vec sum{}, other{};
            for (int c = 0; c < pairs; c += 2 * kLanes) {
                sum += loadAll(key + c) * loadAll(query + c);
                other += loadAll(key + c + kLanes) * loadAll(query + c + kLanes);
            }
            if (pairs < whole) {
                sum += loadAll(key + pairs) * loadAll(query + pairs);
            }
            products[r] = (whole < d ? sum + load(key + whole, d - whole) * rest : sum) + other;
        }
        const Vec found = sumOfEach(products) * splat(scale);
        top = larger(top, found);
        store(scores + j, found, kLanes);
    }
    float most = top[0];
    for (int i = 1; i < kLanes; i++) {
        most = top[i] > most ? top[i] : most;
    }
    return most;
}

// values[0 .. columns) = the sum of weights[j] * V[j]: C vectors of columns (or one that is not whole), as many keys
// at a time as there are registers for their sums.
template <int C, bool kWhole>
void decodeValues(const float *weights, const float *V, int count, int columns, int d, float *values) {
    constexpr int kKeys = C == 4 && kRegisters < 32 ? 2 : 4;
    Vec sums[kKeys][C] = {};
    const auto add = [&](int j, int key) {
        const float *row = V + static_cast<std::size_t>(key) * d;
        for (int c = 0; c < C; c++) {
            sums[j][c] += splat(weights[key]) * (kWhole ? loadAll(row + c * kLanes) : load(row, columns));
        }
    };
    int key = 0;
    for (; key + kKeys <= count; key += kKeys) {
        GPT149_UNROLLED for (int j = 0; j < kKeys; j++) { add(j, key + j); }
    }
    for (; key < count; key++) {
        add(0, key);
    }
    for (int c = 0; c < C; c++) {
        Vec sum = sums[0][c] + sums[1][c];
        if (kKeys == 4) {
            sum += sums[kKeys - 2][c] + sums[kKeys - 1][c];
        }
        store(values + c * kLanes, sum, columns - c * kLanes);
    }
}

void decode(const float *query, const float *K, const float *V, int count, int d, float scale, float *scratch,
            Gpt149Partial &found) {
    const NoDenormals guard;
    const float top = decodeScores(query, scale, K, count, d, scratch);
    const int whole = (count + kLanes - 1) / kLanes * kLanes;
    for (int j = 0; j < whole; j += kLanes) {
        store(scratch + j, weightOf((loadAll(scratch + j) - splat(top)) * kToPowers), kLanes);
    }
    for (int j = count; j < whole; j++) {
        scratch[j] = 0.0f;
    }
    Vec sums{};
    for (int j = 0; j < whole; j += kLanes) {
        sums += loadAll(scratch + j);
    }
    found.top = top;
    found.sum = 0.0f;
    for (int i = 0; i < kLanes; i++) {
        found.sum += sums[i];
    }
    int c = 0;
    for (; c + 4 * kLanes <= d; c += 4 * kLanes) {
        decodeValues<4, true>(scratch, V + c, count, d - c, d, found.values + c);
    }
    for (; c + 2 * kLanes <= d; c += 2 * kLanes) {
        decodeValues<2, true>(scratch, V + c, count, d - c, d, found.values + c);
    }
    for (; c + kLanes <= d; c += kLanes) {
        decodeValues<1, true>(scratch, V + c, count, d - c, d, found.values + c);
    }
    if (c < d) {
        decodeValues<1, false>(scratch, V + c, count, d - c, d, found.values + c);
    }
}
