// How weights are kept. A format is only ever used for values that it holds exactly (see weight_formats.py), so that
// every way to run the model computes with the same numbers.
#pragma once

#include "decoder.h"
#include "vectors.h"

enum Format : int64_t {
  kFloat32 = 0,
  kBfloat16 = 1,  // the upper half of a float32
  kInt8 = 2,      // groups of 32 along a row: value = scale * q, q int8
  kInt4 = 3,      // groups of 32 along a row: value = scale * q + least, q in 0..15; scales hold (scale, least)
};

constexpr int kGroup = 32;

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

static inline Vec from_bfloat16(const uint16_t* from) {
  const IntVec words = widen(from) << 16;
  Vec value;
  std::memcpy(&value, &words, sizeof value);
  return value;
}

static inline float from_bfloat16(uint16_t from) {
  const uint32_t word = uint32_t(from) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

static inline void unpack_bfloat16(const uint16_t* from, int64_t depth, float* to) {
  int64_t i = 0;
  for (; i + kWidth <= depth; i += kWidth) store(to + i, from_bfloat16(from + i));
  for (; i < depth; ++i) to[i] = from_bfloat16(from[i]);
}

static inline void unpack_int8(const int8_t* from, const float* scales, int64_t depth, float* to) {
  for (int64_t group = 0; group < depth / kGroup; ++group) {
    const Vec scale = all(scales[group]);
    for (int i = 0; i < kGroup; i += kWidth) {
      store(to + group * kGroup + i, to_float(widen(from + group * kGroup + i)) * scale);
    }
  }
}

// The low halves of a group's 16 bytes are its first 16 values, the high halves the others.
static inline void unpack_int4(const uint8_t* from, const float* scales, int64_t depth, float* to) {
  for (int64_t group = 0; group < depth / kGroup; ++group) {
    const Vec scale = all(scales[2 * group]), least = all(scales[2 * group + 1]);
    for (int i = 0; i < kGroup / 2; i += kWidth) {
      const IntVec both = widen(from + group * (kGroup / 2) + i);
      float* out = to + group * kGroup + i;
      store(out, to_float(both & 15) * scale + least);
      store(out + kGroup / 2, to_float(both >> 4) * scale + least);
    }
  }
}

// Write one row of a matrix as float32.
static inline void unpack_row(const Matrix& matrix, int64_t row, int64_t depth, float* to) {
  const int64_t first = row * depth, first_group = first / kGroup;
  switch (matrix.format) {
    case kBfloat16:
      return unpack_bfloat16(static_cast<const uint16_t*>(matrix.data) + first, depth, to);
    case kInt8:
      return unpack_int8(static_cast<const int8_t*>(matrix.data) + first, matrix.scales + first_group, depth, to);
    case kInt4:
      return unpack_int4(static_cast<const uint8_t*>(matrix.data) + first / 2, matrix.scales + 2 * first_group, depth,
                         to);
    default:
      std::memcpy(to, static_cast<const float*>(matrix.data) + first, sizeof(float) * depth);
  }
}
