// The passes over all pairs of the tutorial's Brain, by hand, with vectors of 512 bits. Prints microseconds a step.
//
// Only these passes: no somas, no spiker, no integrator, no exchange. A quarter of the neurons has spiked.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

constexpr int kLanes = 16, kSteps = 8, kRounds = 3000;

template <class T>
static T* made(size_t size) {
  return (T*)aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64);
}

struct Population {
  int units, inputs;
  uint16_t *kernel, *target;  // float16, (units, inputs)
  uint8_t *delays, *spiked;   // (units, inputs), (units,)
  uint32_t* history;          // of each input
  float *sign, *past, *current;

  Population(int units, int inputs)
      : units(units),
        inputs(inputs),
        kernel(made<uint16_t>(units * inputs)),
        target(made<uint16_t>(units * inputs)),
        delays(made<uint8_t>(units * inputs)),
        spiked(made<uint8_t>(units)),
        history(made<uint32_t>(inputs)),
        sign(made<float>(inputs)),
        past(made<float>(kSteps * inputs)),
        current(made<float>(units)) {
    for (int pair = 0; pair < units * inputs; pair++) {
      kernel[pair] = 0x3800 + rand() % 256;  // 0.5 and a little more
      target[pair] = 0x3000;                 // 0.125
      delays[pair] = 1 + rand() % kSteps;
    }
    for (int unit = 0; unit < units; unit++) spiked[unit] = rand() % 4 == 0;
    for (int input = 0; input < inputs; input++) history[input] = rand() & rand(), sign[input] = 1;
    for (int trace = 0; trace < kSteps * inputs; trace++) past[trace] = 0.01f;
  }
};

static inline __m512 load(const uint16_t* from) { return _mm512_cvtph_ps(_mm256_load_si256((const __m256i*)from)); }
static inline void store(uint16_t* to, __m512 values) {
  _mm256_store_si256((__m256i*)to, _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
}
static inline __m512i load_delays(const uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i*)from));
}
static inline __mmask16 arrived(__m512i delays, const uint32_t* history) {
  __m512i places = _mm512_sub_epi32(_mm512_set1_epi32(32), delays);
  return _mm512_movepi32_mask(_mm512_sllv_epi32(_mm512_load_si512(history), places));
}

static void current_of(Population& p, int row) {
  const uint16_t* kernel = p.kernel + row * p.inputs;
  const uint8_t* delays = p.delays + row * p.inputs;
  __m512 sums[4] = {};
  for (int start = 0; start < p.inputs; start += 4 * kLanes)
    for (int part = 0; part < 4; part++) {
      int at = start + part * kLanes;
      __mmask16 here = arrived(load_delays(delays + at), p.history + at);
      sums[part] = _mm512_mask3_fmadd_ps(load(kernel + at), _mm512_load_ps(p.sign + at), sums[part], here);
    }
  p.current[row] = _mm512_reduce_add_ps((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <bool has_spiked>
static void change(Population& p, int row) {
  uint16_t *kernel = p.kernel + row * p.inputs, *target = p.target + row * p.inputs;
  const uint8_t* delays = p.delays + row * p.inputs;
  const __m512 on_arrival = _mm512_set1_ps(0.01f), triplet = _mm512_set1_ps(0.001f), pull = _mm512_set1_ps(-0.001f);
  for (int at = 0; at < p.inputs; at += kLanes) {
    __m512 t = load(target + at), k = load(kernel + at);
    // e T + (K - p T (1/4 - T) (1/2 - T)) / tau with tau 20,000 and p 20, as a polynomial of T
    t = ((-0.001f * t + 0.00075f) * t + 0.99982f) * t + 0.00005f * k;
    store(target + at, t);
    __m512i steps = load_delays(delays + at);
    __m512 after = _mm512_mask_add_ps(k, arrived(steps, p.history + at), k, on_arrival);
    if (has_spiked) {
      __m512 trace = _mm512_load_ps(p.past + at);
      for (int ago = 1; ago < kSteps; ago++) {
        __mmask16 here = _mm512_cmpeq_epi32_mask(steps, _mm512_set1_epi32(ago + 1));
        trace = _mm512_mask_load_ps(trace, here, p.past + ago * p.inputs + at);
      }
      after += triplet * trace + pull * (k - t);
    }
    store(kernel + at, _mm512_max_ps(after, _mm512_setzero_ps()));
  }
}

// Both passes over a share of the rows of every population; all shares wait for each other after each pass.
static void step(std::vector<Population>& brain, int share, int shares, std::atomic<int>& arrivals, int& expected) {
  auto wait = [&] {
    arrivals++;
    for (expected += shares; arrivals < expected;) _mm_pause();
  };
  for (Population& p : brain)
    for (int row = share * p.units / shares; row < (share + 1) * p.units / shares; row++) current_of(p, row);
  wait();
  for (Population& p : brain)
    for (int row = share * p.units / shares; row < (share + 1) * p.units / shares; row++)
      p.spiked[row] ? change<true>(p, row) : change<false>(p, row);
  wait();
}

static double microseconds(int shares) {
  std::vector<Population> brain{{256, 832}, {64, 256}, {256, 832}, {64, 256}};
  std::vector<double> spent;
  std::atomic<int> arrivals{0};
  auto run = [&](int share) {
    int expected = 0;
    for (int round = 0; round < kRounds; round++) {
      auto start = std::chrono::steady_clock::now();
      step(brain, share, shares, arrivals, expected);
      std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
      if (share == 0) spent.push_back(took.count());
    }
  };
  std::vector<std::thread> others;
  for (int share = 1; share < shares; share++) others.emplace_back(run, share);
  run(0);
  for (std::thread& other : others) other.join();
  std::nth_element(spent.begin(), spent.begin() + kRounds / 2, spent.end());
  return spent[kRounds / 2];
}

int main() { printf("%f %f\n", microseconds(1), microseconds(2)); }
