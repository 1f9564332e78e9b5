// One step of a pre-norm decoder with rotary positions and a gated feed-forward (Llama, Mistral, Qwen) in one call.
//
//     hidden -> for each layer: norm, qkv, rotate, keys and values into the pool, attention over runs, output, norm,
//     gate and up, down -> norm and head for the rows whose scores are asked for
//
// Made for few rows, where a step is bound by reading the weights and the cache once, and calls between are what costs.

#include <omp.h>

#include <optional>
#include <vector>

#include "attention.h"
#include "decoder.h"
#include "linear.h"
#include "rows.h"
#include "team.h"

namespace {

constexpr float kLogE = 1.44269504088896341f;  // log2(e): scores are exponents of 2

constexpr int kItemsPerThread = 8;   // of a phase, so that a thread which is held up leaves its share to others
constexpr int kMinRunOfKeys = 256;   // keys of one item of attention

int outputs_per_item(int num_outputs, int num_threads) {
  const int share = num_outputs / (num_threads * kItemsPerThread);
  return std::max(kPanel, share / kPanel * kPanel);
}

// to = values + bias; without a bias, values.
void add_bias(const float* values, const float* bias, int count, float* to) {
  for (int i = 0; i < count; ++i) to[i] = bias == nullptr ? values[i] : values[i] + bias[i];
}

int num_items_of(int total, int per_item) { return (total + per_item - 1) / per_item; }

// Queries, keys and values of some rows, before they are normed and rotated, and where they go.
struct Fresh {
  const float* qkv;  // [num_rows, (num_heads + 2 num_kv_heads) head_dim]
  const float *cosines, *sines;
  const int64_t* slots;
  float scale;  // of queries
  float* queries;
  int64_t query_head_stride, query_row_stride;
};

// Norm and rotate the heads of one row; keys and values go to their slot of the pool.
void place_row(const Model& model, const Layer& layer, const Fresh& fresh, int row) {
  const int head_dim = model.head_dim, num_parts = model.num_heads + 2 * model.num_kv_heads;
  const float* cosines = fresh.cosines + size_t(row) * model.num_rotated;
  const float* sines = fresh.sines + size_t(row) * model.num_rotated;
  for (int part = 0; part < num_parts; ++part) {
    const float* from = fresh.qkv + (size_t(row) * num_parts + part) * head_dim;
    const int kv_head = part - model.num_heads, value_head = kv_head - model.num_kv_heads;
    if (value_head >= 0) {
      std::memcpy(layer.values + (value_head * model.num_slots + fresh.slots[row]) * head_dim, from,
                  sizeof(float) * head_dim);
      continue;
    }
    const float* norm = kv_head < 0 ? layer.query_norm : layer.key_norm;
    float normed[kMaxHeadDim];
    if (norm != nullptr) {
      norm_row(from, norm, head_dim, model.epsilon, normed);
      from = normed;
    }
    if (kv_head < 0) {
      float* to = fresh.queries + part * fresh.query_head_stride + row * fresh.query_row_stride;
      rotate_head(from, cosines, sines, model.num_rotated, head_dim, fresh.scale, to);
    } else {
      float* to = layer.keys + (kv_head * model.num_slots + fresh.slots[row]) * head_dim;
      rotate_head(from, cosines, sines, model.num_rotated, head_dim, 1.0f, to);
    }
  }
}

// One item of attention: a key head's share of some keys of a run.
struct Read {
  int run, start, stop;  // keys [start, stop) of the run
  int first_partial;     // of the run's first row; one partial answer for each of its rows
};

class StepRunner {
 public:
  StepRunner(const Model& model, const Step& step)
      : model_(model),
        step_(step),
        qkv_width_((model.num_heads + 2 * model.num_kv_heads) * model.head_dim),
        attended_width_(model.num_heads * model.head_dim),
        normed_(new_floats(size_t(step.num_rows) * model.hidden)),
        qkv_(new_floats(size_t(step.num_rows) * qkv_width_)),
        queries_(new_floats(size_t(step.num_rows) * attended_width_)),
        attended_(new_floats(size_t(step.num_rows) * attended_width_)),
        gate_(new_floats(size_t(step.num_rows) * model.inner)),
        up_(new_floats(size_t(step.num_rows) * model.inner)) {
    cut_runs();
  }

  void work(Team& team) {
    for (int i = 0; i < model_.num_layers; ++i) run_layer(team, model_.layers[i]);
    score(team);
  }

 private:
  // Cut the runs into items, and note which partial answers belong to which row.
  void cut_runs() {
    int64_t total = 0;
    for (int i = 0; i < step_.num_runs; ++i) total += step_.runs[i].length;
    const int64_t share = total * model_.num_kv_heads / (step_.num_threads * kItemsPerThread);
    const int per_item = int(std::max<int64_t>(kMinRunOfKeys, (share + kTile - 1) / kTile * kTile));
    partials_of_.resize(step_.num_rows);
    for (int i = 0; i < step_.num_runs; ++i) {
      const Run& run = step_.runs[i];
      for (int start = 0; start < run.length; start += per_item) {
        reads_.push_back({i, start, std::min(start + per_item, run.length), num_partials_});
        for (int r = 0; r < run.num_rows; ++r) {
          partials_of_[step_.run_rows[run.first_row + r]].push_back(num_partials_++);
        }
      }
    }
    const size_t num_answers = size_t(num_partials_) * model_.num_heads;
    partial_out_ = new_floats(num_answers * model_.head_dim);
    partial_peak_ = new_floats(num_answers);
    partial_total_ = new_floats(num_answers);
  }

  auto add_to_hidden() {
    return [this](int r, int o, const float* values, int count) {
      float* to = step_.hidden + size_t(r) * model_.hidden + o;
      for (int i = 0; i < count; ++i) to[i] += values[i];
    };
  }

  void run_layer(Team& team, const Layer& layer) {
    norm_all(team, layer.attention_norm);
    linear(team, normed_.get(), model_.hidden, layer.qkv, layer.qkv_bias, qkv_width_,
           [&](int r, int o, const float* values, int count) {
             std::memcpy(qkv_.get() + size_t(r) * qkv_width_ + o, values, sizeof(float) * count);
           });
    team.phase(step_.num_rows, [&](int row) {
      place_row(model_, layer, {qkv_.get(), step_.cosines, step_.sines, step_.slots, model_.scale * kLogE, queries_.get(),
                                model_.head_dim, attended_width_}, row);
    });
    team.phase(int(reads_.size()) * model_.num_kv_heads,
               [&](int item) { attend(layer, reads_[item / model_.num_kv_heads], item % model_.num_kv_heads); });
    team.phase(step_.num_rows, [&](int row) {
      for (int head = 0; head < model_.num_heads; ++head) merge(row, head);
    });
    linear(team, attended_.get(), attended_width_, layer.output, layer.output_bias, model_.hidden, add_to_hidden());
    norm_all(team, layer.feed_norm);
    feed_forward(team, layer);
    linear(team, gate_.get(), model_.inner, layer.down, layer.down_bias, model_.hidden, add_to_hidden());
  }

  void norm_all(Team& team, const float* weight) {
    team.phase(step_.num_rows, [&](int row) {
      const size_t start = size_t(row) * model_.hidden;
      norm_row(step_.hidden + start, weight, model_.hidden, model_.epsilon, normed_.get() + start);
    });
  }

  template <typename Put>
  void linear(Team& team, const float* x, int depth, const Matrix& w, const float* bias, int num_outputs,
              const Put& put) {
    const int per_item = outputs_per_item(num_outputs, step_.num_threads);
    team.phase(num_items_of(num_outputs, per_item), [&](int item) {
      const int first = item * per_item, taken = std::min(per_item, num_outputs - first);
      multiply(x, depth, step_.num_rows, w, first, depth, taken, [&](int r, int o, const float* values, int count) {
        float biased[kPanel];
        add_bias(values, bias == nullptr ? nullptr : bias + first + o, count, biased);
        put(r, first + o, biased, count);
      });
    });
  }

  void feed_forward(Team& team, const Layer& layer) {
    const int per_item = outputs_per_item(model_.inner, step_.num_threads);
    team.phase(num_items_of(model_.inner, per_item), [&](int item) {
      const int first = item * per_item, taken = std::min(per_item, model_.inner - first);
      for (int half = 0; half < 2; ++half) {
        const float* bias = layer.gate_up_bias == nullptr ? nullptr : layer.gate_up_bias + half * model_.inner + first;
        float* to = (half == 0 ? gate_ : up_).get() + first;
        const auto put = [&](int r, int o, const float* values, int count) {
          add_bias(values, bias == nullptr ? nullptr : bias + o, count, to + size_t(r) * model_.inner + o);
        };
        multiply(normed_.get(), model_.hidden, step_.num_rows, half == 0 ? layer.gate : layer.up, first, model_.hidden,
                 taken, put);
      }
      for (int row = 0; row < step_.num_rows; ++row) {
        float* gate = gate_.get() + size_t(row) * model_.inner + first;
        gate_row(gate, up_.get() + size_t(row) * model_.inner + first, taken, gate);
      }
    });
  }

  // Attend all rows of a run, with all query heads of one key head, to the keys of one item.
  void attend(const Layer& layer, const Read& read, int kv_head) {
    const Run& run = step_.runs[read.run];
    const int head_dim = model_.head_dim, num_groups = model_.num_heads / model_.num_kv_heads;
    const int num_queries = run.num_rows * num_groups;
    const size_t slot = kv_head * model_.num_slots + run.start;
    const auto answer = [&](int query) {  // of this key head's group
      return size_t(read.first_partial + query / num_groups) * model_.num_heads + kv_head * num_groups +
             query % num_groups;
    };
    std::vector<Running> running(num_queries);
    for (int q = 0; q < num_queries; ++q) {
      running[q].query = queries_.get() + size_t(step_.run_rows[run.first_row + q / num_groups]) * attended_width_ +
                         size_t(kv_head * num_groups + q % num_groups) * head_dim;
      running[q].out = partial_out_.get() + answer(q) * head_dim;
      std::memset(running[q].out, 0, sizeof(float) * head_dim);
    }
    attend_keys(running.data(), num_queries, layer.keys + (slot + read.start) * head_dim,
                layer.values + (slot + read.start) * head_dim, head_dim, read.stop - read.start, [&](int q) {
                  return run.causal_from == kAllVisible ? run.length : q / num_groups + 1 - run.causal_from - read.start;
                });
    for (int q = 0; q < num_queries; ++q) {
      partial_peak_[answer(q)] = running[q].peak;
      partial_total_[answer(q)] = sum(running[q].totals);
    }
  }

  void merge(int row, int head) {
    const int head_dim = model_.head_dim;
    const std::vector<int>& partials = partials_of_[row];
    float peak = -std::numeric_limits<float>::infinity(), total = 0;
    const auto answer = [&](int partial) { return size_t(partial) * model_.num_heads + head; };
    for (int partial : partials) peak = std::max(peak, partial_peak_[answer(partial)]);
    float* to = attended_.get() + size_t(row) * attended_width_ + size_t(head) * head_dim;
    std::memset(to, 0, sizeof(float) * head_dim);
    for (int partial : partials) {
      const float factor = std::exp2(partial_peak_[answer(partial)] - peak);
      if (factor == 0) continue;  // also a row that sees nothing of this run
      total += partial_total_[answer(partial)] * factor;
      const float* from = partial_out_.get() + answer(partial) * head_dim;
      for (int d = 0; d < head_dim; d += kWidth) store(to + d, load(to + d) + load(from + d) * factor);
    }
    for (int d = 0; d < head_dim; d += kWidth) store(to + d, load(to + d) / total);
  }

  void score(Team& team) {
    const int num_logits = step_.num_logits;
    team.phase(num_logits, [&](int i) {
      norm_row(step_.hidden + size_t(step_.logit_rows[i]) * model_.hidden, model_.final_norm, model_.hidden,
               model_.epsilon, normed_.get() + size_t(i) * model_.hidden);
    });
    const int per_item = outputs_per_item(model_.vocab_size, step_.num_threads);
    team.phase(num_items_of(model_.vocab_size, per_item), [&](int item) {
      const int first = item * per_item, taken = std::min(per_item, model_.vocab_size - first);
      const float* bias = model_.head_bias == nullptr ? nullptr : model_.head_bias + first;
      const auto put = [&](int r, int o, const float* values, int count) {
        float* to = step_.logits + size_t(r) * model_.vocab_size + first + o;
        add_bias(values, bias == nullptr ? nullptr : bias + o, count, to);
      };
      multiply(normed_.get(), model_.hidden, num_logits, model_.head, first, model_.hidden, taken, put);
    });
  }

  const Model& model_;
  const Step& step_;
  const int qkv_width_, attended_width_;
  Floats normed_, qkv_, queries_, attended_, gate_, up_;
  std::vector<Read> reads_;
  std::vector<std::vector<int>> partials_of_;
  int num_partials_ = 0;
  Floats partial_out_, partial_peak_, partial_total_;
};

}  // namespace

extern "C" {

// Sizes that the caller's own description of the structures has to agree with.
void anaphora_sizes(int64_t* sizes) {
  sizes[0] = sizeof(Layer);
  sizes[1] = sizeof(Model);
  sizes[2] = sizeof(Run);
  sizes[3] = sizeof(Step);
  sizes[4] = kWidth;
  sizes[5] = kMaxHeadDim;
}

// Run a step. The number of logit rows is at most the number of rows.
void anaphora_run_step(const Model* model, const Step* step) {
  StepRunner runner(*model, *step);
  std::optional<Team> team;
#pragma omp parallel num_threads(step->num_threads)
  {
#pragma omp single
    team.emplace(omp_get_num_threads());  // may be fewer than asked for
    runner.work(*team);
  }
}

// y = x W^T + bias for a few rows: x [num_rows, depth], W [num_outputs, depth], y [num_rows, num_outputs].
void anaphora_linear(const float* x, int64_t num_rows, const Matrix* w, const float* bias, int64_t depth,
                     int64_t num_outputs, float* y, int32_t num_threads) {
  const int per_item = outputs_per_item(int(num_outputs), num_threads);
#pragma omp parallel for num_threads(num_threads) schedule(dynamic)
  for (int item = 0; item < num_items_of(int(num_outputs), per_item); ++item) {
    const int first = item * per_item, taken = std::min(per_item, int(num_outputs) - first);
    multiply(x, depth, int(num_rows), *w, first, depth, taken, [&](int r, int o, const float* values, int count) {
      add_bias(values, bias == nullptr ? nullptr : bias + first + o, count, y + size_t(r) * num_outputs + first + o);
    });
  }
}

// The small operations by themselves, for steps of many rows whose products a library computes.

// to[i] = norm of from[i], rows of `width`.
void anaphora_norm_rows(const float* from, const float* weight, int64_t num_rows, int64_t width, float epsilon,
                        float* to, int32_t num_threads) {
#pragma omp parallel for num_threads(num_threads)
  for (int64_t i = 0; i < num_rows; ++i) norm_row(from + i * width, weight, int(width), epsilon, to + i * width);
}

// to[i] = silu(gate) * up, from rows [gate, up] of 2 `width`.
void anaphora_gate_rows(const float* gate_up, int64_t num_rows, int64_t width, float* to, int32_t num_threads) {
#pragma omp parallel for num_threads(num_threads)
  for (int64_t i = 0; i < num_rows; ++i) {
    gate_row(gate_up + 2 * i * width, gate_up + (2 * i + 1) * width, int(width), to + i * width);
  }
}

// Norm and rotate: queries to [num_heads, num_rows, head_dim], unscaled; keys and values to the pool.
void anaphora_place_rows(const Model* model, int32_t layer, const float* qkv, const Step* step, float* queries) {
  const int64_t head_dim = model->head_dim;
  const int64_t head_stride = head_dim * step->num_rows;
  const Fresh fresh = {qkv, step->cosines, step->sines, step->slots, 1.0f, queries, head_stride, head_dim};
#pragma omp parallel for num_threads(step->num_threads)
  for (int row = 0; row < step->num_rows; ++row) place_row(*model, model->layers[layer], fresh, row);
}
}
