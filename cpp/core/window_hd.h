#pragma once
// A window that slides over images (height, width, channels); sequences have height 1.

#include <cstdint>

namespace ribbit {

struct Window {
  std::int64_t height, width, channels;
  std::int64_t kernel_height, kernel_width;
  std::int64_t stride_height, stride_width;
  std::int64_t pad_top, pad_left;
  std::int64_t out_height, out_width, out_channels;
  std::int64_t dilation_height, dilation_width;  // cells from tap to tap
  std::int64_t groups;                           // of channels, each on its own

  std::int64_t group_channels() const { return channels / groups; }
  std::int64_t group_outs() const { return out_channels / groups; }
  // of a group's kernel
  std::int64_t weights() const {
    return kernel_height * kernel_width * group_channels() * group_outs();
  }
  std::int64_t sites() const { return out_height * out_width; }
};

}  // namespace ribbit
