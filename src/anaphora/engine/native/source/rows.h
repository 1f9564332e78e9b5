// Small operations on single rows: norm, rotation, gated activation.
#pragma once

#include "vectors.h"

// to = from / sqrt(mean(from^2) + epsilon) * weight. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
static inline void norm_row(const float* from, const float* weight, int width, float epsilon, float* to) {
  Vec squares = {};
  int i = 0;
  for (; i + kWidth <= width; i += kWidth) squares += load(from + i) * load(from + i);
  float total = sum(squares);
  for (; i < width; ++i) total += from[i] * from[i];
  const float factor = 1.0f / std::sqrt(total / static_cast<float>(width) + epsilon);
  for (i = 0; i + kWidth <= width; i += kWidth) store(to + i, load(from + i) * factor * load(weight + i));
  for (; i < width; ++i) to[i] = from[i] * factor * weight[i];
}

// Rotate the first num_rotated dimensions of a head, halves against each other; copy the rest; multiply all by scale.
// Source: Su et al. 2021, arXiv:2104.09864, in the layout of GPT-NeoX.
static inline void rotate_head(const float* from, const float* cosines, const float* sines, int num_rotated,
                               int head_dim, float scale, float* to) {
  const int half = num_rotated / 2;
  for (int i = 0; i < half; ++i) {
    const float low = from[i], high = from[i + half];
    to[i] = (low * cosines[i] - high * sines[i]) * scale;
    to[i + half] = (high * cosines[i + half] + low * sines[i + half]) * scale;
  }
  for (int i = num_rotated; i < head_dim; ++i) to[i] = from[i] * scale;
}

// to = gate / (1 + e^-gate) * up. `to` may be `gate`. Source: Shazeer 2020, arXiv:2002.05202 (SwiGLU).
static inline void gate_row(const float* gate, const float* up, int width, float* to) {
  int i = 0;
  for (; i + kWidth <= width; i += kWidth) {
    const Vec value = load(gate + i), most = all(88.0f);  // e^88 is the last one that a float holds
    const IntVec is_nothing = -value > most;
    const Vec raised = is_nothing ? most : -value;
    const Vec gated = is_nothing ? value * 0.0f : value / (exponential(raised) + 1.0f);
    store(to + i, gated * load(up + i));
  }
  for (; i < width; ++i) to[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}
