// y = x W^T, straight from the weights as they are kept.
//
//     x  [num_rows, depth]      stay in the cache
//     W  [num_outputs, depth]   streams through once
//
// float32, row by row: every group of kOutputs rows of W meets all rows of x, in dot products along the depth. The rows
// of a group lie far apart, so that memory is read in kOutputs streams at once: more requests for memory are under way
// than one stream would have. 3 x 4 accumulators fill the registers of AVX2.
//
// Smaller formats, in panels: a depth's weights become floats in registers and meet up to kPanelRows rows of x; scales
// are applied to a group's sum, not to its values. For more rows a part of the panel is written out as floats, which
// stay in the first-level cache while all rows meet them. 6 x 2 accumulators fill the registers of AVX2.
#pragma once

#include <algorithm>
#include <type_traits>

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
      for (int j = 0; j < kOutputs; ++j) put(r + i, j, out[i] + j);
    }
    r += taken;
  }
}

// Multiply all rows of x with rows of W that lie one after another. See `multiply`.
template <typename Put>
static inline void multiply_rows(const float* x, int64_t x_stride, int num_rows, const float* w, int64_t depth,
                                 int num_outputs, const Put& put) {
  const int stream = num_outputs / kOutputs;  // rows of W of one stream
  for (int o = 0; o < stream; ++o) {
    multiply_group(x, x_stride, num_rows, w + o * depth, stream * depth, depth,
                   [&](int r, int j, const float* value) { put(r, o + j * stream, value, 1); });
  }
  for (int o = stream * kOutputs; o < num_outputs; ++o) {
    for (int r = 0; r < num_rows; ++r) {
      const float value = dot_one(x + r * x_stride, w + o * depth, depth);
      put(r, o, &value, 1);
    }
  }
}

constexpr int kPanelRows = 6;     // rows of x that meet a panel together
constexpr int kDirectRows = 12;   // up to here weights are made floats in registers, for each kPanelRows rows anew
constexpr int kPanelDepth = 256;  // of a panel written out as floats: 16 KB

// Add R rows of x times `length` depths of a panel to sums. S sets of sums, one depth after another: additions to one
// sum wait for each other.
template <Format F, int R, int S>
static inline void add_depths(const float* x, int64_t x_stride, const uint8_t* w, int length, Vec (*sums)[kVectors]) {
  Vec parts[S][R][kVectors] = {};  // unrolled by force, so that they become registers
  for (int d = 0; d < length; d += S) {
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) {
      Vec weights[kVectors];
      Panel<F>::take(w + (d + s) * Panel<F>::kBytes, weights);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const Vec input = all(x[r * x_stride + d + s]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) parts[s][r][v] += input * weights[v];
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = parts[0][r][v];
#pragma GCC unroll 2
      for (int s = 1; s < S; ++s) sums[r][v] += parts[s][r][v];
    }
  }
}

// R rows of x with one panel. group_sums: of each row of x, the sum of each group, for the part of the values that is the
// group's least one; [R, depth / kGroup], or null. out: [R, kPanel].
template <Format F, int R>
static void meet_panel(const float* x, int64_t x_stride, const float* group_sums, const uint8_t* w, const float* scales,
                       int64_t depth, float* out) {
  constexpr int kSets = R <= 2 ? 2 : 1;
  Vec totals[R][kVectors] = {};
  const int64_t num_groups = depth / kGroup;
  for (int64_t group = 0; group < num_groups; ++group) {
    Vec sums[R][kVectors];
    add_depths<F, R, kSets>(x + group * kGroup, x_stride, w + group * kGroup * Panel<F>::kBytes, kGroup, sums);
    const float* scale = scales + group * Panel<F>::kScales * kPanel;
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < R; ++r) {
        totals[r][v] += Panel<F>::kScales == 0 ? sums[r][v] : sums[r][v] * load(scale + v * kWidth);
        if (Panel<F>::kScales == 2) {
          totals[r][v] += all(group_sums[r * num_groups + group]) * load(scale + kPanel + v * kWidth);
        }
      }
    }
  }
  if (const int64_t done = num_groups * kGroup; done < depth) {  // formats without groups only
    Vec sums[R][kVectors];
    add_depths<F, R, 1>(x + done, x_stride, w + done * Panel<F>::kBytes, int(depth - done), sums);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < kVectors; ++v) totals[r][v] += sums[r][v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) store(out + r * kPanel + v * kWidth, totals[r][v]);
  }
}

// to[d] = the panel's weights at depth d, for `length` depths from a group's start.
template <Format F>
static inline void write_panel(const uint8_t* w, const float* scales, int length, float (*to)[kPanel]) {
  for (int start = 0; start < length; start += kGroup) {
    const float* scale = scales + start / kGroup * Panel<F>::kScales * kPanel;
    for (int d = start; d < std::min(length, start + kGroup); ++d) {
      Vec weights[kVectors];
      Panel<F>::take(w + d * Panel<F>::kBytes, weights);
      for (int v = 0; v < kVectors; ++v) {
        Vec value = weights[v];
        if (Panel<F>::kScales >= 1) value *= load(scale + v * kWidth);
        if (Panel<F>::kScales == 2) value += load(scale + kPanel + v * kWidth);
        store(to[d] + v * kWidth, value);
      }
    }
  }
}

// Add R rows of x times a written panel to out [R, kPanel].
template <int R>
static void add_written(const float* x, int64_t x_stride, const float (*w)[kPanel], int length, float* out) {
  Vec sums[R][kVectors];
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = load(out + r * kPanel + v * kWidth);
  }
  for (int d = 0; d < length; ++d) {
    Vec weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = hold(w[d] + v * kWidth);
    for (int r = 0; r < R; ++r) {
      const Vec input = all(x[r * x_stride + d]);
      for (int v = 0; v < kVectors; ++v) sums[r][v] += input * weights[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) store(out + r * kPanel + v * kWidth, sums[r][v]);
  }
}

// Call work<R>(first row) for blocks of at most kPanelRows rows, of nearly equal size.
template <typename Work>
static inline void in_blocks(int num_rows, const Work& work) {
  const int num_blocks = (num_rows + kPanelRows - 1) / kPanelRows;
  for (int block = 0, first = 0; block < num_blocks; ++block) {
    const int taken = (num_rows - first) / (num_blocks - block);
    switch (taken) {
      case 1: work(first, std::integral_constant<int, 1>()); break;
      case 2: work(first, std::integral_constant<int, 2>()); break;
      case 3: work(first, std::integral_constant<int, 3>()); break;
      case 4: work(first, std::integral_constant<int, 4>()); break;
      case 5: work(first, std::integral_constant<int, 5>()); break;
      default: work(first, std::integral_constant<int, 6>());
    }
    first += taken;
  }
}

// Multiply all rows of x with the panels from `first` on, a multiple of kPanel. See `multiply`.
template <Format F, typename Put>
static inline void multiply_panels(const float* x, int64_t x_stride, int num_rows, const Matrix& w, int64_t first,
                                   int64_t depth, int num_outputs, const Put& put) {
  const int64_t num_groups = depth / kGroup;
  const bool is_direct = num_rows <= kDirectRows;
  const Floats out = new_floats(size_t(num_rows) * kPanel);
  Floats group_sums;
  if (is_direct && Panel<F>::kScales == 2) {
    group_sums = new_floats(num_rows * num_groups);
    for (int r = 0; r < num_rows; ++r) {
      for (int64_t group = 0; group < num_groups; ++group) {
        Vec sums = {};
        for (int i = 0; i < kGroup; i += kWidth) sums += load(x + r * x_stride + group * kGroup + i);
        group_sums[r * num_groups + group] = sum(sums);
      }
    }
  }
  for (int o = 0; o < num_outputs; o += kPanel) {
    const int64_t panel = (first + o) / kPanel;
    const uint8_t* weights = static_cast<const uint8_t*>(w.data) + panel * depth * Panel<F>::kBytes;
    const float* scales = w.scales + panel * num_groups * Panel<F>::kScales * kPanel;
    if (is_direct) {
      in_blocks(num_rows, [&](int r, auto taken) {
        const float* sums = group_sums == nullptr ? nullptr : group_sums.get() + r * num_groups;
        meet_panel<F, taken>(x + r * x_stride, x_stride, sums, weights, scales, depth, out.get() + r * kPanel);
      });
    } else {
      std::memset(out.get(), 0, sizeof(float) * num_rows * kPanel);
      alignas(64) float written[kPanelDepth][kPanel];
      for (int64_t start = 0; start < depth; start += kPanelDepth) {
        const int length = int(std::min<int64_t>(kPanelDepth, depth - start));
        write_panel<F>(weights + start * Panel<F>::kBytes, scales + start / kGroup * Panel<F>::kScales * kPanel, length,
                       written);
        in_blocks(num_rows, [&](int r, auto taken) {
          add_written<taken>(x + r * x_stride + start, x_stride, written, length, out.get() + r * kPanel);
        });
      }
    }
    const int count = std::min(kPanel, num_outputs - o);
    for (int r = 0; r < num_rows; ++r) put(r, o, out.get() + r * kPanel, count);
  }
}

// Multiply all rows of x with the rows [first, first + num_outputs) of W; `first` is a multiple of kPanel. Hand results to
// put(row, output, values, how many), with outputs counted from first.
template <typename Put>
static inline void multiply(const float* x, int64_t x_stride, int num_rows, const Matrix& w, int64_t first,
                            int64_t depth, int num_outputs, const Put& put) {
  switch (w.format) {
    case kBfloat16:
      return multiply_panels<kBfloat16>(x, x_stride, num_rows, w, first, depth, num_outputs, put);
    case kInt8:
      return multiply_panels<kInt8>(x, x_stride, num_rows, w, first, depth, num_outputs, put);
    case kInt4:
      return multiply_panels<kInt4>(x, x_stride, num_rows, w, first, depth, num_outputs, put);
    default:
      return multiply_rows(x, x_stride, num_rows, static_cast<const float*>(w.data) + first * depth, depth,
                           num_outputs, put);
  }
}
