// One query row against many keys: what a model does for each token that it writes. Part of expert_kernel.cpp.
//
// With one query there is nothing to put in a vector's lanes but columns: kLanes keys at a time are multiplied with the
// query along d, and their products added up together; then the rows of V are added to O weighted. Every float of K and V
// is used once, so this runs as fast as they arrive. Keys are taken in chunks of a fixed length, whose results are put
// together in order (expert.cpp): the threads share them out, and yet any number of threads gives the same bits.

// Scores of `count` keys into `scores`, whose length is a multiple of kLanes.
void decodeScores(const float *query, float factor, const float *K, int count, int d, float *scores) {
    const int whole = d / kLanes * kLanes;
    const Vec rest = whole < d ? load(query + whole, d - whole) : Vec{};
    for (int j = 0; j < count; j += kLanes) {
        Vec products[kLanes];
        for (int r = 0; r < kLanes; r++) {
            const float *key = K + static_cast<std::size_t>(j + r < count ? j + r : count - 1) * d;
            Vec sum{};
            for (int c = 0; c < whole; c += kLanes) {
                sum += loadAll(key + c) * loadAll(query + c);
            }
            products[r] = whole < d ? sum + load(key + whole, d - whole) * rest : sum;
        }
        store(scores + j, sumOfEach(products) * splat(factor), kLanes);
    }
}

// values[0 .. columns) = the sum of weights[j] * V[j]: C vectors of columns (or one that is not whole), four keys at a
// time.
template <int C, bool kWhole>
void decodeValues(const float *weights, const float *V, int count, int columns, int d, float *values) {
    constexpr int kKeys = 4;
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
        const Vec sum = (sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c]);
        store(values + c * kLanes, sum, columns - c * kLanes);
    }
}

void decode(const float *query, const float *K, const float *V, int count, int d, float scale, float *scratch,
            Gpt149Partial &found) {
    decodeScores(query, scale * kLog2e * kUnit, K, count, d, scratch);
    float top = kLowest;
    for (int j = 0; j < count; j++) {
        top = scratch[j] > top ? scratch[j] : top;
    }
    Vec sums{};
    for (int j = 0; j < count; j += kLanes) {
        Vec weights = exp2Of(load(scratch + j, kLanes) - splat(top));
        for (int i = count - j; i < kLanes; i++) {
            weights[i] = 0.0f;
        }
        store(scratch + j, weights, kLanes);
        sums += weights;
    }
    found.top = top / kUnit;
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
