// How weights are kept. A format is only ever used for values that it holds exactly (see weight_formats.py), so that
// every way to run the model computes with the same numbers.
//
// float32 lies row by row. The smaller formats lie in panels (see panels.py): kPanel outputs side by side, so that one
// input meets kPanel weights at once and no sum runs across a vector.
//
//     panel of outputs o ... o + 15     depth 0: 16 weights | depth 1: 16 weights | ...
#pragma once

#include "decoder.h"
#include "vectors.h"

enum Format : int64_t {
  kFloat32 = 0,
  kBfloat16 = 1,  // the upper half of a float32
  kInt8 = 2,      // groups of 32 along the depth: value = scale * q, q int8
  kInt4 = 3,      // groups of 32 along the depth: value = scale * q + least, q in 0..15
};

constexpr int kGroup = 32;
constexpr int kPanel = 16;                  // outputs that lie side by side
constexpr int kVectors = kPanel / kWidth;   // that hold them

// kWidth small numbers as a vector of integers. Compilers split the generic conversion into single numbers on x86.
#if defined(__AVX512F__)
static inline IntVec widen(const uint8_t* from) {
  return (IntVec)_mm512_cvtepu8_epi32(_mm_loadu_si128((__m128i*)from));
}
static inline IntVec widen(const int8_t* from) {
  return (IntVec)_mm512_cvtepi8_epi32(_mm_loadu_si128((__m128i*)from));
}
static inline IntVec widen(const uint16_t* from) {
  return (IntVec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((__m256i*)from));
}
#elif defined(__AVX2__)
static inline IntVec widen(const uint8_t* from) {
  return (IntVec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((__m128i*)from));
}
static inline IntVec widen(const int8_t* from) {
  return (IntVec)_mm256_cvtepi8_epi32(_mm_loadl_epi64((__m128i*)from));
}
static inline IntVec widen(const uint16_t* from) {
  return (IntVec)_mm256_cvtepu16_epi32(_mm_loadu_si128((__m128i*)from));
}
#else
template <typename Small>
static inline IntVec widen(const Small* from) {
  typedef Small SmallVec __attribute__((vector_size(kWidth * sizeof(Small))));
  SmallVec value;
  std::memcpy(&value, from, sizeof value);
  return __builtin_convertvector(value, IntVec);
}
#endif

static inline Vec to_float(IntVec whole) { return __builtin_convertvector(whole, Vec); }

// One depth of a panel: how many bytes it takes, how many rows of scales a group has, and its weights as floats, not
// yet scaled.
template <Format F>
struct Panel;

template <>
struct Panel<kBfloat16> {
  static constexpr int kBytes = 2 * kPanel, kScales = 0;

  static inline void take(const uint8_t* from, Vec* weights) {
    for (int v = 0; v < kVectors; ++v) {
      const IntVec words = widen(reinterpret_cast<const uint16_t*>(from) + v * kWidth) << 16;
      std::memcpy(weights + v, &words, sizeof words);
    }
  }
};

template <>
struct Panel<kInt8> {
  static constexpr int kBytes = kPanel, kScales = 1;

  static inline void take(const uint8_t* from, Vec* weights) {
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = to_float(widen(reinterpret_cast<const int8_t*>(from) + v * kWidth));
    }
  }
};

// The low halves of a depth's 8 bytes are its first 8 weights, the high halves the others.
template <>
struct Panel<kInt4> {
  static constexpr int kBytes = kPanel / 2, kScales = 2;  // scales, then least values

  static inline void take(const uint8_t* from, Vec* weights) {
#if defined(__AVX512F__)
    const __m128i both = _mm_loadl_epi64((const __m128i*)from), low = _mm_set1_epi8(15);
    const __m128i halves = _mm_unpacklo_epi64(_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low));
    weights[0] = to_float((IntVec)_mm512_cvtepu8_epi32(halves));
#else
    for (int v = 0; v < kVectors / 2; ++v) {
      const IntVec both = widen(from + v * kWidth);
      weights[v] = to_float(both & 15);
      weights[v + kVectors / 2] = to_float(both >> 4);
    }
#endif
  }
};
