// Attention of a few query rows over one run of cached tokens, with the log-sum-exp that merges runs.
//
// Rows of all query heads that share a key head are taken together, so a key is read from memory once for all of them.
// Keys are walked in tiles that stay in the first-level cache; a running maximum keeps the sums in range.
// Source: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867; tiles as in FlashAttention, Dao et al. 2022,
// arXiv:2205.14135, section 3.1; keys shared out between threads as in Flash-Decoding (Dao et al. 2023).
#pragma once

#include <algorithm>
#include <limits>

#include "vectors.h"

constexpr int kTile = 64;        // keys of a tile
constexpr int kQueries = 3;      // queries that are taken together
constexpr int kMaxHeadDim = 256;

constexpr int kTurnFrom = 12;   // queries from which on it pays to turn a tile of keys

// turned[d][t] = keys[t][d] for t < num_keys, 0 behind. With keys side by side, scores need no sums across a vector.
static inline void turn_tile(const float* keys, int head_dim, int num_keys, float (*turned)[kTile]) {
  int t = 0;
#if defined(__AVX2__)
  for (; t + 8 <= num_keys; t += 8) {
    for (int d = 0; d < head_dim; d += 8) {
      __m256 in[8], mixed[8];
      for (int i = 0; i < 8; ++i) in[i] = _mm256_loadu_ps(keys + (t + i) * head_dim + d);
      for (int i = 0; i < 4; ++i) {
        mixed[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
        mixed[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
      }
      for (int half = 0; half < 2; ++half) {
        const __m256* m = mixed + 4 * half;
        in[4 * half] = _mm256_shuffle_ps(m[0], m[2], 0x44);
        in[4 * half + 1] = _mm256_shuffle_ps(m[0], m[2], 0xEE);
        in[4 * half + 2] = _mm256_shuffle_ps(m[1], m[3], 0x44);
        in[4 * half + 3] = _mm256_shuffle_ps(m[1], m[3], 0xEE);
      }
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(turned[d + i] + t, _mm256_permute2f128_ps(in[i], in[i + 4], 0x20));
        _mm256_storeu_ps(turned[d + i + 4] + t, _mm256_permute2f128_ps(in[i], in[i + 4], 0x31));
      }
    }
  }
#endif
  for (; t < num_keys; ++t) {
    for (int d = 0; d < head_dim; ++d) turned[d][t] = keys[t * head_dim + d];
  }
  for (; t < kTile; ++t) {
    for (int d = 0; d < head_dim; ++d) turned[d][t] = 0;
  }
}

// The scores of a whole tile from keys that lie side by side.
template <int Q>
static inline void score_turned(const float* const* queries, const float (*turned)[kTile], int head_dim,
                                float (*scores)[kTile]) {
  constexpr int kTogether = 4;
  for (int t = 0; t < kTile; t += kTogether * kWidth) {
    Vec sums[Q][kTogether] = {};
    for (int d = 0; d < head_dim; ++d) {
      Vec query[Q];
      for (int q = 0; q < Q; ++q) query[q] = all(queries[q][d]);
      for (int v = 0; v < kTogether; ++v) {
        const Vec key = hold(turned[d] + t + v * kWidth);
        for (int q = 0; q < Q; ++q) sums[q][v] += query[q] * key;
      }
    }
    for (int q = 0; q < Q; ++q) {
      for (int v = 0; v < kTogether; ++v) store(scores[q] + t + v * kWidth, sums[q][v]);
    }
  }
}

// scores[q][t] = queries[q] . keys[t] for t < num_keys.
template <int Q>
static inline void score_tile(const float* const* queries, const float* keys, int head_dim, int num_keys,
                              float (*scores)[kTile]) {
  int t = 0;
  for (; t + 4 <= num_keys; t += 4) {
    Vec sums[Q][4] = {};
    for (int d = 0; d < head_dim; d += kWidth) {
      Vec parts[Q];  // with one key at a time: 16 registers in all
      for (int q = 0; q < Q; ++q) parts[q] = hold(queries[q] + d);
      for (int i = 0; i < 4; ++i) {
        const Vec key = hold(keys + (t + i) * head_dim + d);
        for (int q = 0; q < Q; ++q) sums[q][i] += parts[q] * key;
      }
    }
    for (int q = 0; q < Q; ++q) sum4(sums[q], scores[q] + t);
  }
  for (; t < num_keys; ++t) {
    for (int q = 0; q < Q; ++q) {
      Vec sums = {};
      for (int d = 0; d < head_dim; d += kWidth) sums += load(queries[q] + d) * load(keys + t * head_dim + d);
      scores[q][t] = sum(sums);
    }
  }
}

// out[q] += sum over t of weights[q][t] * values[t], kTogether vectors of the head at a time.
template <int Q, int kTogether>
static inline void add_values(const float (*weights)[kTile], const float* values, int head_dim, int num_keys,
                              float* const* out, int start) {
  Vec sums[Q][kTogether];
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < kTogether; ++v) sums[q][v] = load(out[q] + start + v * kWidth);
  }
  for (int t = 0; t < num_keys; ++t) {
    const float* value = values + t * head_dim + start;
    Vec weight[Q];
    for (int q = 0; q < Q; ++q) weight[q] = all(weights[q][t]);
    for (int v = 0; v < kTogether; ++v) {
      const Vec part = hold(value + v * kWidth);
      for (int q = 0; q < Q; ++q) sums[q][v] += weight[q] * part;
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < kTogether; ++v) store(out[q] + start + v * kWidth, sums[q][v]);
  }
}

// Turn scores of one query into weights; keep `largest_seen`, `total` and `out` on one scale.
static inline void weigh(float* scores, int num_keys, float* largest_seen, float* total, float* out, int head_dim) {
  for (int t = num_keys; t % kWidth != 0; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  Vec peaks = all(*largest_seen);
  for (int t = 0; t < num_keys; t += kWidth) {
    const Vec score = load(scores + t);
    peaks = score > peaks ? score : peaks;
  }
  const float peak = largest(peaks);
  if (peak > *largest_seen) {
    const float shrink = std::isinf(*largest_seen) ? 0.0f : std::exp(*largest_seen - peak);
    *total *= shrink;
    for (int d = 0; d < head_dim; d += kWidth) store(out + d, load(out + d) * shrink);
    *largest_seen = peak;
  }
  Vec sums = {};
  for (int t = 0; t < num_keys; t += kWidth) {
    const Vec weight = exponential(load(scores + t) - peak);
    store(scores + t, weight);
    sums += weight;
  }
  *total += sum(sums);
}

// `turned` is the tile of keys turned, or null.
template <int Q>
static inline void attend_tile(const float* const* queries, const float* keys, const float (*turned)[kTile],
                               const float* values, int head_dim,
                               const int* num_visible, float* largest_seen, float* totals, float* const* out) {
  alignas(64) float scores[Q][kTile];
  int num_keys = 0;
  for (int q = 0; q < Q; ++q) num_keys = std::max(num_keys, num_visible[q]);
  if (num_keys <= 0) return;
  if (turned != nullptr) {
    score_turned<Q>(queries, turned, head_dim, scores);
  } else {
    score_tile<Q>(queries, keys, head_dim, num_keys, scores);
  }
  for (int q = 0; q < Q; ++q) {
    const int visible = std::max(num_visible[q], 0);
    if (visible > 0) weigh(scores[q], visible, largest_seen + q, totals + q, out[q], head_dim);
    for (int t = visible; t < num_keys; ++t) scores[q][t] = 0;
  }
  int d = 0;
  for (; d + 4 * kWidth <= head_dim; d += 4 * kWidth) {
    add_values<Q, 4>(scores, values, head_dim, num_keys, out, d);
  }
  for (; d < head_dim; d += kWidth) add_values<Q, 1>(scores, values, head_dim, num_keys, out, d);
}
