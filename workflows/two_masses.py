"""Two masses between three springs, each in a module that makes steps of its own: two_masses.toml.

::

    wall ─ outer spring ─ left ─ inner spring ─ right ─ outer spring ─ wall

A mass pushes its position after each step, with its time. The force of the inner spring takes the
position of the other one too, at times between its steps: a polynomial through its pushes.

A window of time is repeated until the positions that both have had from each other change no more
(waveform relaxation [1]_). Left begins with the other one where it was at the start of the window;
right has the positions that left has pushed in the same repetition. The result has the order of the
method, as if both were integrated as one.

References
----------
.. [1] Lelarasmee, Ruehli, Sangiovanni-Vincentelli, The waveform relaxation method for time-domain
   analysis of large scale integrated circuits, IEEE Transactions on Computer-Aided Design of
   Integrated Circuits and Systems 1, 1982.
"""

import numpy as np

TOLERANCE = 1e-13  # of the other one's positions, in a repetition


def mass(ctx):
    """Integrate one mass; return its position at the end, and how many windows were computed."""
    options, positions = ctx.options, ctx.boundary("positions")
    # A run that is started again goes on from the last window whose end both have saved.
    saved = ctx.restored or {"windows": 0, "states": [[options["position"], 0.0]]}
    ctx.send(saved["windows"], to=options["partner"])
    first = min(saved["windows"], ctx.recv(options["partner"]))
    state = np.array(saved["states"][first - saved["windows"] - 1])
    positions.push(state[:1], time=options["window"] * first)
    positions.pull_at(options["window"] * first)
    computed = 0
    for window in range(first, options["windows"]):
        # Beginning, middle and end of each step.
        times = options["window"] * np.linspace(window, window + 1, 2 * options["steps"] + 1)
        others = np.full(len(times), positions.read[0][0])
        while True:
            computed += 1
            if not options["leads"]:
                others = positions_at(times, positions, options["degree"])
            reached = integrate(state, others, times, positions, options)
            if options["leads"]:
                before, others = others, positions_at(times, positions, options["degree"])
                change = abs(others - before).max()
                ctx.send(change, to=options["partner"])
            else:
                change = ctx.recv(options["partner"])
            if change < TOLERANCE:
                break
            positions.rewind(times[0])
        states = [*saved["states"][-2:], reached.tolist()]
        saved, state = {"windows": window + 1, "states": states}, reached
        ctx.checkpoint(saved)
    return {"position": float(state[0]), "computed": computed}


def positions_at(times, positions, degree):
    """Return the positions of the other mass; both keep what they may need again."""
    positions.pull_at(times[-1], keep_from=times[0])  # then its whole window is known
    found = []
    for time in times:
        positions.pull_at(time, degree=degree, keep_from=times[0])
        found.append(positions.read[0][0])
    return np.array(found)


def integrate(state, others, times, positions, options):
    """Make the steps of a window by the classical Runge-Kutta method, and push each position."""
    outer, inner = options["outer"] / options["mass"], options["inner"] / options["mass"]

    def slope(state, other):
        return np.array([state[1], inner * (other - state[0]) - outer * state[0]])

    for i in range(0, len(times) - 1, 2):
        dt = times[i + 2] - times[i]
        k1 = slope(state, others[i])
        k2 = slope(state + dt / 2 * k1, others[i + 1])
        k3 = slope(state + dt / 2 * k2, others[i + 1])
        k4 = slope(state + dt * k3, others[i + 2])
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        positions.push(state[:1], time=times[i + 2])
    return state
