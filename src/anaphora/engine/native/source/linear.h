// y = x W^T for a few rows of x, straight from the weights as they are kept.
//
//     x  [num_rows, depth]      a few rows, stay in the cache
//     W  [num_outputs, depth]   streams through once: every group of kOutputs rows of W meets all rows of x
//
// The rows of a group lie far apart, so that memory is read in kOutputs streams at once: more requests for memory are
// under way than one stream would have.
//
// Dot products along the shared last dimension; 3 x 4 accumulators fill the registers of AVX2.
#pragma once

#include "formats.h"
#include "vectors.h"

constexpr int kOutputs = 4;  // rows of W that are taken together
constexpr int kRows = 3;     // rows of x that are taken together

template <int R>
static inline void dot_block(const float* x, int64_t x_stride, const float* w, int64_t w_stride, int64_t depth,
                             float (*out)[kOutputs]) {
  Vec sums[R][kOutputs] = {};
  int64_t i = 0;
  for (; i + kWidth <= depth; i += kWidth) {
    Vec inputs[R];  // with one weight at a time: 16 registers in all
    for (int r = 0; r < R; ++r) inputs[r] = hold(x + r * x_stride + i);
    for (int o = 0; o < kOutputs; ++o) {
      const Vec weight = hold(w + o * w_stride + i);
      for (int r = 0; r < R; ++r) sums[r][o] += inputs[r] * weight;
    }
  }
  for (int r = 0; r < R; ++r) sum4(sums[r], out[r]);
  for (; i < depth; ++i) {
    for (int r = 0; r < R; ++r) {
      for (int o = 0; o < kOutputs; ++o) out[r][o] += x[r * x_stride + i] * w[o * w_stride + i];
    }
  }
}

static inline float dot_one(const float* x, const float* w, int64_t depth) {
  Vec sums = {};
  int64_t i = 0;
  for (; i + kWidth <= depth; i += kWidth) sums += load(x + i) * load(w + i);
  float total = sum(sums);
  for (; i < depth; ++i) total += x[i] * w[i];
  return total;
}

// Meet all rows of x with kOutputs rows of W, which lie w_stride apart.
template <typename Put>
static inline void multiply_group(const float* x, int64_t x_stride, int num_rows, const float* w, int64_t w_stride,
                                  int64_t depth, const Put& put) {
  for (int r = 0; r < num_rows;) {
    const int left = num_rows - r;
    const int taken = left == 4 ? 2 : left < kRows ? left : kRows;
    float out[kRows][kOutputs];
    const float* rows = x + r * x_stride;
    if (taken == 3) {
      dot_block<3>(rows, x_stride, w, w_stride, depth, out);
    } else if (taken == 2) {
      dot_block<2>(rows, x_stride, w, w_stride, depth, out);
    } else {
      dot_block<1>(rows, x_stride, w, w_stride, depth, out);
    }
    for (int i = 0; i < taken; ++i) {
      for (int j = 0; j < kOutputs; ++j) put(r + i, j, out[i][j]);
    }
    r += taken;
  }
}

// One row of x and four of W in bfloat16, w_stride apart.
static inline void dot_bfloat16(const float* x, const uint16_t* w, int64_t w_stride, int64_t depth, float* out) {
  Vec sums[kOutputs] = {};
  int64_t i = 0;
  for (; i + kWidth <= depth; i += kWidth) {
    const Vec input = hold(x + i);
    for (int o = 0; o < kOutputs; ++o) sums[o] += input * from_bfloat16(w + o * w_stride + i);
  }
  sum4(sums, out);
  for (; i < depth; ++i) {
    for (int o = 0; o < kOutputs; ++o) out[o] += x[i] * from_bfloat16(w[o * w_stride + i]);
  }
}

// One row of x and one of W in groups: the scale is applied to a group's sum, not to its values.
static inline float dot_int8(const float* x, const int8_t* w, const float* scales, int64_t depth) {
  Vec total = {};
  for (int64_t group = 0; group < depth / kGroup; ++group) {
    Vec sums = {};
    for (int i = 0; i < kGroup; i += kWidth) {
      sums += load(x + group * kGroup + i) * to_float(widen(w + group * kGroup + i));
    }
    total += sums * all(scales[group]);
  }
  return sum(total);
}

// x_sums: the sum of each group of x, for the part of the values that is the group's least one.
static inline float dot_int4(const float* x, const float* x_sums, const uint8_t* w, const float* scales,
                             int64_t depth) {
  Vec total = {};
  float least = 0;
  for (int64_t group = 0; group < depth / kGroup; ++group) {
    const float* values = x + group * kGroup;
    Vec sums = {};
    for (int i = 0; i < kGroup / 2; i += kWidth) {
      const IntVec both = widen(w + group * (kGroup / 2) + i);
      sums += load(values + i) * to_float(both & 15);
      sums += load(values + kGroup / 2 + i) * to_float(both >> 4);
    }
    total += sums * all(scales[2 * group]);
    least += x_sums[group] * scales[2 * group + 1];
  }
  return sum(total) + least;
}

// Multiply one row of x with rows of W that are smaller than float32, without writing them out first.
template <typename Put>
static inline void multiply_one(const float* x, const Matrix& w, int64_t first, int64_t depth, int num_outputs,
                                const Put& put) {
  const int64_t num_groups = depth / kGroup;
  if (w.format == kBfloat16) {
    const int stream = num_outputs / kOutputs;
    const uint16_t* rows = static_cast<const uint16_t*>(w.data) + first * depth;
    for (int o = 0; o < stream; ++o) {
      float out[kOutputs];
      dot_bfloat16(x, rows + o * depth, stream * depth, depth, out);
      for (int j = 0; j < kOutputs; ++j) put(0, o + j * stream, out[j]);
    }
    for (int o = stream * kOutputs; o < num_outputs; ++o) {
      float out[kOutputs];
      dot_bfloat16(x, rows + o * depth, 0, depth, out);
      put(0, o, out[0]);
    }
    return;
  }
  if (w.format == kInt8) {
    for (int o = 0; o < num_outputs; ++o) {
      const int8_t* row = static_cast<const int8_t*>(w.data) + (first + o) * depth;
      put(0, o, dot_int8(x, row, w.scales + (first + o) * num_groups, depth));
    }
    return;
  }
  const Floats x_sums = new_floats(num_groups);
  for (int64_t group = 0; group < num_groups; ++group) {
    Vec sums = {};
    for (int i = 0; i < kGroup; i += kWidth) sums += load(x + group * kGroup + i);
    x_sums[group] = sum(sums);
  }
  for (int o = 0; o < num_outputs; ++o) {
    const uint8_t* row = static_cast<const uint8_t*>(w.data) + (first + o) * depth / 2;
    put(0, o, dot_int4(x, x_sums.get(), row, w.scales + 2 * (first + o) * num_groups, depth));
  }
}

// Multiply all rows of x with the rows [first, first + num_outputs) of W; hand results to put(row, output, value), with
// outputs counted from first.
template <typename Put>
static inline void multiply(const float* x, int64_t x_stride, int num_rows, const Matrix& w, int64_t first,
                            int64_t depth, int num_outputs, const Put& put) {
  if (num_rows == 1 && w.format != kFloat32) return multiply_one(x, w, first, depth, num_outputs, put);
  const int stream = num_outputs / kOutputs;  // rows of W of one stream
  const float* plain = w.format == kFloat32 ? static_cast<const float*>(w.data) + first * depth : nullptr;
  const Floats unpacked = new_floats(plain == nullptr ? size_t(kOutputs) * depth : 1);
  for (int o = 0; o < stream; ++o) {
    const auto put_group = [&](int r, int j, float value) { put(r, o + j * stream, value); };
    if (plain != nullptr) {
      multiply_group(x, x_stride, num_rows, plain + o * depth, stream * depth, depth, put_group);
      continue;
    }
    for (int j = 0; j < kOutputs; ++j) unpack_row(w, first + o + j * stream, depth, unpacked.get() + j * depth);
    multiply_group(x, x_stride, num_rows, unpacked.get(), depth, depth, put_group);
  }
  for (int o = stream * kOutputs; o < num_outputs; ++o) {
    const float* row = plain + o * depth;
    if (plain == nullptr) {
      unpack_row(w, first + o, depth, unpacked.get());
      row = unpacked.get();
    }
    for (int r = 0; r < num_rows; ++r) put(r, o, dot_one(x + r * x_stride, row, depth));
  }
}
