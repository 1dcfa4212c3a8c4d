// Plain SGD on the mean cross-entropy of fully connected networks: all steps of some clients in one call.
//
// A client's weights stay in the processor's cache for all its steps. All matrices are copied into rows that are
// padded with zeros to whole vectors and whole blocks, so that no product has an edge. Clients do not depend on one
// another, nor does a client's result depend on which thread computes it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)  // registers hold a block of ROWS x COLUMNS sums
constexpr int64_t BYTES = 64, ROWS = 5, COLUMNS = 5;
#elif defined(__AVX__)
constexpr int64_t BYTES = 32, ROWS = 3, COLUMNS = 4;
#else
constexpr int64_t BYTES = 16, ROWS = 3, COLUMNS = 4;
#endif
constexpr int64_t VECTORS = 4;  // of a row that are updated at once
constexpr int64_t AHEAD = 4;    // samples whose bytes are fetched before they are needed
constexpr int64_t LINE = 64;    // bytes of a cache line

int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Zeros on a boundary that vectors can be loaded from.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t n) : data(static_cast<T*>(operator new(n * sizeof(T), std::align_val_t(LINE)))) {
    std::memset(data, 0, n * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept : data(other.data) { other.data = nullptr; }
  Buffer(const Buffer&) = delete;
  ~Buffer() { operator delete(data, std::align_val_t(LINE)); }
  operator T*() const { return data; }

 private:
  T* data;
};

// A parameter of all clients, as `CompiledDescent` in compiled.py passes it.
struct Leaf {
  void* values;
  int64_t stride;  // elements from one client to the next; 0: one for all
  int64_t moves;
  const void* offset;  // added in each step, in the shape of the values; null: nothing
  int64_t offset_stride;
};

struct Layer {
  int64_t in, out, relu;
  Leaf weight, bias;  // [out, in] and [out]; without a bias its values are null
};

struct Steps {
  int64_t count, clients, batch, threads;
  const int64_t* samples;  // [count, clients, batch] by strides; the last one is 1
  int64_t step_stride, client_stride;
  const void* x;       // [n, pixels, channels]
  int64_t bytes;       // 1: of uint8; 0: of T
  int64_t channels;
  const void *mean, *scale;  // [pixels, channels]
  const int64_t* y;    // [n]
  const void* share;   // [count, clients, batch]; null: 1 / batch
  const void* keep;    // [clients]: factor on the parameters in each step; null: 1
  void* losses;        // [count, clients, batch]
  double rate;
};

template <typename T>
struct Products {
  typedef T Vector __attribute__((vector_size(BYTES), may_alias));
  static constexpr int64_t LANES = BYTES / sizeof(T);

  static Vector& at(T* p) { return *reinterpret_cast<Vector*>(p); }
  static const Vector& at(const T* p) { return *reinterpret_cast<const Vector*>(p); }

  // Sum of a vector's elements, by halves as long as these are registers.
  template <int64_t N = BYTES, typename V>
  static T sum(const V& v) {
    if constexpr (N <= 16) {
      T elements[N / sizeof(T)], total = 0;
      std::memcpy(elements, &v, N);
      for (T element : elements) total += element;
      return total;
    } else {
      typedef T Half __attribute__((vector_size(N / 2), may_alias));
      Half halves[2];
      std::memcpy(halves, &v, N);
      Half added = halves[0] + halves[1];
      return sum<N / 2>(added);
    }
  }

  // z = h wᵀ for h [rows, in], w [outs, in]; rows, outs and in are whole blocks and vectors.
  static void scores(const T* h, const T* w, int64_t wide, T* z, int64_t z_wide, int64_t rows, int64_t outs, int64_t in) {
    for (int64_t o = 0; o < outs; o += COLUMNS)
      for (int64_t b = 0; b < rows; b += ROWS) {
        Vector block[ROWS][COLUMNS] = {};
        for (int64_t i = 0; i < in; i += LANES) {
          Vector x[ROWS];
          for (int64_t r = 0; r < ROWS; r++) x[r] = at(h + (b + r) * wide + i);
          for (int64_t c = 0; c < COLUMNS; c++) {
            Vector y = at(w + (o + c) * wide + i);
            for (int64_t r = 0; r < ROWS; r++) block[r][c] += x[r] * y;
          }
        }
        for (int64_t r = 0; r < ROWS; r++)
          for (int64_t c = 0; c < COLUMNS; c++) z[(b + r) * z_wide + o + c] = sum(block[r][c]);
      }
  }

  // to[r] += Σ_k a[k, r] from[k], for R rows of N vectors; element [k, r] of a is a[k * a_k + r * a_r].
  template <int R, int N>
  static void add_block(T* to, int64_t to_wide, const T* a, int64_t a_k, int64_t a_r, const T* from, int64_t from_wide, int64_t depth) {
    Vector block[R][N];
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) block[r][n] = at(to + r * to_wide + n * LANES);
    for (int64_t k = 0; k < depth; k++) {
      Vector x[N];
      for (int n = 0; n < N; n++) x[n] = at(from + k * from_wide + n * LANES);
      for (int r = 0; r < R; r++) {
        T factor = a[k * a_k + r * a_r];
        for (int n = 0; n < N; n++) block[r][n] += factor * x[n];
      }
    }
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) at(to + r * to_wide + n * LANES) = block[r][n];
  }

  // The same for all rows, a multiple of R, and `columns`, a multiple of LANES.
  template <int R>
  static void add(T* to, int64_t to_wide, const T* a, int64_t a_k, int64_t a_r, const T* from, int64_t from_wide, int64_t depth, int64_t rows, int64_t columns) {
    int64_t vectors = columns / LANES;
    for (int64_t v = 0; v < vectors; v += VECTORS)
      for (int64_t r = 0; r < rows; r += R) {
        T* t = to + r * to_wide + v * LANES;
        const T *f = a + r * a_r, *x = from + v * LANES;
        switch (std::min(VECTORS, vectors - v)) {
          case 1: add_block<R, 1>(t, to_wide, f, a_k, a_r, x, from_wide, depth); break;
          case 2: add_block<R, 2>(t, to_wide, f, a_k, a_r, x, from_wide, depth); break;
          case 3: add_block<R, 3>(t, to_wide, f, a_k, a_r, x, from_wide, depth); break;
          default: add_block<R, VECTORS>(t, to_wide, f, a_k, a_r, x, from_wide, depth);
        }
      }
  }
};

// One layer of the client at work: padded copies of its parameters, its inputs h and the gradient d of its outputs.
template <typename T>
struct Work {
  using P = Products<T>;
  const Layer& layer;
  int64_t wide, tall, d_wide;  // padded: a row of w and h, rows of w, a row of d
  Buffer<T> w, b, h, d;

  Work(const Layer& layer, bool first, int64_t rows)
      : layer(layer),
        wide(padded(first ? layer.in : padded(layer.in, COLUMNS), P::LANES)),
        tall(padded(layer.out, COLUMNS)),
        d_wide(padded(layer.out, COLUMNS * P::LANES)),
        w(tall * wide), b(d_wide), h(rows * wide), d(rows * d_wide) {}

  int64_t in() const { return padded(layer.in, P::LANES); }

  void load(int64_t client) {
    for (int64_t o = 0; o < layer.out; o++) {
      std::memcpy(w + o * wide, values(layer.weight, client) + o * layer.in, layer.in * sizeof(T));
      std::memset(w + o * wide + layer.in, 0, (wide - layer.in) * sizeof(T));
    }
    std::memset(w + layer.out * wide, 0, (tall - layer.out) * wide * sizeof(T));  // NaN after a client that diverged
    if (layer.bias.values) std::memcpy(b, values(layer.bias, client), layer.out * sizeof(T));
  }

  void store(int64_t client) const {
    if (layer.weight.moves)
      for (int64_t o = 0; o < layer.out; o++)
        std::memcpy(values(layer.weight, client) + o * layer.in, w + o * wide, layer.in * sizeof(T));
    if (layer.bias.moves) std::memcpy(values(layer.bias, client), b, layer.out * sizeof(T));
  }

  // w ← keep w + offset
  void apply_terms(int64_t client, T keep) {
    if (layer.weight.moves) terms(layer.weight, client, keep, w, wide, layer.out, layer.in);
    if (layer.bias.moves) terms(layer.bias, client, keep, b, 0, 1, layer.out);
  }

 private:
  static T* values(const Leaf& leaf, int64_t client) { return static_cast<T*>(leaf.values) + client * leaf.stride; }

  static void terms(const Leaf& leaf, int64_t client, T keep, T* to, int64_t to_wide, int64_t rows, int64_t columns) {
    const T* offset = static_cast<const T*>(leaf.offset);
    if (offset) offset += client * leaf.offset_stride;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < columns; i++)
        to[r * to_wide + i] = keep * to[r * to_wide + i] + (offset ? offset[r * columns + i] : T(0));
  }
};

template <typename T>
class Walk {
  using P = Products<T>;

 public:
  Walk(const Layer* layers, int64_t n, const Steps& steps)
      : steps(steps), rows(padded(steps.batch, ROWS)), z_wide(padded(layers[n - 1].out, COLUMNS)), z(rows * z_wide) {
    for (int64_t l = 0; l < n; l++) work.emplace_back(layers[l], l == 0, rows);
    while (first + 1 < n && !layers[first].weight.moves && !layers[first].bias.moves) first++;
  }

  void run(int64_t client) {
    for (auto& a : work) a.load(client);
    for (int64_t j = 0; j < steps.count; j++) {
      const int64_t* samples = steps.samples + j * steps.step_stride + client * steps.client_stride;
      if (steps.bytes) take(static_cast<const uint8_t*>(steps.x), samples);
      else take(static_cast<const T*>(steps.x), samples);
      forward();
      cross_entropy(samples, (j * steps.clients + client) * steps.batch);
      backward(client);
    }
    for (auto& a : work) a.store(client);
  }

 private:
  // Normalised inputs of the batch, channels first as the network's layers count them.
  template <typename Stored>
  void take(const Stored* x, const int64_t* samples) {
    Work<T>& a = work[0];
    const int64_t n = a.layer.in, channels = steps.channels, pixels = n / channels;
    const T *mean = static_cast<const T*>(steps.mean), *scale = static_cast<const T*>(steps.scale);
    for (int64_t b = 0; b < steps.batch; b++) {
      const char* next = reinterpret_cast<const char*>(x + samples[std::min(b + AHEAD, steps.batch - 1)] * n);
      for (int64_t at = 0; at < n * int64_t(sizeof(Stored)); at += LINE) __builtin_prefetch(next + at);
      const Stored* from = x + samples[b] * n;
      T* to = a.h + b * a.wide;
      if (channels == 1)
        for (int64_t i = 0; i < n; i++) to[i] = (T(from[i]) - mean[i]) * scale[i];
      else
        for (int64_t c = 0; c < channels; c++)
          for (int64_t p = 0, i = c; p < pixels; p++, i += channels) to[c * pixels + p] = (T(from[i]) - mean[i]) * scale[i];
    }
  }

  void forward() {
    for (size_t l = 0; l < work.size(); l++) {
      Work<T>& a = work[l];
      const bool last = l + 1 == work.size();
      T* to = last ? z : work[l + 1].h;
      const int64_t wide = last ? z_wide : work[l + 1].wide;
      P::scores(a.h, a.w, a.wide, to, wide, rows, a.tall, a.in());
      for (int64_t b = 0; b < steps.batch; b++)
        for (int64_t o = 0; o < a.layer.out; o++) {
          T value = to[b * wide + o] + a.b[o];
          to[b * wide + o] = a.layer.relu && value < 0 ? T(0) : value;
        }
    }
  }

  // Losses, and −η times the gradient of the scores.
  void cross_entropy(const int64_t* samples, int64_t at) {
    Work<T>& a = work.back();
    const int64_t classes = a.layer.out;
    const T* share = static_cast<const T*>(steps.share);
    for (int64_t b = 0; b < steps.batch; b++) {
      const T* scores = z + b * z_wide;
      T* d = a.d + b * a.d_wide;
      const int64_t y = steps.y[samples[b]];
      T largest = scores[0], total = 0;
      for (int64_t o = 1; o < classes; o++) largest = std::max(largest, scores[o]);
      for (int64_t o = 0; o < classes; o++) total += d[o] = std::exp(scores[o] - largest);
      const T step = T(-steps.rate) * (share ? share[at + b] : T(1) / T(steps.batch));
      for (int64_t o = 0; o < classes; o++) d[o] *= step / total;
      d[y] -= step;
      static_cast<T*>(steps.losses)[at + b] = std::log(total) + largest - scores[y];
    }
  }

  void backward(int64_t client) {
    const T* keep = static_cast<const T*>(steps.keep);
    for (int64_t l = int64_t(work.size()) - 1; l >= first; l--) {
      Work<T>& a = work[l];
      if (l > first) {  // before the weight moves
        Work<T>& under = work[l - 1];
        std::memset(under.d, 0, rows * under.d_wide * sizeof(T));
        P::template add<ROWS>(under.d, under.d_wide, a.d, 1, a.d_wide, a.w, a.wide, a.layer.out, rows, a.in());
        if (under.layer.relu)
          for (int64_t b = 0; b < steps.batch; b++)
            for (int64_t i = 0; i < a.layer.in; i++)
              if (a.h[b * a.wide + i] <= 0) under.d[b * under.d_wide + i] = 0;
      }
      if (keep) a.apply_terms(client, keep[client]);
      if (a.layer.weight.moves)
        P::template add<COLUMNS>(a.w, a.wide, a.d, a.d_wide, 1, a.h, a.wide, steps.batch, a.tall, a.in());
      if (a.layer.bias.moves)
        for (int64_t b = 0; b < steps.batch; b++)
          for (int64_t o = 0; o < a.layer.out; o++) a.b[o] += a.d[b * a.d_wide + o];
    }
  }

  const Steps& steps;
  int64_t rows, z_wide, first = 0;
  Buffer<T> z;
  std::vector<Work<T>> work;
};

template <typename T>
void descend(const Layer* layers, int64_t n, const Steps& steps) {
  auto every = [&](int64_t from, int64_t by) {
    Walk<T> walk(layers, n, steps);
    for (int64_t client = from; client < steps.clients; client += by) walk.run(client);
  };
  const int64_t count = std::min(steps.threads, steps.clients);
  std::vector<std::thread> others;
  for (int64_t i = 1; i < count; i++) others.emplace_back(every, i, count);
  every(0, count);
  for (auto& thread : others) thread.join();
}

}  // namespace

extern "C" void descend_float32(const Layer* layers, int64_t n, const Steps* steps) { descend<float>(layers, n, *steps); }
extern "C" void descend_float64(const Layer* layers, int64_t n, const Steps* steps) { descend<double>(layers, n, *steps); }
