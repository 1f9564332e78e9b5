// What the caller describes: a decoder's weights, the pool, and one step over it. Plain C layouts, float32.
// `library.py` mirrors these structures field by field.
#pragma once

#include <cstdint>

extern "C" {

// A matrix [num_outputs, depth] in one of the formats of formats.h. In panels, rows are added up to a multiple of 16.
struct Matrix {
  const void* data;
  const float* scales;  // of groups: [num_outputs / 16, depth / 32, 1 or 2, 16], or null
  int64_t format;
};

struct Layer {
  const float* attention_norm;  // [hidden]
  Matrix qkv;                   // [(num_heads + 2 num_kv_heads) head_dim, hidden]
  const float* qkv_bias;        // as many, or null
  const float* query_norm;      // [head_dim], or null
  const float* key_norm;        // [head_dim], or null
  Matrix output;                // [hidden, num_heads head_dim]
  const float* output_bias;     // [hidden], or null
  const float* feed_norm;       // [hidden]
  Matrix gate, up;              // [inner, hidden]
  const float* gate_up_bias;    // [2 inner], or null
  Matrix down;                  // [hidden, inner]
  const float* down_bias;       // [hidden], or null
  float* keys;                  // pool: [num_kv_heads, num_slots, head_dim]
  float* values;                // the same
};

struct Model {
  int64_t num_slots;
  int32_t num_layers, hidden, num_heads, num_kv_heads, head_dim, inner, vocab_size, num_rotated;
  float epsilon, scale;
  const float* final_norm;    // [hidden]
  Matrix head;                // [vocab_size, hidden]
  const float* head_bias;     // [vocab_size], or null
  const Layer* layers;        // [num_layers]
};

// Some rows read the slots [start, start + length). Row i of the list sees the first i + 1 - causal_from of them, or
// all of them where causal_from is kAllVisible.
struct Run {
  int64_t start;
  int32_t length, first_row, num_rows, causal_from;  // rows: Step.run_rows[first_row ...]
};

constexpr int32_t kAllVisible = -2147483647 - 1;

struct Step {
  int32_t num_rows, num_runs, num_logits, num_threads;
  float* hidden;             // [num_rows, hidden]: embeddings in, last layer's output out
  const float* cosines;      // [num_rows, num_rotated]
  const float* sines;        // the same
  const int64_t* slots;      // [num_rows]: where each row's key and value go
  const Run* runs;           // [num_runs]
  const int32_t* run_rows;   // row numbers, run after run
  const int32_t* logit_rows; // [num_logits]
  float* logits;             // [num_logits, vocab_size]
};
}
