// The posterior of a network on the caller's data.

#include <algorithm>
#include <cmath>
#include <optional>

#include "capi/digest.h"
#include "capi/marginal.h"
#include "capi/target.h"
#include "chains/prior_sd.h"
#include "cpu/density/log_density.h"

namespace ribbit::capi {
namespace {

static_assert(static_cast<int>(PriorKind::kHalfCauchy) == RIBBIT_HALF_CAUCHY &&
              Priors::kCount == RIBBIT_HALF_CAUCHY + 1);
static_assert(static_cast<int>(LikelihoodKind::kHeteroscedasticFloored) ==
                  RIBBIT_HETEROSCEDASTIC_FLOORED &&
              Likelihoods::kCount == RIBBIT_HETEROSCEDASTIC_FLOORED + 1);

// Keeps a copy of the scales.
Predictive predictive_of(const ribbit_network* network, LikelihoodKind kind,
                         const LikelihoodParameters& parameters, const Units& units) {
  Predictive found{network, kind, parameters, {}, units};
  if (parameters.scales == nullptr) return found;
  found.scales.assign(parameters.scales, parameters.scales + parameters.noises);
  found.parameters.scales = found.scales.data();
  return found;
}

// Rows in the network's units: the caller's arrays, or copies that the target owns.
template <class T>
struct Data {
  const T *x, *y;
  std::int64_t rows;
  std::vector<T> own_x{}, own_y{};
};

template <class T>
class NetworkTarget final : public Target<T> {
 public:
  NetworkTarget(const ribbit_network& network, std::vector<cpu::PriorSegment> prior,
                LikelihoodKind kind, const LikelihoodParameters& parameters, Data<T> data,
                const cpu::Temperatures& temperatures, std::vector<T> centre, const Units& units,
                std::optional<Marginal> marginal)
      : network_(network),
        centre_(std::move(centre)),
        data_(std::move(data)),
        density_(network_.network, std::move(prior), kind, parameters, data_.x, data_.y, data_.rows,
                 temperatures, false, false, centre_.empty() ? nullptr : centre_.data()),
        predictive_(predictive_of(&network_, kind, parameters, units)) {
    if (!marginal) return;
    marginal_centre_.assign(marginal->mean.begin(), marginal->mean.end());
    marginal_ = std::make_unique<cpu::LogDensity<T>>(
        std::move(marginal->network), std::move(marginal->prior), kind, parameters, data_.x,
        data_.y, data_.rows, temperatures, false, false,
        marginal_centre_.empty() ? nullptr : marginal_centre_.data(), std::move(marginal->last));
  }

  std::int64_t dim() const override { return density_.dim(); }
  void start(std::uint64_t seed, const std::uint32_t* chain_ids, std::int64_t chains,
             T* position) const override {
    std::fill_n(position, chains * dim(), T(0));
    start_network(network_.network, seed, chain_ids, chains, dim(), position);
  }
  bool value_and_grad(const T* theta, std::int64_t chains, const std::int64_t* subset,
                      std::int64_t count, double* terms, T* grad, cpu::Poll* poll) const override {
    for (std::int64_t i = 0; subset != nullptr && i < count; ++i) {
      needs(subset[i] >= 0 && subset[i] < density_.rows(), "ribbit_value_and_grad",
            "numbers of rows in 0..N-1");
    }
    std::vector<double> parts(static_cast<std::size_t>(2 * chains));
    if (!density_.evaluate(theta, chains, subset, count, parts.data(), parts.data() + chains, grad,
                           poll)) {
      return false;
    }
    temper(parts.data(), parts.data() + chains, chains, terms);
    return true;
  }
  bool leapfrog(const cpu::Trajectories<T>& all, double* terms, cpu::Poll* poll) const override {
    if (!density_.leapfrog(all, poll)) return false;
    temper(all.log_likelihood, all.log_prior, all.chains, terms);
    return true;
  }
  bool integrates() const override { return marginal_ != nullptr; }
  std::unique_ptr<Chains<T>> chains(const Kernel& kernel, const Run& run,
                                    const std::string_view* bytes, bool integrated) const override {
    const cpu::LogDensity<T>& density = form(integrated);
    Fingerprint parts = fingerprint();
    if (integrated) parts.emplace_back(kIntegrated, kLastLayer);
    return bytes == nullptr ? make_chains<T>(density, kernel, run, std::move(parts))
                            : load_chains<T>(density, kernel, run, std::move(parts), *bytes);
  }
  TargetFacts facts(bool integrated) const override {
    const cpu::LogDensity<T>& density = form(integrated);
    TargetFacts found{density.dim(), density.temperatures().posterior, 0.0, {}};
    bool shared = true;  // by the weights: the log noise has a prior of its own
    for (const cpu::PriorSegment& segment : density.evaluator().prior()) {
      const double sd = prior_sd(segment.kind, segment.a, segment.b, segment.c);
      if (segment.offset < density.network().dim()) {
        shared = shared && (found.prior_sd.empty() || sd == found.prior_sd.front());
      }
      found.prior_sd.insert(found.prior_sd.end(), static_cast<std::size_t>(segment.size), sd);
    }
    if (shared) found.shared_prior_sd = found.prior_sd.front();
    return found;
  }
  bool advance(const cpu::StochasticSteps& steps, T* theta, std::int64_t chains,
               cpu::StochasticOutcome* outcomes, cpu::Poll* poll) const override {
    needs(steps.batch_rows <= density_.rows(), "ribbit_sgld", "batch_rows in 1..N");
    return density_.advance(steps, theta, nullptr, nullptr, chains, outcomes, poll);
  }
  const Predictive* predictive() const override { return &predictive_; }

 private:
  const cpu::LogDensity<T>& form(bool integrated) const {
    return integrated ? *marginal_ : density_;
  }
  // The parts of the target by which loaded chains recognise it.
  Fingerprint fingerprint() const {
    Digest layers, prior, likelihood, rows;
    for (const Layer& one : network_.network.layers()) {
      const Window& w = one.window;
      layers.add_all(static_cast<int>(one.op), one.in_size, one.out_size, one.weight_offset,
                     one.bias_offset, one.third_offset, one.activation, one.rate, one.input,
                     one.second, one.argument, one.number, w.height, w.width, w.channels,
                     w.kernel_height, w.kernel_width, w.stride_height, w.stride_width, w.pad_top,
                     w.pad_left, w.out_height, w.out_width, w.out_channels, w.dilation_height,
                     w.dilation_width, w.groups);
    }
    for (const cpu::PriorSegment& one : density_.evaluator().prior()) {
      prior.add_all(one.offset, one.size, static_cast<int>(one.kind), one.a, one.b, one.c);
    }
    prior.add(centre_.data(), static_cast<std::int64_t>(centre_.size()));
    const LikelihoodParameters& p = predictive_.parameters;
    const cpu::Temperatures& t = density_.temperatures();
    likelihood.add_all(static_cast<int>(predictive_.kind), p.scale, p.shape, p.noises, t.posterior,
                       t.likelihood);
    for (const double scale :
         predictive_.scales.empty() ? std::vector<double>{p.scale} : predictive_.scales) {
      likelihood.add_all(scale);
    }
    const std::int64_t inputs = network_.network.input_size();
    const std::int64_t columns =
        columns_of(traits_of(predictive_.kind).shape, network_.network.output_size());
    rows.add(data_.x, data_.rows * inputs);
    rows.add(data_.y, data_.rows * columns);
    return {{"scalar type", sizeof(T) == sizeof(float) ? "float32" : "float64"},
            {"layer table", layers.text()},
            {"prior table", prior.text()},
            {"likelihood or temperature", likelihood.text()},
            {"x or y", rows.text()}};
  }
  void temper(const double* likelihood, const double* prior, std::int64_t chains,
              double* terms) const {
    const cpu::Temperatures& t = density_.temperatures();
    for (std::int64_t c = 0; c < chains; ++c) {
      terms[2 * c] = likelihood[c] / (t.likelihood * t.posterior);
      terms[2 * c + 1] = prior[c] / t.posterior;
    }
  }

  const ribbit_network network_;
  const std::vector<T> centre_;
  const Data<T> data_;
  const cpu::LogDensity<T> density_;
  std::vector<T> marginal_centre_;
  std::unique_ptr<const cpu::LogDensity<T>> marginal_;  // null: no layer can be integrated out
  const Predictive predictive_;
};

// A posterior without its data.
template <class T>
class PredictiveTarget final : public Target<T> {
 public:
  PredictiveTarget(const ribbit_network& network, LikelihoodKind kind,
                   const LikelihoodParameters& parameters, const Units& units)
      : network_(network), predictive_(predictive_of(&network_, kind, parameters, units)) {}
  std::int64_t dim() const override {
    return network_.network.dim() + traits_of(predictive_.kind).learned(predictive_.parameters);
  }
  void start(std::uint64_t, const std::uint32_t*, std::int64_t, T*) const override { no_data(); }
  bool value_and_grad(const T*, std::int64_t, const std::int64_t*, std::int64_t, double*, T*,
                      cpu::Poll*) const override {
    no_data();
  }
  bool leapfrog(const cpu::Trajectories<T>&, double*, cpu::Poll*) const override { no_data(); }
  std::unique_ptr<Chains<T>> chains(const Kernel&, const Run&, const std::string_view*,
                                    bool) const override {
    no_data();
  }
  TargetFacts facts(bool) const override { no_data(); }
  const Predictive* predictive() const override { return &predictive_; }

 private:
  [[noreturn]] static void no_data() {
    refuse("ribbit", "a target with data, got one that predicts alone");
  }

  const ribbit_network network_;
  const Predictive predictive_;
};

ribbit_posterior_options default_options() {
  ribbit_posterior_options options{};
  options.size = sizeof options;
  options.scale = options.temperature = options.likelihood_temperature = 1.0;
  options.marginalize = 1;
  return options;
}

constexpr const char* kName = "ribbit_target_create_posterior";

void check_positive(const char* what, double value) {
  if (value > 0.0 && std::isfinite(value)) return;
  refuse(kName, std::string(what) + " > 0 and finite, got " + std::to_string(value));
}

// a, b, c of a prior within its range.
void check_prior(const ribbit_prior& prior) {
  needs(prior.kind >= 0 && prior.kind < Priors::kCount, kName, "a prior kind in 0..7");
  check_positive("a of a prior", prior.a);
  const auto kind = static_cast<PriorKind>(prior.kind);
  const bool mixture = kind == PriorKind::kScaleMixture;
  if (mixture || kind == PriorKind::kStudentT || kind == PriorKind::kGammaPrecision) {
    check_positive("b of a prior", prior.b);
  }
  if (mixture) {
    check_positive("c of a prior", prior.c);
    needs(prior.a < 1.0, kName, "a weight a < 1 of a scale mixture");
  }
}

// y (rows, columns) is what the likelihood can give.
template <class T>
void check_targets(LikelihoodKind kind, const T* y, std::int64_t rows, std::int64_t columns,
                   std::int64_t outputs) {
  check_finite(kName, "y", y, rows, columns);
  const bool labels = kind == LikelihoodKind::kCategorical;
  const bool bits = kind == LikelihoodKind::kBernoulli, counts = kind == LikelihoodKind::kPoisson;
  if (!labels && !bits && !counts) return;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const T v = y[i];
    const bool whole = v >= 0 && std::floor(v) == v;
    if (whole && (!labels || v < static_cast<T>(outputs)) && (!bits || v <= 1)) continue;
    refuse(kName, (labels ? "labels in 0..K-1"
                   : bits ? "0 or 1"
                          : "whole numbers >= 0") +
                      std::string(" in y, got ") + std::to_string(v) + " in row " +
                      std::to_string(i / columns));
  }
}

// The likelihood, with constants in its range and a number of outputs that it can have.
LikelihoodKind checked_likelihood(const ribbit_network& network,
                                  const ribbit_posterior_options& options) {
  needs(options.likelihood >= 0 && options.likelihood < Likelihoods::kCount, kName,
        "a likelihood in 0..8");
  const auto kind = static_cast<LikelihoodKind>(options.likelihood);
  const LikelihoodTraits traits = traits_of(kind);
  needs(options.marginalize == 0 || options.marginalize == 1, kName, "marginalize as 0 or 1");
  check_positive("scale", options.scale);
  check_positive("temperature", options.temperature);
  check_positive("likelihood_temperature", options.likelihood_temperature);
  if (kind == LikelihoodKind::kStudentT || kind == LikelihoodKind::kStudentTLearned) {
    check_positive("shape", options.shape);
  }
  const std::int64_t outputs = network.network.output_size();
  needs(kind != LikelihoodKind::kCategorical || outputs >= 2, kName,
        "at least 2 outputs of a categorical likelihood");
  needs(traits.shape != LikelihoodShape::kMeanAndScale || outputs % 2 == 0, kName,
        "an even number of outputs");
  return kind;
}

// Of a likelihood that is checked.
LikelihoodParameters parameters_of(const ribbit_network& network, LikelihoodKind kind,
                                   const ribbit_posterior_options& options) {
  const LikelihoodTraits traits = traits_of(kind);
  const std::int64_t outputs = network.network.output_size();
  LikelihoodParameters parameters{options.scale, options.shape};
  if (!traits.scales_noise()) return parameters;
  std::int64_t noises = options.num_scales;
  if (noises == 0) noises = traits.learns_noise ? outputs : 1;
  needs(noises == 1 || noises == outputs, kName, "num_scales as 0, 1 or the outputs");
  parameters.noises = static_cast<int>(noises);
  if (traits.learns_noise || options.scales == nullptr) return parameters;
  for (std::int64_t k = 0; k < noises; ++k) check_positive("scales", options.scales[k]);
  parameters.scales = options.scales;
  parameters.scale = options.scales[0];
  return parameters;
}

void check_units(const ribbit_network& network, LikelihoodKind kind, const Units& units) {
  const auto fits = [](const std::vector<double>& values, std::int64_t size) {
    return values.empty() || static_cast<std::int64_t>(values.size()) == size;
  };
  const std::int64_t inputs = network.network.input_size();
  const std::int64_t columns = columns_of(traits_of(kind).shape, network.network.output_size());
  needs(fits(units.x_mean, inputs) && units.x_scale.size() == units.x_mean.size() &&
            fits(units.y_mean, columns) && units.y_scale.size() == units.y_mean.size(),
        kName, "a mean and a scale of each column of the data in the units");
  const LikelihoodTraits traits = traits_of(kind);
  needs(units.y_mean.empty() || traits.scales_noise() ||
            traits.shape == LikelihoodShape::kMeanAndScale,
        kName, "no units of the targets of this likelihood");
  for (const auto* scales : {&units.x_scale, &units.y_scale}) {
    for (const double scale : *scales) check_positive("scales of the units", scale);
  }
}

template <class T>
std::unique_ptr<Target<T>> posterior_of(const ribbit_network& network,
                                        const ribbit_posterior_options& options, const T* x,
                                        const T* y, std::int64_t rows, const Units& units,
                                        std::vector<double> mean) {
  const LikelihoodKind kind = checked_likelihood(network, options);
  const LikelihoodTraits traits = traits_of(kind);
  const LikelihoodParameters parameters = parameters_of(network, kind, options);
  const std::int64_t outputs = network.network.output_size();
  check_rows(kName, network, x, rows);
  needs(y != nullptr, kName, "y, got NULL");
  check_units(network, kind, units);
  Data<T> data{x, y, rows};
  if (!units.x_mean.empty()) {
    data.own_x = units.inputs(x, rows);
    data.x = data.own_x.data();
    check_finite(kName, "standardised x", data.x, rows, network.network.input_size());
  }
  const std::int64_t columns = columns_of(traits.shape, outputs);
  if (!units.y_mean.empty()) {
    check_finite(kName, "y", y, rows, columns);
    data.own_y = units.targets(y, rows);
    data.y = data.own_y.data();
  }
  check_targets(kind, data.y, rows, columns, outputs);

  const std::int64_t dim = network.network.dim() + traits.learned(parameters);
  std::vector<cpu::PriorSegment> prior;
  if (options.prior == nullptr) prior.push_back({0, dim, PriorKind::kNormal, 1.0, 0.0, 0.0});
  for (std::int64_t i = 0; options.prior != nullptr && i < options.num_prior; ++i) {
    const ribbit_prior& one = options.prior[i];
    check_prior(one);
    needs(one.offset >= 0 && one.offset < dim && one.size >= 1 && one.size <= dim, kName,
          "prior segments that cover theta in order");
    prior.push_back({one.offset, one.size, static_cast<PriorKind>(one.kind), one.a, one.b, one.c});
  }
  std::vector<T> centre;
  if (options.centre != nullptr) {
    const T* given = static_cast<const T*>(options.centre);
    check_finite(kName, "centre", given, 1, dim);
    centre.assign(given, given + dim);
    if (mean.empty()) mean.assign(given, given + dim);
    mean.resize(static_cast<std::size_t>(dim));
  }
  std::optional<Marginal> marginal;
  if (options.marginalize != 0) {
    marginal = marginal_of(network, prior, kind, parameters, mean, rows);
  }
  return std::make_unique<NetworkTarget<T>>(
      network, std::move(prior), kind, parameters, std::move(data),
      cpu::Temperatures{options.temperature, options.likelihood_temperature}, std::move(centre),
      units, std::move(marginal));
}

// Returns (rows, columns) of the user in the network's units, computed in float64 as Python does.
template <class T>
std::vector<T> standardized(const T* values, std::int64_t rows, const std::vector<double>& mean,
                            const std::vector<double>& scale) {
  const std::size_t columns = mean.size(), size = static_cast<std::size_t>(rows) * columns;
  std::vector<T> out(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t column = i % columns;
    // The difference of two numbers close to the largest float may overflow.
    const double factor = scale[column] > 0x1p1000 ? 0.25 : 1.0;
    const double shifted = static_cast<double>(values[i]) * factor - mean[column] * factor;
    out[i] = static_cast<T>(shifted / (scale[column] * factor));
  }
  return out;
}

}  // namespace

template <class T>
std::vector<T> Units::inputs(const T* x, std::int64_t rows) const {
  return standardized(x, rows, x_mean, x_scale);
}
template <class T>
std::vector<T> Units::targets(const T* y, std::int64_t rows) const {
  return standardized(y, rows, y_mean, y_scale);
}
template std::vector<float> Units::inputs(const float*, std::int64_t) const;
template std::vector<double> Units::inputs(const double*, std::int64_t) const;

int create_predictive(const ribbit_network& network, const ribbit_posterior_options& options,
                      const Units& units, ribbit_target** out) {
  const LikelihoodKind kind = checked_likelihood(network, options);
  check_units(network, kind, units);
  return for_dtype(kName, options.dtype, [&](auto zero) {
    *out = new ribbit_target{
        ribbit_target::Of<decltype(zero)>(std::make_unique<PredictiveTarget<decltype(zero)>>(
            network, kind, parameters_of(network, kind, options), units))};
    return RIBBIT_OK;
  });
}

int create_standardized(const ribbit_network& network, const ribbit_posterior_options& options,
                        const Units& units, std::vector<double> mean, const void* x, const void* y,
                        std::int64_t rows, ribbit_target** out) {
  return for_dtype(kName, options.dtype, [&](auto zero) {
    using T = decltype(zero);
    *out = new ribbit_target{posterior_of(network, options, static_cast<const T*>(x),
                                          static_cast<const T*>(y), rows, units, std::move(mean))};
    return RIBBIT_OK;
  });
}

}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_posterior_options_init(ribbit_posterior_options* options, size_t size) {
  return init_options("ribbit_posterior_options_init", options, size, default_options());
}

int ribbit_target_create_posterior(const ribbit_network* network,
                                   const ribbit_posterior_options* options, const void* x,
                                   const void* y, int64_t rows, ribbit_target** out) {
  return guarded(kName, [&] {
    needs(network != nullptr && out != nullptr, kName, "a network and a place for the handle");
    const ribbit_posterior_options o = read_options(kName, options, default_options());
    return create_standardized(*network, o, {}, {}, x, y, rows, out);
  });
}
