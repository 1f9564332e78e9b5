// y = x W^T for a few rows of x, straight from the weights as they are kept.
//
//     x  [num_rows, depth]      a few rows, stay in the cache
//     W  [num_outputs, depth]   streams through once: every group of kOutputs rows of W meets all rows of x
//
// The rows of a group lie far apart, so that memory is read in kOutputs streams at once: measured on one machine, 46
// GB/s instead of 30 in one stream.
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

// Multiply all rows of x with the rows [first, first + num_outputs) of W; hand results to put(row, output, value), with
// outputs counted from first.
template <typename Put>
static inline void multiply(const float* x, int64_t x_stride, int num_rows, const Matrix& w, int64_t first,
                            int64_t depth, int num_outputs, const Put& put) {
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
