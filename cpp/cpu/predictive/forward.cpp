#include "cpu/predictive/forward.h"

#include <algorithm>
#include <cmath>

#include "core/philox_hd.h"
#include "cpu/system/memory.h"

namespace ribbit::cpu {
namespace {

// Panels of one piece of work: enough to pay for packing the weights.
constexpr std::int64_t kPanelsOfPiece = 64;
// Samples of a panel whose outputs are added up before a thread asks whether to go on.
constexpr std::int64_t kSamplesUnasked = 256;
// With no more rows, samples ride in the lanes: under masks where two of them fit into a panel,
// else where it is faster (measured: break-even at 8 rows).
constexpr std::int64_t kFewMaskedRows = kPanel / 2, kFewRows = 6;

std::int64_t pieces_of(std::int64_t count, std::int64_t size) {
  return (count + size - 1) / size;
}

}  // namespace

template <class T>
Forward<T>::Forward(const Network& network, const WeightSource<T>& source, const Rows<T>& x,
                    std::int64_t rows, std::int64_t samples, Poll* poll, std::int64_t noises)
    : source_(source),
      pass_(make_network_pass<T>(network, source.masked)),
      group_(pass_->group()),
      outputs_(network.output_size()),
      network_dim_(network.dim()),
      noises_(noises),
      fixed_(pass_->prefix().stages),
      width_(pass_->prefix().width),
      cancel_(poll),
      crew_(threads_for(2.0 * static_cast<double>(samples * rows) *
                        static_cast<double>(std::max(network.dim(), network.multiplications())))) {
  if (pass_->large_spaces()) {
    const std::int64_t each = pass_->space_bytes(PassUse::kForward);
    require_memory(each * crew_.size(), workspaces_named(crew_.size(), each) + " for 32 rows");
  }
  spaces_.resize(static_cast<std::size_t>(crew_.size()));
  for (Space& space : spaces_) space.work = pass_->space(PassUse::kForward);
  pass_->take_rows(x, nullptr, rows, x_);
  if (!source.masked) {
    for (Space& space : spaces_) space.packed.resize(pass_->packed_size());
    return;
  }
  packed_.resize(pass_->packed_size());
  pass_->pack(source.theta, false, Part{}, packed_.data());
  for (Space& space : spaces_) space.start.resize(group_ * width_ * kPanel);
}

template <class T>
template <class Body>
bool Forward<T>::on_pieces(std::int64_t pieces, const Body& body) {
  std::atomic<std::int64_t> next{0};
  crew_.run(
      [&](int thread) {
        for (;;) {
          const std::int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
          if (piece >= pieces || cancel_.check()) return;
          body(thread, piece);
        }
      },
      true, &cancel_);
  return !cancel_.cancelled();
}

// The weights of a sample, packed too.
template <class T>
const T* Forward<T>::load_sample(Space& space, std::int64_t sample) {
  const T* theta = nullptr;
  if (source_.mean == nullptr) {
    theta = stored(sample);
  } else {
    Buffer<T>& drawn = source_.scales != nullptr ? space.position : space.theta;
    drawn.resize(source_.dim);
    theta = drawn.data();
    if (sample != space.loaded) {
      kernels<T>().reparameterize(source_.mean, source_.scale, drawn.data(), source_.dim, 0,
                                  source_.seed, counter_step(0), static_cast<std::uint32_t>(sample),
                                  counter_purpose(kPurposeFitDraw, 0, 0));
    }
  }
  if (source_.scales != nullptr) {
    space.theta.resize(source_.dim);
    if (sample != space.loaded) {
      source_.scales->weights(theta, 0, source_.dim, space.theta.data());
    }
    theta = space.theta.data();
  }
  if (sample != space.loaded) pass_->pack(theta, false, Part{}, space.packed.data());
  space.loaded = sample;
  return theta;
}

template <class T>
void Forward<T>::one_sample(Space& space, const Request& r, std::int64_t piece) {
  const KernelTable<T>& k = kernels<T>();
  const std::int64_t runs = pieces_of(panel_count(r.rows), kPanelsOfPiece);
  const std::int64_t sample = piece / runs, begin = piece % runs * kPanelsOfPiece;
  const T* theta = load_sample(space, r.first + sample);
  if (begin == 0) std::copy_n(theta + network_dim_, noises_, r.log_noise + sample * noises_);
  const std::int64_t end = std::min(panel_count(r.rows), begin + kPanelsOfPiece),
                     at = r.row / kPanel;
  for (std::int64_t p = begin; p < end; p += group_) {
    const std::int64_t count = std::min(group_, end - p);
    const T* input = pass_->panels_at(x_, at + p, *space.work);
    const T* f = pass_->forward(theta, space.packed.data(), input, count, nullptr, 0, 0, {},
                                *space.work, cancel_);
    if (f == nullptr) return;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (p + i) * kPanel;
      k.unpack_panel(f + i * outputs_ * kPanel, outputs_, row,
                     static_cast<int>(std::min<std::int64_t>(kPanel, r.rows - row)),
                     r.out + sample * r.rows * outputs_);
    }
    if (cancel_.check()) return;
  }
}

// What the first mask sees of a group of panels; null once cancelled.
template <class T>
const T* Forward<T>::before_masks(Space& space, const T* input, std::int64_t panels) {
  if (fixed_ == 0) return input;
  const T* f = pass_->forward(source_.theta, packed_.data(), input, panels, nullptr, 0, 0,
                              {0, fixed_}, *space.work, cancel_);
  if (f == nullptr) return nullptr;
  std::copy_n(f, panels * width_ * kPanel, space.start.data());
  return space.start.data();
}

// A piece is a group of panels under all masks.
template <class T>
void Forward<T>::all_masks(Space& space, const Request& r, std::int64_t piece) {
  const std::int64_t p = piece * group_, row = p * kPanel;
  const std::int64_t count = std::min(group_, panel_count(r.rows) - p);
  const T* start =
      before_masks(space, pass_->panels_at(x_, r.row / kPanel + p, *space.work), count);
  if (start == nullptr) return;
  for (std::int64_t s = 0; s < r.samples; ++s) {
    Masks masks{source_.seed, 0, static_cast<std::uint32_t>(r.first + s), source_.shared};
    masks.purpose = kPurposePredictiveMask;
    const T* f = pass_->forward(source_.theta, packed_.data(), start, count, &masks,
                                source_.first_row + r.row + row, r.rows - row, {fixed_},
                                *space.work, cancel_);
    if (f == nullptr) return;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = row + i * kPanel;
      kernels<T>().unpack_panel(f + i * outputs_ * kPanel, outputs_, at,
                                static_cast<int>(std::min<std::int64_t>(kPanel, r.rows - at)),
                                r.out + s * r.rows * outputs_);
    }
    if (cancel_.check()) return;
  }
}

// Few rows: lane l of panel p is row (32 p + l) % rows of sample (32 p + l) / rows, the order of
// the outputs.
template <class T>
void Forward<T>::masks_in_lanes(Space& space, const Request& r, std::int64_t piece) {
  const std::int64_t pairs = r.samples * r.rows, begin = piece * group_ * kPanel;
  const std::int64_t count = std::min(group_, panel_count(pairs - begin));
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count * kPanel));
  std::vector<std::uint32_t> samples(rows.size());
  for (std::int64_t j = 0; j < count * kPanel; ++j) {
    const std::int64_t pair = std::min(begin + j, pairs - 1), row = pair % r.rows;
    rows[static_cast<std::size_t>(j)] = source_.first_row + r.row + row;
    samples[static_cast<std::size_t>(j)] = static_cast<std::uint32_t>(r.first + pair / r.rows);
    const T* from = prefix_.data() + row;
    T* to = space.start.data() + j / kPanel * width_ * kPanel + j % kPanel;
    for (std::int64_t u = 0; u < width_; ++u) to[u * kPanel] = from[u * kPanel];
  }
  Masks masks{source_.seed, 0, 0, source_.shared, rows.data()};
  masks.samples = samples.data();
  masks.purpose = kPurposePredictiveMask;
  const T* f = pass_->forward(source_.theta, packed_.data(), space.start.data(), count, &masks, 0,
                              count * kPanel, {fixed_}, *space.work, cancel_);
  if (f == nullptr) return;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = begin + i * kPanel;
    kernels<T>().unpack_panel(f + i * outputs_ * kPanel, outputs_, at,
                              static_cast<int>(std::min<std::int64_t>(kPanel, pairs - at)), r.out);
  }
}

template <class T>
bool Forward<T>::run(std::int64_t first, std::int64_t samples, std::int64_t row, std::int64_t rows,
                     T* out, T* log_noise) {
  const Request r{first, samples, row, rows, out, log_noise};
  const auto space = [&](int thread) -> Space& {
    return spaces_[static_cast<std::size_t>(thread)];
  };
  if (pass_->mlp_plan() != nullptr && !source_.masked && source_.scales == nullptr &&
      rows <= kFewRows && samples >= kPanel / 2) {
    return on_pieces(pieces_of(samples, kPanel),
                     [&](int t, std::int64_t piece) { samples_in_lanes(space(t), r, piece); });
  }
  if (!source_.masked) {
    return on_pieces(samples * pieces_of(panel_count(rows), kPanelsOfPiece),
                     [&](int t, std::int64_t piece) { one_sample(space(t), r, piece); });
  }
  for (std::int64_t s = 0; s < samples; ++s) {
    std::copy_n(source_.theta + network_dim_, noises_, log_noise + s * noises_);
  }
  if (rows > kFewMaskedRows) {
    return on_pieces(pieces_of(panel_count(rows), group_),
                     [&](int t, std::int64_t piece) { all_masks(space(t), r, piece); });
  }
  prefix_.resize(width_ * kPanel);
  const T* input = pass_->panels_at(x_, row / kPanel, *spaces_[0].work);
  const T* start = before_masks(spaces_[0], input, 1);
  if (start == nullptr) return false;
  std::copy_n(start, width_ * kPanel, prefix_.data());
  return on_pieces(pieces_of(panel_count(samples * rows), group_),
                   [&](int t, std::int64_t piece) { masks_in_lanes(space(t), r, piece); });
}

template <class T>
bool predictive_moments(const Network& network, const WeightSource<T>& source, LikelihoodKind kind,
                        const LikelihoodParameters& parameters, std::int64_t samples,
                        const Rows<T>& x, std::int64_t rows, const PredictiveMoments& out,
                        Poll* poll) {
  const KernelTable<T>& k = kernels<T>();
  const LikelihoodTraits traits = traits_of(kind);
  const std::int64_t noises = parameters.noises, learned = traits.learned(parameters);
  Forward<T> forward(network, source, x, rows, samples, poll, learned);
  const std::int64_t outputs = forward.outputs(), own = outputs / noises;
  const LikelihoodConstants constants = likelihood_constants(kind, parameters);
  const std::int64_t wanted = means_of(traits.shape, outputs);
  const std::int64_t extras = traits.classes ? 1 : wanted;
  // Outputs of a block of samples at a block of rows wait here. Weights are loaded once per sample
  // and block of rows, the layers before a mask are done once per row and block of samples: so the
  // blocks take all rows, or under masks as many samples as there are.
  constexpr std::int64_t kWaiting = std::int64_t{1} << 22;
  const std::int64_t most = std::max<std::int64_t>(1, kWaiting / outputs);  // pairs
  const std::int64_t step = forward.group() * kPanel;
  std::int64_t row_block = rows, sample_block = std::clamp<std::int64_t>(most / rows, 1, samples);
  if (source.masked) {
    sample_block = std::clamp<std::int64_t>(most / std::min(rows, step), 1, samples);
    row_block = std::min(rows, std::max<std::int64_t>(1, most / sample_block / step) * step);
  }
  Buffer<T> waiting(sample_block * row_block * outputs);
  std::vector<T> log_noise(static_cast<std::size_t>(learned * sample_block));
  // Of a panel: outputs, values, and the moments.
  struct Scratch {
    Buffer<T> values;
    Buffer<double> moments;
  };
  std::vector<Scratch> scratch(static_cast<std::size_t>(forward.threads()));
  for (Scratch& s : scratch) {
    s.values.resize(2 * outputs * kPanel);
    s.moments.resize(4 * outputs * kPanel);
  }
  for (std::int64_t row = 0; row < rows; row += row_block) {
    const std::int64_t some = std::min(row_block, rows - row);
    for (std::int64_t first = 0; first < samples; first += sample_block) {
      const std::int64_t count = std::min(sample_block, samples - first);
      if (!forward.run(first, count, row, some, waiting.data(), log_noise.data())) return false;
      const bool done = forward.on_pieces(panel_count(some), [&](int thread, std::int64_t p) {
        Scratch& s = scratch[static_cast<std::size_t>(thread)];
        const std::int64_t at = row + p * kPanel, size = outputs * kPanel;
        const int n = static_cast<int>(std::min<std::int64_t>(kPanel, some - p * kPanel));
        double* m = s.moments.data();
        double* const arrays[4] = {out.first, out.sum, out.squares, out.extra};
        const std::int64_t widths[4] = {wanted, wanted, wanted, extras};
        std::fill_n(m, 4 * size, 0.0);
        for (int a = 0; first > 0 && a < 4; ++a) {
          kernels<double>().pack_panel(arrays[a], widths[a], nullptr, at, n, m + a * size);
        }
        for (std::int64_t i = 0; i < count; ++i) {
          if (i % kSamplesUnasked == kSamplesUnasked - 1 && forward.cancelled()) return;
          T* f = s.values.data();
          k.pack_panel(waiting.data() + i * some * outputs, outputs, nullptr, p * kPanel, n, f);
          for (std::int64_t e = 0; e < noises; ++e) {
            const double scale = learned > 0
                                     ? std::exp(static_cast<double>(
                                           log_noise[static_cast<std::size_t>(i * noises + e)]))
                                 : parameters.scales != nullptr ? parameters.scales[e]
                                                                : constants.scale;
            double* const to = m + e * own * kPanel;
            T* const from = f + e * own * kPanel;
            k.moments_panel(kind, constants, from, static_cast<int>(own), scale, first + i == 0,
                            from + size, to, to + size, to + 2 * size, to + 3 * size);
          }
        }
        for (int a = 0; a < 4; ++a) {
          kernels<double>().unpack_panel(m + a * size, widths[a], at, n, arrays[a]);
        }
      });
      if (!done) return false;
    }
  }
  return true;
}

#define RIBBIT_INSTANTIATE(T)                                                                 \
  template class Forward<T>;                                                                  \
  template bool predictive_moments(const Network&, const WeightSource<T>&, LikelihoodKind,    \
                                   const LikelihoodParameters&, std::int64_t, const Rows<T>&, \
                                   std::int64_t, const PredictiveMoments&, Poll*);
RIBBIT_INSTANTIATE(float)
RIBBIT_INSTANTIATE(double)
#undef RIBBIT_INSTANTIATE

}  // namespace ribbit::cpu
