// Posteriors from the JSON that Posterior.describe() gives and that is saved with draws: its entry
// "tables" is what the network and the prior were compiled to.

#include <bit>

#include "capi/json.h"
#include "capi/target.h"
#include "core/network.h"

namespace ribbit::capi {
namespace {

constexpr const char* kName = "ribbit_target_create_json";

// Where in ribbit_layer a column of the table goes; null: a column of a newer version.
std::int64_t* place_of(ribbit_layer& row, std::string_view column) {
  const std::pair<std::string_view, std::int64_t*> places[] = {
      {"op", &row.op},
      {"in_size", &row.in_size},
      {"out_size", &row.out_size},
      {"weight", &row.weight},
      {"bias", &row.bias},
      {"third", &row.third},
      {"argument", &row.argument},
      {"index", &row.index},
      {"input", &row.input},
      {"second", &row.second},
      {"height", &row.height},
      {"width", &row.width},
      {"channels", &row.channels},
      {"kernel_height", &row.kernel_height},
      {"kernel_width", &row.kernel_width},
      {"stride_height", &row.stride_height},
      {"stride_width", &row.stride_width},
      {"pad_top", &row.pad_top},
      {"pad_left", &row.pad_left},
      {"out_height", &row.out_height},
      {"out_width", &row.out_width},
      {"out_channels", &row.out_channels},
      {"dilation_height", &row.dilation_height},
      {"dilation_width", &row.dilation_width}};
  for (const auto& [name, place] : places) {
    if (name == column) return place;
  }
  return nullptr;
}

std::vector<ribbit_layer> layers_of(const Json& tables) {
  const std::vector<Json>&columns = tables.at("columns").items(),
        &rows = tables.at("layers").items(), &rates = tables.at("rates").items();
  needs(rates.size() == rows.size(), kName, "a rate for each layer in a description");
  std::vector<ribbit_layer> layers(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    ribbit_layer_init(&layers[r], sizeof(ribbit_layer));
    const std::vector<Json>& values = rows[r].items();
    needs(values.size() == columns.size(), kName, "a number for each column in a description");
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::int64_t value = values[i].whole();
      if (columns[i].text() == "number") {
        layers[r].number = std::bit_cast<double>(value);
        continue;
      }
      std::int64_t* place = place_of(layers[r], columns[i].text());
      if (place == nullptr) refuse(kName, "a known column, got " + columns[i].text());
      *place = value;
    }
    layers[r].rate = rates[r].number();
  }
  return layers;
}

std::vector<ribbit_prior> prior_of(const Json& tables) {
  std::vector<ribbit_prior> prior;
  for (const Json& row : tables.at("prior").items()) {
    const std::vector<Json>& v = row.items();
    needs(v.size() == 6, kName, "6 numbers of a prior in a description");
    prior.push_back(
        {v[0].whole(), v[1].whole(), v[2].whole(), v[3].number(), v[4].number(), v[5].number()});
  }
  return prior;
}

// Appends the numbers of lists in lists in C order.
void flatten(const Json& values, std::vector<double>& to) {
  if (!values.is_list()) return to.push_back(values.number());
  for (const Json& value : values.items()) flatten(value, to);
}

// Returns the numbers of an entry, none if it is null.
std::vector<double> numbers_of(const Json& units, const char* name) {
  std::vector<double> numbers;
  if (const Json& values = units.at(name); !values.is_null()) flatten(values, numbers);
  return numbers;
}

Units units_of(const Json& description) {
  const Json* units = description.find("units");
  if (units == nullptr) return {};
  return {numbers_of(*units, "x_mean"), numbers_of(*units, "x_scale"), numbers_of(*units, "y_mean"),
          numbers_of(*units, "y_scale")};
}

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_network_create_json(const char* json, ribbit_network** out) {
  constexpr const char* kFunction = "ribbit_network_create_json";
  return guarded(kFunction, [&] {
    needs(json != nullptr && out != nullptr, kFunction, "a description and a place for the handle");
    *out = make_network(layers_of(Json::parse(json).at("tables"))).release();
    return RIBBIT_OK;
  });
}

int ribbit_target_create_json(const char* json, int dtype, const void* x, const void* y,
                              int64_t rows, ribbit_target** out) {
  return guarded(kName, [&] {
    needs(json != nullptr && out != nullptr, kName, "a description and a place for the handle");
    const Json given = Json::parse(json);
    needs(given.find("learned_scales") == nullptr, kName, "known scales of weights");
    needs(given.find("dropout") == nullptr, kName, "a posterior without dropout masks");
    ribbit_posterior_options options;
    ribbit_posterior_options_init(&options, sizeof options);
    options.dtype = given.at("dtype").text() == "float64" ? RIBBIT_FLOAT64 : RIBBIT_FLOAT32;
    if (dtype != options.dtype) refuse(kName, "the dtype " + given.at("dtype").text());
    const Json& tables = given.at("tables");
    const std::vector<Json>& likelihood = tables.at("likelihood").items();
    needs(likelihood.size() >= 3, kName, "3 numbers of a likelihood in a description");
    options.likelihood =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(likelihood[0].whole(), -1, 1 << 20));
    options.scale = likelihood[1].number();
    options.shape = likelihood[2].number();
    std::vector<double> scales;
    for (std::size_t k = 3; k < likelihood.size(); ++k) scales.push_back(likelihood[k].number());
    options.num_scales = std::max<std::int64_t>(1, static_cast<std::int64_t>(scales.size()));
    options.scales = scales.empty() ? nullptr : scales.data();
    options.temperature = given.at("temperature").number();
    options.likelihood_temperature = given.at("likelihood_temperature").number();
    const std::vector<ribbit_prior> prior = prior_of(tables);
    options.prior = prior.data();
    options.num_prior = static_cast<std::int64_t>(prior.size());

    const Units units = units_of(given);

    const std::unique_ptr<ribbit_network> network = make_network(layers_of(tables));
    return for_dtype(kName, dtype, [&](auto zero) {
      using T = decltype(zero);
      std::vector<T> centre;
      std::vector<double> exact;
      if (const Json* means = tables.find("centre"); means != nullptr) {
        for (const Json& mean : means->items()) centre.push_back(static_cast<T>(mean.number()));
        const std::int64_t dim = network->network.dim();  // learned noises are more
        needs(static_cast<std::int64_t>(centre.size()) >= dim, kName, "a mean of each parameter");
        centre.resize(static_cast<std::size_t>(dim + options.num_scales));
        options.centre = centre.data();
        for (const Json& mean : means->items()) exact.push_back(mean.number());
        exact.resize(centre.size());
      }
      if (rows == 0 && x == nullptr && y == nullptr) {
        return create_predictive(*network, options, units, out);
      }
      return create_standardized(*network, options, units, std::move(exact), x, y, rows, out);
    });
  });
}
