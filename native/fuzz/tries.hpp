// What the fuzzers share: dice, samples, what is written when a check fails, and the loop of tries.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace stepscope {

using Dice = std::mt19937_64;

inline size_t draw(Dice& dice, size_t below) { return below ? dice() % below : 0; }

inline std::string failed_input;  // written out when a check fails

inline void check(bool holds, const char* what) {
  if (holds) return;
  std::ofstream("failed_input", std::ios::binary) << failed_input;
  std::fprintf(stderr, "%s; the input is in failed_input\n", what);
  std::abort();
}

// What is in these files, without empty ones.
inline std::vector<std::string> read_samples(int count, char** paths) {
  std::vector<std::string> samples;
  for (int i = 0; i < count; ++i) {
    std::ifstream file(paths[i], std::ios::binary);
    samples.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (samples.back().empty()) samples.pop_back();
  }
  return samples;
}

// SEED SECONDS ITERATIONS: tries until the first of the two limits; 0 is none. Says how many there were.
template <class Try>
long run_tries(char** words, const char* things, const Try& one) {
  const auto seed = std::strtoull(words[0], nullptr, 10);
  const double seconds = std::strtod(words[1], nullptr);
  const long iterations = std::strtol(words[2], nullptr, 10);
  const auto began = std::chrono::steady_clock::now();
  const auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  long done = 0;
  for (; (iterations == 0 || done < iterations) && (seconds <= 0 || spent() < seconds); ++done) {
    Dice dice(seed * 1000003 + static_cast<unsigned long>(done));
    one(dice);
  }
  std::printf("%ld %s in %.1f s, seed %llu: nothing found\n", done, things, spent(), seed);
  return done;
}

// The main function of a fuzzer that needs samples.
template <class Try>
int fuzz_files(int argc, char** argv, const Try& one) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s SEED SECONDS ITERATIONS FILE ...\n", argv[0]);
    return 2;
  }
  const auto samples = read_samples(argc - 4, argv + 4);
  run_tries(argv + 1, "files", [&](Dice& dice) { one(dice, samples); });
  return 0;
}

}  // namespace stepscope
