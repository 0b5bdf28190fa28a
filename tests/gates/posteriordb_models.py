"""The five posteriordb models as NumPy log densities with gradients by hand.

Each takes theta (C, P) float64, the last column of a regression being log sigma (log tau), and
returns lp (C,) and the gradient (C, P), with the Jacobian of the logarithm.
"""

import numpy as np

# Warmup tries steps that are too large: overflow there is data, a rejected proposal.
quiet = np.errstate(all="ignore")


class Regression:
    """y ~ N(X beta, sigma), beta flat or N(0, coefficient_sd), a prior on sigma."""

    def __init__(self, design, y, coefficient_sd=None, sigma_prior=None):
        self.design, self.y = np.asarray(design, float), np.asarray(y, float)
        self.coefficient_sd, self.sigma_prior = coefficient_sd, sigma_prior
        self.dim = self.design.shape[1] + 1

    @quiet
    def __call__(self, theta):
        beta, log_sigma = theta[:, :-1], theta[:, -1]
        variance = np.exp(2 * log_sigma)
        residual = self.y - beta @ self.design.T  # (C, N)
        squares = np.sum(residual**2, axis=1)
        lp = -self.y.size * log_sigma - 0.5 * squares / variance + log_sigma
        grad = np.empty_like(theta)
        grad[:, :-1] = residual @ self.design / variance[:, None]
        grad[:, -1] = -self.y.size + squares / variance + 1
        if self.coefficient_sd is not None:
            lp = lp - 0.5 * np.sum((beta / self.coefficient_sd) ** 2, axis=1)
            grad[:, :-1] -= beta / self.coefficient_sd**2
        kind, scale = self.sigma_prior or (None, 1.0)
        if kind == "half-normal":
            lp = lp - 0.5 * variance / scale**2
            grad[:, -1] -= variance / scale**2
        if kind == "half-Cauchy":
            lp = lp - np.log1p(variance / scale**2)
            grad[:, -1] -= 2 * variance / (scale**2 + variance)
        return lp, grad

    def start(self):
        beta = np.linalg.lstsq(self.design, self.y, rcond=None)[0]
        residual = self.y - self.design @ beta
        return np.append(beta, 0.5 * np.log(np.mean(residual**2)))

    def constrain(self, draws):
        """Draws (..., P) in the order of the reference draws."""
        return np.concatenate([draws[..., :-1], np.exp(draws[..., -1:])], axis=-1)


class EightSchools:
    """theta_trans ~ N(0, 1), mu ~ N(0, 5), tau ~ half-Cauchy(5), y ~ N(mu + tau theta_trans, s)."""

    dim = 10

    def __init__(self, y, sigma):
        self.y, self.sigma = np.asarray(y, float), np.asarray(sigma, float)

    @quiet
    def __call__(self, theta):
        trans, mu, log_tau = theta[:, :8], theta[:, 8], theta[:, 9]
        tau = np.exp(log_tau)
        residual = (self.y - mu[:, None] - tau[:, None] * trans) / self.sigma
        lp = (
            -0.5 * np.sum(trans**2, axis=1)
            - 0.5 * (mu / 5) ** 2
            - np.log1p((tau / 5) ** 2)
            + log_tau
            - 0.5 * np.sum(residual**2, axis=1)
        )
        slope = residual / self.sigma
        grad = np.empty_like(theta)
        grad[:, :8] = -trans + tau[:, None] * slope
        grad[:, 8] = -mu / 25 + np.sum(slope, axis=1)
        grad[:, 9] = 1 - 2 * tau**2 / (25 + tau**2) + tau * np.sum(trans * slope, axis=1)
        return lp, grad

    def start(self):
        return np.append(np.zeros(8), [5.0, 1.0])

    def constrain(self, draws):
        mu, tau = draws[..., 8:9], np.exp(draws[..., 9:10])
        return np.concatenate([mu + tau * draws[..., :8], mu, tau], axis=-1)


def sblrc(d):
    return Regression(d["data_X"], d["data_y"], 10.0, ("half-normal", 10.0))


def kidiq(d):
    hs, iq = d["data_mom_hs"].astype(float), d["data_mom_iq"]
    design = np.column_stack([np.ones(hs.size), hs, iq, hs * iq])
    return Regression(design, d["data_kid_score"], None, ("half-Cauchy", 2.5))


def nes(d):
    age = d["data_age_discrete"]
    columns = [np.ones(age.size), d["data_real_ideo"], d["data_race_adj"]]
    columns += [age == k for k in (2, 3, 4)]
    columns += [d["data_educ1"], d["data_gender"], d["data_income"]]
    return Regression(np.column_stack(columns), d["data_partyid7"])


def ark(d):
    y, order = d["data_y"], int(d["data_K"])
    lags = [y[order - k : y.size - k] for k in range(1, order + 1)]
    design = np.column_stack([np.ones(y.size - order), *lags])
    return Regression(design, y[order:], 10.0, ("half-Cauchy", 2.5))


def eight_schools(d):
    return EightSchools(d["data_y"], d["data_sigma"])


MODELS = {
    "sblrc-blr": sblrc,
    "kidiq-kidscore_interaction": kidiq,
    "nes2000-nes": nes,
    "arK-arK": ark,
    "eight_schools-eight_schools_noncentered": eight_schools,
}
