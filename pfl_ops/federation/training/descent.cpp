// SGD and Adam on the mean cross-entropy of fully connected networks: all steps of some clients in one call.
//
// A client's weights stay in the processor's cache for all its steps. All matrices are copied into rows that are
// padded with zeros to whole vectors and whole blocks, so that no product has an edge. Clients do not depend on one
// another, nor does a client's result depend on which thread computes it.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

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
  const void* offset;  // see `keep`; in the shape of the values; null: 0
  int64_t offset_stride;
  void *first, *second;  // moments, in the shape of the values; null: the optimiser has none
};

struct Layer {
  int64_t in, out, relu;
  Leaf weight, bias;  // [out, in] and [out]; without a bias its values are null
};

enum Optimiser : int64_t { PLAIN, MOMENTUM, ADAM };

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
  const void* keep;    // [clients]: keep · values + offset replaces the values before a plain step, and joins the
                       // gradient of any other; null: no such terms
  void* losses;        // [count, clients, batch]
  double rate;
  int64_t optimiser, taken;  // taken: steps before the first of these
  double first_decay, second_decay, eps;  // momentum, or Adam's β₁, β₂ and ε
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

  // The sums of n vectors' elements. In float32 with AVX-512 those of 16 vectors at once, in four steps: each adds the
  // halves of some, side by side, so that half as many vectors are left.
  static void sums(const Vector* v, int64_t n, T* to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4)
      for (; i + 16 <= n; i += 16) {
        __m512 q[4];  // vector i + 4 m + k of the 16 is in quarter m of q[k], as four numbers
        for (int k = 0; k < 4; k++) {
          const __m512 a(v[i + k]), b(v[i + 4 + k]), c(v[i + 8 + k]), d(v[i + 12 + k]);
          const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
          const __m512 cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
          q[k] = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
        }
        const __m512 lower = _mm512_shuffle_ps(q[0], q[1], 0x88) + _mm512_shuffle_ps(q[0], q[1], 0xdd);
        const __m512 upper = _mm512_shuffle_ps(q[2], q[3], 0x88) + _mm512_shuffle_ps(q[2], q[3], 0xdd);
        _mm512_storeu_ps(to + i, _mm512_shuffle_ps(lower, upper, 0x88) + _mm512_shuffle_ps(lower, upper, 0xdd));
      }
#endif
    for (; i < n; i++) to[i] = sum(v[i]);
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
        T total[ROWS * COLUMNS];
        sums(block[0], ROWS * COLUMNS, total);
        for (int64_t r = 0; r < ROWS; r++)
          for (int64_t c = 0; c < COLUMNS; c++) z[(b + r) * z_wide + o + c] = total[r * COLUMNS + c];
      }
  }

  // Where products are added: to `to` itself.
  struct Sum {
    T* to;
    Vector start(int64_t i) const { return at(to + i); }
    void end(int64_t i, const Vector& sum) const { at(to + i) = sum; }
  };

  // Where products are kept without what was there.
  struct Set : Sum {
    Vector start(int64_t) const { return Vector{}; }
  };

  // Adds Σ_k a[k, r] from[k] to R rows of N vectors; element [k, r] of a is a[k * a_k + r * a_r]. The target gives the
  // vector at an index to start from, and takes the sum.
  template <int R, int N, typename Target>
  static void add_block(const Target& target, int64_t index, int64_t wide, const T* a, int64_t a_k, int64_t a_r, const T* from, int64_t from_wide, int64_t depth) {
    Vector block[R][N];
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) block[r][n] = target.start(index + r * wide + n * LANES);
    for (int64_t k = 0; k < depth; k++) {
      Vector x[N];
      for (int n = 0; n < N; n++) x[n] = at(from + k * from_wide + n * LANES);
      for (int r = 0; r < R; r++) {
        T factor = a[k * a_k + r * a_r];
        for (int n = 0; n < N; n++) block[r][n] += factor * x[n];
      }
    }
    for (int r = 0; r < R; r++)
      for (int n = 0; n < N; n++) target.end(index + r * wide + n * LANES, block[r][n]);
  }

  // The same for all rows, a multiple of R, and `columns`, a multiple of LANES.
  template <int R, typename Target>
  static void add(const Target& target, int64_t wide, const T* a, int64_t a_k, int64_t a_r, const T* from, int64_t from_wide, int64_t depth, int64_t rows, int64_t columns) {
    int64_t vectors = columns / LANES;
    for (int64_t v = 0; v < vectors; v += VECTORS)
      for (int64_t r = 0; r < rows; r += R) {
        const int64_t index = r * wide + v * LANES;
        const T *f = a + r * a_r, *x = from + v * LANES;
        switch (std::min(VECTORS, vectors - v)) {
          case 1: add_block<R, 1>(target, index, wide, f, a_k, a_r, x, from_wide, depth); break;
          case 2: add_block<R, 2>(target, index, wide, f, a_k, a_r, x, from_wide, depth); break;
          case 3: add_block<R, 3>(target, index, wide, f, a_k, a_r, x, from_wide, depth); break;
          default: add_block<R, VECTORS>(target, index, wide, f, a_k, a_r, x, from_wide, depth);
        }
      }
  }
};

// A step of an optimiser with moments, as `after` in optim.py has it; V: a vector, or one number.
template <typename T>
struct Rule {
  using P = Products<T>;
  using Vector = typename P::Vector;
  bool adam;
  T first_decay, second_decay, eps, rate, scale;  // rate, scale: corrected for the moments' start at 0

  Rule(const Steps& steps, int64_t count) : adam(steps.optimiser == ADAM), first_decay(T(steps.first_decay)), second_decay(T(steps.second_decay)), eps(T(steps.eps)) {
    rate = T(adam ? steps.rate / (1 - std::pow(steps.first_decay, count)) : steps.rate);
    scale = T(adam ? 1 / std::sqrt(1 - std::pow(steps.second_decay, count)) : 1);
  }

  // first / (√second scale + ε)
  T ratio(T first, T second) const { return first / (std::sqrt(second) * scale + eps); }
  Vector ratio(const Vector& first, const Vector& second) const {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) {  // two estimates and a Newton step each: within 5 units in the last place, by division 3
      const __m512 v = _mm512_min_ps(_mm512_set1_ps(FLT_MAX), _mm512_max_ps(_mm512_set1_ps(FLT_MIN), __m512(second)));
      const __m512 y = _mm512_rsqrt14_ps(v), vy = v * y;
      const __m512 below = vy * (1.5f - 0.5f * vy * y) * scale + eps;
      const __m512 inverse = _mm512_rcp14_ps(below);
      return Vector(__m512(first) * (inverse * (2.0f - below * inverse)));
    }
#endif
    T roots[P::LANES];
    std::memcpy(roots, &second, BYTES);
    for (T& root : roots) root = std::sqrt(root);
    Vector below;
    std::memcpy(&below, roots, BYTES);
    return first / (below * scale + eps);
  }

  template <typename V>
  void momentum(V& w, V& first, const V& g) const {
    first = first_decay * first + g;
    w -= rate * first;
  }

  template <typename V>
  void adaptive(V& w, V& first, V& second, const V& g) const {
    first = first_decay * first + (1 - first_decay) * g;
    second = second_decay * second + (1 - second_decay) * g * g;
    w -= rate * ratio(first, second);
  }

  // A parameter and its moments, which a step changes; terms: what joins the gradient, null for nothing.
  struct Target {
    const Rule& rule;
    T *w, *first, *second;
    const T* terms;

    Vector start(int64_t i) const { return terms ? P::at(terms + i) : Vector{}; }
    void end(int64_t i, const Vector& g) const {
      if (rule.adam) rule.adaptive(P::at(w + i), P::at(first + i), P::at(second + i), g);
      else rule.momentum(P::at(w + i), P::at(first + i), g);
    }
    void end(int64_t i, T g) const {
      if (rule.adam) rule.adaptive(w[i], first[i], second[i], g);
      else rule.momentum(w[i], first[i], g);
    }
  };
};

// One layer of the client at work: padded copies of its parameters, its inputs h and the gradient d of its outputs.
template <typename T>
struct Work {
  using P = Products<T>;
  const Layer& layer;
  int64_t wide, tall, d_wide;  // padded: a row of w and h, rows of w, a row of d
  Buffer<T> w, b, h, d;
  bool has_first, has_second;  // moments, of weight and bias; and what joins their gradients
  Buffer<T> w_first, w_second, w_terms, b_first, b_second, b_terms;

  Work(const Layer& layer, bool first, int64_t rows, const Steps& steps)
      : layer(layer),
        wide(padded(first ? layer.in : padded(layer.in, COLUMNS), P::LANES)),
        tall(padded(layer.out, COLUMNS)),
        d_wide(padded(layer.out, COLUMNS * P::LANES)),
        w(tall * wide), b(d_wide), h(rows * wide), d(rows * d_wide),
        has_first(steps.optimiser != PLAIN), has_second(steps.optimiser == ADAM),
        w_first(has_first * tall * wide), w_second(has_second * tall * wide), w_terms(has_first * tall * wide),
        b_first(has_first * d_wide), b_second(has_second * d_wide), b_terms(has_first * d_wide) {}

  int64_t in() const { return padded(layer.in, P::LANES); }

  void load(int64_t client) {
    read(values(layer.weight, client), w);
    if (layer.bias.values) std::memcpy(b, values(layer.bias, client), layer.out * sizeof(T));
    if (layer.weight.moves && has_first) read(moment(layer.weight.first, client, layer.in), w_first);
    if (layer.weight.moves && has_second) read(moment(layer.weight.second, client, layer.in), w_second);
    if (layer.bias.moves && has_first) std::memcpy(b_first, moment(layer.bias.first, client, 1), layer.out * sizeof(T));
    if (layer.bias.moves && has_second) std::memcpy(b_second, moment(layer.bias.second, client, 1), layer.out * sizeof(T));
  }

  void store(int64_t client) const {
    if (layer.weight.moves) write(w, values(layer.weight, client));
    if (layer.bias.moves) std::memcpy(values(layer.bias, client), b, layer.out * sizeof(T));
    if (layer.weight.moves && has_first) write(w_first, moment(layer.weight.first, client, layer.in));
    if (layer.weight.moves && has_second) write(w_second, moment(layer.weight.second, client, layer.in));
    if (layer.bias.moves && has_first) std::memcpy(moment(layer.bias.first, client, 1), b_first, layer.out * sizeof(T));
    if (layer.bias.moves && has_second) std::memcpy(moment(layer.bias.second, client, 1), b_second, layer.out * sizeof(T));
  }

  // keep w + offset, in place of w, or as what joins the gradient
  void apply_terms(int64_t client, T keep) {
    if (layer.weight.moves) terms(layer.weight, client, keep, w, has_first ? w_terms : w, wide, layer.out, layer.in);
    if (layer.bias.moves) terms(layer.bias, client, keep, b, has_first ? b_terms : b, 0, 1, layer.out);
  }

  // Plain: w += dᵀ h and b += Σ d, where d is −η times the gradient.
  void descend(int64_t batch) {
    if (layer.weight.moves)
      P::template add<COLUMNS>(typename P::Sum{w}, wide, d, d_wide, 1, h, wide, batch, tall, in());
    if (layer.bias.moves)
      for (int64_t n = 0; n < batch; n++)
        for (int64_t o = 0; o < layer.out; o++) b[o] += d[n * d_wide + o];
  }

  // A step with moments by the gradients dᵀ h and Σ d, and the terms that join them.
  void descend(int64_t batch, const Rule<T>& rule, bool terms) {
    using Target = typename Rule<T>::Target;
    if (layer.weight.moves)
      P::template add<COLUMNS>(Target{rule, w, w_first, w_second, terms ? static_cast<T*>(w_terms) : nullptr}, wide, d, d_wide, 1, h, wide, batch, tall, in());
    if (layer.bias.moves) {
      const Target target{rule, b, b_first, b_second, nullptr};
      for (int64_t o = 0; o < layer.out; o++) {
        T g = terms ? b_terms[o] : T(0);
        for (int64_t n = 0; n < batch; n++) g += d[n * d_wide + o];
        target.end(o, g);
      }
    }
  }

 private:
  static T* values(const Leaf& leaf, int64_t client) { return static_cast<T*>(leaf.values) + client * leaf.stride; }
  T* moment(void* of, int64_t client, int64_t columns) const { return static_cast<T*>(of) + client * layer.out * columns; }

  // Rows of a weight [out, in] into padded ones. Zeros again in the padding: NaN after a client that diverged.
  void read(const T* from, T* to) const {
    for (int64_t o = 0; o < layer.out; o++) {
      std::memcpy(to + o * wide, from + o * layer.in, layer.in * sizeof(T));
      std::memset(to + o * wide + layer.in, 0, (wide - layer.in) * sizeof(T));
    }
    std::memset(to + layer.out * wide, 0, (tall - layer.out) * wide * sizeof(T));
  }

  void write(const T* from, T* to) const {
    for (int64_t o = 0; o < layer.out; o++) std::memcpy(to + o * layer.in, from + o * wide, layer.in * sizeof(T));
  }

  static void terms(const Leaf& leaf, int64_t client, T keep, const T* from, T* to, int64_t wide, int64_t rows, int64_t columns) {
    const T* offset = static_cast<const T*>(leaf.offset);
    if (offset) offset += client * leaf.offset_stride;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t i = 0; i < columns; i++)
        to[r * wide + i] = keep * from[r * wide + i] + (offset ? offset[r * columns + i] : T(0));
  }
};

template <typename T>
class Walk {
  using P = Products<T>;

 public:
  Walk(const Layer* layers, int64_t n, const Steps& steps)
      : steps(steps), rows(padded(steps.batch, ROWS)), z_wide(padded(layers[n - 1].out, COLUMNS)), z(rows * z_wide) {
    for (int64_t l = 0; l < n; l++) work.emplace_back(layers[l], l == 0, rows, steps);
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
      backward(client, j);
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

  // Losses, and the gradient of the scores; where a step is plain, −η times it.
  void cross_entropy(const int64_t* samples, int64_t at) {
    Work<T>& a = work.back();
    const int64_t classes = a.layer.out;
    const T* share = static_cast<const T*>(steps.share);
    const T scale = steps.optimiser == PLAIN ? T(-steps.rate) : T(1);
    for (int64_t b = 0; b < steps.batch; b++) {
      const T* scores = z + b * z_wide;
      T* d = a.d + b * a.d_wide;
      const int64_t y = steps.y[samples[b]];
      T largest = scores[0], total = 0;
      for (int64_t o = 1; o < classes; o++) largest = std::max(largest, scores[o]);
      for (int64_t o = 0; o < classes; o++) total += d[o] = std::exp(scores[o] - largest);
      const T step = scale * (share ? share[at + b] : T(1) / T(steps.batch));
      for (int64_t o = 0; o < classes; o++) d[o] *= step / total;
      d[y] -= step;
      static_cast<T*>(steps.losses)[at + b] = std::log(total) + largest - scores[y];
    }
  }

  void backward(int64_t client, int64_t step) {
    const T* keep = static_cast<const T*>(steps.keep);
    const Rule<T> rule(steps, steps.taken + step + 1);
    for (int64_t l = int64_t(work.size()) - 1; l >= first; l--) {
      Work<T>& a = work[l];
      if (l > first) {  // before the weight moves
        Work<T>& under = work[l - 1];
        P::template add<ROWS>(typename P::Set{{under.d}}, under.d_wide, a.d, 1, a.d_wide, a.w, a.wide, a.layer.out, rows, a.in());
        if (under.layer.relu)
          for (int64_t b = 0; b < steps.batch; b++) {
            const T* h = a.h + b * a.wide;
            T* d = under.d + b * under.d_wide;
            for (int64_t i = 0; i < a.layer.in; i++) d[i] = h[i] <= 0 ? T(0) : d[i];
          }
      }
      if (keep) a.apply_terms(client, keep[client]);
      if (steps.optimiser == PLAIN) a.descend(steps.batch);
      else a.descend(steps.batch, rule, keep != nullptr);
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
