// Vectors of floats in the width of the machine that this is compiled on, through GCC's and Clang's vector types.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

// Floats whose start and, for rows of a multiple of 16, whose every row lies on a border of the cache's lines.
struct Free {
  void operator()(float* memory) const { std::free(memory); }
};
typedef std::unique_ptr<float[], Free> Floats;

static inline Floats new_floats(size_t count) {
  const size_t num_bytes = (count * sizeof(float) + 63) / 64 * 64;
  return Floats(static_cast<float*>(std::aligned_alloc(64, num_bytes == 0 ? 64 : num_bytes)));
}

typedef float Vec __attribute__((vector_size(kWidth * 4)));
typedef int32_t IntVec __attribute__((vector_size(kWidth * 4)));

static inline Vec load(const float* from) {
  Vec value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

static inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// Load into a register that stays one: compilers would read memory again for every use, which costs more than they
// think.
static inline Vec hold(const float* from) {
  Vec value = load(from);
#if defined(__x86_64__)
  __asm__("" : "+x"(value));
#endif
  return value;
}

static inline Vec all(float value) { return value - Vec{}; }

static inline float sum(Vec value) {
  float total = 0;
  for (int i = 0; i < kWidth; ++i) total += value[i];
  return total;
}

static inline float largest(Vec value) {
  float found = value[0];
  for (int i = 1; i < kWidth; ++i) found = value[i] > found ? value[i] : found;
  return found;
}

static inline bool any_above(Vec value, float bound) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_movemask_ps((__m256)(value > all(bound))) != 0;
#else
  return largest(value) > bound;
#endif
}

// Write the sums of four vectors to to[0..3].
static inline void sum4(const Vec* from, float* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 low = _mm256_hadd_ps((__m256)from[0], (__m256)from[1]);
  const __m256 high = _mm256_hadd_ps((__m256)from[2], (__m256)from[3]);
  const __m256 both = _mm256_hadd_ps(low, high);
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
#else
  for (int i = 0; i < 4; ++i) to[i] = sum(from[i]);
#endif
}

// `other` where one of the two is not a number.
static inline Vec larger(Vec one, Vec other) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (Vec)_mm256_max_ps((__m256)one, (__m256)other);
#else
  return one > other ? one : other;
#endif
}

// 2^x for x <= 0, relative error below 2e-7; 2^-126 for all below that.
static inline Vec power_of_two(Vec x) {
  x = larger(all(-126.0f), x);
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vec shifted = x + magic;
  const Vec rest = x - (shifted - magic);
  Vec value = all(1.32669703864e-3f);
  value = value * rest + 9.67545974553e-3f;
  value = value * rest + 5.55074261600e-2f;
  value = value * rest + 2.40221217536e-1f;
  value = value * rest + 6.93146949161e-1f;
  value = value * rest + 1.00000007103f;
  IntVec power, bits;
  std::memcpy(&power, &shifted, sizeof power);
  std::memcpy(&bits, &value, sizeof bits);
  bits += power << 23;  // the integer sits in the low bits of `shifted`
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// e^x for x <= 88, relative error below 2e-7; 0 below -87.
// Source: the range reduction and polynomial of Cephes' expf (Moshier 1989).
static inline Vec exponential(Vec x) {
  const Vec lowest = all(-87.0f);
  const IntVec is_low = x < lowest;
  x = is_low ? lowest : x;
  const Vec magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest integer
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec whole = shifted - magic;
  Vec rest = x - whole * 0.693359375f;
  rest = rest + whole * 2.12194440e-4f;
  Vec value = all(1.9875691500e-4f);
  value = value * rest + 1.3981999507e-3f;
  value = value * rest + 8.3334519073e-3f;
  value = value * rest + 4.1665795894e-2f;
  value = value * rest + 1.6666665459e-1f;
  value = value * rest + 5.0000001201e-1f;
  value = value * (rest * rest) + rest + 1.0f;
  IntVec bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits - 0x4B400000 + 127) << 23;  // the integer sits in the low bits of `shifted`
  Vec power;
  std::memcpy(&power, &bits, sizeof power);
  value = value * power;
  return is_low ? Vec{} : value;
}
