// Nodes of a Chakra execution trace in protobuf, each written as the JSON that the same trace would have: messages with
// their length in front, a header first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepscope {

class ChakraReader {
 public:
  void feed(std::string_view piece);
  // The stream ended: what is left over is damage.
  void finish();

  // Texts of nodes since the last time: where each begins, and all of them one after the other.
  std::vector<int32_t> offsets{0};
  std::vector<char> text;

  std::string header;  // what the first message says, as JSON; empty before it came
  uint64_t elements = 0;
  uint64_t read_bytes = 0;
  uint64_t damaged = 0;  // messages that could not be read, and were left out
  std::string trouble;   // why reading ended early; nothing follows it
  uint64_t trouble_at = 0;

 private:
  void take(std::string_view message);
  void fail(const char* why);

  std::string buffer_;
  size_t at_ = 0;
  uint64_t before_ = 0;
  bool saw_header_ = false;
};

}  // namespace stepscope
