// Attention of a few query rows over one run of cached tokens, with the log-sum-exp that merges runs.
//
// Rows of all query heads that share a key head are taken together, so a key is read from memory once for all of them.
// Keys are walked in tiles that stay in the first-level cache; a running maximum keeps the sums in range.
// Source: online softmax, Milakov and Gimelshein 2018, arXiv:1805.02867; tiles as in FlashAttention, Dao et al. 2022,
// arXiv:2205.14135, section 3.1; keys shared out between threads as in Flash-Decoding (Dao et al. 2023).
#pragma once

#include <algorithm>
#include <limits>
#include <type_traits>

#include "vectors.h"

constexpr int kTile = 64;        // keys of a tile
constexpr int kQueries = 3;      // queries that are taken together
constexpr int kKept = 24;        // queries whose weights of a tile are kept: 6 KB
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

// What is known of one query's answer so far. `out` [head_dim] and `totals` are scaled by 2^-peak.
struct Running {
  const float* query;  // [head_dim]
  float* out;
  float peak = -std::numeric_limits<float>::infinity();
  Vec totals = {};
};

// Turn scores, exponents of 2, into weights; keep what is known on one scale.
static inline void weigh(float* scores, int num_keys, int head_dim, Running& running) {
  for (int t = num_keys; t % kWidth != 0; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  Vec peaks = load(scores);
  for (int t = kWidth; t < num_keys; t += kWidth) {
    const Vec score = load(scores + t);
    peaks = larger(score, peaks);
  }
  if (any_above(peaks, running.peak)) {
    const float peak = largest(peaks);
    const float shrink = std::isinf(running.peak) ? 0.0f : std::exp2(running.peak - peak);
    running.totals *= all(shrink);
    for (int d = 0; d < head_dim; d += kWidth) store(running.out + d, load(running.out + d) * shrink);
    running.peak = peak;
  }
  for (int t = 0; t < num_keys; t += kWidth) {
    const Vec weight = power_of_two(load(scores + t) - running.peak);
    store(scores + t, weight);
    running.totals += weight;
  }
}

// The scores of Q queries with a tile of keys; `turned` is the tile turned, or null.
template <int Q>
static inline void score_block(const Running* running, const float* keys, const float (*turned)[kTile], int head_dim,
                               int num_keys, float (*scores)[kTile]) {
  const float* queries[Q];
  for (int q = 0; q < Q; ++q) queries[q] = running[q].query;
  if (turned != nullptr) {
    score_turned<Q>(queries, turned, head_dim, scores);
  } else {
    score_tile<Q>(queries, keys, head_dim, num_keys, scores);
  }
}

// Weights times values, for Q queries of which the first num_keys weights count.
template <int Q>
static inline void add_block(const Running* running, const float (*weights)[kTile], const float* values, int head_dim,
                             int num_keys) {
  float* out[Q];
  for (int q = 0; q < Q; ++q) out[q] = running[q].out;
  int d = 0;
  for (; d + 4 * kWidth <= head_dim; d += 4 * kWidth) add_values<Q, 4>(weights, values, head_dim, num_keys, out, d);
  for (; d < head_dim; d += kWidth) add_values<Q, 1>(weights, values, head_dim, num_keys, out, d);
}

// Call work<Q>(first query) for blocks of kQueries and what is left.
template <typename Work>
static inline void in_query_blocks(int num_queries, const Work& work) {
  int first = 0;
  for (; first + kQueries <= num_queries; first += kQueries) work(first, std::integral_constant<int, kQueries>());
  if (num_queries - first == 2) work(first, std::integral_constant<int, 2>());
  if (num_queries - first == 1) work(first, std::integral_constant<int, 1>());
}

// Attend queries to num_keys keys. visible(query) says how many of the keys a query sees, possibly less than none.
//
// A tile meets the queries in two passes, keys first, then values: one of them at a time fits the first-level cache.
template <typename Visible>
static inline void attend_keys(Running* running, int num_queries, const float* keys, const float* values, int head_dim,
                               int num_keys, const Visible& visible) {
  alignas(64) float turned[kMaxHeadDim][kTile], scores[kKept][kTile];
  int num_seen[kKept];
  const bool turns = num_queries >= kTurnFrom;
  for (int start = 0; start < num_keys; start += kTile, keys += kTile * head_dim, values += kTile * head_dim) {
    const int taken = std::min(kTile, num_keys - start);
    if (turns) turn_tile(keys, head_dim, taken, turned);
    for (int first = 0; first < num_queries; first += kKept) {
      const int num_kept = std::min(kKept, num_queries - first);
      Running* kept = running + first;
      int most = 0;
      for (int q = 0; q < num_kept; ++q) {
        num_seen[q] = std::max(0, std::min(taken, visible(first + q) - start));
        most = std::max(most, num_seen[q]);
      }
      if (most == 0) continue;
      in_query_blocks(num_kept, [&](int q, auto count) {
        score_block<count>(kept + q, keys, turns ? turned : nullptr, head_dim, most, scores + q);
      });
      for (int q = 0; q < num_kept; ++q) {
        if (num_seen[q] > 0) weigh(scores[q], num_seen[q], head_dim, kept[q]);
        for (int t = num_seen[q]; t < most; ++t) scores[q][t] = 0;
      }
      in_query_blocks(num_kept,
                      [&](int q, auto count) { add_block<count>(kept + q, scores + q, values, head_dim, most); });
    }
  }
}
