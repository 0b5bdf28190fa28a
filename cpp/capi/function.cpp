// A log density of the caller's as a target.

#include "capi/target.h"
#include "core/philox_hd.h"
#include "cpu/density/pointer_density.h"
#include "cpu/random.h"

namespace ribbit::capi {
namespace {

class FunctionTarget final : public Target<double> {
 public:
  FunctionTarget(ribbit_log_density function, std::int64_t dim, void* user, bool threadsafe)
      : density_(function, dim, user, threadsafe) {}

  std::int64_t dim() const override { return density_.dim(); }
  void start(std::uint64_t seed, const std::uint32_t* chain_ids, std::int64_t chains,
             double* position) const override {
    cpu::fill_normal({seed, 0, kPurposeInit, 0}, chain_ids, chains, dim(), position);
  }
  bool value_and_grad(const double* theta, std::int64_t chains, const std::int64_t* subset,
                      std::int64_t, double* terms, double* grad, cpu::Poll* poll) const override {
    needs(subset == nullptr, "ribbit_value_and_grad", "no rows of a function");
    std::vector<double> unwanted, lp(static_cast<std::size_t>(chains));
    if (grad == nullptr) unwanted.resize(static_cast<std::size_t>(chains * dim()));
    const bool done = succeeded(density_.evaluate(theta, chains, lp.data(),
                                                  grad != nullptr ? grad : unwanted.data(), poll));
    if (done) one_term(lp.data(), chains, terms);
    return done;
  }
  bool leapfrog(const cpu::Trajectories<double>& all, double* terms,
                cpu::Poll* poll) const override {
    if (!succeeded(density_.leapfrog(all, poll))) return false;
    one_term(all.log_likelihood, all.chains, terms);
    return true;
  }
  std::unique_ptr<Chains<double>> chains(const Kernel& kernel, const Run& run,
                                         const std::string_view* bytes, bool) const override {
    return bytes == nullptr ? make_chains<double>(density_, kernel, run, {})
                            : load_chains<double>(density_, kernel, run, {}, *bytes);
  }
  TargetFacts facts(bool) const override { return {dim(), 1.0, 0.0, {}}; }

 private:
  static void one_term(const double* lp, std::int64_t chains, double* terms) {
    for (std::int64_t c = 0; c < chains; ++c) {
      terms[2 * c] = lp[c];
      terms[2 * c + 1] = 0.0;
    }
  }

  const cpu::PointerDensity density_;
};

}  // namespace
}  // namespace ribbit::capi

using namespace ribbit;
using namespace ribbit::capi;

int ribbit_target_create_function(ribbit_log_density function, int64_t dim, void* user,
                                  int threadsafe, ribbit_target** out) {
  constexpr const char* kName = "ribbit_target_create_function";
  return guarded(kName, [&] {
    needs(function != nullptr && out != nullptr, kName, "a function and a place for the handle");
    needs(dim >= 1 && dim <= std::int64_t{1} << 34, kName, "dim in 1..2^34");
    *out = new ribbit_target{ribbit_target::Of<double>(
        std::make_unique<FunctionTarget>(function, dim, user, threadsafe != 0))};
    return RIBBIT_OK;
  });
}
