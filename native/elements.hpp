// The elements of one array in a JSON document, each as its text, while the document streams by: what has the whole
// document in one object of Python takes ten times its size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stepscope {

class ElementReader {
 public:
  // `key` names the member of the root that is the array.
  explicit ElementReader(std::string key) : key_(std::move(key)) {}

  void feed(std::string_view piece);
  // The stream ended: what is left over is damage.
  void finish();

  // Texts of elements since the last time: where each begins, and all of them one after the other.
  std::vector<int32_t> offsets{0};
  std::vector<char> text;

  std::vector<std::pair<std::string, std::string>> members;  // the other members of the root, as their JSON
  uint64_t elements = 0;
  uint64_t read_bytes = 0;
  std::string trouble;   // why reading ended early; nothing follows it
  uint64_t trouble_at = 0;

 private:
  enum class State { start, key, element, after_element, after_member, done };

  bool step();  // false where more bytes are needed, or nothing is left to do
  bool begin_member();
  bool take_element();
  bool next_is(char one, State then, char other, State otherwise);
  bool fail(std::string why, const char* at);
  bool more();

  std::string key_, buffer_;
  size_t at_ = 0;          // how much of the buffer is used
  uint64_t before_ = 0;    // bytes in front of the buffer
  bool ended_ = false;
  State state_ = State::start;
};

}  // namespace stepscope
