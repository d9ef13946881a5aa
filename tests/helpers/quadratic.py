"""A quadratic bi-level problem, whose hypergradients have closed forms."""

import torch

import eblvm_lit as eb

ALPHA = 0.3
EIGENVALUES = (0.4, 0.9, 1.4, 1.9, 2.4)


def flat(params):
    return torch.cat([p.flatten() for p in params.values()])


class Quadratic:
    """A bi-level problem with a quadratic upper loss J, and a lower loss G that is quadratic plus a quartic term.

    G = 1/2 r'Hr + quartic/4 sum r^4 with r = phi - B theta - shift_i, for 5 numbers phi and 4 numbers theta.
    """

    def __init__(self, shift=1.0, quartic=0.0):
        orthogonal = torch.linalg.qr(torch.randn(5, 5))[0]
        self.H = orthogonal @ torch.diag(torch.tensor(EIGENVALUES)) @ orthogonal.T
        self.B = torch.randn(5, 4)
        self.R = torch.randn(5, 4)
        self.r = torch.randn(5)
        Q = torch.randn(5, 5)
        P = torch.randn(4, 4)
        self.Q = Q @ Q.T
        self.P = P @ P.T
        self.shift = shift * torch.randn(50, 5)
        self.quartic = quartic
        self.theta = {"t": torch.randn(1, 3), "u": torch.randn(1)}
        self.phi = {"x": torch.randn(2), "y": torch.randn(3, 1)}
        self.draws = []

    def lower(self, theta, phi, i):
        self.draws.append(i)
        r = flat(phi) - self.B @ flat(theta) - self.shift[i]
        return 0.5 * r @ self.H @ r + self.quartic / 4 * r.pow(4).sum()

    def upper(self, theta, phi):
        t = flat(theta)
        f = flat(phi)
        return 0.5 * (f - self.r) @ self.Q @ (f - self.r) + 0.5 * t @ self.P @ t + f @ self.R @ t

    def problem(self, optimizer=None, state=None, lr=ALPHA):
        # The optimizer's rate 99 must have no effect, because the problem has its own learning rate lr.
        optimizer = optimizer or eb.SGD(lr=99.0)
        return eb.BilevelProblem(self.upper, self.lower, optimizer, state or optimizer.init(self.phi), lr)

    def gradient(self, n_steps, inverse):
        """Return the value and the gradient of J after n_steps of gradient descent on G.

        The matrix ``inverse`` takes the place of H^-1 in the gradient.
        """
        t = flat(self.theta)
        f = flat(self.phi)
        for i in range(n_steps):
            f = f - ALPHA * self.H @ (f - self.B @ t - self.shift[i])
        value = self.upper({"": t}, {"": f})
        outer = self.Q @ (f - self.r) + self.R @ t
        return value, self.P @ t + self.R.T @ f + self.B.T @ self.H @ inverse @ outer
